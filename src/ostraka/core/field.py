"""Arithmetic modulo the Mersenne prime p = 2^31 - 1, exact, on arrays of residues.

A residue is a uint32 in 0 ... p - 1. Sums and differences of two fit in 32 bits, so one conditional
correction reduces them: for unsigned x, min(x, x - p) is x - p where x >= p and x elsewhere,
because the difference wraps to a huge number where it would be negative.

Products are exact in float64. Each residue is cut as x = 2^16 h + l, h < 2^15 and l < 2^16, and

    x y = 2^32 h h' + 2^16 (h l' + l h') + l l',    h l' + l h' = (h + l)(h' + l') - h h' - l l'

so three real matrix products make one modular product. Their terms stay below 2^34: sums of 2^19 of
them are integers below 2^53, which float64 holds exactly in any order in which BLAS adds them.

The modulus is an argument where that lets a test try every case.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ostraka.arrays import AnyArray, Float64, UInt32, cut, row_blocks
from ostraka.core import loops

P = 2**31 - 1

Int64: TypeAlias = npt.NDArray[np.int64]

_LIMB = 16
# Sums of this many products of limbs are exact.
_EXACT_TERMS = 1 << 19
# Limbs are made for this many columns at a time, so that BLAS finds most of them in the cache, and
# for this many values if there are many rows.
_PANEL, _PANEL_VALUES = 1 << 11, 1 << 19
# Where a matrix of two rows has its three products.
_PAIRS = np.array([[0, 1], [1, 2]])
# Sums are joined for this many rows at a time: with a thousand clients each temporary is 8 MB.
_JOINED = 128
# With more rows than these, a matrix of sums is not made as a whole: 0.8 GB for 10,000 rows.
_MANY_ROWS = 2048
# Of which limbs are made at a time, in matrices that are large: 96 MB of them.
_LIMB_VALUES = 1 << 22


def add(a: UInt32, b: UInt32, out: UInt32, scratch: UInt32, modulus: int = P) -> UInt32:
    """Returns a + b in `out`, which may be a or b; `scratch` may not. modulus <= 2^31."""
    np.add(a, b, out=out)
    np.subtract(out, np.uint32(modulus), out=scratch)
    return np.minimum(out, scratch, out=out)


def reduce(values: Int64, modulus: int = P) -> UInt32:
    """Returns the residues of signed integers."""
    return (values % modulus).astype(np.uint32)


def signed(residues: UInt32, modulus: int = P) -> Int64:
    """Returns the integer of least size in each class: -(p - 1)/2 ... (p - 1)/2."""
    values = residues.astype(np.int64)
    values[values > modulus // 2] -= modulus
    return values


def signed_in_place(residues: UInt32, modulus: int = P) -> npt.NDArray[np.int32]:
    """Returns what `signed` does, in the memory of the residues (n, m). modulus < 2^31."""
    values = residues.view(np.int32)
    for rows in row_blocks(len(values)):
        part = values[rows]
        np.subtract(part, np.int32(modulus), out=part, where=part > modulus // 2)
    return values


def balance(values: Float64, modulus: int = P) -> None:
    """Replaces integers by congruent ones within modulus / 2 + 1, exactly and in place.

    values: integers within 2^53 - 2^31. The rounded quotient may be off by one near a tie. Its
    multiple is still an integer within 2^53.
    """
    multiples = values * (1 / modulus)
    np.rint(multiples, out=multiples)
    multiples *= modulus
    values -= multiples


def matmul(a: UInt32, b: UInt32) -> UInt32:
    """Returns a @ b modulo p. a: (m, k), b: (k, n) residues, k <= 2^19."""
    (k, n), sums = b.shape, np.zeros((3, len(a), b.shape[1]))
    for rows in row_blocks(k, max(1, _LIMB_VALUES // n)):
        lefts, rights = _limbs(a[:, rows]), _limbs(b[rows])
        for place in range(3):
            sums[place] += lefts[place] @ rights[place]
    return _join(*sums)


def gram(block: UInt32) -> UInt32:
    """Returns the inner products of the rows modulo p, (n, n). block: (n, b) residues."""
    total = np.zeros((len(block), len(block)), np.uint32)
    add_gram(total, block)
    return total


def add_gram(total: UInt32, block: UInt32) -> None:
    """Adds block @ block.T modulo p, in place. total: (n, n) residues, block: (n, b)."""
    for start in range(0, block.shape[1], _EXACT_TERMS):
        columns = block[:, start : start + _EXACT_TERMS]
        if len(total) > _MANY_ROWS:
            _add_large_gram(total, columns)
            continue
        sums = _limb_grams(columns)
        for rows in row_blocks(len(total), _JOINED):
            part = total[rows]
            add(part, _join(*sums[:, rows]), part, np.empty_like(part))


def _add_large_gram(total: UInt32, block: UInt32) -> None:
    """Adds as `add_gram` does, for many rows: sums of limbs are in memory for some rows at a time.

    It makes what is on the diagonal and to the right of it, and mirrors that.
    """
    n, width = block.shape
    for columns in row_blocks(width, max(1, _LIMB_VALUES // n)):
        limbs = _limbs(block[:, columns])
        for rows in row_blocks(n, _JOINED):
            right = slice(rows.start, n)
            sums = [limb[rows] @ limb[right].T for limb in limbs]
            part = total[rows, right]
            add(part, _join(*sums), part, np.empty_like(part))
            total[rows.stop :, rows] = part[:, rows.stop - rows.start :].T


def add_gram_of_two(total: UInt32, block: Float64) -> None:
    """Adds as `add_gram` does, for two rows of integers within 2^53 - 2^31. total: (2, 2)."""
    for start in range(0, block.shape[1], _EXACT_TERMS):
        sums = loops.limb_products(np.ascontiguousarray(block[:, start : start + _EXACT_TERMS]))
        add(total, _join(*sums[:, _PAIRS]), total, np.empty_like(total))


def _limb_grams(block: UInt32) -> Float64:
    """Returns what `_join` takes, of a block with itself: (3, n, n). block: up to 2^19 columns."""
    n, width = block.shape
    sums, product = np.zeros((3, n, n)), np.empty((n, n))
    panel = min(width, max(1, min(_PANEL, _PANEL_VALUES // n)))
    space = np.empty((3, n * panel))
    for start in range(0, width, panel):
        columns = block[:, start : start + panel]
        if block.strides[1] != block.itemsize:  # Loops take values that are adjacent in a row.
            columns = np.ascontiguousarray(columns)
        limbs = [cut(each, *columns.shape) for each in space]
        loops.limbs(columns, *limbs)
        for place, limb in enumerate(limbs):
            np.matmul(limb, limb.T, out=product)  # BLAS syrk: half the cost of a general product
            sums[place] += product
    return sums


def _limbs(residues: UInt32) -> Float64:
    """Returns the 15 high bits, their sum with the others, and the 16 low bits: (3, n, b)."""
    limbs = np.empty((3, *residues.shape))
    loops.limbs(np.ascontiguousarray(residues), *limbs)
    return limbs


def _join(high: AnyArray, both: AnyArray, low: AnyArray) -> UInt32:
    """Returns the modular product from the sums of h h', (h + l)(h' + l') and l l'."""
    cross = (both - high - low).astype(np.int64) % P
    # 2^32 is 2 modulo p. Everything is below 2^54 + 2^47 + 2^53.
    return reduce(2 * high.astype(np.int64) + (cross << _LIMB) + low.astype(np.int64))

"""The loops in numpy: what they compute, stated once, and what runs where there is no compiler.

native.c does the same to the bit. A sum of float64 is therefore made in one order, which BLAS does
not have: value k is added to sum k mod 128, and the 128 sums are then added up in halves. Sums of
integers below 2^53 are exact in any order, and BLAS makes those.

`ostraka.core.loops` has checked every argument.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ostraka.arrays import AnyArray, Float32, Float64, Int64, UInt32, row_blocks

UInt8: TypeAlias = npt.NDArray[np.uint8]
UInt16: TypeAlias = npt.NDArray[np.uint16]
Int8: TypeAlias = npt.NDArray[np.int8]
Int16: TypeAlias = npt.NDArray[np.int16]
Int32: TypeAlias = npt.NDArray[np.int32]

_LANES, _FEW = 128, 1024
# Values that are worked on at a time, so that temporaries stay in the cache.
_CHUNK = 1 << 14
_P = np.uint32(2**31 - 1)
_LIMB = 16
_ONE = 1 << 16
_INT32 = 2.0**31


def dot(x: Float32, y: Float32) -> float:
    """Returns the inner product of two rows (b,), in float64."""
    sums = np.zeros(_LANES)
    _add_products(x, y, sums)
    return _add_up(sums)


def squares(values: Float32) -> float:
    """Returns the inner product of a row (b,) with itself."""
    return dot(values, values)


def _add_products(x: Float32, y: Float32, sums: Float64) -> None:
    space = np.empty(_LANES + min(_CHUNK, len(x)))
    # An attacker's signalling NaN must not print a warning.
    with np.errstate(all="ignore"):
        for start in range(0, len(x), _CHUNK):
            part = x[start : start + _CHUNK]
            whole = _LANES + len(part) // _LANES * _LANES
            space[:_LANES], products = sums, space[_LANES : _LANES + len(part)]
            np.copyto(products, part)
            np.multiply(products, y[start : start + _CHUNK], out=products)
            # Along the first axis numpy adds row after row, beginning with the sums so far.
            np.add.reduce(space[:whole].reshape(-1, _LANES), axis=0, out=sums)
            rest = space[whole : _LANES + len(part)]
            sums[: len(rest)] += rest


def _add_up(sums: Float64) -> float:
    with np.errstate(all="ignore"):
        while len(sums) > 1:
            half = len(sums) // 2
            sums = sums[:half] + sums[half:]
    return float(sums[0])


def scaled_squares(values: Float32, scale: float) -> float:
    """Returns the squares of values (b,) times a scale, as `absorb` sums them."""
    with np.errstate(all="ignore"):
        return _squares_of_few(values * np.float32(scale))


def pin_fold(bits: UInt8, shifts: UInt32, width: int) -> tuple[UInt8, UInt32, int]:
    """Returns what `absorb` takes for the fold of tiles of `width` values."""
    return bits, shifts, width


def pin_sketch(sketch: Float32, scale: float) -> tuple[Float32, float]:
    """Returns what `absorb` takes for the sketch (m,) of a row."""
    return sketch, scale


def pin_row(values: Float32) -> Float32:
    """Returns what `absorb_part` takes for a row (d,)."""
    return values


def absorb_part(
    row: Float32,
    start: int,
    fold: tuple[UInt8, UInt32, int],
    sketch: tuple[Float32, float],
) -> float:
    """The same as `absorb`, for values of a row from `start` on, as many as the fold is for."""
    return absorb(row[start : start + fold[-1]], fold, sketch)


def absorb(
    values: Float32, fold: tuple[UInt8, UInt32, int], sketch: tuple[Float32, float]
) -> float:
    """Folds values (b,) into a sketch by law 12, and returns the squares of what it folds."""
    (bits, shifts, _), (into, scale) = fold, sketch
    m = len(into)
    turned = np.unpackbits(bits, count=len(values)).astype(np.uint32) << np.uint32(31)
    with np.errstate(all="ignore"):
        signed = values * np.float32(scale)
        total = _squares_of_few(signed)
        signed.view(np.uint32)[...] ^= turned
        for block, shift in enumerate(shifts.tolist()):
            part, place = signed[block * m : (block + 1) * m], shift % m
            first, rest = part[: m - place], part[m - place :]
            into[place : place + len(first)] += first
            into[: len(rest)] += rest
    return total


def _squares_of_few(values: Float32) -> float:
    """Sums squares: in each of 128 places eight at a time in float32, and these in float64.

    The order is that of the values, and not of the fold: a client hears whether its norm was right,
    and must learn nothing of the fold by that.
    """
    padded = np.zeros(-(-len(values) // _FEW) * _FEW, np.float32)
    np.multiply(values, values, out=padded[: len(values)])
    parts = np.add.reduce(padded.reshape(-1, _FEW // _LANES, _LANES), axis=1)
    return _add_up(np.add.reduce(parts.astype(np.float64), axis=0, initial=0.0))


def add_rows(rows: Sequence[Float32], weights: Float64, total: Float64) -> None:
    """Adds weights[i] rows[i] to total (b,), in the order of rows."""
    scratch = np.empty(min(_CHUNK, len(total)))
    with np.errstate(all="ignore"):
        for start in range(0, len(total), _CHUNK):
            part = total[start : start + _CHUNK]
            weighted = scratch[: len(part)]
            for row, weight in zip(rows, weights, strict=True):
                np.copyto(weighted, row[start : start + _CHUNK])
                np.multiply(weighted, weight, out=weighted)
                np.add(part, weighted, out=part)


def share(
    values: Sequence[Float32],
    scales: Float32,
    dither: UInt16,
    masks: UInt32,
    shares: UInt32,
    *,
    q: Int16 | None,
) -> tuple[Int64, Int64, int]:
    """Makes the shares of a group of rows by laws 7 and 8."""
    fixed = _rounded(values, scales, dither.shape)
    v = _variance(fixed)
    np.add(fixed, dither, out=fixed, casting="unsafe")
    np.right_shift(fixed, _LIMB, out=fixed)
    s, greatest = _share_q(fixed, masks, shares, q)
    return s, v, greatest


def share_integers(
    values: Sequence[Int8],
    masks: UInt32,
    shares: UInt32,
    *,
    q: Int16 | None,
) -> tuple[Int64, int]:
    """The same of rows that are q themselves (law 19)."""
    wide = np.empty(masks.shape[1:], np.int32)
    for row, out in zip(values, wide, strict=True):
        np.copyto(out, row)
    return _share_q(wide, masks, shares, q)


def _share_q(q: Int32, masks: UInt32, shares: UInt32, kept: Int16 | None) -> tuple[Int64, int]:
    """Makes the shares of q (g, b), which it spoils. Returns s and the greatest mask."""
    s = _squares(q.astype(np.float64))
    if kept is not None:
        np.copyto(kept, q, casting="unsafe")
    masks = np.bitwise_and(masks, _P)  # p has all bits but the highest
    residues, scratch = q.view(np.uint32), np.empty(q.shape, np.uint32)
    # As an unsigned number a negative q is huge, and q + p is its residue.
    np.minimum(residues, np.add(residues, _P, out=scratch), out=residues)
    _shares(residues, masks, shares, scratch)
    return s, int(np.maximum.reduce(masks, axis=None, initial=0))


def witness(q: Int16, weights: Float64, sums: Float64) -> None:
    """Adds law 11's products of q (g, b) with weights (g, 2) to the sums (2, b) or wider."""
    wide = q.astype(np.float64)
    # Two products with a vector each: for one product with two rows BLAS copies the matrix.
    for total, weight in zip(sums, np.ascontiguousarray(weights.T), strict=True):
        total[: wide.shape[1]] += weight @ wide


def add_gram(rows: Sequence[Int8], gram: Int64, part: range) -> None:
    """Adds the products of some rows (b,) with themselves and all later ones."""
    for start in range(0, len(rows[0]), _FEW):
        # Sums of 2^10 products up to 2^14 are exact in float32.
        wide = np.array([row[start : start + _FEW] for row in rows[part.start :]], np.float32)
        for some in row_blocks(len(part)):
            total = gram[part.start :, part.start :][some, some.start :]
            total += np.triu(wide[some] @ wide[some.start :].T).astype(np.int64)


def _rounded(values: Sequence[Float32], scales: Float32, shape: tuple[int, ...]) -> Int32:
    """Returns what law 7 rounds to. What is no number in the range of int32 counts as -2^31."""
    real = np.empty(shape, np.float32)
    with np.errstate(all="ignore"):
        for row, scale, out in zip(values, scales, real, strict=True):
            np.multiply(row, scale, out=out)
        np.rint(real, out=real)
        # Written as a positive condition, for NaN.
        if real.size and not (real.min() >= -_INT32 and real.max() < _INT32):
            real[~((real >= -_INT32) & (real < _INT32))] = -_INT32
        return real.astype(np.int32)


def _variance(fixed: Int32) -> Int64:
    """Returns the row sums of f (2^16 - f) = 2^30 - (f - 2^15)^2, f the low 16 bits."""
    # Read as a signed number they are f - 2^15, once their top bit is flipped.
    low = fixed.astype(np.int16)
    np.bitwise_xor(low, np.int16(-_ONE // 2), out=low)
    variance: Int64 = fixed.shape[1] * (_ONE // 2) ** 2 - _squares(low.astype(np.float64))
    return variance


def _squares(integers: Float64) -> Int64:
    """Sums squares by row. It is exact: 2^22 squares of 16-bit integers sum to 2^52 at most."""
    squares: Int64 = np.vecdot(integers, integers).astype(np.int64)
    return squares


def _shares(q: UInt32, masks: UInt32, shares: UInt32, scratch: UInt32, p: np.uint32 = _P) -> None:
    """Makes the shares of residues (g, b) by law 8. p: a small one lets a test try every case."""
    t = len(masks)
    for x in range(1, t + 1):
        even = q if t < 2 else _plus(_times(masks[1], x * x, scratch, p), q, scratch, p)
        odd = masks[0]
        if t > 2:
            odd = _plus(_times(masks[2], x * x, scratch, p), odd, scratch, p)
        odd = odd if x == 1 else _times(odd, x, scratch, p)
        plus, minus = shares[2 * x - 2], shares[2 * x - 1]
        np.minimum(np.add(even, odd, out=plus), np.subtract(plus, p, out=scratch), out=plus)
        np.minimum(np.subtract(even, odd, out=minus), np.add(minus, p, out=scratch), out=minus)


def _plus(a: UInt32, b: UInt32, scratch: UInt32, p: np.uint32) -> UInt32:
    """Returns a + b modulo p, in the memory of a. Of two candidates the wrong one is huge."""
    np.add(a, b, out=a)
    np.subtract(a, p, out=scratch)
    return np.minimum(a, scratch, out=a)


def _times(a: UInt32, factor: int, scratch: UInt32, p: np.uint32) -> UInt32:
    """Returns factor * a modulo p by doubling, in new memory."""
    product = a.copy()
    for bit in f"{factor:b}"[1:]:
        _plus(product, product, scratch, p)
        if bit == "1":
            _plus(product, a, scratch, p)
    return product


def keep_bits(words: UInt32, mask: int) -> int:
    """Keeps the bits of `mask` in every word (n,), and returns the greatest of them, or 0."""
    np.bitwise_and(words, np.uint32(mask), out=words)
    return int(np.maximum.reduce(words, initial=0))


def limb_products(block: Float64) -> Float64:
    """Sums the products of the limbs of two rows (2, b): (3, 3), by limb and by pair."""
    sums: Float64 = np.zeros((3, 3))
    for start in range(0, block.shape[1], _CHUNK):
        values = block[:, start : start + _CHUNK]
        values = values - np.rint(values * (1 / int(_P))) * float(_P)
        high = np.rint(values * 2.0**-_LIMB)
        low = values - high * 2.0**_LIMB
        for limb, (x, y) in enumerate((high, high + low, low)):
            sums[limb] += np.vecdot(x, x), np.vecdot(x, y), np.vecdot(y, y)
    return sums


def limbs(residues: UInt32, high: Float64, both: Float64, low: Float64) -> None:
    """Sets the limbs h, h + l and l, each (n, b), of 2^16 h + l."""
    np.copyto(high, residues >> np.uint32(_LIMB))
    np.copyto(low, residues & np.uint32((1 << _LIMB) - 1))
    np.add(high, low, out=both)


def widen_float16(raw: UInt16, out: Float32) -> None:
    with np.errstate(all="ignore"):
        np.copyto(out, raw.view(np.float16))


def widen_bfloat16(raw: UInt16, out: Float32) -> None:
    np.left_shift(raw, np.uint32(16), out=out.view(np.uint32))


def widen_int8(raw: AnyArray, step: float, out: Float32) -> None:
    with np.errstate(all="ignore"):
        np.multiply(raw, np.float32(step), out=out, dtype=np.float32)

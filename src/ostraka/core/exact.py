"""Exact masking: perfect secrecy from arithmetic modulo p = 2^31 - 1, and answers that are checked.

(7)   q_i = floor(W_i / delta_i + u),  u uniform in [0, 1) and secret, so that E q_i = W_i / delta_i
(8)   Y_i(x) = q_i + x R_i1 + ... + x^t R_it  modulo p, at the points x = 1, -1, ..., t, -t
(9)   Y(x) Y(x)^T = G + x(...) + ... + x^2t R_t R_t^T, so 2t points and R_t R_t^T give G = q q^T
(10)  D_ij = delta_i^2 (s_i - v_i) + delta_j^2 (s_j - v_j) - 2 delta_i delta_j G_ij
      where s_i = |q_i|^2 and v_i is the variance that the dither u added to it
(11)  V^T G V = (q^T V)^T (q^T V) for a secret V that no worker could foresee

Steps are per row: with one step for all, one long row makes the others coarse, and attackers pass.
By law 7 every s_i is at most (p - 1)/2, so by Cauchy-Schwarz no inner product wraps around.

Rows come in tiles, and a few rows of one tile make a group, (g, b). A group has enough values that
the work on them costs more than the calls, and few enough that they stay in the cache.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ostraka.arrays import Float32, Float64, UInt32, cut
from ostraka.core import field
from ostraka.core.field import Int64, P
from ostraka.errors import ConfigError

UInt16: TypeAlias = npt.NDArray[np.uint16]
Int16: TypeAlias = npt.NDArray[np.int16]

MAX_SQUARE = (P - 1) // 2
MAX_COLLUSION = 3
# A quarter of MAX_SQUARE is then left to the dither, and rounding stays below the deviation.
MAX_DIMENSION = 1 << 30

# The dither has this many bits, and rows are first rounded to multiples of delta / 2^16.
_BITS = 16
_ONE = 1 << _BITS
# The longest row that law 7 allows, in steps, is this much shorter than the longest that fits: 32
# for a norm that is wrong by 2^-10, and 32, or 64 standard deviations of |q|, for the dither.
_MARGIN = 64
# Outside this range 2^16 / delta is no normal float32. Rows of float32 do not get longer. Those
# shorter than 2^-96 are only counted coarsely, in the least step, and the deviation says so.
_MIN_STEP, _MAX_STEP = 2.0**-111, 2.0**142
# Sums of this many products of integers within 2^15 and 2^30 stay well within 2^53.
_EXACT_TERMS = 192
# Measured from 2^14 to 2^18: smaller groups pay for calls, larger ones for memory.
_GROUP_VALUES, _GROUP_ROWS = 1 << 17, 128
_BLOCK_ROWS = 128


def group_rows(width: int) -> int:
    """Returns how many rows of a tile of this width are worked on at a time."""
    return max(1, min(_GROUP_ROWS, _GROUP_VALUES // width))


def step(norms: Float64, d: int) -> Float64:
    """Returns law 7's delta_i = n_i / (sqrt((p - 1)/2 - d/4) - 64), (n,), so that `scale` is exact.

    norms: (n,) finite, each within 2^-10 of the true norm of its row of d values. Then |q_i|^2
    exceeds (p - 1)/2 with probability below 2^-900, by Hoeffding's inequality.
    """
    if not 1 <= d <= MAX_DIMENSION:
        raise ConfigError(f"exact masking takes 1 to {MAX_DIMENSION} dimensions; got {d}")
    return _ONE / scale(np.clip(norms / radius(d), _MIN_STEP, _MAX_STEP)).astype(np.float64)


def radius(d: int) -> float:
    """Returns the longest row of d values, in steps, that fits when it has been rounded."""
    return math.sqrt(MAX_SQUARE - d / 4) - _MARGIN


def scale(steps: Float64) -> Float32:
    """Returns the factors (n,) that turn rows into units of delta / 2^16."""
    return (_ONE / steps).astype(np.float32)


@dataclass(frozen=True)
class Quantised:
    """Buffers for a group of rows, which `quantise` fills. They are reused for the next group."""

    residues: UInt32  # (g, b) q modulo p
    signed: Float64  # (g, b) q itself, between -2^15 and 2^15
    real: Float32  # rows in units of delta / 2^16, between `load` and `quantise_loaded`; scratch
    low: Int16  # scratch

    @classmethod
    def empty(cls, rows: int, width: int) -> "Quantised":
        shape = (rows, width)
        return cls(
            np.empty(shape, np.uint32),
            np.empty(shape, np.float64),
            np.empty(shape, np.float32),
            np.empty(shape, np.int16),
        )

    def cut(self, rows: int, width: int) -> "Quantised":
        """Returns the same memory, for fewer rows and columns."""
        parts = (self.residues, self.signed, self.real, self.low)
        return Quantised(*(cut(part, rows, width) for part in parts))


def quantise(
    values: Float32, scales: Float32, dither: UInt16, out: Quantised
) -> tuple[Int64, Int64]:
    """Quantises a group of rows by law 7. Returns their parts of s and of 2^32 v, (g,), exact.

    values: (g, b), b <= 2^22. scales: (g,). dither: (g, b) secret uniform words, used once.

    In units of delta / 2^16 a value is rounded once to an integer a, and q = (a + j) >> 16 with a
    uniform 16-bit j. So E q = a / 2^16 and Var q = f (2^16 - f) / 2^32 with f = a mod 2^16, not
    nearly but exactly. What is left is the rounding: the a are those of a row that differs from
    the given one by at most delta (2^-9 + 2^-17 sqrt(d)), and law 10 is unbiased for that row.

    A row that is longer than its scale says still gives a q in range, and s or its norm reveals it.
    So does a NaN. Neither disturbs other rows.
    """
    load(values, scales, out)
    return quantise_loaded(dither, out)


def load(values: Float32, scales: Float32, out: Quantised) -> Float64:
    """Does the first half of `quantise`: sets out.real, and returns its squared norms, (g,)."""
    with np.errstate(over="ignore", invalid="ignore"):
        np.multiply(values, scales[:, None], out=out.real)
        squares: Float64 = np.vecdot(out.real, out.real).astype(np.float64)
    return squares


def quantise_loaded(dither: UInt16, out: Quantised) -> tuple[Int64, Int64]:
    """Does the second half of `quantise`."""
    fixed, spare = out.residues.view(np.int32), out.real.view(np.int32)
    with np.errstate(over="ignore", invalid="ignore"):
        np.rint(out.real, out=out.real)
        np.copyto(fixed, out.real, casting="unsafe")
    variance = _variance(fixed, out)
    np.copyto(spare, dither)
    np.add(fixed, spare, out=fixed)
    np.right_shift(fixed, _BITS, out=fixed)
    np.copyto(out.signed, fixed)
    _reduce(out)
    return _squares(out.signed), variance


def _reduce(out: Quantised) -> None:
    """Turns signed integers in the memory of the residues into residues."""
    # As an unsigned number a negative q is huge, and q + p is its residue.
    spare = out.real.view(np.uint32)
    np.add(out.residues, np.uint32(P), out=spare)
    np.minimum(out.residues, spare, out=out.residues)


def _variance(fixed: npt.NDArray[np.int32], out: Quantised) -> Int64:
    """Returns the row sums of f (2^16 - f) = 2^30 - (f - 2^15)^2."""
    np.copyto(out.low, fixed, casting="unsafe")
    # The low 16 bits, read as a signed number, are f - 2^15 once their top bit is flipped.
    np.bitwise_xor(out.low, np.int16(-_ONE // 2), out=out.low)
    np.copyto(out.signed, out.low)
    variance: Int64 = fixed.shape[1] * (_ONE // 2) ** 2 - _squares(out.signed)
    return variance


def _squares(integers: Float64) -> Int64:
    """Sums squares by row. It is exact: 2^22 squares of 16-bit integers sum to 2^52 at most."""
    squares: Int64 = np.vecdot(integers, integers).astype(np.int64)
    return squares


def fits(s: Int64) -> npt.NDArray[np.bool_]:
    """Tells which rows are so short that no inner product among them wraps around. s: (n,)"""
    return s <= MAX_SQUARE


def points(t: int) -> tuple[int, ...]:
    """Returns the points of the 2t shares: 1, -1, ..., t, -t. A further worker gets R_t."""
    if not 1 <= t <= MAX_COLLUSION:
        raise ConfigError(f"exact masking withstands 1 to {MAX_COLLUSION} colluders; got {t}")
    return tuple(sign * x for x in range(1, t + 1) for sign in (1, -1))


def shares(
    q: UInt32, masks: Sequence[UInt32], out: Sequence[UInt32], scratch: UInt32, modulus: int = P
) -> None:
    """Makes the shares of q by law 8, at `points(t)` in that order, in the 2t arrays of `out`.

    q, scratch, each mask and each out: one shape. masks: R_1 ... R_t, uniform, used once. Any t of
    the shares are an invertible linear map of the masks, shifted, and so uniform for every q. The
    same is true of any t - 1 of them together with R_t.
    """
    for x in range(1, len(masks) + 1):
        even = _polynomial([q, *masks[1::2]], x * x, scratch, modulus)
        odd = _polynomial(masks[0::2], x * x, scratch, modulus)
        odd = odd if x == 1 else field.mul(odd, x, scratch, modulus)
        field.add(even, odd, out[2 * x - 2], scratch, modulus)
        field.sub(even, odd, out[2 * x - 1], scratch, modulus)


def _polynomial(terms: Sequence[UInt32], x: int, scratch: UInt32, modulus: int) -> UInt32:
    """Returns terms[0] + x terms[1] + ..., by Horner's rule. A single term is not copied."""
    value = terms[-1]
    for term in reversed(terms[:-1]):
        value = field.mul(value, x, scratch, modulus)
        field.add(value, term, value, scratch, modulus)
    return value


def decode(grams: Mapping[int, UInt32], leading: UInt32, modulus: int = P) -> UInt32:
    """Returns the residues of G (n, n) by law 9. grams: those of the shares, by point.

    leading: (n, n) R_t R_t^T, made beforehand or by the worker that has R_t. Subtracting its term
    leaves a polynomial of degree 2t - 1, and Lagrange's formula gives its value at zero from 2t
    points.
    """
    decoded, degree = np.empty_like(leading), len(grams)
    for rows in _blocks(len(leading)):
        total, last = np.zeros(leading[rows].shape, np.int64), leading[rows].astype(np.int64)
        for x, matrix in grams.items():
            weight = _weight_at_zero(x, tuple(grams), modulus)
            total += field.reduce(weight * matrix[rows].astype(np.int64), modulus)
            total -= field.reduce(weight * x**degree % modulus * last, modulus)
        decoded[rows] = field.reduce(total, modulus)
    return decoded


def _blocks(rows: int) -> list[slice]:
    """Cuts a matrix by rows, which bounds temporaries: with 1,000 clients each one is 8 MB."""
    return [slice(start, start + _BLOCK_ROWS) for start in range(0, rows, _BLOCK_ROWS)]


def _weight_at_zero(x: int, xs: Sequence[int], modulus: int) -> int:
    """Returns Lagrange's weight: the product of y / (y - x) over the other points y."""
    others = [y for y in xs if y != x]
    return math.prod(others) * pow(math.prod(y - x for y in others), -1, modulus) % modulus


def products(gram: Int64, steps: Float64, s: Int64, v: Int64) -> Float64:
    """Returns unbiased inner products (n, n) by law 10, and so unbiased distances by law 2.

    gram: (n, n) signed G. steps: (n,) of the rows as they are to count. s, v: (n,) from `quantise`,
    v times 2^32. Equal rows are at distance zero give or take the deviation, so half of these
    distances are negative.
    """
    result: Float64 = np.empty(gram.shape)
    for rows in _blocks(len(gram)):
        result[rows] = np.outer(steps[rows], steps) * gram[rows]
    np.fill_diagonal(result, steps**2 * (s - v / float(_ONE) ** 2))
    return result


def deviation(distances: Float64, steps: Float64, d: int) -> Float64:
    """Returns a bound (n, n) on the standard deviation of law 10:

    sqrt(D_ij (delta_i^2 + delta_j^2)) + sqrt(d) (delta_i^2 + delta_j^2) / 4
    """
    bound: Float64 = np.empty(distances.shape)
    for rows in _blocks(len(distances)):
        both = np.add.outer(steps[rows] ** 2, steps**2)
        bound[rows] = np.sqrt(np.maximum(distances[rows], 0) * both) + math.sqrt(d) / 4 * both
    return bound


class Freivalds:
    """Law 11: evidence, gathered while masking, of what the decoded matrix must be.

    A wrong symmetric matrix passes for at most 4 / p^2 < 2^-59 of all V: its error is a non-zero
    quadratic form, which by Schwartz-Zippel vanishes at a random vector with probability 2 / p, and
    there are two. V is fresh for every attempt, because an answer tells something about it.
    """

    def __init__(self, challenge: UInt32, width: int) -> None:
        """challenge: (n, 2), secret and uniform modulo p. width: the most columns of a block."""
        self._challenge = challenge
        self._weights = field.signed(challenge).astype(np.float64)
        self._evidence = np.zeros((2, 2), np.uint32)
        self._sums, self._terms = np.zeros((2, width)), 0

    def __repr__(self) -> str:
        return f"Freivalds(<secret>, rows={len(self._challenge)})"

    def expect(self, rows: range) -> tuple[Float64, Float64]:
        """Returns the weights (g, 2) of some rows of a block, at most 128, and the sums (2, width)
        to which their products with these rows' q are to be added, as `loops.share` does.
        """
        if self._terms + len(rows) > _EXACT_TERMS:
            self._settle()
        self._terms += len(rows)
        return self._weights[rows.start : rows.stop], self._sums

    def add(self, first: int, q: Float64) -> None:
        """Takes rows first, first + 1, ... of a block. q: (g, b) integers within 2^15, g <= 128."""
        weights, sums = self.expect(range(first, first + len(q)))
        # Two products with a vector each: for one product with two rows BLAS copies the matrix.
        for place, column in enumerate(np.ascontiguousarray(weights.T)):
            sums[place, : q.shape[1]] += column @ q

    def take(self, other: "Freivalds") -> None:
        """Takes over the rows of this block that another one with the same challenge has taken."""
        self._settle()
        other._settle()
        self._sums += other._sums
        self._terms += 1
        other._clear()

    def end_block(self) -> None:
        """Ends a block of columns. Rows that were not taken count as zero."""
        self._settle()
        field.add_balanced_gram(self._evidence, self._sums)
        self._clear()

    def _settle(self) -> None:
        """Makes the sums smaller than any one term."""
        field.balance(self._sums)
        self._terms = 1

    def _clear(self) -> None:
        self._sums[:], self._terms = 0, 0

    def accepts(self, gram: UInt32) -> bool:
        """Tells whether the residues (n, n) agree. Ask this before any other test of them."""
        claimed = field.matmul(field.matmul(self._challenge.T, gram), self._challenge)
        return bool(np.array_equal(claimed, self._evidence))

"""Exact masking: perfect secrecy from arithmetic modulo p = 2^31 - 1, and answers that are checked.

(7)   q_i = floor(W_i / delta_i + u),  u uniform in [0, 1) and secret, so that E q_i = W_i / delta_i
(8)   Y_i(x) = q_i + x R_i1 + ... + x^t R_it  modulo p, at the points x = 1, -1, ..., t, -t
(9)   Y(x) Y(x)^T = G + x(...) + ... + x^2t R_t R_t^T, so 2t points and R_t R_t^T give G = q q^T
(10)  D_ij = delta_i^2 (s_i - v_i) + delta_j^2 (s_j - v_j) - 2 delta_i delta_j G_ij
      where s_i = |q_i|^2 and v_i is the variance that the dither u added to it
(11)  V^T G V = (q^T V)^T (q^T V) for a secret V that no worker could foresee

`core.loops.share` makes q and the shares. In units of delta / 2^16 a value
is rounded once to an integer a, and q = (a + j) >> 16 with a uniform 16-bit j. So E q = a / 2^16
and Var q = f (2^16 - f) / 2^32 with f = a mod 2^16, not nearly but exactly. What is left is the
rounding: the a are those of a row that differs from the given one by at most
delta (2^-9 + 2^-17 sqrt(d)), and law 10 is unbiased for that row. A row that is longer than its
scale says still gives a q in range, and s or its norm reveals it. So does a NaN. Neither disturbs
other rows.

Any t of the shares are an invertible linear map of the masks, shifted, and so uniform for every q.
The same is true of any t - 1 of them together with R_t.

Steps are per row: with one step for all, one long row makes the others coarse, and attackers pass.
By law 7 every s_i is at most (p - 1)/2, so by Cauchy-Schwarz no inner product wraps around.

Rows come in tiles, and a few rows of one tile make a group, (g, b). A group has enough values that
the work on them costs more than the calls, and few enough that they stay in the cache.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ostraka.arrays import AnyArray, Float32, Float64, UInt32, row_blocks
from ostraka.core import field, loops
from ostraka.core.field import Int64, P
from ostraka.core.loops.twin import Int16
from ostraka.errors import ConfigError

MAX_SQUARE = (P - 1) // 2
MAX_COLLUSION = 3
# A quarter of MAX_SQUARE is then left to the dither, and rounding stays below the deviation.
MAX_DIMENSION = 1 << 30

# Rows are first rounded to multiples of delta / 2^16, and the dither has 16 bits.
_ONE = 1 << 16
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
# Of q, that law 11 takes at a time: 16 rows of a tile.
_KEPT_VALUES = 1 << 20


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


def fits(s: Int64) -> npt.NDArray[np.bool_]:
    """Tells which rows are so short that no inner product among them wraps around. s: (n,)"""
    return s <= MAX_SQUARE


def points(t: int) -> tuple[int, ...]:
    """Returns the points of the 2t shares: 1, -1, ..., t, -t. A further worker gets R_t."""
    if not 1 <= t <= MAX_COLLUSION:
        raise ConfigError(f"exact masking withstands 1 to {MAX_COLLUSION} colluders; got {t}")
    return tuple(sign * x for x in range(1, t + 1) for sign in (1, -1))


def decode(grams: Mapping[int, UInt32], leading: UInt32, modulus: int = P) -> UInt32:
    """Returns the residues of G (n, n) by law 9. grams: those of the shares, by point.

    leading: (n, n) R_t R_t^T, made beforehand or by the worker that has R_t. Subtracting its term
    leaves a polynomial of degree 2t - 1, and Lagrange's formula gives its value at zero from 2t
    points.
    """
    decoded, degree = np.empty_like(leading), len(grams)
    for rows in row_blocks(len(leading)):
        total, last = np.zeros(leading[rows].shape, np.int64), leading[rows].astype(np.int64)
        for x, matrix in grams.items():
            weight = _weight_at_zero(x, tuple(grams), modulus)
            total += field.reduce(weight * matrix[rows].astype(np.int64), modulus)
            total -= field.reduce(weight * x**degree % modulus * last, modulus)
        decoded[rows] = field.reduce(total, modulus)
    return decoded


def _weight_at_zero(x: int, xs: Sequence[int], modulus: int) -> int:
    """Returns Lagrange's weight: the product of y / (y - x) over the other points y."""
    others = [y for y in xs if y != x]
    return math.prod(others) * pow(math.prod(y - x for y in others), -1, modulus) % modulus


def products(gram: AnyArray, steps: Float64, s: Int64, v: Int64) -> Float64:
    """Returns unbiased inner products (n, n) by law 10, and so unbiased distances by law 2.

    gram: (n, n) signed G, integers. steps: (n,) of the rows as they are to count. s, v: (n,) from
    `loops.share`, v times 2^32. Equal rows are at distance zero give or take the deviation, so half
    of these distances are negative.
    """
    result: Float64 = np.empty(gram.shape)
    for rows in row_blocks(len(gram)):
        result[rows] = np.outer(steps[rows], steps) * gram[rows]
    np.fill_diagonal(result, steps**2 * (s - v / float(_ONE) ** 2))
    return result


def deviation(distances: Float64, steps: Float64, d: int, *, out: Float64 | None = None) -> Float64:
    """Returns a bound (n, n) on the standard deviation of law 10:

    sqrt(D_ij (delta_i^2 + delta_j^2)) + sqrt(d) (delta_i^2 + delta_j^2) / 4

    out: where to put it, which may be where the distances are.
    """
    bound: Float64 = np.empty(distances.shape) if out is None else out
    for rows in row_blocks(len(distances)):
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
        self._space = np.empty(max(width, _KEPT_VALUES), np.int16)
        self._rows, self._kept = list[int](), np.empty((0, 0), np.int16)

    def __repr__(self) -> str:
        return f"Freivalds(<secret>, rows={len(self._challenge)})"

    def expect(self, rows: range, width: int) -> Int16:
        """Returns where the q of some rows of a block, at most 128, are to be written: (g, width).

        They are kept until they are many, since sums are read and written for all that are kept.
        """
        count = len(self._rows) + len(rows)
        if count > _GROUP_ROWS or count * width > self._space.size:
            self._absorb()
        first = len(self._rows)
        self._rows += rows
        self._kept = self._space[: len(self._rows) * width].reshape(-1, width)
        return self._kept[first:]

    def _absorb(self) -> None:
        """Adds the products of the rows that were kept to the sums."""
        if self._terms + len(self._rows) > _EXACT_TERMS:
            self._settle()
        self._terms += len(self._rows)
        loops.witness(self._kept, self._weights[self._rows], self._sums)
        self._rows, self._kept = [], self._kept[:0]

    def take(self, other: "Freivalds") -> None:
        """Takes over the rows of this block that another one with the same challenge has taken."""
        self._absorb()
        other._absorb()
        self._settle()
        other._settle()
        self._sums += other._sums
        self._terms += 1
        other._clear()

    def end_block(self) -> None:
        """Ends a block of columns. Rows that were not taken count as zero."""
        self._absorb()
        field.add_gram_of_two(self._evidence, self._sums)
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

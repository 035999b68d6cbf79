"""Masking rows, and unmasking distances: laws 1 and 3, the paper's section 3.2.

(1)  Y+ = W + R,  Y- = W - R
(3)  D+_ij + D-_ij = 2 |W_i - W_j|^2 + 2 |R_i - R_j|^2,  where the last term is 2 C by law 4

Updates and noise are both rounded to one fixed grid before they are added. A floating sum W + R is
as fine as its size allows, and where R is small its low-order bits are W's own. On a grid every
share is a multiple of the same step, and the sum is exact. Law 6 still holds: but for ties,
round(W) + round(R) = round(round(W) + R), a function of what a Gaussian channel puts out, and no
function of that can tell more than it does.
"""

import math

import numpy as np

from ostraka.arrays import Float64


def grid_step(sigma: float) -> float:
    """The grid's step: 2^(e - 48) for the least e >= 0 with 2^e >= sigma.

    float64 holds every multiple of the step up to 2^53 steps, that is, all shares with
    |Y| < 32 max(sigma, 1). Updates are in units of the clip norm, so |W| is about 1 at most.
    """
    mantissa, exponent = math.frexp(max(sigma, 1.0))
    # The mantissa is in [1/2, 1), so 2^exponent is the power wanted, unless sigma itself is one.
    return math.ldexp(1.0, exponent - (mantissa == 0.5) - 48)


def to_grid(values: Float64, step: float, out: Float64 | None = None) -> Float64:
    """The nearest multiples of `step`, a power of two, if |values| <= 2^51 step. out may be values.

    A sum in [2^52, 2^53) step has no bits below one step, so adding 1.5 * 2^52 step rounds, and
    subtracting it is exact. With `grid_step` that covers |values| <= 8 max(sigma, 1); a normal
    beyond it (one in 10^15) may land on a half step, and its sums are still exact.
    """
    shift = 1.5 * 2.0**52 * step
    out = np.add(values, shift, out=out)
    out -= shift
    return out


def encode(update: Float64, noise: Float64, *, step: float, plus: Float64, minus: Float64) -> None:
    """Law 1 for a tile of one row. All arrays (b,); plus and minus are written.

    update: in units of the clip norm. noise: already on the grid, and used for no other update.
    """
    to_grid(update, step, out=plus)
    np.subtract(plus, noise, out=minus)
    plus += noise


def decode(plus: Float64, minus: Float64, *, sigma: float, d: int) -> Float64:
    """Law 3: |W_i - W_j|^2 (n, n) from the distances D+ and D- (n, n) that the workers return.

    Signed: equal updates decode to 0 give or take `leakage.decoding_error`. The diagonal is 0.
    """
    constant = 2 * d * sigma**2
    # C goes first: D is close to it, so that the differences are exact and their sum is small.
    distances: Float64 = ((plus - constant) + (minus - constant)) / 2
    np.fill_diagonal(distances, 0)
    return distances


class Agreement:
    """Evidence, gathered while masking, of what a matrix of squared distances must be.

    For weights v that sum to zero, v^T D v = -2 |sum of v_i Y_i|^2. A matrix with an entry that is
    wrong by much more than the rounding error fails for all but a small part of all secret v; one
    that is wrong by less passes. So this is weaker than `ostraka.core.exact.Freivalds`.
    """

    def __init__(self, weights: Float64, width: int) -> None:
        """weights: (2, n), secret and normal. width: columns of a block at most."""
        self._weights = weights - weights.mean(axis=1, keepdims=True)
        self._sums = np.zeros((2, width))
        self._evidence = np.zeros((2, 2))

    def __repr__(self) -> str:
        return f"Agreement(<secret>, rows={self._weights.shape[1]})"

    def add(self, first: int, rows: Float64) -> None:
        """Take rows first, first + 1, ... of the block. rows: (g, b)."""
        part = self._weights[:, first : first + len(rows)]
        self._sums[:, : rows.shape[1]] += part @ rows

    def take(self, other: "Agreement") -> None:
        """Take over the rows of this block that another, with the same weights, was given."""
        self._sums += other._sums
        other._sums[:] = 0

    def end_block(self) -> None:
        """All rows of a block of columns have been taken."""
        self._evidence += self._sums @ self._sums.T
        self._sums[:] = 0

    def accepts(self, distances: Float64, error: float) -> bool:
        """Whether the matrix (n, n) agrees, if every entry may be off by `error`."""
        claimed = self._weights @ distances @ self._weights.T
        sums = np.abs(self._weights).sum(axis=1)
        tolerance = error * np.outer(sums, sums)
        return bool((np.abs(claimed + 2 * self._evidence) <= tolerance).all())

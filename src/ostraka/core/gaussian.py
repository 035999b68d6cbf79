"""The paper's masking, its section 3.2 and appendix A.2: laws 1, 3 and 4.

(1)  Y+ = W + R,  Y- = W - R
(3)  D+_ij + D-_ij = 2 |W_i - W_j|^2 + 2 |R_i - R_j|^2,  where the last term is 2 C by law 4
(4)  |R_i - R_j|^2 = C = 2 d sigma^2  for all i != j

To make the noise, n Gaussian rows are orthogonalised and scaled to the norm
sigma sqrt(d) = sqrt(C / 2). Any subset of the rows has the same property, so clients that drop out
or join later cost nothing.

The orthogonalisation is CholeskyQR: with Z Z^T = L L^T, the rows of L^-1 Z are orthonormal. It is
the same map as Gram-Schmidt (L has a positive diagonal), but it consists of matrix products, and it
needs Z only block by block. `transform` finds the map and `apply` uses it, so Z may be generated
again from its seed instead of being kept.

Updates and noise are both rounded to one fixed grid before they are added. A floating sum W + R is
as fine as its size allows, and where R is small its low-order bits are W's own. On a grid every
share is a multiple of the same step, and the sum is exact. Law 6 still holds: except for ties,
round(W) + round(R) = round(round(W) + R), which is a function of the output of a Gaussian channel,
and no function of that output can tell more than the output does.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from ostraka.arrays import AnyArray, Float64
from ostraka.core.gram import add_gram
from ostraka.errors import ConfigError

# One pass leaves the rows orthogonal to about eps kappa^2. Above this kappa a second pass follows.
# Gaussian rows stay below it from about d = 9 n on.
REFINE = 2.0
# Two passes restore full precision as long as eps n kappa^2 < 1.
LIMIT = 1e6

_COLUMNS = 4096


class IllConditioned(ConfigError):
    """Raised if the rows are linearly dependent, or nearly so. Draw them again.

    Drawing again does not change the law of the noise. Where Z = L Q is Gaussian, L and Q are
    independent; kappa(Z) = kappa(L) depends on L alone, and the noise on Q alone.
    """


def condition(gram: Float64) -> float:
    """Returns kappa(Z), the condition number of the rows. gram: Z Z^T (n, n)."""
    if not np.isfinite(gram).all():
        return math.inf
    eigenvalues = np.linalg.eigvalsh(gram)
    smallest, largest = float(eigenvalues[0]), float(eigenvalues[-1])
    return math.sqrt(largest / smallest) if smallest > 0 else math.inf


def orthogonaliser(gram: Float64) -> Float64:
    """Returns a lower triangular T (n, n) with orthonormal rows in T Z. gram: Z Z^T (n, n)."""
    try:
        lower = np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:
        raise IllConditioned(f"the {len(gram)} rows are linearly dependent") from None
    return np.tril(np.linalg.solve(lower, np.eye(len(gram))))


def transform(blocks: Callable[[], Iterable[Float64]], *, sigma: float) -> tuple[Float64, ...]:
    """Finds the map from Gaussian rows Z (n, d) to constant-distance noise, for `apply`.

    blocks: yields Z in blocks of columns (n, b), the same blocks in every call. It is called once,
    and once more if kappa(Z) > REFINE. Raises IllConditioned if kappa(Z) > LIMIT.

    The result is one (n, n) factor, or two that are applied in turn. They are not multiplied,
    because that would bring back the rounding error of about eps kappa(Z) that the second removes.
    """
    if not (math.isfinite(sigma) and sigma > 0):
        raise ConfigError(f"noise needs a finite sigma > 0; got sigma={sigma}")
    factors: list[Float64] = []
    kappa = math.inf
    while kappa > REFINE:
        gram, d = _gram(apply(factors, block) if factors else block for block in blocks())
        _require_room(len(gram), d)
        kappa = condition(gram)
        if kappa > LIMIT:
            raise IllConditioned(
                f"the condition number of {len(gram)} rows is {kappa:.3g}, above {LIMIT:.0e}"
            )
        factors.append(orthogonaliser(gram))
    factors[-1] *= sigma * math.sqrt(d)
    return tuple(factors)


def apply(factors: Sequence[Float64], block: Float64, out: Float64 | None = None) -> Float64:
    """Returns the noise (n, b) in the columns of this block of Z (n, b). out: new if None."""
    for factor in factors[:-1]:
        block = factor @ block
    return np.matmul(factors[-1], block, out=out)


def constant_distance(gaussian: AnyArray, *, sigma: float) -> Float64:
    """Makes noise by law 4. gaussian: (n, d) iid normals, n <= d. Returns a new array (n, d).

    All pairs of rows are at the squared distance C = 2 d sigma^2, and every row has the norm
    sigma sqrt(d). One row by itself is uniform on that sphere, hence nearly N(0, sigma^2) in each
    coordinate. The rows together are *not* independent: see `ostraka.core.leakage.polar`.
    """

    def blocks() -> Iterator[Float64]:
        for start in range(0, d, _COLUMNS):
            yield np.asarray(gaussian[:, start : start + _COLUMNS], dtype=np.float64)

    n, d = gaussian.shape
    _require_room(n, d)
    factors = transform(blocks, sigma=sigma)
    noise = np.empty((n, d))
    for i, block in enumerate(blocks()):
        apply(factors, block, out=noise[:, i * _COLUMNS : (i + 1) * _COLUMNS])
    return noise


def gram_schmidt(gaussian: AnyArray, *, sigma: float) -> Float64:
    """Makes noise as the paper's appendix does, by modified Gram-Schmidt: the slow reference."""
    rows = np.array(gaussian, dtype=np.float64)
    n, d = rows.shape
    _require_room(n, d)
    projection = np.empty(d)
    for i in range(n):
        rows[i] /= math.sqrt(rows[i] @ rows[i])
        for j in range(i + 1, n):
            np.multiply(rows[i], rows[i] @ rows[j], out=projection)
            rows[j] -= projection
    rows *= sigma * math.sqrt(d)
    return rows


def _require_room(n: int, d: int) -> None:
    if not 1 <= n <= d:
        raise ConfigError(f"at least 1 and at most d rows can be orthogonal; got n={n}, d={d}")


def _gram(blocks: Iterable[Float64]) -> tuple[Float64, int]:
    """Returns Z Z^T (n, n), and d, the number of columns of Z."""
    gram, d = np.zeros((0, 0)), 0
    for block in blocks:
        if d == 0:
            gram = np.zeros((len(block), len(block)))
        add_gram(gram, block)
        d += block.shape[1]
    return gram, d


def grid_step(sigma: float) -> float:
    """Returns the grid's step: 2^(e - 48) for the least e >= 0 with 2^e >= sigma.

    float64 holds every multiple of the step up to 2^53 steps, that is, all shares with
    |Y| < 32 max(sigma, 1). Updates are in units of the clip norm, so |W| is about 1 at most.
    """
    mantissa, exponent = math.frexp(max(sigma, 1.0))
    # The mantissa is in [1/2, 1), so 2^exponent is the power wanted, unless sigma itself is one.
    return math.ldexp(1.0, exponent - (mantissa == 0.5) - 48)


def to_grid(values: Float64, step: float, out: Float64 | None = None) -> Float64:
    """Rounds to multiples of `step`, a power of two, where |values| <= 2^51 step.

    out: new if None; it may be values.

    A sum in [2^52, 2^53) step has no bits below one step, so adding 1.5 * 2^52 step rounds, and
    subtracting it is exact. With `grid_step` that covers |values| <= 8 max(sigma, 1); a normal
    beyond it (one in 10^15) may land on a half step, and its sums are still exact.
    """
    shift = 1.5 * 2.0**52 * step
    out = np.add(values, shift, out=out)
    out -= shift
    return out


def encode(update: Float64, noise: Float64, *, step: float, plus: Float64, minus: Float64) -> None:
    """Masks a tile of one row by law 1. All arrays are (b,); plus and minus are overwritten.

    update: in units of the clip norm. noise: already on the grid, and used for no other update.
    """
    to_grid(update, step, out=plus)
    np.subtract(plus, noise, out=minus)
    plus += noise


def decode(plus: Float64, minus: Float64, *, sigma: float, d: int) -> Float64:
    """Returns |W_i - W_j|^2 (n, n) by law 3. plus, minus: the workers' distances D+, D- (n, n).

    The result is signed: equal updates decode to 0 give or take `leakage.decoding_error`. The
    diagonal is 0.
    """
    constant = 2 * d * sigma**2
    # C is subtracted first: D is close to it, so the differences are exact and their sum is small.
    distances: Float64 = ((plus - constant) + (minus - constant)) / 2
    np.fill_diagonal(distances, 0)
    return distances


class Agreement:
    """Evidence, gathered while masking, of what a matrix of squared distances must be.

    For weights v that sum to zero, v^T D v = -2 |sum of v_i Y_i|^2. A matrix with an entry that is
    wrong by much more than the rounding error fails for all but a small part of all secret v. A
    matrix that is wrong by less passes, so this is weaker than `ostraka.core.exact.Freivalds`.
    """

    def __init__(self, weights: Float64, width: int) -> None:
        """weights: (2, n), secret and normal. width: the most columns of a block."""
        self._weights = weights - weights.mean(axis=1, keepdims=True)
        self._sums = np.zeros((2, width))
        self._evidence = np.zeros((2, 2))

    def __repr__(self) -> str:
        return f"Agreement(<secret>, rows={self._weights.shape[1]})"

    def add(self, first: int, rows: Float64) -> None:
        """Takes rows first, first + 1, ... of the block. rows: (g, b)."""
        part = self._weights[:, first : first + len(rows)]
        self._sums[:, : rows.shape[1]] += part @ rows

    def take(self, other: "Agreement") -> None:
        """Takes over the rows of this block that another one with the same weights has taken."""
        self._sums += other._sums
        other._sums[:] = 0

    def end_block(self) -> None:
        """Ends a block of columns, all of whose rows have been taken."""
        self._evidence += self._sums @ self._sums.T
        self._sums[:] = 0

    def accepts(self, distances: Float64, error: float) -> bool:
        """Tells whether the matrix (n, n) agrees, if every entry may be off by `error`."""
        claimed = self._weights @ distances @ self._weights.T
        sums = np.abs(self._weights).sum(axis=1)
        tolerance = error * np.outer(sums, sums)
        return bool((np.abs(claimed + 2 * self._evidence) <= tolerance).all())

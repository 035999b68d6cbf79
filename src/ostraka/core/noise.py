"""Constant-distance noise: law 4, the paper's appendix A.2.

(4)  |R_i - R_j|^2 = C = 2 d sigma^2  for all i != j

n Gaussian rows are orthogonalised and scaled to the norm sigma sqrt(d) = sqrt(C / 2). Any subset
of the rows has the same property, so clients that drop out or join later cost nothing.

The orthogonalisation is CholeskyQR: with Z Z^T = L L^T, the rows of L^-1 Z are orthonormal. It is
the same map as Gram-Schmidt (L has a positive diagonal), but made of matrix products, and it needs
Z only block by block. `transform` finds the map and `apply` uses it, so that a maker may generate Z
again from its seed instead of keeping it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from ostraka.arrays import AnyArray, Float64
from ostraka.core.distances import add_gram
from ostraka.errors import ConfigError

# One pass leaves the rows orthogonal to about eps kappa^2; beyond this kappa a second one follows.
# Gaussian rows stay below it from about d = 9 n on.
REFINE = 2.0
# Two passes restore full precision as long as eps n kappa^2 < 1.
LIMIT = 1e6

_COLUMNS = 4096


class IllConditioned(ConfigError):
    """The rows are linearly dependent, or nearly so: draw them again.

    Drawing again does not change the law of the noise. Where Z = L Q is Gaussian, L and Q are
    independent; kappa(Z) = kappa(L) depends on L alone, and the noise on Q alone.
    """


def condition(gram: Float64) -> float:
    """kappa(Z), the condition number of the rows whose Gram matrix Z Z^T (n, n) this is."""
    if not np.isfinite(gram).all():
        return math.inf
    eigenvalues = np.linalg.eigvalsh(gram)
    smallest, largest = float(eigenvalues[0]), float(eigenvalues[-1])
    return math.sqrt(largest / smallest) if smallest > 0 else math.inf


def orthogonaliser(gram: Float64) -> Float64:
    """T (n, n), lower triangular, such that T Z has orthonormal rows. gram: Z Z^T (n, n)."""
    try:
        lower = np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:
        raise IllConditioned(f"the {len(gram)} rows are linearly dependent") from None
    return np.tril(np.linalg.solve(lower, np.eye(len(gram))))


def transform(blocks: Callable[[], Iterable[Float64]], *, sigma: float) -> tuple[Float64, ...]:
    """The map from Gaussian rows Z (n, d) to constant-distance noise, for `apply`.

    blocks: yields Z in blocks of columns (n, b), the same blocks in every call. It is called once,
    and once more if kappa(Z) > REFINE. IllConditioned is raised if kappa(Z) > LIMIT.

    The result is one (n, n) factor, or two to be applied in turn. Their product would not do: it
    would bring back the rounding error of about eps kappa(Z) that the second factor removes.
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
    """The noise (n, b) in the columns of this block of Z (n, b). out: (n, b), new if None."""
    for factor in factors[:-1]:
        block = factor @ block
    return np.matmul(factors[-1], block, out=out)


def constant_distance(gaussian: AnyArray, *, sigma: float) -> Float64:
    """Law 4. gaussian: (n, d) iid normals, float32 or float64, n <= d. Returns (n, d), new.

    All pairs of rows are at the squared distance C = 2 d sigma^2, and every row has the norm
    sigma sqrt(d). One row by itself is uniform on that sphere, hence nearly N(0, sigma^2) in each
    coordinate. The rows together are *not* independent: see `ostraka.core.attacks.polar`.
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
    """Law 4 by modified Gram-Schmidt, as the paper's appendix has it: the slow reference."""
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
    """Z Z^T (n, n), and d, the number of columns of Z."""
    gram, d = np.zeros((0, 0)), 0
    for block in blocks:
        if d == 0:
            gram = np.zeros((len(block), len(block)))
        add_gram(gram, block)
        d += block.shape[1]
    return gram, d

"""What a share can tell, what hiding costs in precision, and attacks that test the masking.

The bound is law 6, the paper's corollary 1:

(6)  I(W_i; Y_i) <= sum over k of 1/2 log2(1 + Var(W_ik) / sigma^2)  bits

Larger noise hides more and rounds more away, so a leakage budget and a precision are two demands on
one sigma: `require` meets both, or says how far apart they are. Everything is in units of the clip
norm.

The law takes the noise of different rows to be independent. That of law 4 is not, so a worker that
looks at all its rows together learns more than this bound: see `polar`.

The attacks are what a curious worker can compute from its shares Y = W + R (n, d). The worker
suspects a candidate (d,) to be one client's update. An attack turns shares and candidate into one
number that tends to be larger where the suspicion is true, and `auc` says how well that number
tells true suspicions from false ones.
"""

import math

import numpy as np
import numpy.typing as npt

from ostraka.arrays import Float64
from ostraka.core.gaussian import grid_step
from ostraka.core.gram import gram_error
from ostraka.errors import ConfigError

# The bits that a share may tell of one whole update, all its coordinates together.
DEFAULT_BITS = 1e-3

# Rows are scaled to the unit ball by their stated norms, which are checked to within 2^-10.
ROW_NORM = 1 + 2.0**-10


def bound_bits(sigma: float, *, variance: float, d: int) -> float:
    """Returns the bound of law 6 for equal variances: d/2 log2(1 + variance / sigma^2)."""
    _require_positive(sigma=sigma, variance=variance, d=d)
    ratio = math.sqrt(variance) / sigma
    return d / 2 * math.log1p(ratio * ratio) / math.log(2)


def sigma_for(bits: float, *, variance: float, d: int) -> float:
    """Returns the sigma at which the bound is `bits`: sqrt(variance / (2^(2 bits / d) - 1))."""
    _require_positive(bits=bits, variance=variance, d=d)
    # With x = 2 ln(2) bits / d this is the root of 1 / expm1(x), in a form that cannot overflow.
    x = 2 * math.log(2) * bits / d
    return math.sqrt(variance) * math.exp(-x / 2) / math.sqrt(-math.expm1(-x))


def clipped_variance(norm: float, d: int) -> float:
    """Returns a coordinate's variance to use in law 6 for updates with |W| <= norm: norm^2 / d.

    The variances sum to at most E|W|^2 <= norm^2. The logarithm is concave, so by Jensen's
    inequality the sum in law 6 is largest where they are all equal.
    """
    _require_positive(norm=norm, d=d)
    return norm * norm / d


def decoding_error(sigma: float, *, d: int, dtype: npt.DTypeLike, tile: int = 1024) -> float:
    """Returns the error of a decoded squared distance |W_i - W_j|^2, in squared clip norms.

    dtype: that of the shares and of the workers' sums. tile: see `gram.gram_error`.

    Decoding subtracts C = 2 d sigma^2 from distances of that size, so the error is of the order of
    eps C. The grid of the shares adds to it, which matters for small d only.
    """
    _require_positive(sigma=sigma, d=d)
    constant = 2 * d * sigma**2
    summing = gram_error(d, square=constant / 2 + 2, tile=tile, dtype=dtype)
    # On the grid R_i - R_j and W_i - W_j are off by up to a step in each coordinate. Their lengths
    # are sqrt(C) and at most 2, and 5 steps are six deviations of twice an error along a direction.
    gridding = 5 * grid_step(sigma) * (math.sqrt(constant) + 2)
    return summing + gridding


def require(
    bits: float, precision: float, *, d: int, dtype: npt.DTypeLike, tile: int = 1024
) -> float:
    """Returns the sigma that keeps the leakage of any update within `bits`.

    Raises ConfigError if distances could then be off by more than `precision` squared clip norms.
    """
    _require_positive(precision=precision)
    try:
        sigma = sigma_for(bits, variance=clipped_variance(ROW_NORM, d), d=d)
        error = decoding_error(sigma, d=d, dtype=dtype, tile=tile)
    except (OverflowError, ZeroDivisionError):
        raise ConfigError(f"no noise in float64 keeps the leakage within {bits:g} bits") from None
    if error > precision:
        raise ConfigError(
            f"a leakage of at most {bits:g} bits needs noise of sigma={sigma:.4g} clip norms, and "
            f"then distances over {d} coordinates in {np.dtype(dtype).name} are off by up to "
            f"{error:.2g} squared clip norms; the precision asked for is {precision:g}"
        )
    return sigma


def _require_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 < number < math.inf:
            raise ConfigError(f"{name} must be positive and finite; got {number}")


def matched_filter(share: Float64, candidate: Float64) -> float:
    """Returns <Y_i, candidate>, which needs one row alone. share, candidate: (d,).

    No test is better against independent Gaussian noise. Its signal-to-noise ratio is
    |W_i| / sigma, which the budget of law 6 keeps small.
    """
    return float(share @ candidate)


def polar(shares: Float64, *, sigma: float) -> Float64:
    """Returns Z = Y - sigma sqrt(d) polar(Y), with polar(Y) = (Y Y^T)^(-1/2) Y. Y, Z: (n, d).

    The noise of law 4 is sigma sqrt(d) times orthonormal rows Q, and the orthonormal rows nearest
    to Y are polar(Y). To first order Z = S Q, with S the symmetric part of W Q^T: only the
    directions of the noise are left, for *every* sigma, and row i of Z has the cosine
    sqrt((n + 1) / 2d) with W_i. Law 6 does not see this, because it takes rows to be independent.
    """
    n, d = shares.shape
    eigenvalues, vectors = np.linalg.eigh(shares @ shares.T)
    inverse_root = (vectors / np.sqrt(eigenvalues)) @ vectors.T
    residue: Float64 = (np.eye(n) - sigma * math.sqrt(d) * inverse_root) @ shares
    return residue


def polar_filter(shares: Float64, candidates: Float64, *, sigma: float) -> Float64:
    """Returns <Z_i, candidate_i> for every row, (n,), with Z by `polar`. Arguments: (n, d).

    Its signal-to-noise ratio is sqrt((n + 1) / 2), for every d and sigma.
    """
    statistics: Float64 = np.einsum("ij,ij->i", polar(shares, sigma=sigma), candidates)
    return statistics


def auc(positive: Float64, negative: Float64) -> float:
    """Returns the chance that a true suspicion scores above a false one; 0.5 is a blind guess.

    positive, negative: an attack's results for true and for false suspicions, (m,) and (l,). A tie
    counts as one half.
    """
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, side="left")
    not_above = np.searchsorted(ordered, positive, side="right")
    return float(np.mean(below + not_above) / (2 * len(ordered)))

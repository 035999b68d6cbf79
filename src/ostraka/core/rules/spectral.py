"""Rules that look for the direction along which rows differ most.

With weights p that sum to 1, rows centred at their weighted mean have the Gram matrix
K = (I - 1 p^T) G (I - p 1^T). If u is the top eigenvector of sqrt(p) K sqrt(p), with the eigenvalue
lambda, then lambda is the largest one of the weighted covariance, and row i lies at
(K sqrt(p) u)_i / sqrt(lambda) along its direction. Both are taken of K as a whole, by eigh.

caf   the covariance-bound agnostic filter: c_i = 1 for all rows; then, while the sum of c is above
      n - 2f, c_i <- c_i (1 - tau_i / max tau), where tau_i is the square of row i's place along the
      top direction. Of all weighted means on the way it keeps that of the least lambda. Allouah,
      Guerraoui and Stephan, "Towards Trustworthy Federated Learning with Untrusted Participants",
      ICML 2025: its error is bounded by the largest eigenvalue of the honest covariance, and not by
      their trace as with other rules. n >= 2f + 2; from n = 3f + 2 on no share is ever cut.
      The largest tau is that of rows that still count, so each step takes one out, and 2f steps are
      the most. All 2f are made, whatever the rows: how long it takes must not tell of them. ByzFL
      takes it over all rows, and far colluders that are out already then stall its loop (69,752
      steps were seen); and it takes one power step from a random start for the eigenvector, so its
      aggregate is random. It ends before fewer than f + 2 rows count, which can only happen where
      n <= 3f. A step takes n^3 operations, so from some 500 clients on it takes longer than all
      else.
dnc   divide and conquer: the mean of the n - f rows that lie least far out along the top direction
      of all rows, centred at their mean. Shejwalkar and Houmansadr, "Manipulating the Byzantine",
      NDSS 2021, which repeats this on random coordinates and keeps the rows that always stay; here
      it is done once, on all columns, and no coin is thrown. No kappa: it looks along one
      direction, and colluders who spread over two, or shift the mean, pass. n >= 2f + 2.

Where rows differ by rounding errors only there is no direction, and those that are left count as
they do. Of two directions that are equally long, eigh takes either.
"""

import numpy as np

from ostraka.arrays import Float64
from ostraka.core.rules.seam import Gram, Options, Rule, Weights

_DUST = 1e-9  # A row of less weight is out, so that none is there for its rounding error only.


class Caf(Rule):
    """The covariance-bound agnostic filter."""

    citation = "Allouah et al., Towards Trustworthy Federated Learning, ICML 2025"
    matrices = 5

    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        n = len(gram)
        counts, best, least = np.ones(n), np.ones(n), np.inf
        for _ in range(2 * f):
            eigenvalue, places = top_direction(gram, counts / counts.sum())
            if eigenvalue < least:
                least, best = eigenvalue, counts
            tau = np.where(counts > 0, places**2, 0)
            fewer = counts * (1 - tau / max(float(tau.max()), np.finfo(float).tiny))
            fewer[fewer <= _DUST * n] = 0
            if fewer.sum() > n - 2 * f and np.count_nonzero(fewer) >= f + 2:
                counts = fewer
        return Weights.of(best / best.sum())


class Dnc(Rule):
    """Divide and conquer, on all columns."""

    citation = "Shejwalkar and Houmansadr, Manipulating the Byzantine, NDSS 2021"
    matrices = 5

    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        n = len(gram)
        _, places = top_direction(gram, np.full(n, 1 / n))
        return Weights.mean_of(np.argsort(places**2, kind="stable")[: n - f].tolist(), n)


def top_direction(gram: Gram, weights: Float64) -> tuple[float, Float64]:
    """The largest variance along any direction, and where each row (n,) lies along that one.

    weights: (n,) that sum to 1. Both are 0 if the rows differ by rounding errors only.
    """
    products = (gram.products + gram.products.T) / 2
    along = products @ weights
    centred = products - along[:, None] - along + weights @ along
    roots = np.sqrt(weights)
    values, vectors = np.linalg.eigh(roots[:, None] * centred * roots)
    variance = float(values[-1])
    if variance <= len(gram) * np.finfo(float).eps * float(np.abs(products).max()):
        return 0.0, np.zeros(len(gram))
    places: Float64 = centred @ (roots * vectors[:, -1]) / np.sqrt(variance)
    return variance, places

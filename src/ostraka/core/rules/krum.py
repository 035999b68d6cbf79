"""Krum and Multi-Krum: law 5, the paper's section 3.2, after Blanchard et al. (NeurIPS 2017).

(5)  score_i = the sum of the n - f - 2 smallest D_ij over j != i; keep the k lowest; n >= 2f + 3

krum keeps one row, and so stands after nnm only, where that row is a mean of n - f. multi-krum is
the paper's rule. Both are blind to rows nearer to honest ones than these are to each other: with
9 attackers of 25, inner product manipulation leaves multi-krum worse than the plain mean.

The count is that of Blanchard et al. and of Flower: n - f - 2 squared distances to *others*. ByzFL
sums n - f - 1 of them (`neighbours`), others sum plain distances or fourth powers, and the
selections differ.

krum is (f, kappa)-robust with kappa = 6 (1 + f/(n - 2f)), where n > 2f (Allouah et al., "Fixing by
Mixing", AISTATS 2023), and multi-krum is no worse (Bareilles et al., "Byzantine Machine Learning:
MultiKrum and an optimal notion of robustness", 2026). What both promise of the direction is law 20,
in `resilience`.

Distances are squared and signed: a decoded one may be slightly negative, and is used as it is. So
is an asymmetric matrix, where row i scores client i.
"""

import math
from typing import ClassVar

import numpy as np

from ostraka.arrays import Float64, row_blocks
from ostraka.core.rules.seam import Gram, Options, Rule, Weights
from ostraka.errors import ConfigError


def least(f: int) -> int:
    """The condition of law 5: n >= 2f + 3."""
    return 2 * f + 3


class MultiKrum(Rule):
    """Averages the k rows of lowest score with equal weights; all but f, unless k is given."""

    citation = "Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017"

    takes: ClassVar = {"k": "n - f", "neighbours": "n - f - 2"}

    def least(self, f: int) -> int:
        return least(f)

    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        n = len(gram)
        k = n - f if options.k is None else min(options.k, n - f)
        kept = multi_krum(gram.distances(), f, k, neighbours=options.neighbours)
        return Weights.mean_of(kept, n)


class Krum(Rule):
    """The row of lowest score: a mean of others, since nnm comes before."""

    citation = "Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017"

    takes: ClassVar = {"neighbours": "n - f - 2"}

    def least(self, f: int) -> int:
        return least(f)

    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        kept = multi_krum(gram.distances(), f, 1, neighbours=options.neighbours)
        return Weights.mean_of(kept, len(gram))


def krum_scores(distances: Float64, f: int, *, neighbours: int | None = None) -> Float64:
    """The scores (n,) of law 5. distances: (n, n), whose diagonal is ignored whatever it holds.

    neighbours: how many distances to sum, None for n - f - 2.
    """
    if distances.ndim != 2 or distances.shape[0] != distances.shape[1]:
        raise ConfigError(f"Krum needs a square matrix; got shape {distances.shape}")
    n = len(distances)
    if f < 0 or n < least(f):
        raise ConfigError(f"Krum needs f >= 0 and n >= 2f + 3; got n={n}, f={f}")
    count = n - f - 2 if neighbours is None else min(neighbours, n - 1)
    scores, bad = np.empty(n), 0
    for rows in row_blocks(n):
        others = np.array(distances[rows], dtype=np.float64)
        np.fill_diagonal(others[:, rows], 0)
        bad += int(np.count_nonzero(~np.isfinite(others)))
        # A row is no neighbour of its own: its 0 must not count as the nearest distance.
        np.fill_diagonal(others[:, rows], math.inf)
        others.sort(axis=1)
        scores[rows] = others[:, :count].sum(axis=1)
    if bad:
        raise ConfigError(f"Krum needs finite distances; {bad} of {n * (n - 1)} are not")
    return scores


def multi_krum(
    distances: Float64, f: int, k: int, *, neighbours: int | None = None
) -> tuple[int, ...]:
    """The k rows of lowest score, in ascending order. Of equal scores the lower row number wins."""
    scores = krum_scores(distances, f, neighbours=neighbours)
    n = len(scores)
    if not 1 <= k <= n - f:
        raise ConfigError(f"Multi-Krum keeps 1 <= k <= n - f rows; got k={k}, n={n}, f={f}")
    kept = np.argsort(scores, kind="stable")[:k]
    return tuple(sorted(kept.tolist()))


def selection_gap(scores: Float64, k: int) -> float:
    """By how much the best row left out scores above the worst kept; infinite if none is left out.

    Errors of the scores that stay below half of it cannot change the selection.
    """
    if not 1 <= k <= len(scores):
        raise ConfigError(f"a selection keeps 1 <= k <= n rows; got k={k}, n={len(scores)}")
    if k == len(scores):
        return math.inf
    ordered = np.sort(scores)
    return float(ordered[k] - ordered[k - 1])

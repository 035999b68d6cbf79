"""Centres that are found step by step, in coordinates of the Gram matrix.

A point z = sum of w_j x_j lies at |x_i - z|^2 = G_ii - 2 (G w)_i + w G w from row i, so neither of
these rules needs a row.

geometric-median   the point with the least sum of distances, by Weiszfeld's steps from zero:
                   weights 1 / max(smoothing, |x_i - z|), made to sum to 1. A fixed number of steps.
                   Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning",
                   2022. (f, kappa)-robust for n > 2f with kappa = 4 (1 + f/(n - 2f))^2.
"""

import numpy as np

from ostraka.arrays import Float64
from ostraka.core.rules.seam import Gram, Options, Rule, Weights

WEISZFELD_STEPS = 32
_SMOOTHING = 1e-6  # of the longest row, if no length is given
_TINY = 1e-150  # Its inverse is finite, and so are sums of inverses.


class GeometricMedian(Rule):
    """The smoothed geometric median."""

    takes = ("iterations", "smoothing")

    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        steps = options.iterations or WEISZFELD_STEPS
        if options.smoothing is None:
            smoothing = _SMOOTHING * float(gram.norms.max())
        else:
            smoothing = options.smoothing / gram.unit
        weights = np.zeros(len(gram))
        for _ in range(steps):
            nearness = 1 / np.maximum(distances_to(gram, weights), max(smoothing, _TINY))
            weights = nearness / nearness.sum()
        return Weights.of(weights)


def distances_to(gram: Gram, weights: Float64) -> Float64:
    """The distances (n,) of all rows from the point that these weights (n,) describe."""
    along = gram.products @ weights
    squares = np.diagonal(gram.products) - 2 * along + weights @ along
    distances: Float64 = np.sqrt(np.maximum(squares, 0))
    return distances

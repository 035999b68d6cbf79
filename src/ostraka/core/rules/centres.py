"""Centres that are found step by step, in coordinates of the Gram matrix.

A point z = sum of w_j x_j lies at |x_i - z|^2 = G_ii - 2 (G w)_i + w G w from row i, so neither of
these rules needs a row.

geometric-median   the point with the least sum of distances, by Weiszfeld's steps from zero:
                   weights 1 / max(smoothing, |x_i - z|), made to sum to 1. A fixed number of steps.
                   Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning",
                   2022. (f, kappa)-robust for n > 2f with kappa = 4 (1 + f/(n - 2f))^2.
centred-clipping   z <- z + the mean of (x_i - z) min(1, radius / |x_i - z|), a fixed number of
                   steps, from the last aggregate, or from the medoid, the row with the least sum of
                   distances. No row moves the aggregate by more than radius/n a step. If no radius
                   is given, it is the median distance from z, anew in each step.
                   Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust
                   Optimization", ICML 2021, with one step. No kappa: how near it comes depends on
                   where it starts. n >= 2f + 2. Before there is a last aggregate, that is zero.

Trap: from the medoid, a colluder can be the start, and then holds the largest share until the cap
takes it.
"""

from typing import ClassVar

import numpy as np

from ostraka.arrays import Float64
from ostraka.core.rules.seam import Gram, Options, Rule, Weights

# Rows of zeros hold the first steps near the start. With 11 of 25, 32 steps left the aggregate at
# 0.3 % of the length that it has in the end, and 100 at 98 %.
WEISZFELD_STEPS = 100
# From zero, with flipped rows, one step leaves 0.48 of the honest rows' deviation and three 0.36.
# From an aggregate that is nearly right, one is better: 0.29 against 0.34.
CLIPPING_STEPS = 3
# Of the longest row, if no length is given. Inner products have the rounding error of squares, and
# the weight of a row at 1e-5 is then right to 1e-6; it moves the aggregate by 1e-11.
SMOOTHING = 1e-5
_TINY = 1e-150  # Its inverse is finite, and so are sums of inverses.


class GeometricMedian(Rule):
    """The smoothed geometric median."""

    citation = "Pillutla et al., Robust Aggregation for Federated Learning, IEEE TSP 2022"

    takes: ClassVar = {
        "iterations": f"{WEISZFELD_STEPS}",
        "smoothing": f"{SMOOTHING:g} of the longest update",
    }

    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        steps = options.iterations or WEISZFELD_STEPS
        if options.smoothing is None:
            smoothing = SMOOTHING * float(gram.norms.max())
        else:
            smoothing = options.smoothing / gram.unit
        weights, least, rows = np.zeros(len(gram)), max(smoothing, _TINY), _Rows(gram)
        for _ in range(steps):
            nearness = 1 / np.maximum(rows.distances_to(weights), least)
            weights = nearness / nearness.sum()
        return Weights.of(weights)


class CentredClipping(Rule):
    """The mean of differences from a centre, each shortened to a radius."""

    citation = "Karimireddy et al., Learning from History, ICML 2021"
    takes: ClassVar = {
        "radius": "the median distance from the centre",
        "centre": Options.centre,
        "iterations": f"{CLIPPING_STEPS}",
    }

    def needs_last(self, options: Options) -> bool:
        return options.centre == "last"

    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        n, rows = len(gram), _Rows(gram)
        weights, last = np.zeros(n), 0.0
        if options.centre == "last":
            last = 1.0
        else:
            weights[medoid(gram)] = 1.0
        for _ in range(options.iterations or CLIPPING_STEPS):
            distances = rows.distances_to(weights, last)
            if options.radius is None:
                radius = float(np.median(distances))
            else:
                radius = options.radius / gram.unit
            parts = np.ones(n)
            np.divide(radius, distances, out=parts, where=distances > radius)
            kept = 1 - parts.mean()
            weights, last = kept * weights + parts / n, kept * last
        return Weights.of(weights, last=last)


def medoid(gram: Gram) -> int:
    """The row with the least sum of distances from all others."""
    return int(np.argmin(np.sqrt(np.maximum(gram.distances(), 0)).sum(axis=1)))


class _Rows:
    """The rows of a Gram matrix, as seen from points among them."""

    def __init__(self, gram: Gram) -> None:
        self._gram = gram
        self._squares = np.diagonal(gram.products)
        # The root of a rounding error is not small: a row at the point itself must be at 0.
        largest = max(float(self._squares.max()), gram.last_square)
        self._rounding = len(gram) * np.finfo(float).eps * largest

    def distances_to(self, weights: Float64, last: float = 0.0) -> Float64:
        """The distances (n,) of all rows from the point that these weights (n,) describe.

        last: the weight of the last aggregate in it; where there is none, that is zero.
        """
        gram = self._gram
        along = gram.products @ weights
        square = weights @ along
        if last and gram.last is not None:
            square += last * (2 * (weights @ gram.last) + last * gram.last_square)
            along = along + last * gram.last
        squares = self._squares - 2 * along + square
        distances: Float64 = np.sqrt(np.where(squares > self._rounding, squares, 0))
        return distances

"""Pre-aggregations: mixtures of rows that take the place of the rows before a rule sees them.

nnm         row i becomes the mean of the n - f rows nearest to it, itself among them. Whatever
            follows then weighs no client by more than 1/(n - f). Before a rule with a kappa, that
            becomes 8f/(n - f) (kappa + 1): Allouah et al., "Fixing by Mixing", AISTATS 2023. Before
            the mean, it leaves no robustness: a far row's mixture is far.
bucketing   the means of s rows each, in an order that nobody could foresee; the last may hold
            fewer. One Byzantine row spoils one bucket. Karimireddy, He and Jaggi, ICLR 2022.
arc         shortens the floor(2 f (n - f) / n) longest rows to the length of the next one: Allouah
            et al., "Adaptive Gradient Clipping for Robust Federated Learning", ICLR 2025. A kappa
            becomes kappa + 2f/(n - 2f). ByzFL's count is rounded down in float arithmetic, which
            is one fewer for 33 of 242 rows, and for no other n below 400.
clip        shortens every row to a radius, or to the median length if none is given.

bucketing and clip have no kappa of their own, and clip to a fixed radius keeps none.

Of rows that are equally near, or equally long, the lower row number comes first.
"""

from typing import ClassVar

import numpy as np

from ostraka.arrays import Float64, Int64, row_blocks
from ostraka.core.gram import distances_of
from ostraka.core.rules.seam import Gram, Mixing, Options, PreAggregation


class NearestNeighbourMixing(PreAggregation):
    """Row i becomes the mean of the n - f rows nearest to it."""

    citation = "Allouah et al., Fixing by Mixing, AISTATS 2023"

    # On 4,096 columns, Min-Max did up to 8.5 times its damage; on 16,384, up to 1.5 times.
    least_sketch = 16_384

    def mix(self, gram: Gram, f: int, options: Options, order: Int64) -> Mixing:
        n = len(gram)
        shares = np.zeros((n, n))
        for rows in row_blocks(n):
            distances = distances_of(gram.products, rows)
            # A decoded distance may be negative, and a row is nearest to itself all the same.
            np.fill_diagonal(distances[:, rows], -np.inf)
            nearest = np.argsort(distances, axis=1, kind="stable")[:, : n - f]
            np.put_along_axis(shares[rows], nearest, 1 / (n - f), axis=1)
        return Mixing(shares)


class Bucketing(PreAggregation):
    """Rows become means of `bucket` rows."""

    citation = "Karimireddy et al., Byzantine-Robust Learning via Bucketing, ICLR 2022"

    takes: ClassVar = {"bucket": f"{Options.bucket}"}

    def least(self, f: int) -> int:
        return 1

    def before(self, least: int, options: Options) -> int:
        return options.bucket * (least - 1) + 1

    def mix(self, gram: Gram, f: int, options: Options, order: Int64) -> Mixing:
        size, n = options.bucket, len(gram)
        # After another bucketing there are fewer rows than there were clients.
        order = order[order < n]
        shares = np.zeros((-(-n // size), n))
        for bucket, start in enumerate(range(0, n, size)):
            members = order[start : start + size]
            shares[bucket, members] = 1 / len(members)
        return Mixing(shares, keeps_rows=False)


class Arc(PreAggregation):
    """Adaptive robust clipping."""

    citation = "Allouah et al., Adaptive Gradient Clipping, ICLR 2025"

    def mix(self, gram: Gram, f: int, options: Options, order: Int64) -> Mixing:
        n, norms = len(gram), gram.norms
        clipped = 2 * f * (n - f) // n
        return Mixing(factors=_shortened(norms, np.sort(norms)[n - clipped - 1]))


class Clip(PreAggregation):
    """Static clipping."""

    citation = "Sun et al., Can You Really Backdoor Federated Learning?, 2019"
    takes: ClassVar = {"radius": "the median length"}

    def least(self, f: int) -> int:
        return 2 * f + 1  # so that f rows of zeros are not the median length

    def mix(self, gram: Gram, f: int, options: Options, order: Int64) -> Mixing:
        norms = gram.norms
        radius = np.median(norms) if options.radius is None else options.radius / gram.unit
        return Mixing(factors=_shortened(norms, float(radius)))


def _shortened(norms: Float64, longest: float) -> Float64:
    """What rows of these lengths are multiplied by to be no longer than that; 1 for zeros."""
    factors = np.ones(len(norms))
    np.divide(longest, norms, out=factors, where=norms > longest)
    return factors

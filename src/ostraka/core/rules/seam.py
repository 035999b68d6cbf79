"""The seam between measuring and averaging: a `Rule` turns a `Gram` into a `Plan`.

A rule sees inner products and never a row. A plan says what becomes of the rows:

    Weights((n,))    the aggregate is the sum of w_i x_i, which one pass over the rows computes
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from ostraka.arrays import Float64
from ostraka.core.gram import from_gram


@dataclass(frozen=True)
class Gram:
    """The inner products of n clipped rows.

    products: (n, n), in units of the squared clipping norm. deviation: the largest error to expect
    of a squared distance, in the same unit: (n, n), or one number for all pairs. unit: the clipping
    norm.
    """

    products: Float64 = field(repr=False)
    deviation: Float64 = field(repr=False)
    unit: float = field(repr=False)

    def distances(self) -> Float64:
        """The squared distances (n, n), signed, with a zero diagonal (law 2)."""
        return from_gram(self.products)

    def among(self, rows: Sequence[int]) -> "Gram":
        """The same for some of the rows, in ascending order."""
        if len(rows) == len(self.products):
            return self
        chosen = np.ix_(rows, rows)
        every = np.broadcast_to(self.deviation, self.products.shape)
        return Gram(self.products[chosen], every[chosen], self.unit)


@dataclass(frozen=True)
class Options:
    """What the signed terms say of a rule besides its name. k: how many rows to average."""

    k: int | None = None


@dataclass(frozen=True)
class Weights:
    """The aggregate is the sum of w_i x_i over clipped rows. values: (n,) float64, at least 0."""

    values: Float64 = field(repr=False)

    @property
    def selected(self) -> tuple[int, ...]:
        """The rows of weight above 0, in ascending order."""
        return tuple(np.flatnonzero(self.values > 0).tolist())


Plan: TypeAlias = Weights


class Rule(Protocol):
    """An aggregation rule."""

    def least(self, f: int) -> int:
        """The smallest number of rows on which the rule stands when f may be Byzantine."""

    def plan(self, gram: Gram, f: int, options: Options) -> Plan:
        """What to average. Raises ConfigError for fewer rows than `least`."""

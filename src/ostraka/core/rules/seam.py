"""The seam between measuring and averaging: a `Rule` turns a `Gram` into a `Plan`.

A rule sees inner products and never a row. A plan says what becomes of the rows:

    Weights((n,))                the aggregate is the sum of w_i x_i: one pass over the rows
    Columnwise(matrix, reducer)  the same pass reduces each column by itself, at a higher price

Before the rule, pre-aggregations replace the rows by mixtures of them (`Mixing`). None of this
looks at a clock, draws a random number, or repeats itself more often than the terms say.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, TypeAlias

import numpy as np

from ostraka.arrays import Float64, Int64
from ostraka.core.columns import Reducer
from ostraka.core.gram import congruent, from_gram
from ostraka.errors import ConfigError

CENTRES = ("last", "medoid")


@dataclass(frozen=True)
class Gram:
    """The inner products of n clipped rows.

    products: (n, n), in units of the squared clipping norm. deviation: the largest error to expect
    of a squared distance, in the same unit: (n, n), or one number for all pairs. unit: the clipping
    norm. root: the row of the trusted client, if it is there. last: (n,) inner products with the
    last aggregate, and last_square: of that with itself, both in the same unit; None if they were
    not asked for.
    """

    products: Float64 = field(repr=False)
    deviation: Float64 = field(repr=False)
    unit: float = field(repr=False)
    root: int | None = None
    last: Float64 | None = field(default=None, repr=False)
    last_square: float = field(default=0.0, repr=False)

    def __len__(self) -> int:
        return len(self.products)

    @property
    def norms(self) -> Float64:
        """The rows' lengths (n,), in units of the clipping norm."""
        norms: Float64 = np.sqrt(np.maximum(np.diagonal(self.products), 0))
        return norms

    @property
    def lengths(self) -> Float64:
        """The norms (n,), or 0 for rows no longer than the error of measuring them."""
        squares, errors = np.diagonal(self.products), np.diagonal(self._deviations)
        lengths: Float64 = np.where(squares > errors, self.norms, 0)
        return lengths

    @property
    def _deviations(self) -> Float64:
        return np.broadcast_to(self.deviation, self.products.shape)

    def distances(self) -> Float64:
        """The squared distances (n, n), signed, with a zero diagonal (law 2)."""
        return from_gram(self.products)

    def among(self, rows: Sequence[int]) -> "Gram":
        """The same for some of the rows, in ascending order."""
        if len(rows) == len(self.products):
            return self
        chosen = np.ix_(rows, rows)
        return replace(
            self,
            products=self.products[chosen],
            deviation=self._deviations[chosen],
            root=None
            if self.root is None or self.root not in rows
            else list(rows).index(self.root),
            last=None if self.last is None else self.last[list(rows)],
        )

    def mixed(self, matrix: Float64, *, keeps_rows: bool) -> "Gram":
        """The same for the rows that a matrix (m, n), or a diagonal one (n,), makes of these.

        keeps_rows: whether row i stands for client i as before.
        """
        # The squared distance of two mixtures is -1/2 (m_i - m_j) D (m_i - m_j), and its error is
        # largest where the errors of D have the signs of the products: with m_i + m_j instead.
        errors = congruent(matrix, self._deviations)
        own = np.diagonal(errors) / 2
        errors += own[:, None]
        errors += own
        return replace(
            self,
            products=congruent(matrix, self.products),
            deviation=errors,
            root=self.root if keeps_rows else None,
            last=None if self.last is None else applied(matrix, self.last),
        )


def applied(matrix: Float64, values: Float64) -> Float64:
    """The product of a matrix (m, n), or a diagonal one (n,), with values (n,)."""
    product: Float64 = matrix * values if matrix.ndim == 1 else matrix @ values
    return product


@dataclass(frozen=True)
class Options:
    """What the signed terms say of a rule besides its name. None: see the rule.

    k: how many rows multi-krum averages. neighbours: how many of them krum and multi-krum sum for a
    score. root: the client whose update fltrust and monna trust. bucket: how many rows bucketing
    averages. radius: to which clip shortens rows, and centred-clipping their differences, as a
    length. centre: where centred-clipping starts. iterations: of centred-clipping and of
    geometric-median. smoothing: of geometric-median, a length below which rows are not told apart.
    beta: the part of all values that trimmed-mean drops at each end.
    """

    k: int | None = None
    neighbours: int | None = None
    root: str = ""
    bucket: int = 2
    radius: float | None = None
    centre: str = "last"
    iterations: int | None = None
    smoothing: float | None = None
    beta: float | None = None

    def __post_init__(self) -> None:
        for name, least, most in (
            ("k", 1, math.inf),
            ("neighbours", 1, math.inf),
            ("bucket", 1, math.inf),
            ("iterations", 1, 1000),
            ("radius", 2.0**-126, 2.0**128),
            ("smoothing", 2.0**-126, 2.0**128),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ConfigError(f"{name} must be from {least:g} to {most:g}; got {value}")
        if self.beta is not None and not 0 <= self.beta < 0.5:
            raise ConfigError(f"beta must be from 0 to below 0.5; got {self.beta}")
        if self.centre not in CENTRES:
            raise ConfigError(f"centre is one of {', '.join(CENTRES)}; got {self.centre!r}")
        # Policies compare what `str` shows, so no name may look like another option.
        if set(self.root) & set("(),="):
            raise ConfigError(f"root is a client's name, without (),=; got {self.root!r}")

    def __str__(self) -> str:
        """Those that are not as usual: "k=5, neighbours=3"."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.given)

    @property
    def given(self) -> tuple[str, ...]:
        """The names of those that are not as usual."""
        every = ((each.name, each.default) for each in fields(self))
        return tuple(name for name, usual in every if getattr(self, name) != usual)


@dataclass(frozen=True)
class Mixing:
    """What a pre-aggregation makes of n rows: row i of the outcome is the sum of m_ij c_j x_j.

    shares: (m, n), the mixture m, whose rows sum to 1. factors: (n,) what shortens each row before;
    None if nothing does. keeps_rows: whether row i of the outcome stands for client i.
    """

    shares: Float64 | None = field(default=None, repr=False)
    factors: Float64 | None = field(default=None, repr=False)
    keeps_rows: bool = True


@dataclass(frozen=True)
class Weights:
    """The aggregate is the sum of w_i x_i over clipped rows, plus `last` times the last aggregate.

    values: (n,) float64, the w_i, at least 0. shares: (n,) the same before any row was shortened or
    brought to a common length: whose updates these are. note: what the receipt says of how the rule
    came to it.
    """

    values: Float64 = field(repr=False)
    shares: Float64 = field(repr=False)
    last: float = field(default=0.0, repr=False)
    note: str = ""

    @classmethod
    def of(cls, shares: Float64, *, last: float = 0.0, note: str = "") -> "Weights":
        """Of rows that are taken as they are."""
        return cls(shares, shares, last, note)

    @classmethod
    def mean_of(cls, rows: Sequence[int], n: int, *, note: str = "") -> "Weights":
        """The plain mean of some of n rows."""
        shares = np.zeros(n)
        shares[list(rows)] = 1 / len(rows)
        return cls.of(shares, note=note)

    @property
    def selected(self) -> tuple[int, ...]:
        """The rows of weight above 0, in ascending order."""
        return tuple(np.flatnonzero(self.values > 0).tolist())


@dataclass(frozen=True)
class Columnwise:
    """Each column of the aggregate is reduced by itself, from mixtures of the clipped rows.

    matrix: (m, n), what those mixtures are. reducer: the median, the mean without the `count`
    lowest and the `count` highest values, or the mean of the `count` values nearest to the median.
    shares: (m, n), the matrix before any row was shortened; None if none was.
    """

    matrix: Float64 = field(repr=False)
    reducer: Reducer
    count: int = 0
    note: str = ""
    shares: Float64 | None = field(default=None, repr=False)

    @property
    def selected(self) -> tuple[int, ...]:
        """The rows that can count in any column, in ascending order."""
        return tuple(np.flatnonzero((self.matrix != 0).any(axis=0)).tolist())

    @property
    def averaged(self) -> int:
        """How many mixtures' values the aggregate is the mean of, in every column."""
        if self.reducer == "near-median":
            return self.count
        m = len(self.matrix)
        return 2 - m % 2 if self.reducer == "median" else m - 2 * self.count

    @property
    def largest_share(self) -> float:
        """The largest part of any column that can come from one client."""
        shares = np.sort(self.matrix if self.shares is None else self.shares, axis=0)
        return float(shares[-self.averaged :].sum(axis=0).max() / self.averaged)


Plan: TypeAlias = Weights | Columnwise


class Part:
    """What a pre-aggregation and a rule have in common.

    citation: who proposed it, and where, in one line. takes: the options that it reads,
    and in words what holds for each that is not given.
    least_sketch: how many columns a sketch must have for it; None if none will do.
    """

    citation: ClassVar[str] = ""
    takes: ClassVar[Mapping[str, str]] = {}
    least_sketch: ClassVar[int | None] = 0

    def least(self, f: int) -> int:
        """The smallest number of rows on which it stands when f may be Byzantine."""
        return 2 * f + 2


class PreAggregation(Part):
    """What becomes of the rows before a rule sees them."""

    def before(self, least: int, options: Options) -> int:
        """The smallest number of rows of which it makes at least `least`."""
        return least

    def mix(self, gram: Gram, f: int, options: Options, order: Int64) -> Mixing:
        """The mixing of these rows. order: a permutation of them, or of more, that nobody could
        foresee."""
        raise NotImplementedError


class Rule(Part):
    """An aggregation rule.

    needs_root: whether it trusts one client's row. robust: whether
    it bounds what Byzantine rows do, by more than the clipping norm. columnwise: whether its plan
    is one. discloses: whether its aggregate holds single values of single clients, unless nnm has
    mixed them before. matrices: how many of the size of `Gram.products` it makes, at the most.
    """

    needs_root: ClassVar[bool] = False
    robust: ClassVar[bool] = True
    columnwise: ClassVar[bool] = False
    discloses: ClassVar[bool] = False
    matrices: ClassVar[int] = 2

    def least_of(self, f: int, options: Options, *, mixed: bool) -> int:
        """`least` with these options. mixed: whether nnm makes every row a mean of n - f before."""
        return self.least(f)

    def needs_last(self, options: Options) -> bool:
        """Whether it starts from the last aggregate: `Gram.last`."""
        return False

    def plan(self, gram: Gram, f: int, options: Options) -> Plan:
        """What to average. Raises ConfigError for fewer rows than `least`."""
        raise NotImplementedError

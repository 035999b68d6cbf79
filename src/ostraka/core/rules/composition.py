"""A defence as the signed terms name it: pre-aggregations in their order, and then one rule.

(14)  With the matrices M_1, M_2, ... of the pre-aggregations, M = ... M_2 M_1, the rule sees
      M G M^T, and its weights w on the mixtures are M^T w on the rows.
(15)  No single client dominates, whatever the rule: of the final weights, before any row was
      shortened, none is above 1/(f + 2) of their sum. So f colluders who know their own updates
      still see a mixture of at least two others.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from ostraka.arrays import Float64, Int64
from ostraka.core.rules.centres import GeometricMedian
from ostraka.core.rules.pre import Arc, NearestNeighbourMixing
from ostraka.core.rules.seam import (
    Columnwise,
    Gram,
    Options,
    Part,
    Plan,
    PreAggregation,
    Rule,
    Weights,
    applied,
)
from ostraka.errors import ConfigError, RootAbsent, TooFewWeighed

# Each takes time in every round, and its name a place in receipts, which are padded to one size.
MAX_PRE = 8

_DUST = 1e-9  # of all weights: a smaller one is an error of rounding


@dataclass(frozen=True)
class Composition:
    """Pre-aggregations and a rule, by name, with their options. One that exists can work.

    rule, steps: what stands behind `name` and `pre`.
    """

    name: str
    rule: Rule
    pre: tuple[str, ...] = ()
    steps: tuple[PreAggregation, ...] = ()
    options: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        if len(self.pre) > MAX_PRE:
            raise ConfigError(f"at most {MAX_PRE} pre-aggregations; got {len(self.pre)}")
        takes = {option for part in self.parts for option in part.takes}
        for option in self.options.given:
            if option not in takes:
                known = ", ".join(sorted(takes)) or "none"
                raise ConfigError(f"{option} is no option of {self.plain}; those are: {known}")
        if self.name == "krum" and "nnm" not in self.pre:
            raise ConfigError(
                "the rule krum alone would publish one client's update: put nnm before it, "
                "or take multi-krum"
            )
        if self.rule.needs_root and not self.options.root:
            raise ConfigError(
                f"the rule {self.name} trusts one client's update: name that client as root"
            )
        if self.rule.needs_root and "bucketing" in self.pre:
            raise ConfigError(f"{self.name} cannot tell its root client's row after bucketing")

    @property
    def parts(self) -> tuple[Part, ...]:
        return (*self.steps, self.rule)

    @property
    def plain(self) -> str:
        """Without options: "arc+nnm+geometric-median"."""
        return "+".join((*self.pre, self.name))

    @property
    def discloses(self) -> bool:
        """Whether the aggregate holds single values of single clients."""
        return self.rule.discloses and "nnm" not in self.pre

    @property
    def robust(self) -> bool:
        """Whether it bounds what Byzantine clients do."""
        return self.rule.robust or "nnm" in self.pre

    @property
    def needs_last(self) -> bool:
        """Whether the enclave has to keep the last aggregate for it."""
        return self.rule.needs_last(self.options)

    def require_sketch(self, columns: int) -> None:
        """Raises ConfigError if a sketch of so many columns is too rough for a part of it."""
        if self.rule.needs_root:
            FALLBACK.require_sketch(columns)
        if self.needs_last:
            raise ConfigError(
                f"{self.name} from the last aggregate cannot be told from a sketch: take "
                'centre = "medoid", or no sketch'
            )
        for name, part in zip((*self.pre, self.name), self.parts, strict=True):
            if part.least_sketch is None:
                raise ConfigError(f"{name} cannot be told from a sketch: take all columns")
            if columns < part.least_sketch:
                raise ConfigError(
                    f"{name} needs a sketch of at least {part.least_sketch} columns; got {columns}"
                )

    def __str__(self) -> str:
        """Such as "arc+nnm+geometric-median" or "multi-krum(k=5)"."""
        options = str(self.options)
        return self.plain + (f"({options})" if options else "")

    def least(self, f: int) -> int:
        """The smallest number of rows on which all of it stands."""
        least = max(self.rule.least_of(f, self.options, mixed="nnm" in self.pre), 1)
        for step in reversed(self.steps):
            least = max(step.least(f), step.before(least, self.options))
        return max(least, f + 2)

    def plan(self, gram: Gram, f: int, order: Int64) -> Plan:
        """What to average, or to reduce by columns.

        order: (n,) a permutation that nobody could foresee. Raises ConfigError for too few rows,
        TooFewWeighed if fewer than f + 2 clients would have a weight, and RootAbsent if the root
        client takes no part and there are too few others to do without it.
        """
        if self.rule.needs_root and gram.root is None:
            return self._without_root(gram, f, order)
        plan = self.unlimited(gram, f, order)
        return limited(plan, f) if isinstance(plan, Weights) else plan

    def unlimited(self, gram: Gram, f: int, order: Int64) -> Plan:
        """What `plan` makes of it before no client may dominate. The root client takes part."""
        # A vector stands for a diagonal matrix, here and in `times`: with 10,000 clients a matrix
        # is 0.8 GB, and multiplying two of them takes a minute.
        shares = matrix = np.ones(len(gram))
        for step in self.steps:
            mixing = step.mix(gram, f, self.options, order)
            mixture = np.ones(len(gram)) if mixing.shares is None else mixing.shares
            shortened = mixture if mixing.factors is None else mixture * mixing.factors
            gram = gram.mixed(shortened, keeps_rows=mixing.keeps_rows)
            shares, matrix = times(mixture, shares), times(shortened, matrix)
        plan = self.rule.plan(gram, f, self.options)
        if isinstance(plan, Columnwise):
            return replace(
                plan, matrix=times(plan.matrix, matrix), shares=times(plan.matrix, shares)
            )
        return replace(
            plan,
            values=applied(matrix.T, plan.values),
            shares=applied(shares.T, plan.shares),
        )

    def _without_root(self, gram: Gram, f: int, order: Int64) -> Plan:
        """The fallback's plan, with a note that says so. Raises RootAbsent for too few rows."""
        if len(gram) < (least := FALLBACK.least(f)):
            raise RootAbsent(str(FALLBACK), least, len(gram))
        # It names nobody, since metrics show it to strangers; the terms say who that is.
        note = f"the root client took no part: {FALLBACK} decided"
        return replace(FALLBACK.plan(gram, f, order), note=note)


# Decides in a round in which the root client of another composition takes no part.
FALLBACK = Composition(
    "geometric-median", GeometricMedian(), ("arc", "nnm"), (Arc(), NearestNeighbourMixing())
)


def times(left: Float64, right: Float64) -> Float64:
    """The product of two matrices, (m, k) and (k, n), of which a vector is a diagonal one."""
    if left.ndim == 1:
        return (left * right.T).T
    return left * right if right.ndim == 1 else left @ right


def limited(weights: Weights, f: int) -> Weights:
    """The same weights, of which none is above 1/(f + 2) of all shares.

    Shares become min(lambda share, limit), with the lambda that keeps their sum. Raises
    TooFewWeighed if fewer than f + 2 rows have a share, and are not shortened to nothing.
    """
    shares = np.where(weights.shares > _DUST * weights.shares.sum(), weights.shares, 0)
    if (weighed := int(np.count_nonzero(np.minimum(shares, weights.values)))) < f + 2:
        raise TooFewWeighed(weighed, f)
    after = _water_filled(shares, float(weights.shares.sum()), f + 2)
    ratio = np.divide(after, shares, out=np.zeros(len(shares)), where=shares > 0)
    return replace(weights, values=weights.values * ratio, shares=after)


def _water_filled(shares: Float64, total: float, least: int) -> Float64:
    """min(lambda share, total/least) of this sum. At least `least` shares are above 0."""
    limit, ascending = total / least, np.sort(shares[shares > 0])
    rest = np.cumsum(ascending)[::-1]
    for capped, (largest, left) in enumerate(zip(ascending[::-1], rest, strict=True)):
        scale = (total - capped * limit) / left
        if largest * scale <= limit:
            filled: Float64 = np.minimum(shares * scale, limit)
            return filled
    # All of them are at the limit, but for rounding.
    return np.where(shares > 0, limit, 0.0)

"""Defences in the clear: what the enclave does with updates, on float64 rows that anybody sees.

The same `Composition.plan` decides, on inner products of the same clipped rows. So a run in the
clear is what Ostraka must be equal to, and attackers can find out here what would become of theirs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ostraka.arrays import Float32, Float64, Int64
from ostraka.config import Manifest, Terms
from ostraka.core import rules
from ostraka.core.gram import add_gram
from ostraka.core.rules import Columnwise, Composition, Gram, Plan
from ostraka.errors import Rejection, RoundFailed, TooFewUpdates

_BLOCK = 1 << 16  # columns at a time, so that float64 copies stay small


@dataclass(frozen=True, eq=False)
class Aggregate:
    """An aggregate (d,), and the rows that have a part in it.

    shares: (n,) how much each row counts, summing to 1; None where that differs by column. failure:
    why there is no aggregate; the mean is then zero, and the model stays as it is.
    """

    mean: Float64
    selected: tuple[int, ...]
    shares: Float64 | None = None
    failure: str = ""


@dataclass(frozen=True, eq=False)
class Past:
    """What a rule knows of rounds before. number: of this round. last: (d,), the last aggregate."""

    number: int = 1
    last: Float64 | None = None


_NOTHING = Past()


@dataclass(frozen=True, eq=False)
class Products:
    """Inner products (n, n) of rows as they were sent, and with the last aggregate if there is one.

    root: the row of the trusted client.
    """

    rows: Float64
    last: Float64 | None = None
    last_square: float = 0.0
    root: int | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def norms(self) -> Float64:
        norms: Float64 = np.sqrt(np.maximum(np.diagonal(self.rows), 0))
        return norms


@dataclass(frozen=True)
class Defence:
    """A composition as the enclave applies it. f: how many attackers it is to withstand.

    root: the row of the client that it trusts, if it trusts one. seed: of the order that bucketing
    draws in each round.
    """

    composition: Composition
    f: int
    root: int | None = None
    seed: int = 0

    def __str__(self) -> str:
        return self.composition.plain

    def __call__(self, updates: Float32, past: Past = _NOTHING) -> Aggregate:
        """Aggregate updates (n, d). A round that fails gives zeros."""
        finite = np.flatnonzero([np.isfinite(row).all() for row in updates])
        rows = updates[finite]
        try:
            plan, scales = self.decide(
                self._products(rows, finite, past), len(updates), self.order(past.number, len(rows))
            )
        except RoundFailed as failed:
            return Aggregate(np.zeros(updates.shape[1]), (), failure=str(failed))
        mean = np.concatenate(
            [
                combined(plan, scales, block, None if past.last is None else past.last[part])
                for part, block in blocks(rows)
            ]
        )
        selected = tuple(finite[list(plan.selected)].tolist())
        if isinstance(plan, Columnwise):
            return Aggregate(mean, selected)
        shares = np.zeros(len(updates))
        shares[finite] = plan.shares
        return Aggregate(mean, selected, shares)

    def decide(self, sent: Products, n: int, order: Int64) -> tuple[Plan, Float64]:
        """The plan for rows that were sent, and what clips each of them (m,).

        n: how many were sent. Those that are not here were not finite: like the enclave, it lowers
        f with them. Raises RoundFailed if the rule cannot stand on what is left.
        """
        f, lost = self._left(n - len(sent)), n - len(sent)
        least = self.composition.least
        needed = max(least(f), least(self.f) - (self.f - f))
        if len(sent) < needed:
            raise TooFewUpdates(
                str(self.composition),
                needed,
                len(sent),
                f,
                {str(number): Rejection.NOT_FINITE for number in range(lost)},
            )
        limit = self.clipping_norm(sent.norms)
        scales = limit / np.maximum(sent.norms, limit)
        gram = Gram(
            sent.rows * np.outer(scales, scales) / limit**2,
            np.zeros(()),
            limit,
            sent.root,
            None if sent.last is None else sent.last * scales / limit**2,
            sent.last_square / limit**2,
        )
        return self.composition.plan(gram, f, order), scales

    def clipping_norm(self, norms: Float64) -> float:
        """The length to which the enclave would shorten rows of these lengths (n,)."""
        return self._terms.clipping_norm(norms)

    def order(self, number: int, n: int) -> Int64:
        """The order (n,) in which bucketing takes rows in this round."""
        return np.random.default_rng([self.seed, number]).permutation(n)

    def _left(self, lost: int) -> int:
        return self.f - min(lost, self.f)

    def _products(self, rows: Float32, numbers: Int64, past: Past) -> Products:
        products = inner_products(rows)
        root = numbers.tolist().index(self.root) if self.root in numbers else None
        if past.last is None or not self.composition.needs_last:
            return Products(products, root=root)
        along = np.array([row @ past.last for row in rows])
        return Products(products, along, float(past.last @ past.last), root)

    @cached_property
    def _terms(self) -> Terms:
        # Only the norm is asked of them, and that depends on no dimension.
        return Terms(Manifest.flat(1), f=self.f)


@dataclass(frozen=True)
class Plain(Defence):
    """Plain averaging: the mean of all updates as they are. One NaN makes it NaN."""

    composition: Composition = field(default_factory=lambda: rules.compose("mean"))
    f: int = 0

    def __str__(self) -> str:
        return "plain"

    def __call__(self, updates: Float32, past: Past = _NOTHING) -> Aggregate:
        with np.errstate(over="ignore", invalid="ignore"):
            mean: Float64 = updates.mean(axis=0, dtype=np.float64)
        n = len(updates)
        return Aggregate(mean, tuple(range(n)), np.full(n, 1 / n))

    def decide(self, sent: Products, n: int, order: Int64) -> tuple[Plan, Float64]:
        return rules.Weights.mean_of(range(len(sent)), len(sent)), np.ones(len(sent))


def combined(plan: Plan, scales: Float64, rows: Float64, last: Float64 | None = None) -> Float64:
    """What a plan makes of rows (n, b) as they were sent. scales: (n,), what clips each of them."""
    if isinstance(plan, Columnwise):
        return reduced(plan, (plan.matrix * scales) @ rows)
    mean: Float64 = (plan.values * scales) @ rows
    return mean if last is None else mean + plan.last * last


def reduced(plan: Columnwise, rows: Float64) -> Float64:
    """Reduce every column of rows (m, b) by itself."""
    ordered = np.sort(rows, axis=0)
    m, count = len(ordered), plan.count
    median: Float64 = np.median(ordered, axis=0)
    if plan.reducer == "median":
        return median
    if plan.reducer == "trimmed":
        kept: Float64 = ordered[count : m - count].mean(axis=0)
        return kept
    nearest = np.argsort(np.abs(ordered - median), axis=0, kind="stable")[:count]
    near: Float64 = np.take_along_axis(ordered, nearest, axis=0).mean(axis=0)
    return near


def inner_products(rows: Float32) -> Float64:
    """Inner products (m, m) of the rows (m, d), in float64."""
    products = np.zeros((len(rows), len(rows)))
    for _, block in blocks(rows):
        add_gram(products, block)
    return products


def blocks(rows: Float32) -> Iterator[tuple[slice, Float64]]:
    """The rows (m, d) in float64, some columns at a time: a copy of all of them may not fit."""
    for start in range(0, rows.shape[1], _BLOCK):
        part = slice(start, start + _BLOCK)
        yield part, rows[:, part].astype(np.float64)

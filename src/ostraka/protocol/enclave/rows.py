"""Reads the rows of a cohort, piece by piece, and puts together what was measured of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np

from ostraka.arrays import AnyArray, Float32, Float64, Int64, row_blocks
from ostraka.core import exact, sketch
from ostraka.core.gram import distances_of, from_gram
from ostraka.core.rules import Gram
from ostraka.crypto.aead import KEY_BYTES
from ostraka.crypto.stream import SecretStream
from ostraka.errors import LocalProtocolError, OpenError, Rejection, UpdateRejected
from ostraka.protocol.enclave.cohort import Cohort, Row
from ostraka.protocol.enclave.folding import scale_of
from ostraka.protocol.enclave.threads import Threads

DEVIATIONS = 6  # that a stated error allows a distance to be off

# Products of integers are exact, and a distance in the unit ball is rounded a few times.
_INTEGER_DEVIATION = 2.0**-48


@dataclass(frozen=True)
class Measured:
    """What the first pass leaves behind, over all columns.

    gram: inner products of the clipped rows. scales: (n,) what clips each row. by: "workers" or
    "inside".
    """

    gram: Gram = field(repr=False)
    scales: Float64 = field(repr=False)
    by: str


@dataclass(frozen=True)
class Counted:
    """What was measured of rows that are integers, or were rounded to such, on some columns.

    gram: (n, n) int32 or int64, inner products of integers. s, v: (n,) int64, as `exact.products`
    takes them. steps: (n,) of the rows in the unit ball, the same on all columns. rounded: False
    for rows that came as integers, and so are exact.
    """

    gram: AnyArray = field(repr=False)
    s: Int64 = field(repr=False)
    v: Int64 = field(repr=False)
    steps: Float64 = field(repr=False)
    rounded: bool = True

    def with_(self, other: "Counted") -> "Counted":
        """Both together. Integers add up without an error."""
        if not np.array_equal(self.steps, other.steps) or self.rounded != other.rounded:
            raise LocalProtocolError("shards have rounded the same rows differently")
        added = self.gram + other.gram, self.s + other.s, self.v + other.v
        return Counted(*added, self.steps, self.rounded)

    def finish(self, cohort: Cohort) -> tuple[Float64, Float64]:
        """Products and deviation of all columns. Rejects rows that are too long to be counted."""
        for row in np.flatnonzero(~exact.fits(self.s)).tolist():
            cohort.standing.reject(cohort.rows[row].client, Rejection.FALSE_NORM)
        products = exact.products(self.gram, self.steps, self.s, self.v)
        if not self.rounded:
            return products, np.array(_INTEGER_DEVIATION)
        deviation = from_gram(products)
        exact.deviation(deviation, self.steps, cohort.terms.measured, out=deviation)
        deviation *= DEVIATIONS
        return products, deviation


@dataclass(frozen=True)
class Summed:
    """What was measured in floating point, on some columns.

    products: (n, n) of rows in the unit ball. error: the largest to expect of a squared distance.
    """

    products: Float64 = field(repr=False)
    error: float

    def with_(self, other: "Summed") -> "Summed":
        return Summed(self.products + other.products, self.error + other.error)

    def finish(self, cohort: Cohort) -> tuple[Float64, Float64]:
        return self.products, np.array(self.error)


@dataclass(frozen=True)
class Partial:
    """What was measured on some columns. by: "workers" or "inside"."""

    sums: Counted | Summed = field(repr=False)
    by: str


def gather(cohort: Cohort, partials: Sequence[Partial]) -> Measured:
    """What was measured on all columns (law 18): shards each have their own, and a sketch is whole.

    Where some have measured with workers and others had to do without, distances are in floating
    point, and nothing is lost but the rest of a deviation; those of integers are exact either way.
    The receipt then names the workers, because what it says of them has to hold.
    """
    counted = [each.sums for each in partials if isinstance(each.sums, Counted)]
    summed = [each.sums for each in partials if isinstance(each.sums, Summed)]
    finished = [reduce(Counted.with_, counted).finish(cohort)] if counted else []
    finished += [reduce(Summed.with_, summed).finish(cohort)] if summed else []
    products, deviation = finished[0]
    for more, error in finished[1:]:
        products, deviation = products + more, deviation + error
    by = "workers" if any(each.by == "workers" for each in partials) else "inside"
    return _measured(cohort, products, deviation, by)


def _measured(cohort: Cohort, products: Float64, deviation: Float64, by: str) -> Measured:
    """products, deviation: as `Gram` has them, of rows in the unit ball."""
    terms, clip = cohort.terms, cohort.clip
    if terms.sketch is not None:
        relative = DEVIATIONS * sketch.error(terms.sketch)
        deviation = _roughened(deviation, products, relative)
    gram = Gram(products, deviation, clip)
    if (square := cohort.context.last_square) is not None:
        # Rows are in the unit ball here, and the last aggregate in the same unit.
        along = np.array([row.along for row in cohort.rows]) * cohort.factors / clip
        gram = replace(gram, last=along, last_square=square / clip**2)
    return Measured(gram, cohort.factors * clip, by)


def read_piece(
    cohort: Cohort, row: Row, index: int, out: Float32, *, integers: bool = False
) -> AnyArray:
    """A piece of a row, (b,) float32, in `out` or where it lies. integers: int8, in units of the
    row's step.

    Rejects the client of a row that is not what arrived. Raises UpdateRejected then: the pass has
    to begin anew without it.
    """
    values = row.values
    try:
        return values.integers(index, out) if integers else values.read(index, out)
    except OpenError:
        cohort.standing.reject(row.client, Rejection.CHANGED)
        raise UpdateRejected(row.client, Rejection.CHANGED) from None


class RowReader:
    """The first pass over one cohort, a group of rows at a time.

    Rows that were rejected before it began are read as zeros and deleted from the matrix at the
    end. A spooled row that has changed ends the pass: it is the host that decides which rows do. A
    copy of this process that was shown the true row would else mask it with the mask that is on
    zeros here.

    entropy: all secrets of the pass, from one draw.
    """

    def __init__(self, cohort: Cohort, threads: Threads) -> None:
        self.entropy = SecretStream(cohort.context.entropy(KEY_BYTES)).bytes
        self.context = cohort.context
        self.terms = cohort.terms
        self.columns = cohort.columns
        self.rows = cohort.rows
        self.threads = threads
        self.norms, self.factors = cohort.norms, cohort.factors
        self.steps = np.array([row.step for row in cohort.rows])
        self._cohort = cohort
        self._absent = frozenset(range(len(cohort.rows))) - set(cohort.alive)
        self._space: Float32 = np.empty(
            (threads.count, self.columns.group, self.columns.tile), "<f4"
        )
        self._zeros: Float32 = np.zeros(self.columns.tile, np.float32)

    def each_group(self, work: Callable[[int, range], None]) -> None:
        """Call work(thread, rows) for all rows, as many at a time as have their masks together."""
        self.threads.groups(len(self.rows), self.columns.group, work)

    def read(
        self,
        thread: int,
        index: int,
        rows: range,
        *,
        integers: bool = False,
        space: Float32 | None = None,
    ) -> list[AnyArray]:
        """A piece of some rows, (b,) each: views of the rows, or of `space`, (g, b) or wider, which
        is the thread's scratch memory unless given.

        integers: int8, in units of the rows' steps. Raises UpdateRejected for a row that has
        changed: measure anew without it.
        """
        return [
            self._read(row, index, out, integers=integers)
            for row, out in zip(rows, self._space[thread] if space is None else space, strict=False)
        ]

    def _read(self, row: int, index: int, out: Float32, *, integers: bool) -> AnyArray:
        if row in self._absent:
            zeros: AnyArray = self._zeros.view(np.int8) if integers else self._zeros
            return zeros[: self.columns.size(index)]
        return read_piece(self._cohort, self.rows[row], index, out, integers=integers)

    def sketches(self) -> Float32:
        """The rows' sketches in the unit ball, (n, m)."""
        shape = len(self.rows), self.columns.length
        sketches = self.context.vectors.take(math.prod(shape)).reshape(shape)
        for row, (member, out) in enumerate(zip(self.rows, sketches, strict=True)):
            if member.sketch is None or row in self._absent:
                out.fill(0)
            else:
                to_unit = self.factors[row] / scale_of(member.norm)
                np.multiply(member.sketch, np.float32(to_unit), out=out)
        return sketches


def _roughened(deviation: Float64, products: Float64, relative: float) -> Float64:
    """A deviation, and a part of each distance: in place, if there is one for every pair."""
    out = deviation if deviation.ndim else np.full(products.shape, deviation)
    for rows in row_blocks(len(products)):
        out[rows] += relative * np.abs(distances_of(products, rows))
    return out

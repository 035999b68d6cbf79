"""Reads the rows of a cohort, piece by piece, for one pass over them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from ostraka.arrays import AnyArray, Float32, Float64, row_blocks
from ostraka.core import sketch
from ostraka.core.gram import distances_of
from ostraka.core.rules import Gram
from ostraka.crypto.aead import KEY_BYTES
from ostraka.crypto.stream import SecretStream
from ostraka.errors import OpenError, Rejection, UpdateRejected
from ostraka.protocol.enclave.cohort import Cohort, Row
from ostraka.protocol.enclave.folding import scale_of
from ostraka.protocol.enclave.threads import Threads

DEVIATIONS = 6  # that a stated error allows a distance to be off


@dataclass(frozen=True)
class Measured:
    """What the first pass leaves behind.

    gram: inner products of the clipped rows. scales: (n,) what clips each row. by: "workers" or
    "inside".
    """

    gram: Gram = field(repr=False)
    scales: Float64 = field(repr=False)
    by: str


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
        self.norms = np.array([row.norm for row in cohort.rows])
        self.steps = np.array([row.step for row in cohort.rows])
        self.clip = self.terms.clipping_norm(self.norms)
        # What a row is multiplied by to lie in the unit ball. Dividing by the larger of the two
        # scales short rows with the federation, and long ones down to the sphere.
        self.factors = 1.0 / np.maximum(self.clip, self.norms)
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
        self, thread: int, index: int, rows: range, *, integers: bool = False
    ) -> list[AnyArray]:
        """A piece of some rows, (b,) each: views of the rows, or of the thread's scratch memory.

        integers: int8, in units of the rows' steps. Raises UpdateRejected for a row that has
        changed: measure anew without it.
        """
        return [
            self._read(row, index, out, integers=integers)
            for row, out in zip(rows, self._space[thread], strict=False)
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

    def reject(self, row: int, reason: Rejection) -> None:
        self._cohort.standing.reject(self.rows[row].client, reason)

    def finish(self, products: Float64, deviation: Float64, *, by: str) -> "Measured":
        """products, deviation: as `Gram` has them, of rows in the unit ball."""
        if self.terms.sketch is not None:
            deviation = _roughened(
                deviation, products, DEVIATIONS * sketch.error(self.terms.sketch)
            )
        gram = Gram(products, deviation, self.clip)
        if (last := self.context.state.last) is not None:
            # Rows are in the unit ball here, and the last aggregate in the same unit.
            along = np.array([row.along for row in self.rows]) * self.factors / self.clip
            square = float(np.square(last, dtype=np.float64).sum()) / self.clip**2
            gram = replace(gram, last=along, last_square=square)
        return Measured(gram, self.factors * self.clip, by)


def _roughened(deviation: Float64, products: Float64, relative: float) -> Float64:
    """A deviation, and a part of each distance: in place, if there is one for every pair."""
    out = deviation if deviation.ndim else np.full(products.shape, deviation)
    for rows in row_blocks(len(products)):
        out[rows] += relative * np.abs(distances_of(products, rows))
    return out

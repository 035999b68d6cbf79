"""Rows as they arrive: each tile is opened, checked, folded and kept, once.

Whether a tile is accepted depends on its own row alone. The sketch's secrets are older than the
rows, and so nothing that anybody sees before the round is closed may depend on them (ADR 15).
"""

from threading import Lock

import numpy as np

from ostraka.arrays import Buffer, Float32, UInt8
from ostraka.core import loops
from ostraka.core.metrics import Levels
from ostraka.core.uploads import INT8
from ostraka.crypto.updates import TileOpener
from ostraka.errors import Rejection, UpdateRejected
from ostraka.messages import UpdateHeader
from ostraka.protocol.confirm import leaf
from ostraka.protocol.enclave.cohort import RoundContext, Row
from ostraka.protocol.enclave.folding import Folds, scale_of
from ostraka.protocol.enclave.keeping import Keeping

_NORM_TOLERANCE = 2.0**-10


class Arrivals:
    """What the rows of one opening of a round have in common."""

    def __init__(self, context: RoundContext, keeping: Keeping) -> None:
        federation = context.federation
        self.tiling = federation.terms.tiling
        self.last_tile = self.tiling.count - 1
        self.keeping = keeping
        self.last = context.state.last
        self.folds: Folds | None = None
        self._sketches: Float32 = np.empty((0, 0), np.float32)
        self._rows = {member.name: row for row, member in enumerate(federation.clients)}
        if federation.terms.sketch is not None:
            self.folds = Folds(self.tiling, federation.terms.sketch, context.entropy)
            shape = len(self._rows), federation.terms.sketch
            self._sketches = np.zeros(shape, np.float32)

    def begin(
        self,
        header: UpdateHeader,
        opener: TileOpener,
        norm: float,
        step: float,
        report: Levels | None = None,
    ) -> "Arrival":
        """A place for this client's row. Raises StorageFull. norm, step, report: as its header
        states."""
        client = header.client
        number = self._rows[client]
        sketch = self._sketches[number] if self.folds is not None else None
        if sketch is not None:
            sketch.fill(0)  # of an upload that this one replaces
        values = self.keeping.place(number, opener, step)
        row = Row(client, header.upload_id, leaf(header), norm, step, values, sketch, report=report)
        return Arrival(row, opener, self)


class Arrival:
    """One upload, as far as it has come. Tiles come in their order: a row's sums have one order of
    additions, and so one result.

    Several threads may try to bring the next tile, and one of them succeeds.
    """

    def __init__(self, row: Row, opener: TileOpener, common: Arrivals) -> None:
        self.row = row
        self.next = 0
        self.spoilt: Rejection | None = None
        self._opener = opener
        self._common = common
        self._integers = common.keeping.format.integers
        self._unit = row.step if self._integers else 1.0
        self._scale = scale_of(row.norm)
        self._least, self._most = self._bounds()
        self._squares = 0.0
        self._open = True
        self._lock = Lock()

    @property
    def complete(self) -> bool:
        return self.next > self._common.last_tile and self.spoilt is None

    def take(self, index: int, ciphertext: Buffer) -> None:
        """The next tile. Raises OpenError, StorageFull or StateError, and then it has not come.

        Raises UpdateRejected for one that was here before, if no more are taken, and if the client
        itself has spoilt its row. Only authentic values are looked at, and they are folded once.
        """
        with self._lock:
            if not self._open:
                raise UpdateRejected(self.row.client, self.spoilt or Rejection.LATE)
            if index != self.next:
                raise UpdateRejected(self.row.client, Rejection.DUPLICATE)
            kept = self.row.values
            room = kept.room(index)
            self._opener.open_into(index, ciphertext, room)
            kept.keep(index, ciphertext)
            try:
                self.spoilt = self._absorb(index, room)
            except BaseException:
                self._drop()  # It may be folded already, and must not be folded again.
                raise
            if self.spoilt is not None:
                self._drop()
                raise UpdateRejected(self.row.client, self.spoilt)
            self.next += 1

    def end(self) -> Row | None:
        """Take no more. The row if it is complete; otherwise its place is given back."""
        with self._lock:
            if self._open and not self.complete:
                self._drop()
            self._open = False
            return self.row if self.complete else None

    def _drop(self) -> None:
        self._open = False
        self.row.values.free()

    def _absorb(self, index: int, opened: UInt8) -> Rejection | None:
        """Add a tile to what is known of the row. What is wrong with it, if anything is."""
        common, keeping = self._common, self._common.keeping
        raw = opened.view(keeping.format.dtype)
        if (flaw := keeping.format.tile_flaw(raw)) is not None:
            return flaw
        values = keeping.widened(raw, 1.0)
        self._squares += self._fold(index, values)
        if common.last is not None:
            along = loops.dot(values, common.last[common.tiling.part(index)])
            self.row.along += along * self._unit
        # A row that is already too long cannot become shorter.
        least = self._least if index == common.last_tile else 0.0
        # Written as a positive condition: a NaN fails it.
        if least <= self._squares <= self._most:
            return None
        return Rejection.FALSE_NORM if np.isfinite(values).all() else Rejection.NOT_FINITE

    def _fold(self, index: int, values: Float32) -> float:
        """The squares of a tile: of integers as they are, of others at the row's scale, with a
        sketch or without. If there is a sketch, the tile is folded."""
        folds, sketch = self._common.folds, self.row.sketch
        if folds is not None and sketch is not None:
            folded = loops.absorb(values, folds.of(index), self._scale * self._unit, sketch)
            if not self._integers:
                return folded
        # Those of int8 are exact: float32 holds the sums of a few, and float64 all of them.
        return loops.scaled_squares(values, 1.0 if self._integers else self._scale)

    def _bounds(self) -> tuple[float, float]:
        """The least and the most that a row's squares may sum to. Those of integers are exact."""
        if self._integers:
            stated = INT8.stated_square(self.row.norm, self.row.step)
            return stated, stated
        norm = self.row.norm * float(np.float32(self._scale))
        return (norm * (1 - _NORM_TOLERANCE)) ** 2, (norm * (1 + _NORM_TOLERANCE)) ** 2

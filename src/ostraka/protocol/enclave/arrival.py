"""Rows as they arrive: each tile is opened, checked, folded and kept, once.

Whether a tile is accepted depends on its own row alone. The sketch's secrets are older than the
rows, and so nothing that anybody sees before the round is closed may depend on them (ADR 15).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import ClassVar

import numpy as np

from ostraka.arrays import AnyArray, Buffer, Float32
from ostraka.config import Tiling
from ostraka.core import loops
from ostraka.core.uploads import INT8
from ostraka.crypto.updates import TileOpener
from ostraka.encoding import Digest, Id, Key
from ostraka.errors import LocalProtocolError, Rejection, UpdateRejected
from ostraka.protocol.enclave.cohort import RoundContext, Row
from ostraka.protocol.enclave.folding import Folds, scale_of
from ostraka.protocol.enclave.keeping import Keeping

_NORM_TOLERANCE = 2.0**-10


@dataclass(frozen=True)
class Begun:
    """What the lead tells a shard of an upload that it has let in.

    header: the leaf of its signed header. key: of the shard's own tiles. bound: what each of these
    is bound to.
    """

    LABEL: ClassVar[bytes] = b"ostraka/shard/begun/v1"

    client: str
    upload_id: Id
    header: Digest
    norm: float = field(repr=False)
    step: float = field(repr=False)
    key: Key = field(repr=False)
    bound: Digest


@dataclass(frozen=True)
class Arrived:
    """What a shard knows of a row whose last tile it has: the sum of its squares, of integers as
    they are and of others at the row's scale, and its inner product with the last aggregate.
    """

    squares: float = field(repr=False)
    along: float = field(repr=False)


@dataclass(frozen=True, repr=False)
class _Common:
    """What all rows of one opening share. alone: there are no other shards."""

    tiling: Tiling
    alone: bool
    keeping: Keeping
    last: Float32 | None
    folds: Folds | None

    @cached_property
    def last_tile(self) -> int:
        return self.tiling.count - 1


class Arrivals:
    """The rows of one opening of a round, as far as their values are kept here.

    No row refers to this: the memory of all sketches is free as soon as nobody holds the round.
    """

    def __init__(self, context: RoundContext, keeping: Keeping) -> None:
        federation, tiling = context.federation, context.span.tiling
        self.folds: Folds | None = None
        self._first = context.span.first
        self._sketches: Float32 = np.empty((0, 0), np.float32)
        self._rows = {member.name: row for row, member in enumerate(federation.clients)}
        self._uploads: dict[str, Arrival] = {}
        if federation.terms.sketch is not None:
            self.folds = Folds(tiling, federation.terms.sketch, context.entropy)
            shape = len(self._rows), federation.terms.sketch
            self._sketches = context.vectors.take(math.prod(shape)).reshape(shape)
        alone = context.span == federation.terms.span
        self._common = _Common(tiling, alone, keeping, context.state.last, self.folds)

    def begin(self, begun: Begun, row: Row | None = None) -> None:
        """Give an upload its place. What its client has sent before is dropped. Raises StorageFull.

        row: what is to hold its values; a new one unless given.
        """
        client = begun.client
        if client not in self._rows:
            raise LocalProtocolError(f"{client!r} is not in this round")
        if (before := self._uploads.pop(client, None)) is not None:
            before.drop()
        row = row or Row(client, begun.upload_id, begun.header, begun.norm, begun.step)
        number = self._rows[client]
        opener = TileOpener(begun.key, begun.bound, self._first)
        row.values = self._common.keeping.place(number, opener, begun.step)
        if self.folds is not None:
            row.sketch = self._sketches[number]
            row.sketch.fill(0)
        self._uploads[client] = Arrival(row, opener, self._common)

    def upload(self, client: str, upload_id: bytes) -> "Arrival | None":
        """What takes the tiles of a client's current upload; None if this is not it."""
        arrival = self._uploads.get(client)
        return arrival if arrival is not None and arrival.row.upload_id == upload_id else None

    def taken(self, client: str, upload_id: bytes) -> int:
        """How many tiles of an upload are here."""
        arrival = self.upload(client, upload_id)
        return 0 if arrival is None else arrival.next

    def arrived(self, client: str, upload_id: bytes) -> Arrived | None:
        """What is known of the row of an upload; None before it is complete."""
        arrival = self.upload(client, upload_id)
        return None if arrival is None else arrival.arrived

    def spoilt(self, client: str, upload_id: bytes) -> Rejection | None:
        """What the client of an upload has done wrong, if anything."""
        arrival = self.upload(client, upload_id)
        return None if arrival is None else arrival.spoilt

    def resident(self, client: str, upload_id: bytes) -> bool:
        """Whether the values of an upload found room in memory."""
        arrival = self.upload(client, upload_id)
        return arrival is None or arrival.row.values.resident

    def end(self, client: str, upload_id: bytes) -> bool:
        """Take no more of an upload. Tells whether all of it is here, which then stays."""
        arrival = self.upload(client, upload_id)
        return arrival is not None and arrival.end() is not None

    def stop(self) -> None:
        """Take no more of any. Afterwards no thread writes into the round's memory."""
        for arrival in list(self._uploads.values()):
            arrival.end()

    def rows(self, uploads: Iterable[tuple[str, bytes]]) -> tuple[Row, ...]:
        """The rows of these clients and uploads. Raises LocalProtocolError unless all are whole."""
        found = []
        for client, upload_id in uploads:
            arrival = self.upload(client, upload_id)
            if arrival is None or not arrival.complete:
                raise LocalProtocolError(f"the upload of {client!r} is not complete here")
            found.append(arrival.row)
        return tuple(found)


class Arrival:
    """One upload, as far as it has come. Tiles come in their order: a row's sums have one order of
    additions, and so one result.

    Several threads may try to bring the next tile, and one of them succeeds.
    """

    def __init__(self, row: Row, opener: TileOpener, common: _Common) -> None:
        self.row = row
        self.next = 0
        self.spoilt: Rejection | None = None
        self._opener = opener
        self._common = common
        self._format = common.keeping.format
        self._integers = self._format.integers
        self._unit = row.step if self._integers else 1.0
        self._scale = scale_of(row.norm)
        self._sketch = (
            None if row.sketch is None else loops.Sketch(row.sketch, self._scale * self._unit)
        )
        # A float32 row in memory is folded where it lies, which is the rule, and costs least.
        in_place = row.values.in_place() if common.last is None else None
        self._in_place = None if in_place is None else loops.Row(in_place)
        self._least, self._most = square_bounds(row.norm, row.step, integers=self._integers)
        self._squares = 0.0
        self._open = True
        self._lock = Lock()

    @property
    def complete(self) -> bool:
        return self.next > self._common.last_tile and self.spoilt is None

    @property
    def left(self) -> int:
        """How many tiles are to come."""
        return self._common.last_tile + 1 - self.next

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
            self._opener.open_bytes(index, ciphertext, room)
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

    @property
    def arrived(self) -> Arrived | None:
        """What is known of the row; None before it is complete."""
        return Arrived(self._squares, self.row.along) if self.complete else None

    def end(self) -> Row | None:
        """Take no more. The row if it is complete; otherwise its place is given back."""
        with self._lock:
            if self._open and not self.complete:
                self._drop()
            self._open = False
            return self.row if self.complete else None

    def drop(self) -> None:
        """Take no more, and give the place back even if all of it is here."""
        if self.end() is not None:
            self._drop()

    def _drop(self) -> None:
        self._open, self._in_place = False, None
        self.row.values.free()

    def _absorb(self, index: int, opened: memoryview) -> Rejection | None:
        """Add a tile to what is known of the row. What is wrong with it, if anything is."""
        common, folds = self._common, self._common.folds
        if self._in_place is not None and self._sketch is not None and folds is not None:
            start = index * common.tiling.tile
            self._squares += loops.absorb_part(
                self._in_place, start, folds.tiles[index], self._sketch
            )
        elif (flaw := self._absorb_elsewhere(index, opened)) is not None:
            return flaw
        # A row that is already too long cannot become shorter. With other shards, only the lead
        # knows whether it is too short.
        least = self._least if index == common.last_tile and common.alone else 0.0
        # Written as a positive condition: a NaN fails it.
        if least <= self._squares <= self._most:
            return None
        finite = np.isfinite(self._values(opened)).all()
        return Rejection.FALSE_NORM if finite else Rejection.NOT_FINITE

    def _absorb_elsewhere(self, index: int, opened: memoryview) -> Rejection | None:
        """The same for a tile that has to be widened, or compared with the last aggregate, or that
        is not folded, or not kept where it was opened."""
        common = self._common
        if (flaw := self._format.tile_flaw(self._raw(opened))) is not None:
            return flaw
        values = self._values(opened)
        self._squares += self._fold(index, values)
        if common.last is not None:
            along = loops.dot(values, common.last[common.tiling.part(index)])
            self.row.along += along * self._unit
        return None

    def _raw(self, opened: memoryview) -> AnyArray:
        return np.frombuffer(opened, self._format.dtype)

    def _values(self, opened: memoryview) -> Float32:
        return self._common.keeping.widened(self._raw(opened), 1.0)

    def _fold(self, index: int, values: Float32) -> float:
        """The squares of a tile: of integers as they are, of others at the row's scale, with a
        sketch or without. If there is a sketch, the tile is folded."""
        folds, sketch = self._common.folds, self._sketch
        if folds is not None and sketch is not None:
            folded = loops.absorb(values, folds.tiles[index], sketch)
            if not self._integers:
                return folded
        # Those of int8 are exact: float32 holds the sums of a few, and float64 all of them.
        return loops.scaled_squares(values, 1.0 if self._integers else self._scale)


def square_bounds(norm: float, step: float, *, integers: bool) -> tuple[float, float]:
    """The least and the most that a row's squares may sum to. Those of integers are exact."""
    if integers:
        stated = INT8.stated_square(norm, step)
        return stated, stated
    scaled = norm * float(np.float32(scale_of(norm)))
    return (scaled * (1 - _NORM_TOLERANCE)) ** 2, (scaled * (1 + _NORM_TOLERANCE)) ** 2

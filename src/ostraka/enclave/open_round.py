"""One open round: the enclave's side of it, and what the service knows of its uploads."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from ostraka.config import Federation
from ostraka.errors import LocalProtocolError, Rejection, UpdateRejected
from ostraka.messages import UpdateHeader
from ostraka.protocol.enclave import Arrival, Intake


@dataclass
class OpenRound:
    """Takes headers on the event loop. quorum: that its time of grace begins with.

    `changed` is set when the round can go on: when the quorum is there, and when all have answered.
    """

    intake: Intake
    federation: Federation
    quorum: int
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    quorate: bool = False  # The quorum was reached while others were awaited.
    failed: str = ""  # why it cannot be finished
    _headers: dict[str, UpdateHeader] = field(default_factory=dict)  # by client
    _own: set[str] = field(default_factory=set)  # whose uploads they brought themselves
    _unseen: int = 0  # changes since the last look at all uploads
    _needed: int = 0  # changes without which the round cannot go on, as of that look

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(member.name for member in self.federation.clients)

    @property
    def number(self) -> int:
        return self.intake.offer.number

    @property
    def round_id(self) -> bytes:
        return self.intake.offer.round_id

    @property
    def awaited(self) -> frozenset[str]:
        """The clients whose updates may still come."""
        return self._names - self.intake.complete - self.intake.spoilt.keys()

    @property
    def answered(self) -> int:
        """How many clients count for the quorum: an update that its sender spoilt is an answer.

        At most f of those count, as for the cohort, so that f liars neither end nor delay a round.
        """
        return self._answers(len(self.intake.complete), len(self.intake.spoilt))

    def _answers(self, complete: int, spoilt: int) -> int:
        return complete + min(spoilt, self.federation.terms.f)

    def begin(self, header: UpdateHeader, *, own: bool) -> None:
        """Start an upload, or go on with it.

        An upload goes on under the header that it began with, and no other: a header of one client
        must not reach another client's upload. own: the client itself brings it. What others bring
        may be a header that never arrived, and does not replace the client's own upload.
        """
        if self._headers.get(header.client) != header:
            if header.client in self._own and not own:
                raise UpdateRejected(header.client, Rejection.DUPLICATE)
            try:
                self.intake.accept(header)
            except UpdateRejected:
                self.note_change()
                raise
            self._headers[header.client] = header
        if own:
            self._own.add(header.client)

    def note_change(self) -> None:
        """Look whether the round can go on, now that a client has completed or spoilt its upload.

        Waking its loop for every upload would cost more than taking in the header. A look at all
        uploads for every one of them would be quadratic, so the next look waits for as many changes
        as are missing now: each is of one client.
        """
        self._unseen += 1
        if self._unseen < self._needed:
            return
        complete, spoilt = self.intake.complete, self.intake.spoilt.keys()
        awaited = len(self._names - complete - spoilt)
        missing = self.quorum - self._answers(len(complete), len(spoilt))
        self._unseen = 0
        self._needed = awaited if self.quorate else min(awaited, missing)
        if self._needed <= 0:
            self.changed.set()

    def receiver(self, header: UpdateHeader) -> "Receiver":
        """What takes the tiles of an upload that was begun, in any thread.

        Raises UpdateRejected if it is not its client's current one any more.
        """
        arrival = self.intake.arrival(header.client, header.upload_id)
        if arrival is None:
            raise UpdateRejected(header.client, Rejection.DUPLICATE)
        return Receiver(arrival, self.intake.sealed_size)


@dataclass(frozen=True)
class Receiver:
    """Takes the tiles of one upload, one after another. sealed_size: of each."""

    _arrival: Arrival
    _sealed_size: Callable[[int], int]

    @property
    def next(self) -> int:
        """The number of the tile that comes next. Raises UpdateRejected if its client spoilt it."""
        if self._arrival.spoilt is not None:
            raise UpdateRejected(self._arrival.row.client, self._arrival.spoilt)
        return self._arrival.next

    @property
    def size(self) -> int:
        """How many bytes the next sealed tile has; 0 once the upload is complete."""
        arrival = self._arrival
        return 0 if arrival.complete else self._sealed_size(arrival.next)

    @property
    def left(self) -> int:
        """How many tiles are to come."""
        return self._arrival.left

    def take(self, ciphertext: memoryview) -> None:
        """Open, check and keep the next tile. Raises as `Arrival.take` does."""
        try:
            self._arrival.take(self._arrival.next, ciphertext)
        except LocalProtocolError:  # The round was given up, and its spool is closed.
            raise UpdateRejected(self._arrival.row.client, Rejection.LATE) from None

"""One open round: the enclave's side of it, and what the service knows of its uploads."""

import asyncio
from dataclasses import dataclass, field

from ostraka.config import Federation
from ostraka.errors import LocalProtocolError, Rejection, UpdateRejected
from ostraka.messages import UpdateHeader, UpdateTile
from ostraka.protocol.enclave import Intake


@dataclass
class OpenRound:
    """Takes headers on the event loop. `changed` is set when an update has arrived."""

    intake: Intake
    federation: Federation
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _headers: dict[str, UpdateHeader] = field(default_factory=dict)  # by client
    _own: set[str] = field(default_factory=set)  # whose uploads they brought themselves

    @property
    def number(self) -> int:
        return self.intake.offer.number

    @property
    def round_id(self) -> bytes:
        return self.intake.offer.round_id

    @property
    def awaited(self) -> frozenset[str]:
        """The clients whose updates may still come."""
        heard = self.intake.complete | self.intake.spoilt.keys()
        return frozenset(member.name for member in self.federation.clients) - heard

    @property
    def answered(self) -> int:
        """How many clients count for the quorum: an update that its sender spoilt is an answer.

        At most f of those count, as for the cohort, so that f liars neither end nor delay a round.
        """
        spoilt = min(len(self.intake.spoilt), self.federation.terms.f)
        return len(self.intake.complete) + spoilt

    def begin(self, header: UpdateHeader, *, own: bool) -> int:
        """Start an upload, or go on with it. Return the number of the tile that comes next.

        An upload goes on under the header that it began with, and no other: a header of one client
        must not reach another client's upload. own: the client itself brings it. What others bring
        may be a header that never arrived, and does not replace the client's own upload.
        """
        if self._headers.get(header.client) != header:
            if header.client in self._own and not own:
                raise UpdateRejected(header.client, Rejection.DUPLICATE)
            try:
                self.intake.accept(header)
            finally:
                self.changed.set()
            self._headers[header.client] = header
        if own:
            self._own.add(header.client)
        return self.receiver(header).next

    def receiver(self, header: UpdateHeader) -> "Receiver":
        """What takes the tiles of an upload that was begun, in any thread."""
        return Receiver(self, header, asyncio.get_running_loop())


@dataclass(frozen=True)
class Receiver:
    """Takes the tiles of one upload, one after another."""

    _round: OpenRound
    _header: UpdateHeader
    _loop: asyncio.AbstractEventLoop

    @property
    def next(self) -> int:
        """The number of the tile that comes next. Raises UpdateRejected if none is awaited."""
        header = self._header
        number = self._round.intake.next_tile(header.client, header.upload_id)
        if number is None:
            reason = self._round.intake.spoilt.get(header.client, Rejection.DUPLICATE)
            raise UpdateRejected(header.client, reason)
        return number

    @property
    def size(self) -> int:
        """How many bytes the next sealed tile has."""
        return self._round.intake.sealed_size(self.next)

    @property
    def complete(self) -> bool:
        return self.next == self._round.federation.terms.tiling.count

    def take(self, ciphertext: memoryview) -> None:
        """Open, check and keep the next tile. Raises as `Intake.take` does."""
        header = self._header
        try:
            self._round.intake.take(
                header.client, UpdateTile(header.upload_id, self.next, ciphertext)
            )
        except UpdateRejected:
            self._tell()
            raise
        except LocalProtocolError:  # The round was given up, and its spool is closed.
            raise UpdateRejected(header.client, Rejection.LATE) from None
        if self.complete:
            self._tell()

    def _tell(self) -> None:
        self._loop.call_soon_threadsafe(self._round.changed.set)

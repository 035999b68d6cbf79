"""One open round: the enclave's side of it, and the spool on the host's disk."""

import asyncio
from dataclasses import dataclass, field
from functools import partial

from ostraka.config import Federation
from ostraka.crypto.aead import TAG_BYTES
from ostraka.enclave.storage.spool import Spool
from ostraka.errors import LocalProtocolError, Rejection, UpdateRejected
from ostraka.messages import UpdateHeader, UpdateTile
from ostraka.protocol.enclave import Cohort, Intake
from ostraka.protocol.host import Tiles


@dataclass
class OpenRound:
    """Takes headers on the event loop, and tiles from threads. `changed`: an update has arrived."""

    intake: Intake
    spool: Spool
    federation: Federation
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _rows: dict[str, int] = field(init=False)
    _headers: dict[str, UpdateHeader] = field(default_factory=dict)  # by client
    _bytes: dict[str, int] = field(init=False)  # of each client, by one thread at a time
    _own: set[str] = field(default_factory=set)  # whose uploads they began themselves

    def __post_init__(self) -> None:
        self._rows = {member.name: row for row, member in enumerate(self.federation.clients)}
        self._bytes = dict.fromkeys(self._rows, 0)

    @property
    def bytes_in(self) -> int:
        return sum(self._bytes.values())

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
        return frozenset(self._rows) - heard

    @property
    def answered(self) -> int:
        """How many clients count for the quorum: an update that its sender spoilt is an answer.

        At most f of those count, as for the cohort, so that f liars neither end nor delay a round.
        """
        spoilt = min(len(self.intake.spoilt), self.federation.terms.f)
        return len(self.intake.complete) + spoilt

    def begin(self, header: UpdateHeader, *, own: bool) -> int:
        """Start an upload, or go on with it. Return the next tile; their count if none is missing.

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
        return self.next_tile(header)

    def next_tile(self, header: UpdateHeader) -> int:
        return self.intake.next_tile(header.client, header.upload_id) or 0

    def receiver(self, header: UpdateHeader) -> "Receiver":
        """What takes the rest of an upload that was begun, from any thread."""
        return Receiver(self, header, self._rows[header.client])

    def tiles(self, cohort: Cohort) -> Tiles:
        """Return the passes over what these clients have sent."""
        return partial(self.spool.tiles, [self._rows[name] for name in cohort.clients])

    def count(self, client: str, size: int) -> None:
        """Count a tile, from any thread."""
        self._bytes[client] += size


class Receiver:
    """Takes the tiles of one upload, in order, from one thread at a time."""

    def __init__(self, into: OpenRound, header: UpdateHeader, row: int) -> None:
        self._round = into
        self._header = header
        self._row = row

    @property
    def next(self) -> int:
        """The number of the next tile."""
        return self._round.next_tile(self._header)

    @property
    def size(self) -> int:
        """The bytes of the next tile as it was sealed."""
        return 4 * self._round.federation.terms.tiling.size(self.next) + TAG_BYTES

    @property
    def complete(self) -> bool:
        return self.next == self._header.tiles

    def take(self, ciphertext: memoryview) -> None:
        """Open, check and keep the next tile. If this raises, nothing of the tile counts.

        Raises OpenError, UpdateRejected, StorageFull or StateError.
        """
        client, current = self._header.client, self._round
        tile = UpdateTile(self._header.upload_id, self.next, ciphertext)
        current.intake.require_opens(client, tile)
        try:
            current.spool.write(self._row, tile.index, ciphertext)
        except LocalProtocolError:  # The round is over, and its spool is closed.
            raise UpdateRejected(client, Rejection.LATE) from None
        current.intake.accept_tile(client, tile)
        # The event loop is not told: to wake it for every tile would cost more than to open it.
        current.count(client, len(ciphertext))

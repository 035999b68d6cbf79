"""One open round: the enclave's side of it, and the spool on the host's disk."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from ostraka.config import Federation
from ostraka.crypto.aead import TAG_BYTES
from ostraka.enclave.storage.spool import Spool
from ostraka.errors import OpenError, Rejection, UpdateRejected
from ostraka.messages import UpdateHeader, UpdateTile
from ostraka.protocol.enclave import Cohort, Intake
from ostraka.protocol.host import Tiles


@dataclass
class OpenRound:
    """Takes headers and tiles on the event loop. `changed` is set when an update has arrived."""

    intake: Intake
    spool: Spool
    federation: Federation
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    bytes_in: int = 0
    _rows: dict[str, int] = field(init=False)
    _headers: dict[str, UpdateHeader] = field(default_factory=dict)  # by client
    _own: set[str] = field(default_factory=set)  # whose uploads they began themselves

    def __post_init__(self) -> None:
        self._rows = {member.name: row for row, member in enumerate(self.federation.clients)}

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

    def begin(self, header: UpdateHeader, *, own: bool) -> frozenset[int]:
        """Start an upload, or go on with it. Return the tiles that are missing.

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
        return self.intake.missing(header.client, header.upload_id) or frozenset()

    async def take(self, header: UpdateHeader, tiles: Sequence[UpdateTile]) -> None:
        """Store tiles of this upload, and only then count them in. Raises as `accept_tile` does."""
        missing = self.intake.missing(header.client, header.upload_id) or frozenset()
        wanted = [tile for tile in tiles if tile.index in missing and self._fits(header, tile)]
        await self._store(header.client, wanted)
        for tile in tiles:
            if tile.upload_id != header.upload_id:
                raise OpenError("tile")
            self.intake.accept_tile(header.client, tile)
            self.bytes_in += len(tile.ciphertext)
        if header.client in self.intake.complete:
            self.changed.set()

    def _fits(self, header: UpdateHeader, tile: UpdateTile) -> bool:
        size = self.federation.terms.tile_bytes(tile.index) + TAG_BYTES
        return tile.upload_id == header.upload_id and len(tile.ciphertext) == size

    async def _store(self, client: str, tiles: Sequence[UpdateTile]) -> None:
        def write() -> None:
            for tile in tiles:
                self.intake.require_opens(client, tile)
                self.spool.write(self._rows[client], tile.index, tile.ciphertext)

        writing = asyncio.create_task(asyncio.to_thread(write))
        try:
            await asyncio.shield(writing)
        finally:
            # A stream may be ended in the middle of this. Its thread goes on, and must not write
            # over what the client's next stream brings.
            await asyncio.wait([writing])

    def tiles(self, cohort: Cohort) -> Tiles:
        """Return the passes over what these clients have sent."""
        return partial(self.spool.tiles, [self._rows[name] for name in cohort.clients])

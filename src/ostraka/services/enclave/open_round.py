"""One open round: the enclave's side of it, and the spool on the host's disk."""

import asyncio
from dataclasses import dataclass, field
from functools import partial

from ostraka.config import Federation
from ostraka.host import Tiles
from ostraka.messages import UpdateHeader, UpdateTile
from ostraka.roles.enclave import Cohort, Collecting
from ostraka.services.storage.spool import Spool


@dataclass
class OpenRound:
    """Takes headers and tiles on the event loop. `changed` is set whenever somebody has arrived."""

    collecting: Collecting
    spool: Spool
    federation: Federation
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    bytes_in: int = 0
    _rows: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._rows = {member.name: row for row, member in enumerate(self.federation.clients)}

    @property
    def number(self) -> int:
        return self.collecting.offer.number

    @property
    def round_id(self) -> bytes:
        return self.collecting.offer.round_id

    @property
    def awaited(self) -> frozenset[str]:
        """Clients from whom an update may still come."""
        heard = self.collecting.complete | self.collecting.spoilt.keys()
        return frozenset(self._rows) - heard

    def begin(self, header: UpdateHeader) -> frozenset[int]:
        """Start an upload, or go on with it. Gives the tiles that are missing."""
        missing = self.collecting.missing(header.upload_id)
        if missing is None:
            try:
                self.collecting.accept(header)
            finally:
                self.changed.set()
            missing = self.collecting.missing(header.upload_id)
        return missing or frozenset()

    async def take(self, header: UpdateHeader, tile: UpdateTile) -> None:
        """Store a tile of this upload, and only then count it in."""
        missing = self.collecting.missing(header.upload_id) or frozenset()
        if tile.upload_id == header.upload_id and tile.index in missing:
            await self._store(self._rows[header.client], tile)
        self.collecting.accept_tile(tile)
        self.bytes_in += len(tile.ciphertext)
        if header.client in self.collecting.complete:
            self.changed.set()

    async def _store(self, row: int, tile: UpdateTile) -> None:
        """Returns when nothing of it is under way any more, cancelled or not: a write that came
        late would spoil the upload that replaces this one."""
        write = asyncio.to_thread(self.spool.write, row, tile.index, tile.ciphertext)
        writing = asyncio.ensure_future(write)
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            raise

    def tiles(self, cohort: Cohort) -> Tiles:
        """The passes over what these clients have sent."""
        return partial(self.spool.tiles, [self._rows[name] for name in cohort.clients])

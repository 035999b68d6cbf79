"""What the stages work on. What only some of them need is made when first asked for."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from ostraka.arrays import AnyArray, Buffer, Float32, cut
from ostraka.crypto.offline import OfflineMask, OfflineNoise
from ostraka.crypto.updates import TileOpener, stated_norm, tile_context
from ostraka.messages import IN_PROCESS
from ostraka.protocol.enclave import Cohort, Enclave, Lanes
from ostraka.protocol.enclave.cohort import Publication, RoundContext, Row, Standing
from ostraka.protocol.host import Host
from ostraka_lab.bench.clock import Stopwatch
from ostraka_lab.bench.parties import Cast, cast, sketch_size, update, upload_key
from ostraka_lab.bench.spool import read_noise
from ostraka_lab.bench.whole_round import ClockedWorker, refuse_surprises


class Workload:
    """A federation between the closing of a round and its first pass, all in memory.

    One set of uploads serves rounds under different terms: these are tried in turn, by cohorts
    that hold the same rows. row_of: the update (d,) of a row.
    """

    def __init__(
        self,
        clients: int,
        dim: int,
        directory: Path,
        threads: int = 1,
        row_of: Callable[[int], Float32] | None = None,
    ) -> None:
        self._row_of = row_of or (lambda row: update(row, dim))
        self.clients = clients
        self.dim = dim
        self.parties = cast(clients, dim, masking="gaussian")
        self.terms = self.parties.terms
        self.tiling = self.terms.tiling
        self.lanes = Lanes(threads, ThreadPoolExecutor(threads).map) if threads > 1 else Lanes()
        self._directory = directory
        self._tiles: list[list[Buffer]] = [[] for _ in range(self.tiling.count)]
        self.rows: list[Row] = []
        self._seal_updates()

    @cached_property
    def updates(self) -> Float32:
        """The updates in the clear (n, d)."""
        rows = np.empty((self.clients, self.dim), np.float32)
        for row in range(self.clients):
            rows[row] = self._row_of(row)
        return rows

    def tiles(self) -> Iterator[list[Buffer]]:
        """Tile by tile, the ciphertext of every row."""
        return iter(self._tiles)

    def open_row(self, index: int, row: int, out: AnyArray) -> None:
        """Open one tile of one row into `out`, a view as bytes, as the enclave does."""
        self.rows[row].opener.open_into(index, self._tiles[index][row], out)

    def open_tile(self, index: int, block: Float32) -> Float32:
        """Open one tile of all rows into `block` (n, tile); the part of it that was written."""
        block = cut(block, self.clients, self.tiling.size(index))
        for row, out in enumerate(block.view(np.uint8)):
            self.open_row(index, row, out)
        return block

    def attempt(self, masking: str, *, sketch: bool = False) -> "Attempt":
        """A round under these terms, before its first pass."""
        sealed = self.sealed_noise if masking == "gaussian" else ()
        return Attempt(self, *self._prepared(masking, sketch), sealed)

    @cached_property
    def sealed_noise(self) -> list[bytes]:
        """Gaussian noise, which the enclave's own process has made and left behind."""
        return [bytes(tile) for tile in read_noise(self._directory, self.terms, self.clients)]

    @cache  # noqa: B019 (lives as long as the one workload of a run)
    def _prepared(self, masking: str, sketch: bool) -> tuple[Cast, OfflineNoise | OfflineMask]:
        columns = sketch_size(self.clients, self.dim) if sketch else None
        parties = cast(self.clients, self.dim, masking=masking, sketch=columns)
        offline = parties.offline()
        if isinstance(offline, OfflineMask):
            list(offline.make())
        return parties, offline

    def _seal_updates(self) -> None:
        offer = Enclave(self.parties.federation, self.parties.enclave).open_round().offer
        for row in range(self.clients):
            values = self._row_of(row)
            upload = self.parties.seal(row, offer, values)
            for tile in upload.tiles:
                self._tiles[tile.index].append(tile.ciphertext)
            header, norm = upload.header, stated_norm(values)
            opener = TileOpener(upload_key(row), tile_context(header))
            self.rows.append(Row(header.client, header.upload_id, opener, norm))


class Attempt:
    """One round, closed and ready to be measured, and what was made for it offline."""

    def __init__(
        self,
        load: Workload,
        parties: Cast,
        offline: OfflineNoise | OfflineMask,
        sealed: Sequence[Buffer],
    ) -> None:
        context = RoundContext(
            federation=parties.federation,
            identity=parties.enclave,
            entropy=os.urandom,
            publication=Publication(1),
            round_id=bytes(32),
            previous=bytes(32),
            state=parties.state(),
            evidence=IN_PROCESS,
        )
        self.cohort = Cohort(context, tuple(load.rows), Standing(parties.terms, {}))
        # A copy of what was never spent can be spent: only a benchmark may use a mask twice.
        self.offline = copy(offline)
        self.sealed = sealed
        self._load = load
        self._workers = parties.workers()

    def host(self, clock: Stopwatch) -> Host:
        """The real driver of the round. The clock stands still while a worker works."""
        return Host(
            terms=self.cohort.terms,
            lanes=self._load.lanes,
            tiles=self._load.tiles,
            workers={
                name: ClockedWorker(worker, clock.paused) for name, worker in self._workers.items()
            },
            prepare=lambda: self,
            tell=refuse_surprises,
        )

"""What the stages work on. What only some of them need is made when first asked for."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np

from ostraka.arrays import Buffer, Float32
from ostraka.bench.cast import cast, update, upload_key
from ostraka.bench.first_pass import LocalWorker
from ostraka.crypto.offline_noise import OfflineNoise
from ostraka.crypto.stream import SecretStream
from ostraka.crypto.updates import TileOpener, tile_context
from ostraka.roles.enclave import Cohort, Enclave
from ostraka.roles.enclave.lanes import Lanes

_NOISE_SEED = bytes(32)


class Workload:
    """A federation between the closing of a round and its first pass, all in memory."""

    def __init__(self, clients: int, dim: int, threads: int = 1) -> None:
        self.clients = clients
        self.cast = cast(clients, dim, masking="gaussian")
        self.rules = self.cast.rules
        self.lanes = Lanes(threads, ThreadPoolExecutor(threads).map) if threads > 1 else Lanes()
        self._tiles: list[list[Buffer]] = [[] for _ in range(self.rules.tiles)]
        self._openers: list[TileOpener] = []
        self.cohort = self._collect()

    @cached_property
    def updates(self) -> Float32:
        """The updates in the clear (n, d)."""
        rows = np.empty((self.clients, self.rules.dimension), np.float32)
        for row in range(self.clients):
            rows[row] = update(row, self.rules.dimension)
        return rows

    def tiles(self) -> Iterator[list[Buffer]]:
        """Tile by tile, the ciphertext of every row."""
        return iter(self._tiles)

    def open_row(self, index: int, row: int, out: Float32) -> None:
        """Open one tile of one row into `out`, as the enclave does."""
        self._openers[row].open_into(index, self._tiles[index][row], out)

    def open_tile(self, index: int, block: Float32) -> Float32:
        """Open one tile of all rows into `block` (n, tile); the part of it that was written."""
        block = block[:, : self.rules.tile_length(index)]
        for row in range(self.clients):
            self.open_row(index, row, block[row])
        return block

    def noise(self) -> OfflineNoise:
        """The noise whose sealed tiles are `sealed_noise`, as if it had never been spent.

        Only a benchmark may do this: the entropy is replayed, so every set has the same key.
        """
        return OfflineNoise(self.rules, self.clients, SecretStream(_NOISE_SEED).bytes)

    @cached_property
    def sealed_noise(self) -> list[bytes]:
        return list(self.noise().make())

    def workers(self) -> list[LocalWorker]:
        return [LocalWorker(worker) for worker in self.cast.workers()]

    def _collect(self) -> Cohort:
        """Every client's upload goes to the enclave, and its ciphertext is kept."""
        collecting = Enclave(self.cast.federation, self.cast.enclave).open_round()
        for row in range(self.clients):
            upload = self.cast.seal(row, collecting.offer)
            collecting.accept(upload.header)
            for tile in upload.tiles:
                collecting.accept_tile(tile)
                self._tiles[tile.index].append(tile.ciphertext)
            self._openers.append(TileOpener(upload_key(row), tile_context(upload.header)))
        return collecting.close()

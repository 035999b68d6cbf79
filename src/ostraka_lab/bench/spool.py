"""Files in which a host keeps ciphertext, tile after tile."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from ostraka.arrays import Buffer
from ostraka.config import Terms
from ostraka.crypto.aead import TAG_BYTES, SealedGroups
from ostraka.errors import LocalProtocolError

UPDATES = "updates"
NOISE = "noise"

_UPDATE_BYTES, _NOISE_BYTES = 4, 8  # a value


def read_tiles(path: Path, sizes: Iterable[int]) -> Iterator[memoryview]:
    """Tiles of these sizes, the first the largest, in one buffer that is reused."""
    buffer = memoryview(b"")
    with path.open("rb", buffering=0) as file:
        for index, size in enumerate(sizes):
            buffer = buffer or memoryview(bytearray(size))
            if file.readinto(buffer[:size]) != size:
                raise LocalProtocolError(f"{path.name} ends within tile {index}")
            yield buffer[:size]


def read_noise(directory: Path, terms: Terms, rows: int) -> Iterator[memoryview]:
    """The sealed tiles of noise for this number of rows."""
    layout = SealedGroups(terms.columns, rows, _NOISE_BYTES)
    return read_tiles(directory / NOISE, map(layout.size, range(terms.columns.count)))


class Layout:
    """Where each row's part of a sealed tile lies in the file of updates: row after row."""

    def __init__(self, terms: Terms, rows: int) -> None:
        self.tiling = terms.tiling
        self.rows = rows

    def size(self, index: int) -> int:
        """Of one row's part of a tile."""
        return self.tiling.size(index) * _UPDATE_BYTES + TAG_BYTES

    def offset(self, index: int, row: int) -> int:
        # Only the last tile may be shorter, and nothing lies behind it.
        return index * self.rows * self.size(0) + row * self.size(index)

    def read_rows(self, path: Path) -> Iterator[list[Buffer]]:
        """Tile by tile, each row's part."""
        sizes = [self.size(index) for index in range(self.tiling.count)]
        for size, tile in zip(sizes, read_tiles(path, [self.rows * s for s in sizes]), strict=True):
            yield [tile[row * size : (row + 1) * size] for row in range(self.rows)]

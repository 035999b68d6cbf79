"""Files in which a host keeps ciphertext: tile after tile, and row after row within each."""

from collections.abc import Iterator
from pathlib import Path

from ostraka.arrays import Buffer
from ostraka.config import RoundConfig
from ostraka.crypto.aead import TAG_BYTES
from ostraka.errors import LocalProtocolError

UPDATES = "updates"
NOISE = "noise"


class Layout:
    """Where each sealed tile lies in its file."""

    def __init__(self, rules: RoundConfig, rows: int, *, value_bytes: int) -> None:
        self.tiling = rules.tiling
        self.rows = rows
        self._value_bytes = value_bytes

    def size(self, index: int) -> int:
        """Of one row's part of a tile."""
        return self.tiling.size(index) * self._value_bytes + TAG_BYTES

    def offset(self, index: int, row: int) -> int:
        # Only the last tile may be shorter, and nothing lies behind it.
        return index * self.rows * self.size(0) + row * self.size(index)

    def read(self, path: Path) -> Iterator[memoryview]:
        """Each tile of all rows, in one buffer that is reused."""
        buffer = memoryview(bytearray(self.rows * self.size(0)))
        with path.open("rb", buffering=0) as file:
            for index in range(self.tiling.count):
                tile = buffer[: self.rows * self.size(index)]
                if file.readinto(tile) != len(tile):
                    raise LocalProtocolError(f"{path.name} ends within tile {index}")
                yield tile

    def read_rows(self, path: Path) -> Iterator[list[Buffer]]:
        """As `read`, cut into rows."""
        for index, tile in enumerate(self.read(path)):
            size = self.size(index)
            yield [tile[row * size : (row + 1) * size] for row in range(self.rows)]

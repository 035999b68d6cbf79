"""The ciphertext of one round's uploads, on a disk that belongs to the host.

One file, tile after tile, and within a tile row after row: what a pass asks for, one tile of all
rows, lies in one piece. It is read row by row as it is opened, by the thread that opens it, so that
it is still in that thread's cache. The disk gives only the blocks that were written.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import overload

from ostraka.arrays import Buffer
from ostraka.config import RoundConfig
from ostraka.crypto.aead import TAG_BYTES
from ostraka.errors import LocalProtocolError, StorageFull
from ostraka.services.storage import spool_file
from ostraka.services.storage.spool_file import SpoolFile

_VALUE_BYTES = 4


@dataclass(frozen=True)
class SpooledTile(Sequence[Buffer]):
    """Each row is read when it is asked for, into memory of its own. Raises StateError."""

    _file: SpoolFile
    _size: int
    _offsets: tuple[int, ...]

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, row: int) -> Buffer: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[Buffer]: ...
    def __getitem__(self, row: int | slice) -> Buffer | Sequence[Buffer]:
        if isinstance(row, slice):
            return SpooledTile(self._file, self._size, self._offsets[row])
        return self._file.read(self._offsets[row], self._size)


class Spool:
    """Made for one round and closed after it. A row may write a tile anew; the last one counts.

    rows: of the roster, present or not. limit: bytes of ciphertext that may lie here.
    """

    clean = staticmethod(spool_file.clean)

    def __init__(self, folder: Path, *, rules: RoundConfig, rows: int, limit: int) -> None:
        self._tiling = rules.tiling
        self._rows = rows
        self._room = limit
        self._limit = limit
        self._lock = Lock()
        self._written = bytearray(self._tiling.count * rows)  # a byte a slot
        self._file = SpoolFile(folder, "round")

    def write(self, row: int, index: int, ciphertext: Buffer) -> None:
        """Raises StorageFull, and then the slot holds nothing that authenticates."""
        self._require(index, row)
        if len(ciphertext) != self._size(index):
            raise LocalProtocolError(
                f"tile {index} has {self._size(index)} bytes; got {len(ciphertext)}"
            )
        self._take_room(row, index)
        self._file.write(self._offset(index, row), ciphertext)

    def read(self, index: int, rows: Sequence[int]) -> "SpooledTile":
        """One tile's ciphertext of these rows, in their order."""
        self._require(index, *rows)
        offsets = tuple(self._offset(index, row) for row in rows)
        return SpooledTile(self._file, self._size(index), offsets)

    def tiles(self, rows: Sequence[int]) -> Iterator["SpooledTile"]:
        """A whole pass, tile by tile."""
        return (self.read(index, rows) for index in range(self._tiling.count))

    def close(self) -> None:
        """Delete everything."""
        self._file.close()

    def _take_room(self, row: int, index: int) -> None:
        slot = index * self._rows + row
        with self._lock:
            if self._written[slot]:
                return
            if self._size(index) > self._room:
                raise StorageFull(
                    f"the round's updates are above the limit of {self._limit} bytes "
                    "(storage.spool_mib); nothing was lost"
                )
            self._room -= self._size(index)
            self._written[slot] = 1

    def _require(self, index: int, *rows: int) -> None:
        if not 0 <= index < self._tiling.count:
            raise LocalProtocolError(f"there are {self._tiling.count} tiles; got tile {index}")
        if not all(0 <= row < self._rows for row in rows):
            raise LocalProtocolError(f"there are {self._rows} rows; got {rows}")

    def _size(self, index: int) -> int:
        return self._tiling.size(index) * _VALUE_BYTES + TAG_BYTES

    def _offset(self, index: int, row: int) -> int:
        # Only the last tile may be shorter, and nothing lies behind it.
        return index * self._rows * self._size(0) + row * self._size(index)

"""The ciphertext of one round's uploads, on a disk that belongs to the host."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from threading import Lock

from ostraka.arrays import Buffer
from ostraka.config import Span, Terms
from ostraka.crypto.aead import TAG_BYTES
from ostraka.errors import LocalProtocolError, StateError, StorageFull

_PREFIX, _SUFFIX = "spool-", ".bin"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def clean(folder: Path) -> int:
    """Delete what a process that died has left here, and return the number of files."""
    leftovers = list(folder.glob(f"{_PREFIX}*{_SUFFIX}"))
    for leftover in leftovers:
        leftover.unlink(missing_ok=True)
    return len(leftovers)


class SpoolFile:
    """A file that any number of threads may read and write. The last thread closes it.

    A closed descriptor's number soon belongs to another file, so none is used after it was closed.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self.path = folder / f"{_PREFIX}{kind}-{token_hex(8)}{_SUFFIX}"
        self._lock = Lock()
        self._users = 0
        self._closing = False
        with _explained(self.path):
            self._file = os.open(
                self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )

    def write(self, offset: int, data: Buffer) -> None:
        """Write at this offset. Raises StorageFull, or StateError if the disk fails otherwise."""
        rest = memoryview(data).cast("B")
        with self._in_use() as file, _explained(self.path):
            while rest:
                written = os.pwrite(file, rest, offset)
                rest, offset = rest[written:], offset + written

    def read(self, offset: int, size: int) -> bytes:
        """Read into new memory. What was never written is zeros. Raises StateError."""
        with self._in_use() as file, _explained(self.path):
            whole = os.pread(file, size, offset)
            while len(whole) < size and (more := _read_on(file, whole, offset, size)):
                whole += more
        return whole.ljust(size, b"\0")

    def close(self) -> None:
        """Delete the file. A second call does nothing."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            with suppress(FileNotFoundError):
                self.path.unlink()
            self._close_if_unused()

    @contextmanager
    def _in_use(self) -> Iterator[int]:
        with self._lock:
            if self._closing:
                raise LocalProtocolError(f"{self.path.name} is closed")
            self._users += 1
        try:
            yield self._file
        finally:
            with self._lock:
                self._users -= 1
                self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._closing and not self._users:
            os.close(self._file)


def _read_on(file: int, read: bytes, offset: int, size: int) -> bytes:
    return os.pread(file, size - len(read), offset + len(read))


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as failed:
        if failed.errno in _FULL:
            raise StorageFull(
                f"no room left for {path}: make room on its disk; nothing was lost"
            ) from None
        raise StateError(path, f"{failed.strerror}: check its disk") from None


class Spool:
    """The uploads of one round that found no room in memory, closed after it.

    A tile that is written again replaces the first.

    rows: the number of enrolled clients. limit: bytes of ciphertext that may be stored.
    """

    clean = staticmethod(clean)

    def __init__(
        self, folder: Path, *, terms: Terms, rows: int, limit: int, span: Span | None = None
    ) -> None:
        """span: which values of every upload come here; all unless given."""
        self._tiling = (span or terms.span).tiling
        self._value_bytes = terms.format.dtype.itemsize
        self._rows = rows
        self._room = limit
        self._limit = limit
        self._lock = Lock()
        self._written = bytearray(self._tiling.count * rows)  # one byte for each slot
        self._file = SpoolFile(folder, "round")

    def write(self, row: int, index: int, ciphertext: Buffer) -> None:
        """Write one tile. After StorageFull, the slot holds nothing that authenticates."""
        self._require(index, row)
        if len(ciphertext) != self._size(index):
            raise LocalProtocolError(
                f"tile {index} has {self._size(index)} bytes; got {len(ciphertext)}"
            )
        self._take_room(row, index)
        self._file.write(self._offset(index, row), ciphertext)

    def read(self, row: int, index: int, start: int, size: int) -> bytes:
        """Return `size` bytes of a tile, from byte `start` on. Raises StateError."""
        self._require(index, row)
        if not 0 <= start <= start + size <= self._size(index):
            raise LocalProtocolError(f"tile {index} has no bytes {start} to {start + size}")
        return self._file.read(self._offset(index, row) + start, size)

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
        return self._tiling.size(index) * self._value_bytes + TAG_BYTES

    def _offset(self, index: int, row: int) -> int:
        # Only the last tile may be shorter, and nothing follows it.
        return index * self._rows * self._size(0) + row * self._size(index)

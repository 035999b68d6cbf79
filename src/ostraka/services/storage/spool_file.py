"""A file of ciphertext that no restart needs: written at any place, read back, deleted when closed.

Holes read as zeros, which authenticate as nothing.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from threading import Lock

from ostraka.arrays import Buffer
from ostraka.errors import LocalProtocolError, StateError, StorageFull

_PREFIX, _SUFFIX = "spool-", ".bin"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def clean(folder: Path) -> int:
    """Delete what a process that died has left here. Nobody has its keys. Returns how many."""
    leftovers = list(folder.glob(f"{_PREFIX}*{_SUFFIX}"))
    for leftover in leftovers:
        leftover.unlink(missing_ok=True)
    return len(leftovers)


class SpoolFile:
    """Any number of threads may read and write. The last one out closes the file.

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
        """Raises StorageFull, or StateError if the disk fails otherwise."""
        rest = memoryview(data).cast("B")
        with self._in_use() as file, _explained(self.path):
            while rest:
                written = os.pwrite(file, rest, offset)
                rest, offset = rest[written:], offset + written

    def read(self, offset: int, size: int) -> bytes:
        """In memory of its own. What was never written is zeros. Raises StateError."""
        with self._in_use() as file, _explained(self.path):
            whole = os.pread(file, size, offset)
            while len(whole) < size and (more := _read_on(file, whole, offset, size)):
                whole += more
        return whole.ljust(size, b"\0")

    def close(self) -> None:
        """Delete the file. A second time does nothing."""
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

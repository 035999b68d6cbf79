"""The few calls by which pseudo-files are used. A test puts a faithful fake in their place."""

import errno
import os
from pathlib import Path
from typing import Protocol

_CHUNK = 1 << 16


class Files(Protocol):
    """All raise OSError."""

    def exists(self, path: Path) -> bool: ...

    def mkdir(self, path: Path) -> None: ...

    def rmdir(self, path: Path) -> None: ...

    def write(self, path: Path, data: bytes) -> None: ...

    def read(self, path: Path) -> bytes: ...


class OsFiles:
    """The real ones. Nothing is created, truncated or unlinked: pseudo-files allow none of it."""

    def exists(self, path: Path) -> bool:
        return path.exists()

    def mkdir(self, path: Path) -> None:
        path.mkdir(mode=0o700)

    def rmdir(self, path: Path) -> None:
        path.rmdir()

    def write(self, path: Path, data: bytes) -> None:
        """One open, one write, one close: configfs takes the value when the file is closed."""
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            written = os.write(file, data)
        finally:
            os.close(file)
        if written != len(data):
            raise OSError(errno.EIO, f"took {written} of {len(data)} bytes", str(path))

    def read(self, path: Path) -> bytes:
        """Through one descriptor to its end: a pseudo-file has no size, and reads may be short.

        os.read, because a Python file object turns EAGAIN into None.
        """
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return b"".join(iter(lambda: os.read(file, _CHUNK), b""))
        finally:
            os.close(file)


OS_FILES = OsFiles()

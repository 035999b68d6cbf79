"""Devices and pseudo-files, by which Linux offers a platform's services."""

import ctypes
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeAlias

# The descriptor, the request's number, and the structure that the device reads and changes.
Ioctl: TypeAlias = Callable[[int, int, Any], None]

_READ_WRITE = 3
_CHUNK = 1 << 16


def request_number(group: int, number: int, structure: type[ctypes.Structure]) -> int:
    """Returns Linux's _IOWR on x86 and Arm: direction, size, group and number."""
    return _READ_WRITE << 30 | ctypes.sizeof(structure) << 16 | group << 8 | number


def call(path: Path, ioctl: Ioctl, request: int, structure: ctypes.Structure) -> None:
    """Asks a device once. Raises OSError."""
    device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        ioctl(device, request, structure)
    finally:
        os.close(device)


def system_ioctl(device: int, request: int, structure: Any) -> None:
    """Calls the real ioctl, which changes the structure in place."""
    fcntl.ioctl(device, request, structure, True)


class Files(Protocol):
    """Calls on pseudo-files. All of them raise OSError."""

    def exists(self, path: Path) -> bool: ...

    def mkdir(self, path: Path) -> None: ...

    def rmdir(self, path: Path) -> None: ...

    def write(self, path: Path, data: bytes) -> None: ...

    def read(self, path: Path) -> bytes: ...


class OsFiles:
    """The real calls. They create, truncate and unlink nothing, which pseudo-files forbid."""

    def exists(self, path: Path) -> bool:
        return path.exists()

    def mkdir(self, path: Path) -> None:
        path.mkdir(mode=0o700)

    def rmdir(self, path: Path) -> None:
        path.rmdir()

    def write(self, path: Path, data: bytes) -> None:
        """Writes once and closes the file, because configfs takes the value when it is closed."""
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            written = os.write(file, data)
        finally:
            os.close(file)
        if written != len(data):
            raise OSError(errno.EIO, f"took {written} of {len(data)} bytes", str(path))

    def read(self, path: Path) -> bytes:
        """Reads to the end, because a pseudo-file has no size and reads may be short.

        It uses os.read, because a Python file object turns EAGAIN into None.
        """
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return b"".join(iter(lambda: os.read(file, _CHUNK), b""))
        finally:
            os.close(file)


OS_FILES = OsFiles()

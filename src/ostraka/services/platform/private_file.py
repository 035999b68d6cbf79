"""A file that nobody but its owner may read, or it is refused."""

import errno
import os
import stat
from pathlib import Path

from ostraka.errors import ConfigError
from ostraka.services.platform.advice import explained

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_LARGEST = 1 << 16

# Whoever named the file can do something about these. All else is a fault of the machine.
_ADVICE = {
    errno.EACCES: "run as the user that may use it",
    errno.EISDIR: "that is a folder: name a file",
    errno.ENOTDIR: "there is a file in the place of a folder",
}
_CREATING = _ADVICE | {
    errno.EEXIST: "it exists, and a secret is never written over: move it away first",
    errno.ENOENT: "make its folder first",
}
_READING = _ADVICE | {errno.ENOENT: "make it first"}


def create(path: Path, text: str) -> None:
    """Write a new file, readable by its owner from its first moment.

    Raises ConfigError if it cannot be under this name, and PlatformError.
    """
    with explained("creating a secret file", _CREATING, advised=ConfigError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "w") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())


def read(path: Path) -> str:
    """Text. Raises as `read_bytes` does."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text") from None


def read_bytes(path: Path) -> bytes:
    """Raises ConfigError if it is not there, or if others can read it, too; and PlatformError."""
    reading = explained("reading a secret file", _READING, advised=ConfigError)
    with reading, path.open("rb") as opened:
        # Asked of the open file: whoever could swap the name could swap it after a look.
        _require_private(path, os.fstat(opened.fileno()))
        return opened.read(_LARGEST)


def _require_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path} is not a file")
    if status.st_uid != os.geteuid():
        raise ConfigError(f"{path} belongs to another user (uid {status.st_uid})")
    if status.st_mode & _OTHERS:
        raise ConfigError(f"others may use {path}: chmod 600 it, and count its secret as known")

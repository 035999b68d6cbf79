"""A file that nobody but its owner may read, or it is refused."""

import errno
import os
import stat
from pathlib import Path

from ostraka.errors import PlatformError
from ostraka.services.platform.advice import explained

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_LARGEST = 1 << 16

_ADVICE = {
    errno.EEXIST: "it exists, and a secret is never written over: move it away first",
    errno.ENOENT: "make it first",
}


def create(path: Path, text: str) -> None:
    """Write a new file, readable by its owner from its first moment. Raises PlatformError."""
    with explained("creating a secret file", _ADVICE):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "w") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())


def read(path: Path) -> str:
    """Raises PlatformError if it cannot be read, or if others can read it, too."""
    with explained("reading a secret file", _ADVICE), path.open("rb") as opened:
        # Asked of the open file: whoever could swap the name could swap it after a look.
        _require_private(path, os.fstat(opened.fileno()))
        content = opened.read(_LARGEST)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise PlatformError(f"{path} is not text") from None


def _require_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise PlatformError(f"{path} is not a file")
    if status.st_uid != os.geteuid():
        raise PlatformError(f"{path} belongs to another user (uid {status.st_uid})")
    if status.st_mode & _OTHERS:
        raise PlatformError(f"others may use {path}: chmod 600 it, and count its secret as known")

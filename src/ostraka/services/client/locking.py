"""One process at a time at a file that is replaced and never written in place.

The lock is on a file beside it, which stays: the file itself is another one after every change.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SUFFIX = ".lock"

_PAUSE_S = 0.05
# What a system says that has no such locks. There, its user has to run one process at a time.
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOLCK)


@contextmanager
def locked(path: Path, *, seconds: float) -> Iterator[None]:
    """Waits so long for another process to let go. Raises TimeoutError, or another OSError."""
    beside = path.with_name(path.name + SUFFIX)
    file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _wait_for(file, until=time.monotonic() + seconds)
        yield
    finally:
        os.close(file)  # The lock ends with it, or with the process, however that ends.


def _wait_for(file: int, *, until: float) -> None:
    while not _taken(file):
        if time.monotonic() >= until:
            raise TimeoutError
        time.sleep(_PAUSE_S)


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as failed:
        if failed.errno not in _UNSUPPORTED:
            raise
    return True

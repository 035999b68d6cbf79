"""One process at a time in a folder."""

import errno
import fcntl
import os
from pathlib import Path

from ostraka.errors import StateError

_NAME = "lock"
# What a system says that has no such locks, as some library operating systems inside an enclave do.
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


class FolderLock:
    """Held until it is closed, or until the process ends, however it ends.

    This is against accidents. A host that means it can copy the folder; clients see the fork.
    """

    def __init__(self, folder: Path) -> None:
        self.effective = True
        self._file: int | None = os.open(
            folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise StateError(
                folder, "another process uses this state: stop it first, or use another folder"
            ) from None
        except OSError as failed:
            if failed.errno not in _UNSUPPORTED:
                self.close()
                raise
            self.effective = False

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

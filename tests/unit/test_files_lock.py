import errno
import fcntl
import os

import pytest

from ostraka.errors import StateError
from ostraka.files import FolderLock


def test_there_is_one_at_a_time(tmp_path):
    lock = FolderLock(tmp_path)
    assert lock.effective
    for _ in range(2):
        with pytest.raises(StateError, match="another process uses this state"):
            FolderLock(tmp_path)
    lock.close()
    lock.close()
    FolderLock(tmp_path).close()


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_system_without_locks_is_told_apart(tmp_path, monkeypatch, code):
    def absent(*_):
        raise OSError(code, "no")

    monkeypatch.setattr(fcntl, "flock", absent)
    lock = FolderLock(tmp_path)
    assert not lock.effective
    lock.close()


def test_any_other_failure_is_one_and_leaves_no_file_open(tmp_path, monkeypatch):
    locked = []

    def broken(file, *_):
        locked.append(file)
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(fcntl, "flock", broken)
    with pytest.raises(OSError, match="no"):
        FolderLock(tmp_path)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(locked[0])

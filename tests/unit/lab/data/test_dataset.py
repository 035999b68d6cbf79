"""The idx format, compressed or not, and the digits of scikit-learn."""

import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.errors import ConfigError
from ostraka_lab import data
from ostraka_lab.data import dataset
from ostraka_lab.data.dataset import IDX_IMAGES, IDX_LABELS, parse_idx, read_idx, unzipped


def encoded(array):
    shape = b"".join(struct.pack(">I", each) for each in array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + array.tobytes()


IMAGES = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_is_read_compressed_or_not(tmp_path, zipped, compressed):
    data = encoded(IMAGES)
    file = tmp_path / "images"
    file.write_bytes(zipped(data) if compressed else data)
    np.testing.assert_array_equal(parse_idx(unzipped(file, len(data))), IMAGES)


def test_a_small_file_that_unpacks_to_a_huge_one_is_refused(tmp_path, zipped):
    file = tmp_path / "bomb.gz"
    file.write_bytes(zipped(bytes(50_000_000)))
    with pytest.raises(ConfigError, match="larger than the 1000 bytes"):
        parse_idx(unzipped(file, 1000))


@pytest.mark.parametrize("end", [0, 5, 30, -4])
def test_half_a_compressed_file_is_refused(tmp_path, zipped, end):
    file = tmp_path / "half.gz"
    file.write_bytes(zipped(encoded(IMAGES))[:end])
    with pytest.raises(ConfigError):
        parse_idx(unzipped(file, 10_000))


MISTAKES = {
    "nothing": b"",
    "another magic number": b"\x00\x00\x0d\x01\x00\x00\x00\x00",
    "no dimensions": b"\x00\x00\x08\x00",
    "a shape that is cut off": b"\x00\x00\x08\x03\x00\x00",
    "fewer bytes than the shape says": encoded(IMAGES)[:-1],
    "more bytes than the shape says": encoded(IMAGES) + b"x",
    "a shape beyond all memory": b"\x00\x00\x08\x04" + b"\xff" * 16,
}


@pytest.mark.parametrize("data", MISTAKES.values(), ids=MISTAKES.keys())
def test_what_is_no_idx_file_is_refused(data):
    with pytest.raises(ConfigError):
        parse_idx(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    with suppress(ConfigError):
        assert parse_idx(b"\x00\x00\x08" + data).nbytes <= len(data)


def test_a_data_set_has_one_channel(tmp_path):
    for part, count in (("train", 3), ("test", 2)):
        (tmp_path / IDX_IMAGES[part]).write_bytes(encoded(IMAGES[:count]))
        labels = np.arange(count, dtype=np.uint8)
        (tmp_path / IDX_LABELS[part]).write_bytes(encoded(labels))
    dataset = read_idx(tmp_path, name="mnist", mean=0.1, std=0.3)
    assert dataset.shape == (1, 28, 28)
    np.testing.assert_array_equal(dataset.train.images[2, 0], IMAGES[2])
    assert dataset.test.labels.tolist() == [0, 1]
    assert len(dataset.train) == 3


def test_they_are_the_ones_that_scikit_learn_loads():
    datasets = pytest.importorskip("sklearn.datasets")
    theirs = datasets.load_digits()
    ours = data.load("digits")
    images = np.concatenate([ours.train.images, ours.test.images])[:, 0]
    test = np.arange(len(theirs.target)) % 7 < 2
    order = np.concatenate([np.flatnonzero(~test), np.flatnonzero(test)])
    np.testing.assert_allclose(images * (16 / 255), theirs.images[order], atol=0.04)
    labels = np.concatenate([ours.train.labels, ours.test.labels])
    np.testing.assert_array_equal(labels, theirs.target[order])


def test_the_document_has_as_many_digits():
    document = (Path(__file__).parents[4] / "docs" / "data.md").read_text("utf-8")
    ours = data.load("digits")
    train, test = len(ours.train), len(ours.test)
    assert f"its {train + test:,} images" in document
    assert f"| `digits` | {train:,} + {test:,} of 8 × 8 |" in document


def test_every_digit_is_about_as_frequent_in_both_parts():
    dataset = data.load("digits")
    assert dataset.shape == (1, 8, 8)
    assert (len(dataset.train), len(dataset.test)) == (1283, 514)
    for part in (dataset.train, dataset.test):
        counts = np.bincount(part.labels, minlength=10)
        assert counts.min() > 0.8 * len(part) / 10
        assert counts.max() < 1.2 * len(part) / 10


def test_the_stated_mean_and_deviation_are_those_of_the_training_images():
    dataset = data.load("digits")
    scaled = dataset.train.images / 255
    np.testing.assert_allclose(dataset.mean, [scaled.mean()], atol=1e-4)
    np.testing.assert_allclose(dataset.std, [scaled.std()], atol=1e-4)


def test_nothing_heavy_is_imported_to_load_them():
    code = "import sys; from ostraka_lab import data; data.load('digits'); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"sklearn", "torch", "PIL", "scipy"} & set(run.stdout.split())


def test_without_scikit_learn_it_is_said_what_is_missing(monkeypatch):
    monkeypatch.setattr(dataset, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="scikit-learn"):
        data.load("digits")
    assert not dataset.digits_installed()

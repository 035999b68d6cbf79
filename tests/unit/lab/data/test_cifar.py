"""CIFAR-10 comes in three formats, and all of them are the same images."""

import sys

import numpy as np
import pytest
from PIL import Image

from ostraka.errors import ConfigError
from ostraka_lab.data import cifar

FORMATS = ["binary", "python", "sheets"]


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_official_files(small, tmp_path, kind):
    folder = small.put(tmp_path, getattr(small, kind))
    found = {path.name: path for path in folder.iterdir()}
    assembled = dict(cifar.assemble(found))
    names = assembled.pop("batches.meta.txt")
    assert assembled == small.binary
    assert names.decode().split() == list(cifar.CLASSES)


def test_images_are_read_plane_by_plane_and_row_by_row(small, tmp_path):
    dataset = cifar.read(small.put(tmp_path, small.binary))
    assert dataset.shape == (3, 32, 32)
    assert dataset.train.images.shape == (20, 3, 32, 32)
    assert dataset.train.labels.dtype == np.int64
    second = small.rows["data_batch_2"]
    assert dataset.train.labels[4] == second[0, 0]
    assert dataset.train.images[4, 1, 2, 3] == second[0, 1 + 1024 + 2 * 32 + 3]
    np.testing.assert_array_equal(dataset.test.labels, small.rows["test_batch"][:, 0])


def test_what_was_read_does_not_depend_on_the_files_any_more(small, tmp_path):
    dataset = cifar.read(small.put(tmp_path, small.binary))
    before = dataset.test.images.copy()
    (tmp_path / "test_batch.bin").write_bytes(bytes(4 * 3073))
    np.testing.assert_array_equal(dataset.test.images, before)
    assert dataset.train.images.flags.c_contiguous


MISTAKES = {
    "a batch is missing": (lambda files: files.pop("data_batch_3"), "neither data_batch_3.bin"),
    "a batch that is no pickle": (
        lambda files: files.update(data_batch_1=b"nonsense"),
        "data_batch_1 is not a pickle",
    ),
    "a pickle of something else": (
        lambda files: files.update(data_batch_1=b"\x80\x02]."),
        "has no pixels",
    ),
}


@pytest.mark.parametrize(("change", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_what_is_wrong_with_python_batches_is_said(small, tmp_path, change, message):
    change(small.python)
    found = {path.name: path for path in small.put(tmp_path, small.python).iterdir()}
    with pytest.raises(ConfigError, match=message):
        dict(cifar.assemble(found))


SHEETS = {
    "a picture that is too narrow": ("data_batch_1.png", ("RGB", 8, 4), "not a sheet"),
    "a picture that is too high": ("data_batch_1.png", ("RGB", 1024, 5), "not a sheet"),
    "a picture without colours": ("data_batch_1.png", ("L", 1024, 4), "not a sheet"),
    "no picture": ("data_batch_1.png", b"nonsense", "cannot be read"),
    "half a picture": ("data_batch_1.png", "half", "cannot be read"),
    "labels that are no JSON": ("train_lables.json", b"[1,", "cannot be read"),
    "labels that are no list": ("train_lables.json", b"{}", "one label for each"),
    "too few labels": ("train_lables.json", b"[1, 2]", "one label for each"),
    "a label that is no number": ("test_lables.json", b'[1, 2, 3, "x"]', "numbers below 10"),
    "a label that is no class": ("test_lables.json", b"[1, 2, 3, 10]", "numbers below 10"),
}


@pytest.mark.parametrize(("name", "content", "message"), SHEETS.values(), ids=SHEETS.keys())
def test_what_is_wrong_with_sheets_is_said(small, tmp_path, name, content, message):
    if content == "half":
        content = small.sheets[name][:2000]
    if isinstance(content, tuple):
        mode, *size = content
        Image.new(mode, size).save(tmp_path / "other.png")
        content = (tmp_path / "other.png").read_bytes()
    small.sheets[name] = content
    found = {path.name: path for path in small.put(tmp_path, small.sheets).iterdir()}
    with pytest.raises(ConfigError, match=message):
        dict(cifar.assemble(found))


def test_without_pillow_it_is_said_what_is_missing(small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    found = {path.name: path for path in small.put(tmp_path, small.sheets).iterdir()}
    with pytest.raises(ConfigError, match="pip install pillow"):
        dict(cifar.assemble(found))

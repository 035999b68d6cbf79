"""CIFAR-10 comes in three formats with the same images; a pickle is read and never run."""

import pickle
import pickletools
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
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


def test_an_official_batch_is_a_dictionary_of_lists_and_one_array(small):
    batch: Any = cifar.read_pickle(small.python["data_batch_1"])
    rows = small.rows["data_batch_1"]
    assert batch["labels"] == rows[:, 0].tolist()
    assert batch["batch_label"] == "training batch 1 of 5"
    assert batch["filenames"][1] == "picture_s_000001.png"
    np.testing.assert_array_equal(batch["data"], rows[:, 1:])


def test_python_reads_the_same_from_what_these_tests_call_an_official_batch(small):
    loaded = pickle.loads(small.python["data_batch_1"], encoding="latin-1")
    np.testing.assert_array_equal(loaded["data"], small.rows["data_batch_1"][:, 1:])
    assert loaded["labels"] == small.rows["data_batch_1"][:, 0].tolist()


class Touches:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_runs_code_is_refused_and_does_not_run(tmp_path, protocol):
    victim = tmp_path / "was-run"
    data = pickle.dumps({"data": Touches(victim), "labels": []}, protocol=protocol)
    with pytest.raises(ConfigError, match="safe to read"):
        cifar.read_pickle(data)
    assert not victim.exists()
    # The pickle does work: it is the reader that keeps it from running.
    pickle.loads(data)["data"].close()
    assert victim.exists()


def by_hand(path):
    """Ways to run code that pickle itself would not write."""
    command = f"S'touch {path}'\n".encode()
    return {
        "a global and a call": b"cos\nsystem\n(" + command + b"tR.",
        "an instance": b"(" + command + b"ios\nsystem\n.",
        "an object": b"(cos\nsystem\n" + command + b"o.",
        "a new object": b"\x80\x02cos\nsystem\n(" + command + b"t\x81.",
        "a global from the stack": b"\x80\x04\x8c\x02os\x8c\x06system\x93(" + command + b"tR.",
        "an extension": b"\x80\x02\x82\x01.",
        "a persistent id": b"Pos\n.",
        "an allowed function with other arguments": (
            b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\ndtype\nK\x00\x85U\x01b\x87R."
        ),
        "a type that holds objects": b"\x80\x02cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R.",
        "the state of a dictionary": b"\x80\x02}}b.",
        "the state of a function": b"\x80\x02cnumpy\ndtype\n}b.",
        "a mark that is not there": b"\x80\x02e.",
        "a key that is no string": b"\x80\x02}(K\x01K\x02u.",
        "items for a list": b"\x80\x02]U\x01aK\x01s.",
    }


@pytest.mark.parametrize("way", by_hand("x"))
def test_steps_that_no_batch_needs_are_refused(tmp_path, way):
    victim = tmp_path / "was-run"
    with pytest.raises(ConfigError):
        cifar.read_pickle(by_hand(victim)[way])
    assert not victim.exists()


def test_a_batch_cannot_have_arrays_of_anything_but_bytes(small):
    data = small.python["data_batch_1"].replace(b"U\x02u1", b"U\x02f4")
    with pytest.raises(ConfigError, match="array of bytes"):
        cifar.read_pickle(data)


def test_a_pickle_that_keeps_a_processor_busy_is_refused():
    with pytest.raises(ConfigError, match="too many steps"):
        cifar.read_pickle(b"\x80\x02" + b"N" * 1_000_000 + b".")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    with suppress(ConfigError):
        cifar.read_pickle(b"\x80\x02" + data)


def test_a_batch_with_any_byte_changed_is_read_or_refused(small):
    whole = small.python["data_batch_1"]
    steps = [place or 0 for _, _, place in pickletools.genops(whole)]
    for place in steps:
        for change in (0x2E, 0x52, 0x74, 0x62, 0xFF):
            data = bytearray(whole)
            data[place] = change
            with suppress(ConfigError):
                cifar.rows_of_python(bytes(data))


@pytest.mark.parametrize("end", [0, 1, 20, 300, 5000, -1])
def test_half_a_batch_is_refused(small, end):
    with pytest.raises(ConfigError):
        cifar.read_pickle(small.python["data_batch_1"][:end])

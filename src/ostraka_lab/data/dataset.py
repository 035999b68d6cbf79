"""Labelled images, and the data sets that are simple to read: MNIST's files and the digits.

MNIST and Fashion-MNIST come as idx files: a magic number, the shape, then bytes. The digits ship
with scikit-learn: 1,797 images of 8 x 8, the test set of the UCI's "Optical Recognition of
Handwritten Digits" (Alpaydin and Kaynak 1998).
"""

import gzip
import math
import zlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ostraka.errors import ConfigError, installing

UInt8: TypeAlias = npt.NDArray[np.uint8]
Int64: TypeAlias = npt.NDArray[np.int64]

IDX_IMAGES = {"train": "train-images-idx3-ubyte", "test": "t10k-images-idx3-ubyte"}
IDX_LABELS = {"train": "train-labels-idx1-ubyte", "test": "t10k-labels-idx1-ubyte"}
DIGITS = "digits"

_GZIP = b"\x1f\x8b"
_IDX_OF_BYTES = b"\x00\x00\x08"
_MAX_DIMENSIONS = 4

# Two of every seven digits are kept for the test: the labels come in runs of ten, with which seven
# has no factor in common, so that all digits are about as frequent in both parts.
_CYCLE, _TESTED = 7, 2
_DIGITS_MEAN, _DIGITS_STD = 0.3057, 0.3760
_BRIGHTEST = 16


@dataclass(frozen=True, eq=False)
class Split:
    """Labelled images (n, channels, height, width) uint8. labels: (n,) int64."""

    images: UInt8
    labels: Int64

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A task. mean, std: per channel, of the training images / 255."""

    name: str
    train: Split
    test: Split
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one image: channels, height, width."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width


def unzipped(path: Path, limit: int) -> bytes:
    """Read a file that may be compressed, of at most `limit` bytes. Raises ConfigError."""
    with path.open("rb") as raw:
        compressed = raw.read(len(_GZIP)) == _GZIP
        raw.seek(0)
        try:
            file = gzip.GzipFile(fileobj=raw) if compressed else raw
            found = file.read(limit + 1)
        except (EOFError, OSError, zlib.error) as bad:
            raise ConfigError(f"{path} cannot be read: {bad}") from None
    if len(found) > limit:
        raise ConfigError(f"{path} is larger than the {limit} bytes that it should have")
    return found


def parse_idx(data: bytes, name: str = "this") -> UInt8:
    """Read the array that an idx file describes. Raises ConfigError."""
    dimensions = data[3] if len(data) > 3 else 0
    start = 4 + 4 * dimensions
    if data[:3] != _IDX_OF_BYTES or not 1 <= dimensions <= _MAX_DIMENSIONS or len(data) < start:
        raise ConfigError(f"{name} is not an idx file of bytes")
    shape = tuple(np.frombuffer(data, ">u4", dimensions, 4).tolist())
    if math.prod(shape) != len(data) - start:
        raise ConfigError(f"{name} is incomplete: {len(data) - start} bytes for shape {shape}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_idx(folder: Path, *, name: str, mean: float, std: float) -> Dataset:
    """Read a data set from the four files that MNIST has, uncompressed."""
    train, test = (
        _idx_split(folder, IDX_IMAGES[part], IDX_LABELS[part]) for part in ("train", "test")
    )
    return Dataset(name, train, test, classes=10, mean=(mean,), std=(std,))


def _idx_split(folder: Path, images: str, labels: str) -> Split:
    pixels = parse_idx((folder / images).read_bytes(), images)
    classes: Int64 = parse_idx((folder / labels).read_bytes(), labels).astype(np.int64)
    return Split(pixels[:, np.newaxis], classes)


def load_digits() -> Dataset:
    """Load the digits. Raises ConfigError where scikit-learn is not installed."""
    images, labels = _read_digits()
    test = np.arange(len(labels)) % _CYCLE < _TESTED
    return Dataset(
        DIGITS,
        train=Split(images[~test], labels[~test]),
        test=Split(images[test], labels[test]),
        classes=10,
        mean=(_DIGITS_MEAN,),
        std=(_DIGITS_STD,),
    )


def digits_installed() -> bool:
    return _digits_file() is not None


def _read_digits() -> tuple[UInt8, Int64]:
    """All images (n, 1, 8, 8), from 0 to 255, and their labels (n,)."""
    file = _digits_file()
    if file is None:
        raise ConfigError(f"digits come with scikit-learn: {installing('lab')}")
    table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    pixels = (table[:, :-1] * 255 + _BRIGHTEST // 2) // _BRIGHTEST
    return pixels.astype(np.uint8).reshape(-1, 1, 8, 8), table[:, -1].copy()


def _digits_file() -> Path | None:
    """Find the file without importing scikit-learn, which takes seconds in every process."""
    package = find_spec("sklearn")
    places = (package.submodule_search_locations or ()) if package else ()
    files = (Path(place) / "datasets" / "data" / "digits.csv.gz" for place in places)
    return next((file for file in files if file.is_file()), None)

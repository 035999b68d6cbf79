"""The array types that cross module boundaries."""

import math
import sys
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

if sys.byteorder != "little":
    # Tiles, shares and keystreams are read as they lie in memory.
    raise ImportError("Ostraka runs on little-endian machines only")

Float32: TypeAlias = npt.NDArray[np.float32]
Float64: TypeAlias = npt.NDArray[np.float64]
Int64: TypeAlias = npt.NDArray[np.int64]
UInt8: TypeAlias = npt.NDArray[np.uint8]
UInt32: TypeAlias = npt.NDArray[np.uint32]
AnyArray: TypeAlias = npt.NDArray[Any]
Buffer: TypeAlias = bytes | bytearray | memoryview


def is_frozen(vector: AnyArray) -> bool:
    """Whether the values stay as they are: memory of its own, or bytes, and not writeable."""
    return not vector.flags.writeable and (vector.base is None or isinstance(vector.base, bytes))


def freeze(vector: AnyArray) -> None:
    """Forbid writing to an array, which its maker hands over and keeps no view of."""
    vector.flags.writeable = False


def cut(space: AnyArray, *shape: int) -> AnyArray:
    """A contiguous array of this shape at the start of the memory of a larger one."""
    return space.reshape(-1)[: math.prod(shape)].reshape(shape)

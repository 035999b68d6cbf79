"""The loops in C: loads `_native.so`, if the package was built with a compiler.

Calls release the interpreter's lock, but for those that are made for every tile that arrives: they
take some microseconds, and to wait for the lock again behind other threads takes longer.
`ostraka.core.loops` has checked every argument, and so sizes, types and alignment are what native.c
takes for granted.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ostraka.arrays import AnyArray, Float32, Float64, Int64, UInt32
from ostraka.core.loops.twin import Int8, Int16, UInt8, UInt16

LIBRARY = Path(__file__).with_name("_native.so")
LEVELS = ("baseline", "avx2", "avx512", "avx512-vnni")

_ABI = 6
_LEVEL, _SIZE, _REAL, _WORD = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_uint32
_AT = ctypes.c_void_p  # an array
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "dot": (ctypes.c_double, (_AT, _AT, _SIZE)),
    "squares": (ctypes.c_double, (_AT, _SIZE)),
    "scaled_squares": (ctypes.c_double, (_AT, _SIZE, _REAL)),
    "absorb": (ctypes.c_double, (_AT, _SIZE, _AT, _AT, _REAL, _AT, _SIZE)),
    "add_rows": (None, (_AT, _AT, _SIZE, _SIZE, _AT)),
    "share": (_WORD, (_LEVEL, *[_AT] * 6, _SIZE, _SIZE, _AT, _AT)),
    "share_integers": (_WORD, (_LEVEL, *[_AT] * 4, _SIZE, _SIZE, _AT)),
    "witness": (None, (_AT, _AT, _SIZE, _SIZE, _AT, _SIZE)),
    "add_gram": (None, (_AT, *[_SIZE] * 4, _AT)),
    "keep_bits": (_WORD, (_AT, _SIZE, _WORD)),
    "limb_products": (None, (_AT, _AT, _SIZE, _AT)),
    "limbs": (None, (_AT, _SIZE, _SIZE, _SIZE, _AT, _AT, _AT)),
    "widen_float16": (None, (_AT, _SIZE, _AT)),
    "widen_bfloat16": (None, (_AT, _SIZE, _AT)),
    "widen_int8": (None, (_AT, _SIZE, _REAL, _AT)),
}
_BRIEF = ("scaled_squares", "absorb")
# Its arguments are converted when they are pinned, which is half of what a call costs otherwise.
_PINNED = "absorb"
_Start = ctypes.c_char * 0
_VALUE_BYTES = 4


class Native:
    """The functions of `twin`, for one instruction set."""

    def __init__(self, library: ctypes.CDLL, level: int) -> None:
        """level: an index of LEVELS, at most what `best` says."""
        self.level, self._level, self._pinned_level = LEVELS[level], level, _LEVEL(level)
        brief = ctypes.PyDLL(library._name)
        for name, (result, arguments) in _SIGNATURES.items():
            function = (brief if name in _BRIEF else library)[f"ostraka_{name}"]
            function.restype = result
            if name != _PINNED:
                function.argtypes = (_LEVEL, *arguments)
            setattr(self, f"_{name}", function)

    _dot: Any
    _squares: Any
    _scaled_squares: Any
    _absorb: Any
    _add_rows: Any
    _share: Any
    _share_integers: Any
    _witness: Any
    _add_gram: Any
    _keep_bits: Any
    _limb_products: Any
    _limbs: Any
    _widen_float16: Any
    _widen_bfloat16: Any
    _widen_int8: Any

    def dot(self, x: Float32, y: Float32) -> float:
        result: float = self._dot(self._level, _start(x), _start(y), len(x))
        return result

    def squares(self, values: Float32) -> float:
        result: float = self._squares(self._level, _start(values), len(values))
        return result

    def scaled_squares(self, values: Float32, scale: float) -> float:
        result: float = self._scaled_squares(self._level, _start(values), len(values), scale)
        return result

    def pin_fold(self, bits: UInt8, shifts: UInt32, width: int) -> tuple[Any, ...]:
        """Returns what `absorb` takes for the fold of tiles of `width` values. The caller keeps
        the arrays."""
        return _SIZE(width), _start(bits), _start(shifts)

    def pin_sketch(self, sketch: Float32, scale: float) -> tuple[Any, ...]:
        """Returns what `absorb` takes for the sketch of a row."""
        return _REAL(scale), _start(sketch), _SIZE(len(sketch))

    def pin_row(self, values: Float32) -> int:
        """Returns what `absorb_part` takes for a row. The caller keeps the array."""
        return ctypes.addressof(_start(values))

    def absorb(self, values: Float32, fold: Any, sketch: Any) -> float:
        result: float = self._absorb(self._pinned_level, _start(values), *fold, *sketch)
        return result

    def absorb_part(self, row: int, start: int, fold: Any, sketch: Any) -> float:
        at = _AT(row + _VALUE_BYTES * start)
        result: float = self._absorb(self._pinned_level, at, *fold, *sketch)
        return result

    def add_rows(self, rows: Sequence[Float32], weights: Float64, total: Float64) -> None:
        size = len(rows), len(total)
        self._add_rows(self._level, _starts(rows), _start(weights), *size, _start(total))

    def share(
        self,
        values: Sequence[Float32],
        scales: Float32,
        dither: UInt16,
        masks: UInt32,
        shares: UInt32,
        *,
        q: Int16 | None,
    ) -> tuple[Int64, Int64, int]:
        s, v = np.zeros((2, len(values)), np.int64)
        arrays = [_start(each) for each in (scales, dither, masks, shares)]
        places = (_starts(values), *arrays, None if q is None else _start(q), *dither.shape)
        greatest = self._share(self._level, len(masks), *places, _start(s), _start(v))
        return s, v, greatest

    def share_integers(
        self,
        values: Sequence[Int8],
        masks: UInt32,
        shares: UInt32,
        *,
        q: Int16 | None,
    ) -> tuple[Int64, int]:
        s, kept = np.zeros(len(values), np.int64), None if q is None else _start(q)
        places = (_starts(values), _start(masks), _start(shares), kept, *masks.shape[1:])
        greatest = self._share_integers(self._level, len(masks), *places, _start(s))
        return s, greatest

    def witness(self, q: Int16, weights: Float64, sums: Float64) -> None:
        arrays = _start(q), _start(weights)
        self._witness(self._level, *arrays, *q.shape, _start(sums), sums.shape[1])

    def add_gram(self, rows: Sequence[Int8], gram: Int64, part: range) -> None:
        size = len(rows), len(rows[0]), part.start, part.stop
        self._add_gram(self._level, _starts(rows), *size, _start(gram))

    def keep_bits(self, words: UInt32, mask: int) -> int:
        greatest: int = self._keep_bits(self._level, _start(words), len(words), mask)
        return greatest

    def limb_products(self, block: Float64) -> Float64:
        sums: Float64 = np.empty((3, 3))
        one, two = block
        self._limb_products(self._level, _start(one), _start(two), len(one), _start(sums))
        return sums

    def limbs(self, residues: UInt32, high: Float64, both: Float64, low: Float64) -> None:
        size = (*residues.shape, residues.strides[0] // residues.itemsize)
        parts = _start(high), _start(both), _start(low)
        self._limbs(self._level, residues.ctypes.data, *size, *parts)

    def widen_float16(self, raw: UInt16, out: Float32) -> None:
        self._widen_float16(self._level, _start(raw), len(raw), _start(out))

    def widen_bfloat16(self, raw: UInt16, out: Float32) -> None:
        self._widen_bfloat16(self._level, _start(raw), len(raw), _start(out))

    def widen_int8(self, raw: AnyArray, step: float, out: Float32) -> None:
        self._widen_int8(self._level, _start(raw), len(raw), step, _start(out))


def load(path: Path = LIBRARY) -> Native | None:
    """Returns the loops for this processor, or None where there is no library for it.

    A library of another version, which an old build has left, or one for another machine is none.
    """
    try:
        library = ctypes.CDLL(str(path))
        if library.ostraka_abi() != _ABI:
            return None
        return Native(library, best(library))
    except (OSError, AttributeError):
        return None


def best(library: ctypes.CDLL) -> int:
    """Returns the widest instruction set that this processor has, an index of LEVELS."""
    level: int = library.ostraka_level()
    return level


def _start(array: Any) -> Any:
    """Returns what ctypes passes as the array's address, quickly but for read-only arrays."""
    if array.flags.writeable:
        return _Start.from_buffer(array)
    return _Start.from_address(array.ctypes.data)


def _starts(arrays: Sequence[AnyArray]) -> Any:
    return (_AT * len(arrays))(*[ctypes.addressof(_start(each)) for each in arrays])

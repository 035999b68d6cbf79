"""The loops over all values of a round, in C where the package was built with a compiler.

There are two of each, native.c and its twin in numpy, and they give the same bits for every input,
but for the payload of a NaN. So a round's results do not depend on which one runs. The environment
variable OSTRAKA_NATIVE=0 chooses numpy.

Arrays are contiguous and aligned unless stated otherwise; anything else is a LocalProtocolError. An
array that is written must overlap no other, which is not checked.
"""

import os
from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np

from ostraka.arrays import AnyArray, Float32, Float64, Int64, UInt32
from ostraka.core.loops import native, twin
from ostraka.core.loops.twin import Int8, Int16, UInt8, UInt16
from ostraka.errors import LocalProtocolError

# Exact masking makes 2t shares of t masks.
MAX_MASKS = 3
# Sums of the squares of this many 16-bit integers are exact in float64.
MAX_WIDTH = 1 << 22
# Sums of this many products of limbs are exact in float64.
MAX_LIMB_COLUMNS = 1 << 19

Kind: TypeAlias = Literal["float16", "bfloat16", "int8"]

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_UINT8, _UINT16, _UINT32 = np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.uint32)
_INT8, _INT16, _INT64 = np.dtype(np.int8), np.dtype(np.int16), np.dtype(np.int64)


class _Loops(Protocol):
    """What the twin and the library have in common."""

    def dot(self, x: Float32, y: Float32) -> float: ...

    def squares(self, values: Float32) -> float: ...

    def scaled_squares(self, values: Float32, scale: float) -> float: ...

    def pin_fold(self, bits: UInt8, shifts: UInt32, width: int) -> Any: ...

    def pin_sketch(self, sketch: Float32, scale: float) -> Any: ...

    def pin_row(self, values: Float32) -> Any: ...

    def absorb(self, values: Float32, fold: Any, sketch: Any) -> float: ...

    def absorb_part(self, row: Any, start: int, fold: Any, sketch: Any) -> float: ...

    def add_rows(self, rows: Sequence[Float32], weights: Float64, total: Float64) -> None: ...

    def share(
        self,
        values: Sequence[Float32],
        scales: Float32,
        dither: UInt16,
        masks: UInt32,
        shares: UInt32,
        *,
        q: Int16 | None,
    ) -> tuple[Int64, Int64, int]: ...

    def share_integers(
        self,
        values: Sequence[Int8],
        masks: UInt32,
        shares: UInt32,
        *,
        q: Int16 | None,
    ) -> tuple[Int64, int]: ...

    def witness(self, q: Int16, weights: Float64, sums: Float64) -> None: ...

    def add_gram(self, rows: Sequence[Int8], gram: Int64, part: range) -> None: ...

    def keep_bits(self, words: UInt32, mask: int) -> int: ...

    def limb_products(self, block: Float64) -> Float64: ...

    def limbs(self, residues: UInt32, high: Float64, both: Float64, low: Float64) -> None: ...

    def widen_float16(self, raw: UInt16, out: Float32) -> None: ...

    def widen_bfloat16(self, raw: UInt16, out: Float32) -> None: ...

    def widen_int8(self, raw: AnyArray, step: float, out: Float32) -> None: ...


_native = native.load() if os.environ.get("OSTRAKA_NATIVE") != "0" else None
_loops: _Loops = twin if _native is None else _native
NATIVE: Final = _native is not None


def kind() -> str:
    """Returns which loops run: "native (avx512-vnni)", or another instruction set, or "numpy"."""
    return "numpy" if _native is None else f"native ({_native.level})"


def squares(values: Float32) -> float:
    """Returns the sum of the squares of (b,) values in float64: `dot` with itself."""
    _check("values", values, _FLOAT32, (_length("values", values),))
    return _loops.squares(values)


def dot(values: Float32, other: Float32) -> float:
    """Returns the inner product of two rows (b,) in float64, in a fixed order of additions.

    A NaN or an infinity in either gives one, or a NaN.
    """
    _check("values", values, _FLOAT32, (_length("values", values),))
    _check("other", other, _FLOAT32, values.shape)
    return _loops.dot(values, other)


def scaled_squares(values: Float32, scale: float) -> float:
    """Returns the sum of the squares of (b,) values times float32(scale): what `absorb` returns of
    them, for a row that is not folded."""
    _check("values", values, _FLOAT32, (_length("values", values),))
    return _loops.scaled_squares(values, float(scale))


class Fold:
    """How the tiles of one place are folded to m columns: the same for all rows, so that it is
    checked once.

    bits: (ceil(b / 8),), the highest of a byte first; 1 turns a value's sign. shifts:
    (ceil(b / m),), for tiles of b values.
    """

    __slots__ = ("bits", "m", "pinned", "shifts", "width")

    def __init__(self, bits: UInt8, shifts: UInt32, *, width: int, m: int) -> None:
        if m < 1:
            raise LocalProtocolError("a sketch has at least one value")
        _check("bits", bits, _UINT8, (-(-width // 8),))
        _check("shifts", shifts, _UINT32, (-(-width // m),))
        self.bits, self.shifts, self.width, self.m = bits, shifts, width, m
        self.pinned = _loops.pin_fold(bits, shifts, width)

    def __repr__(self) -> str:
        return f"Fold(<secret>, width={self.width}, m={self.m})"


class Sketch:
    """What the tiles of one row are folded into: the same for all of them, so that it is checked
    once.

    values: (m,), which tiles times float32(scale) are added to in float32, in the order of blocks.
    """

    __slots__ = ("m", "pinned")

    def __init__(self, values: Float32, scale: float) -> None:
        self.m = _length("sketch", values)
        _check("sketch", values, _FLOAT32, (self.m,), written=True)
        self.pinned = _loops.pin_sketch(values, float(scale))

    def __repr__(self) -> str:
        return f"Sketch(<secret>, m={self.m})"


class Row:
    """The values of one row (d,), whose tiles are folded where they lie: checked once."""

    __slots__ = ("length", "pinned", "values")

    def __init__(self, values: Float32) -> None:
        self.length = _length("row", values)
        _check("row", values, _FLOAT32, (self.length,))
        self.values, self.pinned = values, _loops.pin_row(values)

    def __repr__(self) -> str:
        return f"Row(<secret>, length={self.length})"


def absorb(values: Float32, fold: Fold, sketch: Sketch) -> float:
    """Folds a tile of one row into its sketch by law 12. Returns the sum of the squares of what it
    folds: in float64 of sums of at most 64 in float32, whose range the scale has to bring them
    into.

    values: (b,).
    """
    _check("values", values, _FLOAT32, (fold.width,))
    if sketch.m != fold.m:
        raise LocalProtocolError(f"a sketch of {sketch.m} values, and a fold to {fold.m}")
    return _loops.absorb(values, fold.pinned, sketch.pinned)


def absorb_part(row: Row, start: int, fold: Fold, sketch: Sketch) -> float:
    """The same for the values of a row from `start` on: as many as the fold is for."""
    if not 0 <= start <= row.length - fold.width:
        raise LocalProtocolError(f"a row of {row.length} values, and {fold.width} from {start} on")
    if sketch.m != fold.m:
        raise LocalProtocolError(f"a sketch of {sketch.m} values, and a fold to {fold.m}")
    return _loops.absorb_part(row.pinned, start, fold.pinned, sketch.pinned)


def add_rows(rows: Sequence[Float32], weights: Float64, total: Float64) -> None:
    """Adds weights[i] rows[i] to `total`, in float64 and in the order of rows.

    rows: n arrays (b,), anywhere in memory. weights: (n,). total: (b,).
    """
    _check("total", total, _FLOAT64, (_length("total", total),), written=True)
    _check("weights", weights, _FLOAT64, (len(rows),))
    for row in rows:
        _check("rows", row, _FLOAT32, total.shape)
    _loops.add_rows(rows, weights, total)


def share(
    values: Sequence[Float32],
    scales: Float32,
    dither: UInt16,
    masks: UInt32,
    shares: UInt32,
    *,
    q: Int16 | None = None,
) -> tuple[Int64, Int64, int]:
    """Quantises a group of rows by law 7, and makes their shares by law 8.

    Returns their parts of s and of 2^32 v, (g,), exact, and the greatest mask: if that is p, then
    the shares are none, and to be made again with other masks. `ostraka.core.exact` has the laws.

    values: g rows (b,), anywhere in memory, b <= 2^22. scales: (g,). dither: (g, b) secret uniform
    words, used once. masks: (t, g, b) R_1 ... R_t, used once, words of which the highest bit does
    not count. shares: (2t, g, b), set to those at the points 1, -1, ..., t, -t. q: (g, b), set to
    law 7's q if it is given. In units of delta / 2^16, a value that is a NaN or not within 2^31
    counts as -2^31.
    """
    shape = _plane("dither", dither)
    _check_group(values, _FLOAT32, shape, masks=masks, shares=shares, q=q)
    _check("scales", scales, _FLOAT32, (len(values),))
    _check("dither", dither, _UINT16, shape)
    return _loops.share(values, scales, dither, masks, shares, q=q)


def share_integers(
    values: Sequence[Int8],
    masks: UInt32,
    shares: UInt32,
    *,
    q: Int16 | None = None,
) -> tuple[Int64, int]:
    """Makes the shares of a group of rows that are q already (law 19).

    Returns their parts of s, and the greatest mask.

    values: g rows (b,) int8, anywhere in memory. All else is as `share` has it.
    """
    shape = len(values), _length("values", values[0]) if values else 0
    _check_group(values, _INT8, shape, masks=masks, shares=shares, q=q)
    return _loops.share_integers(values, masks, shares, q=q)


def witness(q: Int16, weights: Float64, sums: Float64) -> None:
    """Adds law 11's products of q with two challenges to sums, which 192 of them leave exact.

    q: (g, b). weights: (g, 2) integers within 2^30. sums: (2, b) or wider.
    """
    rows, width = shape = _plane("q", q)
    _check("q", q, _INT16, shape)
    _check("weights", weights, _FLOAT64, (rows, 2))
    _check("sums", sums, _FLOAT64, (2, max(width, _plane("sums", sums)[1])), written=True)
    _loops.witness(q, weights, sums)


def add_gram(rows: Sequence[Int8], gram: Int64, part: range) -> None:
    """Adds the inner products of some rows with themselves and all later ones to `gram`, whose
    entries below the diagonal stay as they are. They are exact.

    rows: n arrays (b,), anywhere in memory. gram: (n, n). part: consecutive rows.
    """
    _check("gram", gram, _INT64, (len(rows), len(rows)), written=True)
    if not (part.step == 1 and 0 <= part.start <= part.stop <= len(rows)):
        raise LocalProtocolError(f"{part} are not some of {len(rows)} rows")
    for row in rows:
        _check("rows", row, _INT8, (_length("rows", rows[0]),))
    if part:
        _loops.add_gram(rows, gram, part)


def _check_group(
    values: Sequence[AnyArray],
    dtype: np.dtype[Any],
    shape: tuple[int, int],
    *,
    masks: UInt32,
    shares: UInt32,
    q: Int16 | None,
) -> None:
    """Checks what both kinds of rows have in common. shape: (g, b)."""
    rows, width = shape
    if width > MAX_WIDTH:
        raise LocalProtocolError(f"a tile has at most {MAX_WIDTH} values; got {width}")
    t = len(masks)
    if not 1 <= t <= MAX_MASKS:
        raise LocalProtocolError(f"there are 1 to {MAX_MASKS} masks; got {t}")
    if len(values) != rows:
        raise LocalProtocolError(f"a group of {rows} rows has {len(values)}")
    for row in values:
        _check("values", row, dtype, (width,))
    _check("masks", masks, _UINT32, (t, *shape))
    _check("shares", shares, _UINT32, (2 * t, *shape), written=True)
    if q is not None:
        _check("q", q, _INT16, shape, written=True)


def keep_bits(words: UInt32, mask: int) -> int:
    """Keeps the bits of `mask` in all words (n,), and returns the greatest of the results, or 0."""
    _check("words", words, _UINT32, (_length("words", words),), written=True)
    if not 0 <= mask < 1 << 32:
        raise LocalProtocolError(f"a mask has 32 bits; got {mask}")
    return _loops.keep_bits(words, mask)


def limb_products(block: Float64) -> Float64:
    """Cuts integers x into 2^16 h + l, and returns the sums, (3, 3), of the products of h, of h + l
    and of l: of the first row with itself, of both rows, and of the second with itself.

    block: (2, b) integers within 2^53 - 2^31, which are replaced by congruent ones within p / 2 + 1
    first. Of 2^19 columns, all sums are exact.
    """
    width = _plane("block", block)[1]
    _check("block", block, _FLOAT64, (2, width))
    if width > MAX_LIMB_COLUMNS:
        raise LocalProtocolError(f"a block has at most {MAX_LIMB_COLUMNS} columns; got {width}")
    return _loops.limb_products(block)


def limbs(residues: UInt32, high: Float64, both: Float64, low: Float64) -> None:
    """Cuts residues 2^16 h + l and sets h, h + l and l, each (n, b), for a product by BLAS.

    residues: (n, b), which may be some columns of a larger array.
    """
    shape = _plane("residues", residues)
    words = residues.dtype == _UINT32 and residues.flags.aligned
    if not words or (shape[1] > 1 and residues.strides[1] != _UINT32.itemsize):
        raise LocalProtocolError("residues are uint32, and adjacent within a row")
    for name, out in (("high", high), ("both", both), ("low", low)):
        _check(name, out, _FLOAT64, shape, written=True)
    _loops.limbs(residues, high, both, low)


def widen(raw: AnyArray, kind: Kind, out: Float32, step: float = 1.0) -> None:
    """Sets `out` (b,) to the values of a shorter type. It is exact, but for int8 times a step.

    raw: (b,) uint16 that hold float16 or bfloat16, or int8, which count in multiples of
    float32(step).
    """
    _check("out", out, _FLOAT32, (_length("out", out),), written=True)
    _check("raw", raw, _INT8 if kind == "int8" else _UINT16, out.shape)
    if kind == "int8":
        _loops.widen_int8(raw, float(step), out)
    elif kind == "bfloat16":
        _loops.widen_bfloat16(raw, out)
    elif kind == "float16":
        _loops.widen_float16(raw, out)
    else:
        raise LocalProtocolError(f"no such type of values: {kind!r}")


def _length(what: str, array: Any) -> int:
    if not isinstance(array, np.ndarray) or array.ndim != 1:
        raise LocalProtocolError(f"{what} must be an array of one dimension")
    return len(array)


def _plane(what: str, array: Any) -> tuple[int, int]:
    if not isinstance(array, np.ndarray) or array.ndim != 2:
        raise LocalProtocolError(f"{what} must be an array of rows")
    rows, width = array.shape
    return rows, width


def _check(
    what: str,
    array: Any,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    *,
    written: bool = False,
) -> None:
    """Raises LocalProtocolError for an array whose memory is not what the loops take it for."""
    if isinstance(array, np.ndarray) and array.dtype == dtype and array.shape == shape:
        flags = array.flags
        if flags.carray:  # all of these at once
            return
        if flags.c_contiguous and flags.aligned and (flags.writeable or not written):
            return
    got = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
    how = "contiguous, aligned" + (", writeable" if written else "")
    raise LocalProtocolError(f"{what} must be {how} {dtype} {shape}; got {got}")

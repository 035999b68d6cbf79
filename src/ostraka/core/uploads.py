"""The formats of uploads: how many bytes a value takes, how it is rounded, and what is checked.

float32    as it was trained
bfloat16   the upper half of a float32, rounded to nearest even
float16    IEEE half precision, rounded to nearest even
int8       q = floor(x / step + u), u uniform in [0, 1), one step a row

(19)  W = step q,  q in {-127, ..., 127},  |q|^2 <= (p - 1)/2,  norm = step sqrt(|q|^2)

Law 19 makes an int8 row ready for exact masks as it is: q is its residues, and by Cauchy-Schwarz no
inner product of two such rows wraps around modulo p. There is no dither, so v = 0 in law 10, and
inner products are exact. A step has 16 significant bits: then step q is a float32 to the bit, and
widening rounds nothing.

The price is the size of |q|. With the longest q that is allowed, its root mean square over d
values is 2^15 / sqrt(d), and rounding moves a row of normal values by sqrt(d / 6) / 2^15 of its
norm: 2 % at 3.5 million values, 1/8 at 10^8, where int8 ends (`MAX_INTEGERS`).

A format discloses nothing beyond the signed terms: the size of an upload is the same for all
clients, and the step, which tells the norm, is sealed with the key.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Protocol, TypeAlias

import numpy as np

from ostraka.arrays import AnyArray, Float32
from ostraka.core import exact, loops
from ostraka.errors import ConfigError, LocalProtocolError, Rejection

Fill: TypeAlias = Callable[[AnyArray], None]
"""Overwrites an array with secret, uniform bytes, such as `SecretStream.fill`."""

DEFAULT = "float32"

MAX_INTEGERS = 100_000_000  # values of an int8 upload, see above
MIN_STEP, MAX_STEP = 2.0**-100, 2.0**100
MAX_Q = 127

_STEP_BITS = 16
_BLOCK = 1 << 16  # values at a time, so that float64 copies stay in the cache
_WORD = 2.0**-32
_EXACT_SQUARES = 1 << 10  # squares up to 2^14, of which float32 sums this number exactly
_ROUNDED = 2.0**-40  # how far a norm may be off by rounding


@dataclass(frozen=True)
class Encoded:
    """An update as it is sealed.

    values: (d,), as their format has them. step: of int8, 0 for others and for zeros. norm: of what
    the enclave will read, in float64.
    """

    format: "Format"
    values: AnyArray = field(repr=False)
    step: float = field(repr=False)
    norm: float = field(repr=False)

    def widened(self) -> Float32:
        """What the enclave will read (d,), in memory of its own."""
        out = np.empty(self.values.shape, np.float32)
        self.format.widen(self.values, self.step, out)
        return out


class Format(Protocol):
    """How the values of an upload are written.

    dtype: of a value on its way. integers: whether values are integers, in units of the row's step.
    largest: updates of values up to this size always fit.
    """

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def integers(self) -> bool: ...
    @property
    def largest(self) -> float: ...

    def encode(self, update: Float32, fill: Fill) -> Encoded:
        """Round an update (d,). Raises ConfigError, which says what to do, for one out of range.

        An update that is not finite has a norm that is not finite: the enclave rejects it. fill:
        what stochastic rounding draws from, used once; other formats draw nothing.
        """

    def widen(self, values: AnyArray, step: float, out: Float32) -> None:
        """Write the values (b,) as float32. Nothing is rounded."""

    def header_flaw(self, norm: float, step: float, d: int) -> Rejection | None:
        """What is wrong with the numbers that a header states, if anything is."""

    def tile_flaw(self, values: AnyArray) -> Rejection | None:
        """What is wrong with a tile of one row, as far as its format tells."""

    def require_dimension(self, d: int) -> None:
        """Raises ConfigError for updates that are too long for this format."""


@dataclass(frozen=True)
class Floats:
    """A format of floating point numbers, which need no step; numpy knows those of float16.

    smallest, largest: positive values that it has. wider: what to use for larger ones.
    """

    name: str
    dtype: np.dtype[Any]
    smallest: float
    largest: float
    wider: str = ""

    @property
    def integers(self) -> bool:
        return False

    def encode(self, update: Float32, fill: Fill) -> Encoded:
        values = np.empty(update.shape, self.dtype)
        square = 0.0
        wide = np.empty(min(_BLOCK, update.size), np.float32)
        for part in _blocks(update.size):
            given, out = update[part], values[part]
            self._narrow(given, out)
            self.widen(out, 0.0, wide[: out.size])
            self._require_range(given, wide[: out.size])
            square += _square(wide[: out.size])
        return Encoded(self, values, 0.0, math.sqrt(square))

    def widen(self, values: AnyArray, step: float, out: Float32) -> None:
        loops.widen(values.view(np.uint16), "float16", out)

    def header_flaw(self, norm: float, step: float, d: int) -> Rejection | None:
        if not (norm == 0 or self.smallest <= norm <= self._longest(d)):
            return Rejection.BAD_NORM
        return None if step == 0 else Rejection.BAD_STEP

    def _longest(self, d: int) -> float:
        return 1.001 * self.largest * math.sqrt(d)  # Norms are rounded, too.

    def tile_flaw(self, values: AnyArray) -> Rejection | None:
        """None: that values are finite shows in their squares."""
        return None

    def require_dimension(self, d: int) -> None:
        """Accept any."""

    def _narrow(self, given: Float32, out: AnyArray) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(out, given, casting="same_kind")

    def _require_range(self, given: Float32, wide: Float32) -> None:
        """Raises ConfigError if rounding has made an infinity of a finite value."""
        lost = np.isinf(wide) & np.isfinite(given)
        if lost.any():
            raise ConfigError(
                f"the update has a value of {abs(given[lost]).max():.3g}, and {self.name} ends at "
                f"{self.largest:.5g}: train with smaller steps, or have the terms say "
                f"upload = {self.wider!r}"
            )


class Whole(Floats):
    """float32: nothing is rounded, and nothing copied."""

    def encode(self, update: Float32, fill: Fill) -> Encoded:
        return Encoded(self, update, 0.0, norm(update))

    def widen(self, values: AnyArray, step: float, out: Float32) -> None:
        np.copyto(out, values)


class UpperHalves(Floats):
    """bfloat16, which numpy does not have: the upper halves of float32s, as integers."""

    def widen(self, values: AnyArray, step: float, out: Float32) -> None:
        loops.widen(values, "bfloat16", out)

    def _narrow(self, given: Float32, out: AnyArray) -> None:
        """Round to nearest even; a NaN stays one."""
        bits = np.ascontiguousarray(given).view(np.uint32)
        rounded = (bits >> np.uint32(16)) & np.uint32(1)
        rounded += bits + np.uint32(0x7FFF)  # A NaN may wrap around, and is set below.
        np.copyto(out, rounded >> np.uint32(16), casting="unsafe")
        out[np.isnan(given)] = 0x7FC0


class Integers:
    """int8, by law 19."""

    name = "int8"
    dtype: np.dtype[Any] = np.dtype("int8")
    integers = True
    largest = MAX_STEP

    def __repr__(self) -> str:
        return "Integers()"

    def encode(self, update: Float32, fill: Fill) -> Encoded:
        length, values = norm(update), np.zeros(update.shape, np.int8)
        if not math.isfinite(length) or length == 0:
            return Encoded(self, values, 0.0, length)
        step, square = self.step(update, length), 0
        words = np.empty(min(_BLOCK, update.size), np.uint32)
        for part in _blocks(update.size):
            out, drawn = values[part], words[: values[part].size]
            fill(drawn)
            scaled = np.divide(update[part], step, dtype=np.float64)
            scaled += drawn * _WORD
            np.copyto(out, np.floor(scaled, out=scaled), casting="unsafe")
            square += self.square(out)
        if square > exact.MAX_SQUARE:
            raise LocalProtocolError("the random bytes for rounding are not random")
        if square == 0:  # The update is far below the smallest step.
            return Encoded(self, values, 0.0, 0.0)
        return Encoded(self, values, step, step * math.sqrt(square))

    def step(self, update: Float32, length: float) -> float:
        """The smallest step by which all values and |q| are in range. Raises ConfigError.

        length: the norm, positive and finite. How far |q| may grow by rounding is as in law 7:
        |q|^2 exceeds its bound with a probability below 2^-900.
        """
        # 127 steps and the largest value have so few bits that they are equal or well apart.
        fitting = float(np.abs(update).max()) / MAX_Q
        fraction, exponent = math.frexp(max(fitting, length / exact.radius(update.size), MIN_STEP))
        step = math.ldexp(math.ceil(fraction * 2**_STEP_BITS), exponent - _STEP_BITS)
        if step > MAX_STEP:
            raise ConfigError(
                f"the update has a norm of {length:.3g}, and int8 ends at steps of {MAX_STEP:.3g}: "
                "train with smaller steps, or have the terms say upload = 'bfloat16'"
            )
        return step

    def widen(self, values: AnyArray, step: float, out: Float32) -> None:
        loops.widen(values, "int8", out, step)

    def header_flaw(self, norm: float, step: float, d: int) -> Rejection | None:
        if norm == 0 and step == 0:
            return None
        if not (math.isfinite(norm) and norm > 0):
            return Rejection.BAD_NORM
        if not (MIN_STEP <= step <= MAX_STEP and _is_short(step)):
            return Rejection.BAD_STEP
        if norm > 2 * step * math.sqrt(exact.MAX_SQUARE):
            return Rejection.BAD_NORM
        square = self.stated_square(norm, step)
        possible = 1 <= square <= min(exact.MAX_SQUARE, d * MAX_Q**2)
        exactly = step * math.sqrt(square)
        # Sums and roots may be rounded in another order than here.
        return None if possible and abs(norm - exactly) <= _ROUNDED * norm else Rejection.BAD_NORM

    def tile_flaw(self, values: AnyArray) -> Rejection | None:
        return Rejection.BAD_VALUE if values.min(initial=0) < -MAX_Q else None

    def square(self, values: AnyArray) -> int:
        """The part of |q|^2 of values (b,), exact."""
        total = 0
        for part in _blocks(values.size):
            wide = values[part].astype(np.float32)
            whole = wide.size - wide.size % _EXACT_SQUARES
            rows, rest = wide[:whole].reshape(-1, _EXACT_SQUARES), wide[whole:]
            total += int(np.vecdot(rows, rows).sum(dtype=np.float64)) + int(rest @ rest)
        return total

    def stated_square(self, norm: float, step: float) -> int:
        """|q|^2 as a header states it, whose norm is step sqrt(|q|^2)."""
        # |q|^2 has 30 bits, so that an error of 2^-40 leaves no doubt.
        return round((norm / step) ** 2) if step else 0

    def require_dimension(self, d: int) -> None:
        if d > MAX_INTEGERS:
            raise ConfigError(
                f"int8 uploads have at most {MAX_INTEGERS} values; got {d}: rounding would move "
                f"every update by {math.sqrt(d / 6) / 2**15:.0%} of its norm; take bfloat16"
            )


INT8 = Integers()

FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        Whole("float32", np.dtype("<f4"), 2.0**-149, 2.0**128),
        UpperHalves("bfloat16", np.dtype("<u2"), 2.0**-133, 2.0**128 - 2.0**120, wider="float32"),
        Floats("float16", np.dtype("<f2"), 2.0**-24, 65504.0, wider="bfloat16"),
        INT8,
    )
}


def find(name: str) -> Format:
    """Raises ConfigError for a name that is none."""
    if name in FORMATS:
        return FORMATS[name]
    near = get_close_matches(name, FORMATS, n=1, cutoff=0.4)
    meant = f": did you mean {near[0]}?" if near else ""
    raise ConfigError(f"upload is one of {', '.join(FORMATS)}; got {name!r}{meant}")


def norm(update: Float32) -> float:
    """The Euclidean norm of an update (d,), accumulated in float64."""
    return math.sqrt(sum(_square(update[part]) for part in _blocks(update.size)))


def _square(values: Float32) -> float:
    return loops.squares(np.ascontiguousarray(values))


def _is_short(step: float) -> bool:
    """Whether a step has so few bits that its multiples up to 127 are float32s."""
    return float(math.frexp(step)[0] * 2**_STEP_BITS).is_integer()


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, min(start + _BLOCK, size)) for start in range(0, size, _BLOCK))

"""Numbers as people read them. What is not there is a dash."""

import math
from collections.abc import Sequence

UNKNOWN = "not measured"
_SPACE = "\N{NO-BREAK SPACE}"


def exact_percent(part: float | None) -> str:
    return UNKNOWN if part is None else f"{100 * part:.1f}{_SPACE}%"


def duration(value: float) -> str:
    if value < 1:
        return f"{1000 * value:.0f}{_SPACE}ms"
    if value < 120:
        return f"{value:.1f}{_SPACE}s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes}{_SPACE}min {rest}{_SPACE}s"


def count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def listed(words: Sequence[str]) -> str:
    """a, b and c."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def scaled(scale: float | None) -> str:
    return "" if scale is None else f"{_SPACE}×{_SPACE}{scale:g}"


_NOTHING = "-"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def seconds(value: float | None) -> str:
    if value is None:
        return _NOTHING
    if value >= 7200:
        return f"{_digits(value / 3600)} h"
    return f"{_digits(value)} s" if value >= 0.1 else f"{_digits(1000 * value)} ms"


def times(value: float | None) -> str:
    return _NOTHING if value is None or not math.isfinite(value) else f"{_digits(value)} ×"


def percent(value: float | None) -> str:
    return _NOTHING if value is None or not math.isfinite(value) else f"{100 * value:.0f} %"


def mib(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:,.0f} MiB"


def size(count: float) -> str:
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            return f"{_digits(count)} {unit}"
        count /= 1024
    return _NOTHING


def _digits(value: float) -> str:
    """Three of them, or all before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def yes(value: bool | None) -> str:
    return _NOTHING if value is None else ("yes" if value else "no")

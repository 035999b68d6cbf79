"""Numbers as people read them. What was not measured is a dash."""

import math
from collections.abc import Sequence

NOTHING = "-"
SPACE = "\N{NO-BREAK SPACE}"

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MINUTES_FROM_S, _HOURS_FROM_S = 120, 7200


def seconds(value: float | None) -> str:
    """A time in the unit that fits it: 12.3 ms, 2.5 s, 2 min 5 s or 2 h."""
    if value is None:
        return NOTHING
    if value < 0.1:
        return f"{_digits(1000 * value)}{SPACE}ms"
    if value < _MINUTES_FROM_S:
        return f"{_digits(value)}{SPACE}s"
    if value < _HOURS_FROM_S:
        minutes, rest = divmod(round(value), 60)
        return f"{minutes}{SPACE}min {rest}{SPACE}s"
    return f"{_digits(value / 3600)}{SPACE}h"


def percent(part: float | None, *, decimals: int = 0) -> str:
    """A part of one as a percentage."""
    if part is None or not math.isfinite(part):
        return NOTHING
    return f"{100 * part:.{decimals}f}{SPACE}%"


def times(ratio: float | None) -> str:
    return NOTHING if ratio is None or not math.isfinite(ratio) else f"{_digits(ratio)}{SPACE}×"


def size(value: float | None, unit: str = "B") -> str:
    """A size in the unit that fits it. unit: of the value."""
    if value is None:
        return NOTHING
    place = _UNITS.index(unit)
    while value >= 1024 and place < len(_UNITS) - 1:
        value /= 1024
        place += 1
    return f"{_digits(value)}{SPACE}{_UNITS[place]}"


def yes(value: bool | None) -> str:
    return NOTHING if value is None else ("yes" if value else "no")


def count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def listed(words: Sequence[str]) -> str:
    """Join words as a sentence does: a, b and c."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _digits(value: float) -> str:
    """Three significant digits, or all before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"

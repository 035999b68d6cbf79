"""Figures as people say them."""

from collections.abc import Sequence

UNKNOWN = "not measured"
_SPACE = "\N{NO-BREAK SPACE}"


def percent(part: float | None) -> str:
    return UNKNOWN if part is None else f"{100 * part:.1f}{_SPACE}%"


def seconds(value: float) -> str:
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


def times(scale: float | None) -> str:
    return "" if scale is None else f"{_SPACE}×{_SPACE}{scale:g}"

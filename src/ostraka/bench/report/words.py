"""Numbers as people read them. What is not there is a dash."""

import math

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

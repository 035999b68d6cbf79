"""Axes that say their numbers in words that people use."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
    PercentFormatter,
)

from ostraka.report.style import POINTS, WIDTH

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_PLAIN_UP_TO = 3
_LOG_TICKS = 6
_WHOLE_TICKS = 8

# Points that a legend takes for an entry beside its letters, and for a letter.
_KEY = 30.0
_LETTER = 5.4


def whole_numbers(axis: Axis, first: int, last: int) -> None:
    """Marks at first and at round numbers up to last, wherever the axis itself ends."""
    locator = MaxNLocator(nbins=_WHOLE_TICKS, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10])
    found = locator.tick_values(first, last)
    step = found[1] - found[0] if len(found) > 1 else 1
    axis.set_ticks([first, *(tick for tick in found if first + step / 2 <= tick <= last)])


def percent(axes: Axes) -> None:
    """The vertical axis shows a part of one, all of it."""
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))


def powers_of_ten(axis: Axis) -> None:
    """For an axis whose scale is logarithmic. Short numbers are written out."""
    axis.set_major_locator(LogLocator(numticks=_LOG_TICKS))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(value)))


def legend_above(figure: Figure) -> None:
    """Outside of the axes, where it hides nothing, in lines that are read from left to right."""
    axes = figure.axes[0]
    handles, labels = axes.get_legend_handles_labels()
    columns = _columns_that_fit(labels)
    # Matplotlib fills one column after the other.
    order = [place for column in range(columns) for place in range(column, len(labels), columns)]
    figure.legend(
        [handles[place] for place in order],
        [labels[place] for place in order],
        loc="outside upper left",
        ncols=columns,
    )


def _columns_that_fit(labels: Sequence[str]) -> int:
    """As many as fit side by side, each as wide as its longest label."""
    for columns in range(len(labels), 1, -1):
        longest = [max(map(len, labels[column::columns])) for column in range(columns)]
        if sum(_KEY + _LETTER * length for length in longest) <= WIDTH * POINTS:
            return columns
    return 1


def power_of_ten(value: float) -> str:
    exponent = round(math.log10(value))
    return f"{value:g}" if abs(exponent) <= _PLAIN_UP_TO else f"10{_superscript(exponent)}"


def _superscript(number: int) -> str:
    return str(number).translate(_SUPERSCRIPTS)

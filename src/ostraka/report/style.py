"""Colours and type of plots.

The colours are those of Okabe and Ito (2008), which people with any common colour blindness can
tell apart. Plots are narrow for their type, so that it can still be read on a
telephone; on a desk it is as large as the text around it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl

ORANGE = "#e69f00"
SKY = "#56b4e9"
GREEN = "#009e73"
YELLOW = "#f0e442"
BLUE = "#0072b2"
VERMILLION = "#d55e00"
PURPLE = "#cc79a7"

INK = "#1c2733"
MUTED = "#5c6b78"
FAINT = "#dde3e8"
PAPER = "#ffffff"

# Neighbours differ in lightness too, for whoever prints in grey.
SERIES = (BLUE, SKY, GREEN, YELLOW, VERMILLION, PURPLE, ORANGE, INK)

WIDTH = 4.4  # inches
POINTS = 72  # in an inch
_SIZE = 9.5  # points

_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": _SIZE,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.size": _SIZE,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "legend.borderaxespad": 0.0,
    "legend.columnspacing": 1.2,
    "legend.fontsize": _SIZE,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "legend.handletextpad": 0.5,
    "lines.linewidth": 2.0,
    "lines.markersize": 4.0,
    "text.color": INK,
    # Names are given by users, and a dollar sign in them is no formula.
    "text.parse_math": False,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "xtick.labelsize": _SIZE,
    "xtick.major.size": 3.0,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "ytick.labelsize": _SIZE,
    "ytick.major.size": 0.0,
    # Text stays text: smaller, and it can be searched and copied.
    "svg.fonttype": "none",
    # Without it ids differ from one run to the next.
    "svg.hashsalt": "ostraka",
}


@contextmanager
def plotting() -> Iterator[None]:
    """Figures made and saved in here look alike, whatever the user's own settings are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield

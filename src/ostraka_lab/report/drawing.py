"""Plots: colours and type, axes that are easy to read, and figures as markup for a page.

The colours are those of Okabe and Ito (2008), which people with any common colour blindness can
tell apart. Plots are narrow for their type, so that it can be read on a telephone; on a desk it is
as large as the text around it.

In the dark a page shows them in other colours: a plot names each of its colours as a property of
the page, `var(--plot-blue, #0072b2)`, and `page.css` says what these are in the dark.

Matplotlib writes a file of its own: with a style sheet that would hold for the whole page, with ids
that the next figure uses again, and with fonts of its own. `drawn` removes these, and cuts numbers
to a hundredth of a point.
"""

import io
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
    PercentFormatter,
)

Box = tuple[float, float, float, float]
"""Left, bottom, width and height."""

Paint = Callable[[Figure], None]
"""Draws on an empty figure."""

ORANGE = "#e69f00"
SKY = "#56b4e9"
GREEN = "#009e73"
YELLOW = "#f0e442"
BLUE = "#0072b2"
VERMILLION = "#d55e00"
PURPLE = "#cc79a7"

PALE = "#b5d6ea"
DEEP = "#08456e"
GREY = "#98a4ae"

INK = "#1c2733"
MUTED = "#55636f"
FAINT = "#dde3e8"
PAPER = "#ffffff"

PROPERTIES = {
    ORANGE: "--plot-orange",
    SKY: "--plot-sky",
    GREEN: "--plot-green",
    YELLOW: "--plot-yellow",
    BLUE: "--plot-blue",
    VERMILLION: "--plot-vermillion",
    PURPLE: "--plot-purple",
    PALE: "--plot-pale",
    DEEP: "--plot-deep",
    GREY: "--plot-grey",
    INK: "--ink",
    MUTED: "--muted",
    FAINT: "--line",
    PAPER: "--card",
}
"""What a page calls each colour. Any other colour stays as it is in the dark."""

# Neighbours differ in lightness too, so that they can be told apart in grey print.
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

_FAINTEST = 0.07  # how much of a cell's colour is left where it stands for nothing
_SHADES = 12
_DARK_FROM = 0.55  # of a shade, from which on a text on it is written in the colour of the paper

_CODES = (Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY)

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_PLAIN_UP_TO = 3
_LOG_TICKS = 6
_WHOLE_TICKS = 8

# Points that a legend takes for an entry beside its letters, and for a letter.
_KEY = 30.0
_LETTER = 5.4

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"

_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_NO_ROTATION = re.compile(r"rotate\(-?0(\.0)? [^)]*\)")
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FONT_FAMILY = re.compile(r"\s*font-family: [^;]*;?")
_NUMBERS = ("d", "x", "y", "width", "height", "transform")


def rectangles(
    axes: Axes, boxes: Iterable[Box], *, colour: str, label: str = "", opacity: float | None = None
) -> None:
    """Draw filled boxes of one colour as one path, which is small and which browsers draw at once.

    label: for the legend, which has it even if there are no boxes.
    """
    corners = [corner for box in boxes for corner in _corners(box)]
    path = Path(corners or [(0.0, 0.0)] * 5, list(_CODES) * max(1, len(corners) // 5))
    patch = PathPatch(path, facecolor=colour, linewidth=0, label=label or "_", alpha=opacity)
    axes.add_patch(patch)


def shaded(axes: Axes, cells: Iterable[tuple[Box, float]]) -> None:
    """Draw boxes in shades of one colour, the stronger the larger the number from 0 to 1."""
    shades: dict[int, list[Box]] = defaultdict(list)
    for box, level in cells:
        shades[round(_SHADES * level)].append(box)
    for shade, boxes in shades.items():
        opacity = _FAINTEST + (1 - _FAINTEST) * shade / _SHADES
        rectangles(axes, boxes, colour=DEEP, opacity=round(opacity, 2))


def ink_on(level: float) -> str:
    """The colour of a text on a box of this shade."""
    return PAPER if level > _DARK_FROM else INK


def _corners(box: Box) -> list[tuple[float, float]]:
    left, bottom, width, height = box
    right, top = left + width, bottom + height
    return [(left, bottom), (right, bottom), (right, top), (left, top), (left, bottom)]


@contextmanager
def _plotting() -> Iterator[None]:
    """Make figures look alike, regardless of the user's own settings."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def whole_numbers(axis: Axis, first: int, last: int) -> None:
    """Put marks at `first` and at round numbers up to `last`, wherever the axis itself ends."""
    locator = MaxNLocator(nbins=_WHOLE_TICKS, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10])
    found = locator.tick_values(first, last)
    step = found[1] - found[0] if len(found) > 1 else 1
    axis.set_ticks([first, *(tick for tick in found if first + step / 2 <= tick <= last)])


def percent(axes: Axes) -> None:
    """Make the vertical axis show the whole range from 0 to 100 %."""
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))


def powers_of_ten(axis: Axis) -> None:
    """Mark a logarithmic axis at powers of ten. Short numbers are written out."""
    axis.set_major_locator(LogLocator(numticks=_LOG_TICKS))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(value)))


def legend_above(figure: Figure) -> None:
    """Put the legend above the axes, in lines that are read from left to right."""
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
    """Count the columns that fit side by side, each as wide as its longest label."""
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


def drawn(paint: Paint, *, height: float, label: str, prefix: str) -> str:
    """Draw a figure as markup. label: what it shows, in words. prefix: of its ids."""
    root = ElementTree.fromstring(_saved(paint, height))  # noqa: S314 (matplotlib wrote it just now)
    for parent in list(root.iter()):
        _drop_foreign(parent)
    _rename_ids(root, prefix)
    for node in root.iter():
        _slim(node)
    _dress(root, label)
    return ElementTree.tostring(root, encoding="unicode")


def _saved(paint: Paint, height: float) -> bytes:
    out = io.BytesIO()
    with _plotting():
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        paint(figure)
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _drop_foreign(parent: Element) -> None:
    for child in list(parent):
        if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
            parent.remove(child)


def _rename_ids(root: Element, prefix: str) -> None:
    """Drop ids that nothing refers to, and make the others this figure's own."""
    used = {each for node in root.iter() for each in _referred(node)}
    for node in root.iter():
        name = node.attrib.pop("id", None)
        if name in used:
            node.set("id", f"{prefix}{name}")
        link = node.attrib.pop(_LINK, None)
        if link is not None:
            node.set("href", f"#{prefix}{link.removeprefix('#')}")
        for key, value in node.attrib.items():
            node.set(key, _REFERENCE.sub(rf"url(#{prefix}\1)", value))


def _referred(node: Element) -> set[str]:
    inside = {name for value in node.attrib.values() for name in _REFERENCE.findall(value)}
    return inside | {node.get(_LINK, "").removeprefix("#")}


def _slim(node: Element) -> None:
    node.tail = None
    if node.tag != f"{_SVG}text":
        node.text = None
    if "style" in node.attrib:
        # Text is in the font of the page.
        style = _FONT_FAMILY.sub("", node.attrib["style"])
        node.set("style", _COLOUR.sub(_property, style))
    for key in _NUMBERS:
        if key in node.attrib:
            node.set(key, _LONG_NUMBER.sub(_rounded, node.attrib[key]).replace(" \n", " ").strip())
    if _NO_ROTATION.fullmatch(node.get("transform", "")):
        del node.attrib["transform"]


def _property(colour: re.Match[str]) -> str:
    name = PROPERTIES.get(colour[0])
    return f"var({name}, {colour[0]})" if name else colour[0]


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def _dress(root: Element, label: str) -> None:
    """Leave the size to the page, and drop namespaces: HTML knows what an svg element is."""
    for node in root.iter():
        node.tag = node.tag.removeprefix(_SVG)
    view = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib.update(
        {
            "viewBox": view,
            "role": "img",
            "aria-label": label,
            "stroke-linejoin": "round",
            "stroke-linecap": "butt",
        }
    )

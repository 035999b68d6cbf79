"""Many rectangles as one path, which a browser draws at once and which takes little room."""

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path

Box = tuple[float, float, float, float]
"""Left, bottom, width and height."""

_CODES = (Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY)


def rectangles(axes: Axes, boxes: Iterable[Box], *, colour: str, label: str = "") -> None:
    """Filled boxes of one colour. label: for the legend; they are in it even if there are none."""
    corners = [corner for box in boxes for corner in _corners(box)]
    path = Path(corners or [(0.0, 0.0)] * 5, list(_CODES) * max(1, len(corners) // 5))
    patch = PathPatch(path, facecolor=colour, linewidth=0, label=label or "_")
    axes.add_patch(patch)


def _corners(box: Box) -> list[tuple[float, float]]:
    left, bottom, width, height = box
    right, top = left + width, bottom + height
    return [(left, bottom), (right, bottom), (right, top), (left, top), (left, bottom)]

"""The vertical axis of a picture with a row for every client, the attackers marked."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from ostraka.report.style import POINTS, VERMILLION

_EVERY_ROW_UP_TO = 24
_COMFORTABLE = 15.0  # points
_TIGHT = 8.6  # points: two labels in neighbouring rows still do not touch
_TALLEST = 640.0  # points


def row_points(rows: int) -> float:
    """The height of a row, which is less where they are many."""
    if rows <= _EVERY_ROW_UP_TO:
        return _COMFORTABLE
    return min(max(_TIGHT, 360 / rows), _TALLEST / rows)


def height(rows: int, *, around: float) -> float:
    """Inches of a figure with so many rows. around: points above and below them."""
    return (rows * row_points(rows) + around) / POINTS


def mark(axes: Axes, rows: int, attackers: Sequence[int]) -> None:
    """Client 1 is on top, at height 1. Labels that would touch are left out, attackers' last."""
    axes.set_ylim(rows + 0.5, 0.5)
    axes.set_ylabel("client")
    axes.grid(visible=False)
    labels = _labelled(rows, attackers)
    axes.set_yticks(labels, [str(label) for label in labels])
    axes.tick_params(axis="y", length=0, pad=9)
    for label, text in zip(labels, axes.get_yticklabels(), strict=True):
        if label in attackers:
            text.set(color=VERMILLION, weight="bold")
    axes.plot(
        [-0.012] * len(attackers),
        attackers,
        ">",
        color=VERMILLION,
        markersize=min(5.0, row_points(rows)),
        markeredgewidth=0,
        transform=axes.get_yaxis_transform(),
        clip_on=False,
        label="attacker",
    )


def _labelled(rows: int, attackers: Sequence[int]) -> list[int]:
    """Every client where there is room; else the attackers, and every so many of the others."""
    if row_points(rows) >= _COMFORTABLE:
        return list(range(1, rows + 1))
    apart = max(1, round(_TIGHT / row_points(rows)))
    chosen = _at_least(apart, sorted(attackers))
    step = 10 if rows > 50 else 5
    for label in (1, *range(step, rows + 1, step)):
        if all(abs(label - other) >= max(2, apart) for other in chosen):
            chosen.append(label)
    return sorted(chosen)


def _at_least(apart: int, labels: Sequence[int]) -> list[int]:
    kept: list[int] = []
    for label in labels:
        if not kept or label - kept[-1] >= apart:
            kept.append(label)
    return kept

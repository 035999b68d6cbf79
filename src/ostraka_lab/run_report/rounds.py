"""The run round by round: how the model learns, where the time goes, and the figures behind it.

Accuracy, loss and attack success are drawn beside those of plain averaging.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ostraka_lab.metrics import BaselineMetrics, RoundMetrics, start_up
from ostraka_lab.report import Column, Plot, Table, drawing, format
from ostraka_lab.report.drawing import BLUE, MUTED, SERIES, VERMILLION, Box, rectangles
from ostraka_lab.run_report.run_record import RunRecord

OURS = "Ostraka"
PLAIN = "plain averaging"

_DOTS_UP_TO = 40  # points; more would hide the line
_LOG_BEYOND = 50.0  # the ratio of losses at which a linear axis shows only the largest
_ROOM = 0.15  # of the width, for the last value beside its point
_APART = 0.075  # of the height, between two such values
_BARS_UP_TO = 60  # rounds; with more there is no room between the bars

# These have a picture or a place of their own.
_NOT_SETTINGS = frozenset({"command", "holdings"})

_Row = RoundMetrics | BaselineMetrics
_Value = Callable[[_Row], float | None]


@dataclass(frozen=True)
class _Curve:
    name: str
    colour: str
    line: str
    marker: str
    points: tuple[tuple[int, float], ...]


def plots(run: RunRecord) -> list[Plot]:
    """Draw accuracy, attack success and loss, as far as they were measured."""
    every = (_accuracy(run), _attack_success(run), _loss(run))
    return [plot for plot in every if plot is not None]


def _accuracy(run: RunRecord) -> Plot | None:
    curves = _curves(run, lambda row: row.accuracy)
    if not curves:
        return None
    chance = None if run.experiment.classes is None else 1 / run.experiment.classes

    def paint(figure: Figure) -> None:
        axes = _rounds_axes(figure, run)
        drawing.percent(axes)
        axes.set_ylabel("accuracy on test data")
        if chance is not None:
            ends = axes.get_xlim()
            axes.plot(ends, [chance] * 2, ":", color=MUTED, linewidth=1, label="guessing")
        _draw(axes, curves)
        _write_last(axes, curves)
        drawing.legend_above(figure)

    verb = "ends" if run.finished else "stands"
    ends = [f"{each.name} {verb} at {_percent(each.points[-1][1])}" for each in curves[::-1]]
    caption = f"The share of test examples that the model gets right. {_said(ends)}"
    return Plot("Accuracy per round", caption, paint)


def _loss(run: RunRecord) -> Plot | None:
    curves = _curves(run, lambda row: row.loss)
    if not curves:
        return None
    values = [value for curve in curves for _, value in curve.points]

    def paint(figure: Figure) -> None:
        axes = _rounds_axes(figure, run)
        axes.set_ylabel("loss")
        _draw(axes, curves)
        if min(values) > 0 and max(values) > _LOG_BEYOND * min(values):
            axes.set_yscale("log")
            drawing.powers_of_ten(axes.yaxis)
        elif min(values) >= 0:
            axes.set_ylim(bottom=0)
        drawing.legend_above(figure)

    what = "The app's own" if run.experiment.settings.get("app") else "Cross-entropy"
    caption = f"{what}: smaller is better." + _not_finite(run)
    return Plot("Loss per round", caption, paint)


def _attack_success(run: RunRecord) -> Plot | None:
    curves = _curves(run, lambda row: row.attack_success)
    if not curves:
        return None

    def paint(figure: Figure) -> None:
        axes = _rounds_axes(figure, run)
        drawing.percent(axes)
        axes.set_ylabel("attack success")
        _draw(axes, curves)
        _write_last(axes, curves)
        drawing.legend_above(figure)

    caption = (
        "The share of test examples with the attackers' trigger that the model takes for what the "
        "attackers want: smaller is better."
    )
    return Plot("Attack success per round", caption, paint)


def _curves(run: RunRecord, value: _Value) -> list[_Curve]:
    """The curves of a value, without rounds that lack it. Ours comes last, and so lies on top."""
    curves = [
        _Curve(PLAIN, VERMILLION, "--", "s", _points(run.baseline, value)),
        _Curve(OURS, BLUE, "-", "o", _points(run.rounds, value)),
    ]
    return [curve for curve in curves if curve.points]


def _points(rows: Sequence[_Row], value: _Value) -> tuple[tuple[int, float], ...]:
    measured = ((row.round, value(row)) for row in rows)
    return tuple((number, each) for number, each in measured if each is not None)


def _rows(run: RunRecord) -> list[_Row]:
    return [*run.rounds, *run.baseline]


def _rounds_axes(figure: Figure, run: RunRecord) -> Axes:
    axes = figure.subplots()
    last = max(row.round for row in _rows(run))
    margin = max(0.03 * last, 0.2)
    axes.set_xlim(1 - margin, last + margin)
    axes.set_xlabel("round")
    drawing.whole_numbers(axes.xaxis, 1, last)
    return axes


def _draw(axes: Axes, curves: Sequence[_Curve]) -> None:
    for curve in curves:
        numbers, values = zip(*curve.points, strict=True)
        dots = curve.marker if len(numbers) <= _DOTS_UP_TO else ""
        axes.plot(numbers, values, curve.line, marker=dots, color=curve.colour, label=curve.name)


def _write_last(axes: Axes, curves: Sequence[_Curve]) -> None:
    """Write each curve's last value at its height, or a little off where two would meet."""
    left, right = axes.get_xlim()
    axes.set_xlim(left, right + _ROOM * (right - left))
    heights = _spread([curve.points[-1][1] for curve in curves])
    for curve, height in zip(curves, heights, strict=True):
        number, value = curve.points[-1]
        axes.annotate(
            _percent(value),
            (number, height),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            color=curve.colour,
            weight="bold",
        )


def _spread(heights: Sequence[float]) -> list[float]:
    """Move the heights of at most two texts far enough apart to be read."""
    if len(heights) < 2 or abs(heights[0] - heights[1]) >= _APART:
        return list(heights)
    middle = sum(heights) / 2
    away = _APART / 2 if heights[0] >= heights[1] else -_APART / 2
    return [middle + away, middle - away]


def _said(facts: Sequence[str]) -> str:
    sentence = format.listed(facts)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _not_finite(run: RunRecord) -> str:
    """Say where a loss was not finite: it is missing though the accuracy is known."""
    gone = sum(row.loss is None and row.accuracy is not None for row in run.baseline)
    return f" That of {PLAIN} was not finite in {format.count(gone, 'round')}." if gone else ""


def table(run: RunRecord) -> Table:
    """Every round in figures, as behind the plots."""
    plain = {row.round: row for row in run.baseline}
    columns = [
        Column("round", number=True),
        Column("accuracy", number=True),
        *([Column("plain averaging", number=True)] if plain else []),
        Column("loss", number=True),
        Column("selected", number=True),
        Column("of them attackers", number=True),
        Column("dropped", number=True),
        Column("rejected", number=True),
        Column("absent", number=True),
        Column("time", number=True),
    ]
    return Table(columns, [_table_row(row, plain) for row in run.rounds])


def settings(run: RunRecord) -> Table:
    """Every setting of the run."""
    shown = {
        name: value for name, value in run.experiment.settings.items() if name not in _NOT_SETTINGS
    }
    rows = [(name, _shown(value)) for name, value in shown.items()]
    return Table((Column("Setting"), Column("Value")), rows)


def _table_row(row: RoundMetrics, plain: dict[int, BaselineMetrics]) -> list[str]:
    beside = plain.get(row.round)
    return [
        str(row.round),
        _percent(row.accuracy),
        *([_percent(beside.accuracy if beside else None)] if plain else []),
        format.NOTHING if row.loss is None else f"{row.loss:.4g}",
        str(len(row.selected)),
        str(row.byzantine_selected),
        str(len(row.dropped)),
        str(len(row.rejected)),
        str(len(row.absent)),
        format.seconds(row.wall_s),
    ]


def _percent(part: float | None) -> str:
    return format.percent(part, decimals=1)


def _shown(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    return json.dumps(value) if isinstance(value, dict) else str(value)


def time_plot(run: RunRecord) -> Plot | None:
    """Draw a bar for every round, stacked by stage. None if no stage was timed."""
    names = _stages(run)
    if not names:
        return None

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        below = [0.0] * len(run.rounds)
        for place, name in enumerate(names):
            heights = [row.stages_s.get(name, 0.0) for row in run.rounds]
            colour = SERIES[place % len(SERIES)]
            rectangles(axes, _bars(run, below, heights), colour=colour, label=name)
            below = [a + b for a, b in zip(below, heights, strict=True)]
        axes.set_xlim(run.rounds[0].round - 0.6, run.rounds[-1].round + 0.6)
        axes.set_ylim(0, 1.05 * max(below) or 1)
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("round")
        axes.set_ylabel("seconds")
        drawing.whole_numbers(axes.xaxis, run.rounds[0].round, run.rounds[-1].round)
        drawing.legend_above(figure)

    typical = format.seconds(median(_walls(run)))
    return Plot(
        "Time per stage",
        f"Seconds of every round; half of the rounds took at most {typical}.",
        paint,
    )


def time_table(run: RunRecord) -> Table | None:
    """The median of each stage, and its part of all the time. None if no stage was timed."""
    names = _stages(run)
    if not names:
        return None
    whole = sum(sum(row.stages_s.values()) for row in run.rounds)
    rows = [
        _stage_row(name, [row.stages_s.get(name, 0.0) for row in run.rounds], whole)
        for name in names
    ]
    walls = [row.wall_s for row in run.rounds if row.wall_s is not None]
    if walls:
        rows.append(("whole round", format.seconds(median(walls)), format.seconds(sum(walls)), ""))
    columns = (
        Column("Stage"),
        Column("median", number=True),
        Column("total", number=True),
        Column("share", number=True),
    )
    caption = f"Time over {format.count(len(run.rounds), 'round')}"
    if (started := start_up(run.rounds)) is not None:
        caption = f"{caption}, without the {format.seconds(started)} of start-up"
    return Table(columns, rows, caption=caption)


def _stage_row(name: str, seconds: Sequence[float], whole: float) -> tuple[str, str, str, str]:
    share = _percent(sum(seconds) / whole) if whole else ""
    return name, format.seconds(median(seconds)), format.seconds(sum(seconds)), share


def _stages(run: RunRecord) -> list[str]:
    """The stages, in the order in which they are first named."""
    return list(dict.fromkeys(name for row in run.rounds for name in row.stages_s))


def _walls(run: RunRecord) -> list[float]:
    return [sum(row.stages_s.values()) if row.wall_s is None else row.wall_s for row in run.rounds]


def _bars(run: RunRecord, below: Sequence[float], heights: Sequence[float]) -> list[Box]:
    wide = 0.8 if len(run.rounds) <= _BARS_UP_TO else 1.0
    return [
        (row.round - wide / 2, bottom, wide, height)
        for row, bottom, height in zip(run.rounds, below, heights, strict=True)
        if height > 0
    ]

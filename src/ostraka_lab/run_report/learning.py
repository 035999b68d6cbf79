"""How the model does, round by round, beside plain averaging."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ostraka_lab.metrics import BaselineMetrics, RoundMetrics
from ostraka_lab.report import drawing as axis_style
from ostraka_lab.report import format
from ostraka_lab.report.blocks import Plot
from ostraka_lab.report.drawing import BLUE, MUTED, VERMILLION
from ostraka_lab.run_report.run_record import RunRecord

OURS = "Ostraka"
PLAIN = "plain averaging"

_DOTS_UP_TO = 40  # points; more would hide the line
_LOG_BEYOND = 50.0  # the ratio of losses at which a linear axis shows only the largest
_ROOM = 0.15  # of the width, for the last value beside its point
_APART = 0.075  # of the height, between two such values

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
    """Those of which anything was measured."""
    every = (_accuracy(run), _attack_success(run), _loss(run))
    return [plot for plot in every if plot is not None]


def _accuracy(run: RunRecord) -> Plot | None:
    curves = _curves(run, lambda row: row.accuracy)
    if not curves:
        return None
    chance = None if run.experiment.classes is None else 1 / run.experiment.classes

    def paint(figure: Figure) -> None:
        axes = _rounds_axes(figure, run)
        axis_style.percent(axes)
        axes.set_ylabel("accuracy on test data")
        if chance is not None:
            ends = axes.get_xlim()
            axes.plot(ends, [chance] * 2, ":", color=MUTED, linewidth=1, label="guessing")
        _draw(axes, curves)
        _say_last(axes, curves, format.exact_percent)
        axis_style.legend_above(figure)

    verb = "ends" if run.finished else "stands"
    ends = [
        f"{each.name} {verb} at {format.exact_percent(each.points[-1][1])}" for each in curves[::-1]
    ]
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
            axis_style.powers_of_ten(axes.yaxis)
        elif min(values) >= 0:
            axes.set_ylim(bottom=0)
        axis_style.legend_above(figure)

    caption = "Cross-entropy: smaller is better." + _not_finite(run)
    return Plot("Loss per round", caption, paint)


def _attack_success(run: RunRecord) -> Plot | None:
    curves = _curves(run, lambda row: row.attack_success)
    if not curves:
        return None

    def paint(figure: Figure) -> None:
        axes = _rounds_axes(figure, run)
        axis_style.percent(axes)
        axes.set_ylabel("attack success")
        _draw(axes, curves)
        _say_last(axes, curves, format.exact_percent)
        axis_style.legend_above(figure)

    caption = (
        "The share of test examples with the attackers' trigger that the model takes for what the "
        "attackers want: smaller is better."
    )
    return Plot("Attack success per round", caption, paint)


def _curves(run: RunRecord, value: _Value) -> list[_Curve]:
    """Rounds without a value are passed over. Plain averaging first, so that ours lies on top."""
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
    axis_style.whole_numbers(axes.xaxis, 1, last)
    return axes


def _draw(axes: Axes, curves: Sequence[_Curve]) -> None:
    for curve in curves:
        numbers, values = zip(*curve.points, strict=True)
        dots = curve.marker if len(numbers) <= _DOTS_UP_TO else ""
        axes.plot(numbers, values, curve.line, marker=dots, color=curve.colour, label=curve.name)


def _say_last(axes: Axes, curves: Sequence[_Curve], say: Callable[[float], str]) -> None:
    """Each curve's last value at its height, or a little off where two would meet."""
    left, right = axes.get_xlim()
    axes.set_xlim(left, right + _ROOM * (right - left))
    heights = _spread([curve.points[-1][1] for curve in curves])
    for curve, height in zip(curves, heights, strict=True):
        number, value = curve.points[-1]
        axes.annotate(
            say(value),
            (number, height),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            color=curve.colour,
            weight="bold",
        )


def _spread(heights: Sequence[float]) -> list[float]:
    """Heights of at most two texts, far enough apart to be read."""
    if len(heights) < 2 or abs(heights[0] - heights[1]) >= _APART:
        return list(heights)
    middle = sum(heights) / 2
    away = _APART / 2 if heights[0] >= heights[1] else -_APART / 2
    return [middle + away, middle - away]


def _said(facts: Sequence[str]) -> str:
    sentence = format.listed(facts)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _not_finite(run: RunRecord) -> str:
    """A loss that is missing where the accuracy is known was no number."""
    gone = sum(row.loss is None and row.accuracy is not None for row in run.baseline)
    return (
        f" That of {PLAIN} was no finite number in {format.count(gone, 'round')}." if gone else ""
    )

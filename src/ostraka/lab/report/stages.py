"""Where the time of a round goes."""

from collections.abc import Sequence
from statistics import median

from matplotlib.figure import Figure

from ostraka.lab.report import words
from ostraka.lab.report.run_record import RunRecord
from ostraka.report import axes as axis_style
from ostraka.report.blocks import Column, Plot, Table
from ostraka.report.shapes import Box, rectangles
from ostraka.report.style import SERIES

_BARS_UP_TO = 60  # rounds; with more there is no room between them


def plot(run: RunRecord) -> Plot | None:
    """A bar for every round, stacked by stage."""
    names = _names(run)
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
        axis_style.whole_numbers(axes.xaxis, run.rounds[0].round, run.rounds[-1].round)
        axis_style.legend_above(figure)

    typical = words.seconds(median(_totals(run)))
    return Plot(
        "Time per stage",
        f"Seconds of every round; half of the rounds took at most {typical}.",
        paint,
    )


def table(run: RunRecord) -> Table | None:
    """What is typical of each stage, and its part of all the time."""
    names = _names(run)
    if not names:
        return None
    whole = sum(sum(row.stages_s.values()) for row in run.rounds)
    rows = [
        _row(name, [row.stages_s.get(name, 0.0) for row in run.rounds], whole) for name in names
    ]
    walls = [row.wall_s for row in run.rounds if row.wall_s is not None]
    if walls:
        rows.append(("whole round", words.seconds(median(walls)), words.seconds(sum(walls)), ""))
    columns = (
        Column("Stage"),
        Column("median", number=True),
        Column("total", number=True),
        Column("share", number=True),
    )
    return Table(columns, rows, caption=f"Time over {words.count(len(run.rounds), 'round')}")


def _row(name: str, seconds: Sequence[float], whole: float) -> tuple[str, str, str, str]:
    share = words.percent(sum(seconds) / whole) if whole else ""
    return name, words.seconds(median(seconds)), words.seconds(sum(seconds)), share


def _names(run: RunRecord) -> list[str]:
    """In the order in which they are first named."""
    return list(dict.fromkeys(name for row in run.rounds for name in row.stages_s))


def _totals(run: RunRecord) -> list[float]:
    return [sum(row.stages_s.values()) if row.wall_s is None else row.wall_s for row in run.rounds]


def _bars(run: RunRecord, below: Sequence[float], heights: Sequence[float]) -> list[Box]:
    wide = 0.8 if len(run.rounds) <= _BARS_UP_TO else 1.0
    return [
        (row.round - wide / 2, bottom, wide, height)
        for row, bottom, height in zip(run.rounds, below, heights, strict=True)
        if height > 0
    ]

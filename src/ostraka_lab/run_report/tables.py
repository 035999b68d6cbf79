"""The run in figures: every round, every setting, and how to run it again."""

import json
from collections.abc import Sequence
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from ostraka_lab.metrics import BaselineMetrics, RoundMetrics
from ostraka_lab.report import drawing as axis_style
from ostraka_lab.report import format
from ostraka_lab.report.blocks import Column, Plot, Table
from ostraka_lab.report.drawing import SERIES, Box, rectangles
from ostraka_lab.run_report.run_record import RunRecord

# These have a picture or a place of their own.
_NOT_SETTINGS = frozenset({"command", "holdings"})


def rounds(run: RunRecord) -> Table:
    """The figures behind the plots."""
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
    return Table(columns, [_round(row, plain) for row in run.rounds])


def settings(run: RunRecord) -> Table:
    shown = {
        name: value for name, value in run.experiment.settings.items() if name not in _NOT_SETTINGS
    }
    rows = [(name, _said(value)) for name, value in shown.items()]
    return Table((Column("Setting"), Column("Value")), rows)


def _round(row: RoundMetrics, plain: dict[int, BaselineMetrics]) -> list[str]:
    beside = plain.get(row.round)
    return [
        str(row.round),
        _percent(row.accuracy),
        *([_percent(beside.accuracy if beside else None)] if plain else []),
        "" if row.loss is None else f"{row.loss:.4g}",
        str(len(row.selected)),
        str(row.byzantine_selected),
        str(len(row.dropped)),
        str(len(row.rejected)),
        str(len(row.absent)),
        "" if row.wall_s is None else format.duration(row.wall_s),
    ]


def _percent(part: float | None) -> str:
    return "" if part is None else format.exact_percent(part)


def _said(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_said, value)) or "none"
    return json.dumps(value) if isinstance(value, dict) else str(value)


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

    typical = format.duration(median(_totals(run)))
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
        rows.append(
            ("whole round", format.duration(median(walls)), format.duration(sum(walls)), "")
        )
    columns = (
        Column("Stage"),
        Column("median", number=True),
        Column("total", number=True),
        Column("share", number=True),
    )
    return Table(columns, rows, caption=f"Time over {format.count(len(run.rounds), 'round')}")


def _row(name: str, seconds: Sequence[float], whole: float) -> tuple[str, str, str, str]:
    share = format.exact_percent(sum(seconds) / whole) if whole else ""
    return name, format.duration(median(seconds)), format.duration(sum(seconds)), share


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

"""The clients: who took part in which round, whose updates were left out, who held which examples.

Pictures have a row for every client, and attackers are marked.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ostraka.core import rules
from ostraka_lab.metrics import RoundMetrics
from ostraka_lab.report import Column, Plot, Table, drawing, format
from ostraka_lab.report.drawing import (
    GREY,
    INK,
    MUTED,
    ORANGE,
    PALE,
    POINTS,
    PURPLE,
    VERMILLION,
    Box,
    rectangles,
)
from ostraka_lab.run_report.run_record import RunRecord

_EVERY_ROW_UP_TO = 24
_COMFORTABLE = 15.0  # points
_TIGHT = 8.6  # points: two labels in neighbouring rows still do not touch
_TALLEST = 640.0  # points

_AROUND = 92.0  # points, for the legend and the axis
_TILES_UP_TO = 60  # rounds; with more, cells of one kind run together
_REASON_ROWS = 200
_NAMED_UP_TO = 16  # attackers

_PARTITION_AROUND = 66.0  # points
_NUMBERS_UP_TO = (24, 10)  # clients and classes; in smaller cells they could not be read
_CLASS_TICKS = 20


def _row_points(rows: int) -> float:
    """The height of a row: the more rows, the lower."""
    if rows <= _EVERY_ROW_UP_TO:
        return _COMFORTABLE
    return min(max(_TIGHT, 360 / rows), _TALLEST / rows)


def _height(rows: int, *, around: float) -> float:
    """The height of a figure in inches. around: points above and below the rows."""
    return (rows * _row_points(rows) + around) / POINTS


def _mark(axes: Axes, rows: int, attackers: Sequence[int]) -> None:
    """Label the rows, client 1 on top. Of labels that would touch, attackers' are kept."""
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
        markersize=min(5.0, _row_points(rows)),
        markeredgewidth=0,
        transform=axes.get_yaxis_transform(),
        clip_on=False,
        label="attacker",
    )


def _labelled(rows: int, attackers: Sequence[int]) -> list[int]:
    """The clients to label: all if there is room, else attackers and every fifth or tenth."""
    if _row_points(rows) >= _COMFORTABLE:
        return list(range(1, rows + 1))
    apart = max(1, round(_TIGHT / _row_points(rows)))
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


class _Fate(Enum):
    """What became of a client's update. The value is its name and its colour."""

    SELECTED = ("selected", PALE)
    DROPPED = ("dropped", ORANGE)
    REJECTED = ("rejected", PURPLE)
    ABSENT = ("absent", GREY)
    WRONG = ("attacker selected", INK)


def plot(run: RunRecord) -> Plot | None:
    """Draw what became of every update: a row for every client, a column for every round."""
    if not run.rounds:
        return None
    experiment = run.experiment
    # Where every update has a weight, it says nothing that an attacker's has one.
    singled_out = experiment.attackers if run.selective else ()
    fates = [_fates(row, singled_out) for row in run.rounds]
    shown = _shown(fates)
    last = max(experiment.rounds, run.rounds[-1].round)

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for fate in shown:
            name, colour = fate.value
            rectangles(axes, _boxes(run.rounds, fates, fate), colour=colour, label=name)
        _mark(axes, experiment.clients, experiment.attackers)
        axes.set_xlim(0.5, last + 0.5)
        axes.set_xlabel("round")
        drawing.whole_numbers(axes.xaxis, 1, last)
        drawing.legend_above(figure)

    tall = _height(experiment.clients, around=_AROUND)
    return Plot("Clients by rounds", _caption(run, shown), paint, height=tall)


def rejections(run: RunRecord) -> Table | None:
    """List the clients whose updates were invalid, and why."""
    rounds: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row in run.rounds:
        for client, reason in row.rejected.items():
            rounds[client, reason].append(row.round)
    if not rounds:
        return None
    columns = (Column("Client"), Column("Reason"), Column("Rounds"))
    rows = [
        (_named(client, run), reason, _ranges(numbers))
        for (client, reason), numbers in sorted(rounds.items())[:_REASON_ROWS]
    ]
    return Table(columns, rows, caption="Updates that were rejected")


def _fates(row: RoundMetrics, attackers: Sequence[int]) -> dict[int, _Fate]:
    fates = dict.fromkeys(row.absent, _Fate.ABSENT)
    fates |= dict.fromkeys(row.dropped, _Fate.DROPPED)
    fates |= dict.fromkeys(row.rejected, _Fate.REJECTED)
    fates |= dict.fromkeys(row.selected, _Fate.SELECTED)
    return fates | dict.fromkeys(set(row.selected) & set(attackers), _Fate.WRONG)


def _shown(fates: Sequence[Mapping[int, _Fate]]) -> list[_Fate]:
    """The fates to show, in the order of their definition. The first belongs to every run."""
    seen = {fate for each in fates for fate in each.values()} | {_Fate.SELECTED}
    return [fate for fate in _Fate if fate in seen]


def _boxes(
    rows: Sequence[RoundMetrics], fates: Sequence[Mapping[int, _Fate]], fate: _Fate
) -> Iterator[Box]:
    tiles = len(rows) <= _TILES_UP_TO
    inset = 0.06 if tiles else 0.0
    where: dict[int, list[int]] = defaultdict(list)
    for row, each in zip(rows, fates, strict=True):
        for client, what in each.items():
            if what is fate:
                where[client].append(row.round)
    for client, numbers in where.items():
        for first, last in [(n, n) for n in numbers] if tiles else _runs(numbers):
            yield (first - 0.5 + inset, client - 0.44, last - first + 1 - 2 * inset, 0.88)


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """The first and last of each run of consecutive numbers."""
    runs = []
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        runs.append((run[0], run[-1]))
    return runs


def _ranges(numbers: Sequence[int]) -> str:
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in _runs(numbers))


def _named(client: int, run: RunRecord) -> str:
    return f"{client} (attacker)" if client in run.experiment.attackers else str(client)


def nobody_left_out(rule: str) -> str:
    """Say what a rule does that leaves out no update as a whole; a run may not know its own."""
    if not rule:
        return "Nobody is left out."
    composition = rules.parse(rule)
    if composition.rule.columnwise:
        return f"Nobody is left out as a whole: {composition} leaves out values, column by column."
    if not composition.robust:
        return f"Nobody is left out: {composition} weighs all updates alike, and is not robust."
    return f"Nobody is left out: {composition} gives every update a weight, distant ones little."


def _caption(run: RunRecord, shown: Sequence[_Fate]) -> str:
    meanings = {
        _Fate.SELECTED: "Selected: averaged into the model."
        if run.selective
        else f"Selected: counts in the model. {nobody_left_out(run.experiment.rule)}",
        _Fate.DROPPED: "Dropped: valid, but too far from the others.",
        _Fate.REJECTED: "Rejected: invalid.",
        _Fate.ABSENT: "Absent: sent nothing in time.",
    }
    said = [meanings[fate] for fate in shown if fate in meanings]
    if 0 < len(run.experiment.attackers) <= _NAMED_UP_TO:
        numbers = format.listed([str(each) for each in run.experiment.attackers])
        noun = (
            "attacker is client" if len(run.experiment.attackers) == 1 else "attackers are clients"
        )
        said.append(f"The {noun} {numbers}.")
    return " ".join(said)


def plot_partition(run: RunRecord) -> Plot | None:
    """Draw who holds what: a row for every client, a column for every class, and the sums."""
    holdings = run.experiment.holdings
    if not holdings or not max(map(max, holdings)):
        return None

    def paint(figure: Figure) -> None:
        cells, sums = figure.subplots(1, 2, width_ratios=(3, 1), sharey=True)
        _mark(cells, len(holdings), run.experiment.attackers)
        _draw_cells(cells, holdings)
        _draw_sums(sums, [sum(row) for row in holdings])

    totals = [sum(row) for row in holdings]
    caption = (
        "Training examples of each class at each client: the stronger the colour, the more. A "
        f"client holds {min(totals):,} to {max(totals):,} of {sum(totals):,} examples."
    )
    tall = _height(len(holdings), around=_PARTITION_AROUND)
    return Plot("Who holds what", caption, paint, height=tall)


def _draw_cells(axes: Axes, holdings: tuple[tuple[int, ...], ...]) -> None:
    clients, classes = len(holdings), len(holdings[0])
    most = max(map(max, holdings))
    drawing.shaded(axes, _cells(holdings, most))
    if clients <= _NUMBERS_UP_TO[0] and classes <= _NUMBERS_UP_TO[1]:
        _write_counts(axes, holdings, most)
    axes.set_xlim(-0.5, classes - 0.5)
    axes.set_xlabel("class")
    if classes <= _CLASS_TICKS:
        axes.set_xticks(range(classes))
    else:
        drawing.whole_numbers(axes.xaxis, 0, classes - 1)
    axes.tick_params(axis="x", length=0)
    axes.spines[:].set_visible(False)


def _draw_sums(axes: Axes, sums: list[int]) -> None:
    bars: list[Box] = [(0, row - 0.38, total, 0.76) for row, total in enumerate(sums, 1)]
    rectangles(axes, bars, colour=MUTED)
    axes.set_xlim(0, 1.05 * max(sums))
    axes.set_xlabel("examples")
    axes.locator_params(axis="x", nbins=2)
    axes.tick_params(axis="y", labelleft=False)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)


def _cells(holdings: tuple[tuple[int, ...], ...], most: int) -> Iterator[tuple[Box, float]]:
    """All cells with their shades. An empty one is left out, and so has the paper's colour."""
    for client, row in enumerate(holdings, 1):
        for label, held in enumerate(row):
            if held:
                yield (label - 0.46, client - 0.44, 0.92, 0.88), held / most


def _write_counts(axes: Axes, holdings: tuple[tuple[int, ...], ...], most: int) -> None:
    for client, row in enumerate(holdings, 1):
        for label, held in enumerate(row):
            colour = drawing.ink_on(held / most)
            axes.text(
                label, client, str(held), ha="center", va="center", fontsize=7.5, color=colour
            )

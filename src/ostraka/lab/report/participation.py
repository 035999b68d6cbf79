"""Who took part in which round, and whose update was left out."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import groupby

from matplotlib.figure import Figure

from ostraka.lab.metrics import RoundMetrics
from ostraka.lab.report import clients_axis, words
from ostraka.lab.report.run_record import RunRecord
from ostraka.report import axes as axis_style
from ostraka.report.blocks import Column, Plot, Table
from ostraka.report.shapes import Box, rectangles
from ostraka.report.style import INK, ORANGE, PURPLE

_AROUND = 92.0  # points, for the legend and the axis
_TILES_UP_TO = 60  # rounds; with more, cells of one kind run together
_REASON_ROWS = 200
_NAMED_UP_TO = 16  # attackers


class _Fate(Enum):
    """What became of a client's update. The value is its name and its colour."""

    SELECTED = ("selected", "#b5d6ea")
    DROPPED = ("dropped", ORANGE)
    REJECTED = ("rejected", PURPLE)
    ABSENT = ("absent", "#98a4ae")
    WRONG = ("attacker selected", INK)


def plot(run: RunRecord) -> Plot | None:
    """A row for every client, a column for every round."""
    if not run.rounds:
        return None
    experiment = run.experiment
    fates = [_fates(row, experiment.attackers) for row in run.rounds]
    shown = _shown(fates)
    last = max(experiment.rounds, run.rounds[-1].round)

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for fate in shown:
            name, colour = fate.value
            rectangles(axes, _boxes(run.rounds, fates, fate), colour=colour, label=name)
        clients_axis.mark(axes, experiment.clients, experiment.attackers)
        axes.set_xlim(0.5, last + 0.5)
        axes.set_xlabel("round")
        axis_style.whole_numbers(axes.xaxis, 1, last)
        axis_style.legend_above(figure)

    tall = clients_axis.height(experiment.clients, around=_AROUND)
    return Plot("Clients by rounds", _caption(run, shown), paint, height=tall)


def rejections(run: RunRecord) -> Table | None:
    """Whose updates were invalid, and why."""
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
    """In the order of their definition. The first two belong to every run."""
    seen = {fate for each in fates for fate in each.values()} | {_Fate.SELECTED, _Fate.DROPPED}
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


def _caption(run: RunRecord, shown: Sequence[_Fate]) -> str:
    meanings = {
        _Fate.SELECTED: "Selected: averaged into the model.",
        _Fate.DROPPED: "Dropped: valid, but too far from the others.",
        _Fate.REJECTED: "Rejected: invalid.",
        _Fate.ABSENT: "Absent: sent nothing in time.",
    }
    said = [meanings[fate] for fate in shown if fate in meanings]
    if 0 < len(run.experiment.attackers) <= _NAMED_UP_TO:
        numbers = words.listed([str(each) for each in run.experiment.attackers])
        noun = (
            "attacker is client" if len(run.experiment.attackers) == 1 else "attackers are clients"
        )
        said.append(f"The {noun} {numbers}.")
    return " ".join(said)

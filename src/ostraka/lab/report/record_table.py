"""The run in figures: every round, every setting, and how to run it again."""

import json
from typing import Any

from ostraka.lab.metrics import BaselineMetrics, RoundMetrics
from ostraka.lab.report import words
from ostraka.lab.report.run_record import RunRecord
from ostraka.report.blocks import Column, Table

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
        "" if row.wall_s is None else words.seconds(row.wall_s),
    ]


def _percent(part: float | None) -> str:
    return "" if part is None else words.percent(part)


def _said(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_said, value)) or "none"
    return json.dumps(value) if isinstance(value, dict) else str(value)

"""A run as its folder records it, finished or not."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ostraka.errors import ConfigError
from ostraka_lab import metrics
from ostraka_lab.metrics import BaselineMetrics, RoundMetrics

_EXPERIMENT = "experiment.json"
_NO_ATTACK = "none"

_T = TypeVar("_T")


@dataclass(frozen=True)
class Experiment:
    """What was asked for, as far as the report shows it.

    attackers: their numbers, from 1. holdings: how many examples of each class every client holds;
    empty if that is not on record. command: what makes the run again. settings: everything that the
    file says, for the table.
    """

    dataset: str
    model: str
    clients: int
    rounds: int
    masking: str
    attackers: tuple[int, ...]
    attack: str
    attack_scale: float | None
    rule: str
    distances: str
    workers: int
    sketch: int | None
    dimension: int | None
    leakage_bits: float | None
    holdings: tuple[tuple[int, ...], ...]
    simulated: bool
    command: str
    settings: Mapping[str, Any]

    @property
    def attacked(self) -> bool:
        return bool(self.attackers) and self.attack != _NO_ATTACK

    @property
    def inside(self) -> bool:
        """Whether the enclave measured by itself, without workers."""
        return self.distances == "inside" or self.masking == "none"

    @property
    def measured_dimension(self) -> int | None:
        """How many values of a client a worker is given, masked: a whole update or its sketch."""
        return self.sketch or self.dimension

    @property
    def collusion(self) -> int:
        """The most workers that learn nothing even together."""
        return max(1, self.workers // 2)

    @property
    def classes(self) -> int | None:
        return len(self.holdings[0]) if self.holdings else None

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Experiment":
        """Read an experiment. Raises KeyError, TypeError, ValueError or AttributeError."""
        return cls(
            dataset=str(fields["dataset"]),
            model=str(fields.get("model") or "its usual model"),
            clients=int(fields["clients"]),
            rounds=int(fields["rounds"]),
            masking=str(fields["masking"]),
            attackers=tuple(sorted(int(each) for each in fields.get("attackers") or ())),
            attack=str(fields.get("attack") or _NO_ATTACK),
            attack_scale=_number(fields.get("attack_scale")),
            rule=str(fields.get("composition") or ""),
            distances=str(fields.get("distances") or "workers"),
            workers=int(fields.get("workers") or 2),
            sketch=_whole(fields.get("sketch")),
            dimension=_whole(fields.get("dimension")),
            leakage_bits=_number(fields.get("leakage_bits")),
            holdings=_holdings(fields.get("holdings") or ()),
            simulated=bool(fields.get("simulated", True)),
            command=_command(fields.get("command")),
            settings=dict(fields),
        )


@dataclass(frozen=True)
class RunRecord:
    """An experiment and what became of it, round by round."""

    experiment: Experiment
    rounds: tuple[RoundMetrics, ...]
    baseline: tuple[BaselineMetrics, ...]

    @property
    def finished(self) -> bool:
        return len(self.rounds) >= self.experiment.rounds

    @property
    def accuracy(self) -> float | None:
        """The last accuracy that was measured."""
        return _last([row.accuracy for row in self.rounds])

    @property
    def baseline_accuracy(self) -> float | None:
        return _last([row.accuracy for row in self.baseline])

    @property
    def attack_success(self) -> float | None:
        return _last([row.attack_success for row in self.rounds])

    @property
    def baseline_attack_success(self) -> float | None:
        return _last([row.attack_success for row in self.baseline])

    @cached_property
    def selective(self) -> bool:
        """Whether the rule ever left out an update."""
        return any(row.selective for row in self.rounds)

    @cached_property
    def byzantine_selected(self) -> int:
        """How often an attacker's update was averaged."""
        return sum(row.byzantine_selected for row in self.rounds)

    @cached_property
    def byzantine_chances(self) -> int:
        """How often an attacker's update could have been averaged."""
        return len(self.rounds) * len(self.experiment.attackers)


def load(folder: Path) -> RunRecord:
    """Load a run. Raises ConfigError if there is none in this folder, or it is damaged."""
    path = folder / _EXPERIMENT
    try:
        experiment = Experiment.from_json(json.loads(path.read_text("utf-8")))
    except OSError as unreadable:
        raise ConfigError(f"{folder} holds no run: {path}: {unreadable.strerror}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as damaged:
        raise ConfigError(f"{path} is damaged: {damaged!r}") from None
    return RunRecord(experiment, tuple(metrics.read(folder)), tuple(metrics.read_baseline(folder)))


def _last(values: Sequence[_T | None]) -> _T | None:
    return next((value for value in reversed(values) if value is not None), None)


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _holdings(rows: Sequence[Sequence[Any]]) -> tuple[tuple[int, ...], ...]:
    holdings = tuple(tuple(int(count) for count in row) for row in rows)
    if len({len(row) for row in holdings}) > 1:
        raise ValueError("holdings have rows of different lengths")
    return holdings


def _command(value: Any) -> str:
    """Make a line for a shell from a line or from its words."""
    if isinstance(value, list):
        return shlex.join(map(str, value))
    return str(value or "")

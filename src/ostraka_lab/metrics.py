"""The record of every round: a line of JSON, and scalars for TensorBoard.

    metrics.jsonl     one RoundMetrics a line
    baseline.jsonl    one BaselineMetrics a line: plain averaging on the same updates
    tensorboard/      accuracy, loss, byzantine_selected, stages/..., baseline/...

A process can die in the middle of a line. Readers skip a torn last line, and a run that goes on
drops it.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from tensorboardX import SummaryWriter

from ostraka import files
from ostraka.errors import ConfigError

METRICS = "metrics.jsonl"
BASELINE = "baseline.jsonl"
TENSORBOARD = "tensorboard"

_MODE = 0o644
_FLUSH_SECONDS = 1


@dataclass(frozen=True)
class RoundMetrics:
    """One round. Clients are numbers from 1.

    accuracy, loss, attack_success: None where they were not measured or are not finite.
    selected: clients whose updates were averaged. dropped: whose updates were valid and left out.
    rejected: whose updates were invalid, and why. absent: who sent nothing in time.
    byzantine_selected: the number of attackers among the selected. attackers_share: their part in
    the aggregate, in the clear. failure: why there was no aggregate. stages_s: seconds by stage.
    wall_s: seconds of the whole round. start_s: seconds that all processes took to start before
    it, which are no part of the round; None for all but the first round of a run or of its rest.
    """

    round: int
    accuracy: float | None = None
    loss: float | None = None
    attack_success: float | None = None
    selected: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    rejected: Mapping[int, str] = field(default_factory=dict)
    absent: tuple[int, ...] = ()
    byzantine_selected: int = 0
    attackers_share: float | None = None
    failure: str = ""
    stages_s: Mapping[str, float] = field(default_factory=dict)
    wall_s: float | None = None
    start_s: float | None = None

    @property
    def selective(self) -> bool:
        """Whether the rule left out an update. Where it does not, all have a weight, some a tiny
        one; and a round that failed says nothing of anybody's update.
        """
        return bool(self.dropped) and not self.failure

    def to_json(self) -> dict[str, Any]:
        return {
            "round": self.round,
            **_scores(vars(self)),
            "selected": list(self.selected),
            "dropped": list(self.dropped),
            "rejected": {str(client): reason for client, reason in self.rejected.items()},
            "absent": list(self.absent),
            "byzantine_selected": self.byzantine_selected,
            "attackers_share": finite(self.attackers_share),
            "failure": self.failure,
            "stages_s": {stage: finite(seconds) for stage, seconds in self.stages_s.items()},
            "wall_s": finite(self.wall_s),
            "start_s": finite(self.start_s),
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Read a row. Raises KeyError, TypeError or ValueError if this is no such row."""
        return cls(
            round=int(row["round"]),
            **_scores(row),
            selected=_numbers(row.get("selected")),
            dropped=_numbers(row.get("dropped")),
            rejected={int(who): str(why) for who, why in (row.get("rejected") or {}).items()},
            absent=_numbers(row.get("absent")),
            byzantine_selected=int(row.get("byzantine_selected") or 0),
            attackers_share=finite(row.get("attackers_share")),
            failure=str(row.get("failure") or ""),
            stages_s={
                str(stage): finite(seconds) or 0.0
                for stage, seconds in (row.get("stages_s") or {}).items()
            },
            wall_s=finite(row.get("wall_s")),
            start_s=finite(row.get("start_s")),
        )


@dataclass(frozen=True)
class BaselineMetrics:
    """How plain averaging does after the same round."""

    round: int
    accuracy: float | None = None
    loss: float | None = None
    attack_success: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {"round": self.round, **_scores(vars(self))}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Read a row. Raises KeyError, TypeError or ValueError if this is no such row."""
        return cls(round=int(row["round"]), **_scores(row))


class Metrics:
    """Writes the metrics of a run that begins, or goes on, with round `first`.

    Records of that round and of later ones are dropped: they are run again. first_baseline: the
    same for plain averaging, if that goes on with another round.
    """

    def __init__(self, folder: Path, *, first: int = 1, first_baseline: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        _keep_before(first, folder / METRICS, RoundMetrics.from_json)
        _keep_before(first_baseline or first, folder / BASELINE, BaselineMetrics.from_json)
        # Event files are named after the second in which they were made, which may be the same for
        # the run that died and for the one that goes on.
        self._board = SummaryWriter(
            logdir=str(folder / TENSORBOARD),
            purge_step=first if first > 1 else None,
            flush_secs=_FLUSH_SECONDS,
            filename_suffix=f".from-round-{first}",
        )

    def write(self, row: RoundMetrics) -> None:
        _append(self._folder / METRICS, row)
        self._scalars(
            row.round,
            accuracy=row.accuracy,
            loss=row.loss,
            attack_success=row.attack_success,
            byzantine_selected=row.byzantine_selected,
            wall_s=row.wall_s,
            start_s=row.start_s,
        )
        self._scalars(row.round, "stages/", **row.stages_s)

    def baseline(self, row: BaselineMetrics) -> None:
        _append(self._folder / BASELINE, row)
        self._scalars(
            row.round,
            "baseline/",
            accuracy=row.accuracy,
            loss=row.loss,
            attack_success=row.attack_success,
        )

    def close(self) -> None:
        """End TensorBoard's file. The lines are in theirs already."""
        self._board.close()

    def _scalars(self, step: int, prefix: str = "", **scalars: float | None) -> None:
        for name, value in scalars.items():
            if finite(value) is not None:
                self._board.add_scalar(prefix + name, value, step)


def read(folder: Path) -> list[RoundMetrics]:
    """Read the rounds on record, in order. Raises ConfigError if the file is damaged."""
    return _read(folder / METRICS, RoundMetrics.from_json)


def read_baseline(folder: Path) -> list[BaselineMetrics]:
    """Read the same for plain averaging. Empty if that was not run."""
    return _read(folder / BASELINE, BaselineMetrics.from_json)


def start_up(rows: Iterable[RoundMetrics]) -> float | None:
    """The seconds of all starts: a run that was resumed has several. None if none was timed."""
    known = [row.start_s for row in rows if row.start_s is not None]
    return sum(known) if known else None


def finite(value: float | None) -> float | None:
    """The value, or None for NaN and infinities, which JSON lacks. Raises TypeError, ValueError."""
    if value is None or not math.isfinite(number := float(value)):
        return None
    return number


def _scores(row: Mapping[str, Any]) -> dict[str, float | None]:
    return {name: finite(row.get(name)) for name in ("accuracy", "loss", "attack_success")}


_Row = TypeVar("_Row", RoundMetrics, BaselineMetrics)


def _read(path: Path, parse: Callable[[Mapping[str, Any]], _Row]) -> list[_Row]:
    rows: dict[int, _Row] = {}
    for number, line in enumerate(_lines(path), 1):
        try:
            row = parse(line)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _damaged(path, number) from None
        rows[row.round] = row
    return [rows[number] for number in sorted(rows)]


def _lines(path: Path) -> list[dict[str, Any]]:
    """Parse every line but a torn last one: no part of a JSON object is an object itself."""
    try:
        *whole, last = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    lines = [_parsed(line) for line in whole]
    if None in lines:
        raise _damaged(path, lines.index(None) + 1)
    return [line for line in (*lines, _parsed(last)) if line is not None]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _damaged(path: Path, number: int) -> ConfigError:
    return ConfigError(f"{path} is damaged: line {number} is not the record of a round")


def _keep_before(first: int, path: Path, parse: Callable[[Mapping[str, Any]], _Row]) -> None:
    """Drop later rounds from a file, if it exists: a run without plain averaging has none."""
    if path.exists():
        kept = [row for row in _read(path, parse) if row.round < first]
        files.write(path, [_encoded(row) for row in kept], mode=_MODE)


def _append(path: Path, row: RoundMetrics | BaselineMetrics) -> None:
    with path.open("ab") as file:
        file.write(_encoded(row))


def _encoded(row: RoundMetrics | BaselineMetrics) -> bytes:
    return json.dumps(row.to_json(), allow_nan=False).encode() + b"\n"


def _numbers(clients: Iterable[Any] | None) -> tuple[int, ...]:
    return tuple(int(client) for client in clients or ())

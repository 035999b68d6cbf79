"""The same federation in the clear, without any of Ostraka, to compare with.

plain averaging   the mean of all updates
Multi-Krum        the rule that the enclave uses, on float64 distances of the same clipped updates

python -m ostraka_lab.baselines RUN DEFENCE DONE
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ostraka import files, logs
from ostraka.arrays import Float32, Float64
from ostraka.config import Manifest, Terms
from ostraka.core import gram
from ostraka.core.rules import krum
from ostraka.errors import OstrakaError
from ostraka_lab.experiment import UNJUDGED, Experiment, Judge, Participant, Task
from ostraka_lab.folder import RunFolder
from ostraka_lab.names import find

PLAIN, MULTI_KRUM = "plain", "multi-krum"

_LOG = logging.getLogger("ostraka.lab.clear")
_BLOCK = 2**18  # columns at a time, so that float64 copies stay small


@dataclass(frozen=True, eq=False)
class Aggregate:
    """A mean (d,) of the rows that were selected."""

    mean: Float64
    selected: tuple[int, ...]


Rule = Callable[[Float32], Aggregate]
"""Aggregates updates (n, d)."""


@dataclass(frozen=True, eq=False)
class ClearRound:
    """One round in the clear. Clients are numbers; model: after it (d,); updates: (n, d)."""

    number: int
    model: Float32
    selected: tuple[int, ...]
    updates: Float32
    seconds: float


def plain_average(updates: Float32) -> Aggregate:
    """Average all updates. One NaN makes the mean NaN, as in any plain average."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean: Float64 = updates.mean(axis=0, dtype=np.float64)
    return Aggregate(mean, tuple(range(len(updates))))


def multi_krum(f: int, k: int | None) -> Rule:
    """Make Multi-Krum as the enclave does it. Rows that are not finite lower n, f and k alike."""

    def rule(updates: Float32) -> Aggregate:
        finite = np.flatnonzero([np.isfinite(row).all() for row in updates])
        lost = len(updates) - len(finite)
        clipped = clip(updates[finite], f)
        squared = squared_distances(clipped)
        left = max(0, f - lost)
        keep = min(k or len(finite), len(finite) - left)
        kept = krum.multi_krum(squared, left, keep)
        mean: Float64 = clipped[list(kept)].mean(axis=0, dtype=np.float64)
        return Aggregate(mean, tuple(finite[list(kept)].tolist()))

    return rule


def clip(rows: Float32, f: int) -> Float64:
    """Clip rows (n, d) to the norm that the enclave would allow."""
    norms = np.array([np.linalg.norm(row.astype(np.float64)) for row in rows])
    limit = Terms(Manifest.flat(rows.shape[1]), f=f).clipping_norm(norms)
    scales: Float64 = limit / np.maximum(norms, limit)
    return rows * scales[:, None]


def squared_distances(rows: Float64) -> Float64:
    products = np.zeros((len(rows), len(rows)))
    for start in range(0, rows.shape[1], _BLOCK):
        gram.add_gram(products, rows[:, start : start + _BLOCK])
    return gram.from_gram(products)


class Clear:
    """The participants of an experiment, in one process, with the lab as their server."""

    def __init__(self, task: Task, rule: Rule) -> None:
        self._experiment: Experiment = task.experiment
        self._rule = rule
        shared = task.model()
        self.model = task.first()[1]
        self._participants = [
            Participant(task, number, shared) for number in task.experiment.numbers
        ]

    def rounds(self, after: int = 0) -> Iterator[ClearRound]:
        """Run all rounds that follow this one."""
        for number in range(after + 1, self._experiment.rounds + 1):
            yield self.round(number)

    def round(self, number: int) -> ClearRound:
        begun = time.perf_counter()
        own = {each.number: each.train(self.model, number) for each in self._participants}
        known = self._known({client: trained.update for client, trained in own.items()})
        updates = np.stack(
            [
                each.sends(own[each.number].update, number, known if each.asks else None)
                for each in self._participants
            ]
        )
        result = self._rule(updates)
        with np.errstate(over="ignore", invalid="ignore"):
            self.model = (self.model + result.mean).astype(np.float32)
        return ClearRound(
            number=number,
            model=self.model,
            selected=tuple(row + 1 for row in result.selected),
            updates=updates,
            seconds=round(time.perf_counter() - begun, 4),
        )

    def _known(self, own: dict[int, Float32]) -> Float32 | None:
        attack = self._experiment.attacking
        if attack is None or not attack.needs_known:
            return None
        return np.stack([own[client] for client in self._experiment.telling])


@dataclass(frozen=True)
class ClearRoundDone:
    """How a defence in the clear does after a round. selected: the numbers of clients."""

    round: int
    selected: tuple[int, ...]
    seconds: float
    accuracy: float | None
    loss: float | None
    attack_success: float | None


def main() -> int:
    run, defence, done = sys.argv[1:]
    logs.setup(json=True)
    torch.set_num_threads(1)
    try:
        aggregate(RunFolder(Path(run)), defence, int(done))
    except OstrakaError as error:
        _LOG.error(str(error))
        return 1
    return 0


def aggregate(folder: RunFolder, defence: str, done: int) -> None:
    """Run all rounds after the first `done`."""
    task = Task.load(folder.load()[0])
    clear, judge = Clear(task, rule(task.experiment, defence)), Judge(task)
    if done:
        clear.model = np.fromfile(_state(folder, defence, done), "<f4")
    for each in clear.rounds(after=done):
        # The model comes first: a round on record without its model could not be resumed.
        files.write(_state(folder, defence, each.number), [each.model.data])
        judged = task.experiment.evaluates(each.number)
        scores = judge.scores(each.model) if judged else UNJUDGED
        logs.event(_LOG, ClearRoundDone(each.number, each.selected, each.seconds, **scores))
        _state(folder, defence, each.number - 2).unlink(missing_ok=True)


def rule(experiment: Experiment, defence: str) -> Rule:
    """The rule of a defence. Raises ConfigError for an unknown one."""
    krum = multi_krum(experiment.tolerated, experiment.k)
    return find("defence", defence, {PLAIN: plain_average, MULTI_KRUM: krum})


def _state(folder: RunFolder, defence: str, number: int) -> Path:
    return folder.root / f"{defence}-{number}.f32"


if __name__ == "__main__":
    sys.exit(main())

"""The same federation in the clear, without any of Ostraka, to compare with.

plain             the mean of all updates
any composition   such as arc+nnm+geometric-median: what the enclave does (see `defence`)

python -m ostraka_lab.baselines RUN DEFENCE DONE [RUN DEFENCE DONE ...]
"""

import logging
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from ostraka import files, logs
from ostraka.arrays import Float32, Float64
from ostraka.client.kept import InMemory
from ostraka.client.momentum import Momentum
from ostraka.client.outgoing import Feedback, Outgoing
from ostraka.config import Manifest, Terms
from ostraka.core import rules, uploads
from ostraka.errors import OstrakaError
from ostraka_lab.defence import Aggregate, Defence, Past, Plain
from ostraka_lab.experiment import Experiment
from ostraka_lab.folder import RunFolder
from ostraka_lab.task import UNJUDGED, AnyTask, Judge, Participant, load_task

PLAIN = "plain"
AGGREGATE = "aggregate"  # the stage of a round in the clear that has a time of its own

_LOG = logging.getLogger("ostraka.lab.clear")


class Rule(Protocol):
    """Aggregates updates (n, d)."""

    def __call__(self, updates: Float32, past: Past = ..., /) -> Aggregate: ...


@dataclass(frozen=True, eq=False)
class ClearRound:
    """One round in the clear. Clients are numbers; model: after it (d,); updates: (n, d).

    attackers_share: what part the attackers have in the aggregate; None where that differs by
    column, or there is no aggregate. failure: why there is none; the model is then as before.
    seconds: of the clock. aggregate_s: of the processor, for the aggregate alone.
    """

    number: int
    model: Float32
    selected: tuple[int, ...]
    updates: Float32
    seconds: float
    aggregate_s: float
    attackers_share: float | None = None
    failure: str = ""


plain_average = Plain()


class Clear:
    """The participants of an experiment, in one process, with the lab as their server."""

    def __init__(self, task: AnyTask, rule: Rule) -> None:
        self._experiment: Experiment = task.experiment
        self._rule = rule
        shared = task.model()
        manifest, self.model = task.first()
        self.last: Float64 | None = None  # aggregate
        defence = rule if isinstance(rule, Defence) else None
        self._participants = [
            Participant(task, number, shared, defence) for number in task.experiment.numbers
        ]
        self._format = uploads.find(task.experiment.upload)
        self._ways_out = {
            number: _way_out(task.experiment, number, manifest)
            for number in task.experiment.numbers
        }

    def rounds(self, after: int = 0) -> Iterator[ClearRound]:
        """Run all rounds that follow this one."""
        for number in range(after + 1, self._experiment.rounds + 1):
            yield self.round(number)

    def round(self, number: int) -> ClearRound:
        begun = time.perf_counter()
        own = {each.number: self._own(each, number) for each in self._participants}
        updates = self._sent(own, number, self._known(own))
        before = time.thread_time()
        result = self._rule(updates, Past(number, self.last))
        aggregate_s = round(time.thread_time() - before, 5)
        # As the enclave does: its aggregates are float32. In training the last bit soon tells.
        with np.errstate(over="ignore", invalid="ignore"):
            aggregate = result.mean.astype(np.float32).astype(np.float64)
            self.model = (self.model + aggregate).astype(np.float32)
        if not result.failure:
            self.last = aggregate
        return ClearRound(
            number=number,
            model=self.model,
            selected=tuple(row + 1 for row in result.selected),
            updates=updates,
            seconds=round(time.perf_counter() - begun, 4),
            aggregate_s=aggregate_s,
            attackers_share=self._attackers_share(result),
            failure=result.failure,
        )

    def _own(self, participant: Participant, number: int) -> Float32:
        """Its own update (d,), as an honest client sends it; zeros if nothing comes of it."""
        if participant.idle:
            participant.watch(self.model, number)
            return np.zeros_like(self.model)
        trained = participant.train(self.model, number)
        return self._ways_out[participant.number].apply(trained.update, number).widened()

    def _sent(self, own: dict[int, Float32], number: int, known: Float32 | None) -> Float32:
        """What all of them send (n, d)."""
        attack, sent = self._experiment.attacking, list[Float32]()
        common: Float32 | None = None
        for each in self._participants:
            if each.attack is not None and common is not None:
                sent.append(common)
                continue
            sent.append(each.sends(own[each.number], number, known if each.asks else None))
            if sent[-1] is not own[each.number]:
                sent[-1] = self._rounded(each.number, sent[-1])
            if each.attack is not None and attack is not None and attack.alike:
                common = sent[-1]
        return np.stack(sent)

    def _rounded(self, client: int, update: Float32) -> Float32:
        """What an attacker's vector (d,) becomes on its way. What is not finite is rejected."""
        if not np.isfinite(update).all():
            return update
        stream = self._experiment.rounding(client)
        return self._format.encode(update, stream.fill).widened()

    def _attackers_share(self, result: Aggregate) -> float | None:
        if result.shares is None:
            return None
        return float(sum(result.shares[number - 1] for number in self._experiment.attackers))

    def _known(self, own: dict[int, Float32]) -> Float32 | None:
        attack = self._experiment.attacking
        if attack is None or not attack.needs_known:
            return None
        return np.stack([own[client] for client in self._experiment.telling])


def _way_out(experiment: Experiment, client: int, manifest: Manifest) -> Outgoing:
    """What a client does to its updates, with a memory that lasts as long as the run."""
    terms = Terms(manifest, f=0, upload=experiment.upload)
    feedback = Feedback(terms, InMemory(), entropy=experiment.rounding(client).bytes)
    return Outgoing(Momentum(experiment.client_momentum, manifest, InMemory()), feedback)


@dataclass(frozen=True)
class ClearRoundDone:
    """How a defence in the clear does after a round: see `ClearRound`, and `Judge.scores`."""

    round: int
    selected: tuple[int, ...]
    seconds: float
    aggregate_s: float
    attackers_share: float | None
    failure: str
    accuracy: float | None
    loss: float | None
    attack_success: float | None


def main() -> int:
    logs.setup(json=True)
    torch.set_num_threads(1)
    words = iter(sys.argv[1:])
    try:
        for run, defence, done in zip(words, words, words, strict=True):
            aggregate(RunFolder(Path(run)), defence, int(done))
    except OstrakaError as error:
        _LOG.error(str(error))
        return 1
    return 0


def aggregate(folder: RunFolder, defence: str, done: int) -> None:
    """Run all rounds after the first `done`."""
    task = load_task(folder.load()[0])
    clear, judge = Clear(task, rule(task.experiment, defence)), Judge(task)
    if done:
        clear.model = np.fromfile(_state(folder, defence, done), "<f4")
        before = _state(folder, defence, done - 1)
        earlier = np.fromfile(before, "<f4") if before.exists() else task.first()[1]
        clear.last = np.subtract(clear.model, earlier, dtype=np.float64)
    for each in clear.rounds(after=done):
        # The model comes first: a round on record without its model could not be resumed.
        if task.experiment.resumes_in_the_clear:
            files.write(_state(folder, defence, each.number), [each.model.data])
        judged = task.experiment.evaluates(each.number)
        scores = judge.scores(each.model) if judged else UNJUDGED
        logs.event(
            _LOG,
            ClearRoundDone(
                each.number,
                each.selected,
                each.seconds,
                each.aggregate_s,
                each.attackers_share,
                each.failure,
                **scores,
            ),
        )
        _state(folder, defence, each.number - 2).unlink(missing_ok=True)


def rule(experiment: Experiment, defence: str) -> Defence:
    """A defence: plain, or any composition of rules with the experiment's n, f, k and root client.

    Raises ConfigError for an unknown one, and for one that cannot stand on so few clients.
    """
    if defence == PLAIN:
        return plain_average
    composition = experiment.composed(defence)
    rules.require_enough(composition, experiment.clients, experiment.tolerated)
    return experiment.defended(composition)


def _state(folder: RunFolder, defence: str, number: int) -> Path:
    return folder.root / f"{re.sub(r'[^A-Za-z0-9.+=-]+', '-', defence)}-{number}.f32"


if __name__ == "__main__":
    sys.exit(main())

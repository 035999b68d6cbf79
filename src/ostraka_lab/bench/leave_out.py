"""`ostraka bench leakage`: what the host learns by leaving one client out of the next round.

python -m ostraka_lab.bench.leave_out PLAN

The leave-out attack keeps to the protocol. Round N is published with everybody and round N + 1
without the victim, as if it had been late. Successive updates of a client are alike, so that
the others' part nearly cancels in the difference of the two aggregates. Clients train on real data
by the lab's own code, and every round goes through the real roles.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch

from ostraka.arrays import Float32, Float64
from ostraka.core import rules
from ostraka.errors import ConfigError
from ostraka.protocol.round import run_round
from ostraka_lab.baselines import Clear, ClearRound, Rule
from ostraka_lab.bench.process import Begin, Figures, report
from ostraka_lab.defence import Aggregate, Past
from ostraka_lab.experiment import NO_ATTACK, Experiment
from ostraka_lab.task import Task

MEAN = "mean"
DEFAULT = str(rules.compose(rules.DEFAULT, rules.DEFAULT_PRE))
_DEFENCES = (MEAN, DEFAULT, rules.PAPER)
_QUARTILES = (25, 50, 75)


@dataclass(frozen=True)
class Plan:
    """What to measure.

    rounds: how many are attacked, once for every client. steps: of local training in a round.
    clients, momenta: each pair is a federation of its own; a momentum is that of the clients, over
    the rounds. warm_up: rounds before the first that is attacked.
    """

    rounds: int
    steps: int
    dataset: str = "digits"
    partition: str = "dirichlet:0.3"
    clients: tuple[int, ...] = (10, 25)
    momenta: tuple[float, ...] = (0.0, 0.9)
    warm_up: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.warm_up < 0:
            raise ConfigError(
                f"the attack needs a round or more, and no fewer than 0 before it; "
                f"got {self.rounds} and {self.warm_up}"
            )
        for each in self.federations():
            rules.require_enough(rules.parse(each.rule), each.clients - 1, each.f)
            _ = self.experiment(each)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        fields: dict[str, Any] = json.loads(text)
        for name in ("clients", "momenta"):
            fields[name] = tuple(fields[name])
        return cls(**fields)

    def federations(self) -> Iterator["Attacked"]:
        """List the federations to attack: one for each row of the table."""
        for clients in self.clients:
            for rule in _DEFENCES:
                for momentum in self.momenta:
                    yield Attacked(clients, rule, momentum)

    def experiment(self, attacked: "Attacked") -> Experiment:
        return Experiment(
            dataset=self.dataset,
            partition=self.partition,
            clients=attacked.clients,
            byzantine=0,
            f=attacked.f,
            attack=NO_ATTACK,
            rounds=self.warm_up + self.rounds + 1,
            steps=self.steps,
            client_momentum=attacked.momentum,
            seed=self.seed,
        )


@dataclass(frozen=True)
class Attacked:
    """One federation. rule: with what comes before it. The mean of all has no f to withstand."""

    clients: int
    rule: str
    momentum: float

    @property
    def f(self) -> int:
        return 0 if self.rule == MEAN else max(1, self.clients // 5)

    def __str__(self) -> str:
        return f"{self.clients} clients, {self.rule}, momentum {self.momentum:g}"


@dataclass(frozen=True, eq=False)
class Seen:
    """What the host sees of a round. aggregate: (d,). kept: how many updates have a weight."""

    aggregate: Float64 = field(repr=False)
    kept: int


def estimate(full: Seen, without: Seen) -> Float64:
    """Estimate the update (d,) that the client sent in the first of two rounds.

    k A - k' A' is the sum over all clients less the sum over the others a round later. It is
    exactly the victim's update if the others send the same again, and the rule weighs all that it
    keeps the same.
    """
    return full.kept * full.aggregate - without.kept * without.aggregate


def cosine(one: Float64 | Float32, other: Float64 | Float32) -> float:
    """The cosine of the angle between two vectors (d,): 0 if one of them has no direction."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / lengths if lengths > 0 else 0.0


def by_protocol(defence: str, f: int) -> Rule:
    """Aggregate by a whole round of the protocol."""
    composition = rules.parse(defence)

    def rule(updates: Float32, past: Past | None = None) -> Aggregate:
        result = run_round(updates, f=f, rule=composition.name, pre=composition.pre)
        return Aggregate(result.aggregate.astype(np.float64), result.selected)

    return rule


@dataclass(frozen=True)
class Cosines:
    """With the victim's true update, one for each round and victim.

    estimated: of the estimate. guessed: of the aggregate, which everybody sees without an attack.
    """

    estimated: list[float] = field(default_factory=list)
    guessed: list[float] = field(default_factory=list)


def attack(task: Task, rule: Rule, *, warm_up: int) -> Cosines:
    """Attack each round after the warm-up, once for every client.

    Clients train once a round, whoever is left out of it: all start from the model of the round
    before, in which everybody took part.
    """
    clear, found = Clear(task, rule), Cosines()
    rounds, before = clear.rounds(), clear.model
    for last in islice(rounds, warm_up):
        before = last.model
    attacked = next(rounds)
    for following in rounds:
        moved = attacked.model.astype(np.float64) - before
        _leave_out(Seen(moved, len(attacked.selected)), attacked, following, rule, found)
        before, attacked = attacked.model, following
    return found


def _leave_out(
    seen: Seen, attacked: ClearRound, following: ClearRound, rule: Rule, found: Cosines
) -> None:
    """Leave every client out of the following round, one at a time."""
    for victim, update in enumerate(attacked.updates):
        without = rule(np.delete(following.updates, victim, axis=0))
        estimated = estimate(seen, Seen(without.mean, len(without.selected)))
        found.estimated.append(cosine(estimated, update))
        found.guessed.append(cosine(seen.aggregate, update))


def measure(plan: Plan, begin: Begin) -> Figures:
    torch.set_num_threads(1)
    federations, rows = list(plan.federations()), []
    for done, each in enumerate(federations):
        begin(f"leave-out attack: {each}", done, len(federations))
        task = Task.load(plan.experiment(each))
        found = attack(task, by_protocol(each.rule, each.f), warm_up=plan.warm_up)
        rows.append(asdict(each) | {"f": each.f} | summary(found))
    return asdict(plan) | {"rows": rows}


def summary(found: Cosines) -> Figures:
    """The quartiles of the estimate's cosines, and the median of the guess's."""
    lower, median, upper = np.percentile(found.estimated, _QUARTILES).tolist()
    return {
        "attacks": len(found.estimated),
        "median": median,
        "quartiles": [lower, upper],
        "guess_median": float(np.median(found.guessed)),
    }


if __name__ == "__main__":
    asked = Plan.from_json(sys.argv[1])
    sys.exit(report(partial(measure, asked)))

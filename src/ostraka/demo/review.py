"""What a round did, checked against what the clients must have sent.

Clients are deterministic. From the published models alone everybody can compute their updates, and
so what the mean of the selected ones is, and where plain averaging would have led.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ostraka.arrays import Float32, Float64
from ostraka.demo import task
from ostraka.demo.settings import Demo
from ostraka.errors import Rejection


@dataclass(frozen=True, eq=False)
class Published:
    """What a round has made public. Clients are numbers; before, after: the models (d,).

    workers: who measured, nobody if it was the enclave itself.
    """

    number: int
    before: Float32
    after: Float32
    selected: tuple[int, ...]
    rejected: dict[int, Rejection]
    workers: tuple[str, ...] = ()
    simulated: bool = True


@dataclass(frozen=True)
class DemoRound:
    """What happened in one round. Clients are numbers; `attackers` says what each one did.

    relative_difference: of the result from the mean of the selected updates, computed in the clear.
    ostraka_error, plain_error: how far the result, and the plain average of the same updates, lie
    from the mean of the honest ones, in multiples of its length. ostraka_left, plain_left: what is
    left of the way to the optimum by either, the whole way being 1.
    """

    number: int
    attackers: dict[int, str]
    selected: tuple[int, ...]
    dropped: tuple[int, ...]
    rejected: dict[int, Rejection]
    workers: tuple[str, ...]
    simulated: bool
    relative_difference: float
    ostraka_error: float
    plain_error: float
    ostraka_left: float
    plain_left: float

    @property
    def byzantine_selected(self) -> tuple[int, ...]:
        return tuple(sorted(self.attackers.keys() & set(self.selected)))


@dataclass(frozen=True)
class Summary:
    """All rounds together: the worst of each error."""

    rounds: int
    masking: str
    attack: str
    simulated: bool
    byzantine_selected: int
    max_relative_difference: float
    ostraka_error: float
    plain_error: float
    ostraka_left: float
    plain_left: float


class Review:
    """Judges one round after the other. Plain averaging runs along, with the same clients."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self._plain_model = task.first_model(demo).astype(np.float64)

    def judge(self, published: Published) -> DemoRound:
        demo, number = self._demo, published.number
        updates = task.updates(demo, number, published.before)
        honest = _mean(updates, task.honest(demo))
        # None of the honest updates is so long that it would be clipped.
        expected = _mean(updates, published.selected)
        plain_updates = task.updates(demo, number, self._plain_model)
        self._plain_model = self._plain_model + task.plain_average(plain_updates)
        everybody = set(range(1, demo.clients + 1))
        return DemoRound(
            number=number,
            attackers=task.attackers(demo),
            selected=published.selected,
            dropped=tuple(sorted(everybody - {*published.selected, *published.rejected})),
            rejected=published.rejected,
            workers=published.workers,
            simulated=published.simulated,
            relative_difference=_off(published, expected),
            ostraka_error=_off(published, honest),
            plain_error=task.length(task.plain_average(updates) - honest) / task.length(honest),
            ostraka_left=task.length(published.after - task.optimum(demo)),
            plain_left=task.length(self._plain_model - task.optimum(demo)),
        )


def summarise(demo: Demo, rounds: Sequence[DemoRound]) -> Summary:
    return Summary(
        rounds=len(rounds),
        masking=demo.masking,
        attack=demo.attack,
        simulated=any(each.simulated for each in rounds),
        byzantine_selected=sum(len(each.byzantine_selected) for each in rounds),
        max_relative_difference=max(each.relative_difference for each in rounds),
        ostraka_error=max(each.ostraka_error for each in rounds),
        plain_error=max(each.plain_error for each in rounds),
        ostraka_left=rounds[-1].ostraka_left,
        plain_left=rounds[-1].plain_left,
    )


def _mean(updates: Float32, clients: Sequence[int]) -> Float64:
    mean: Float64 = updates[np.asarray(clients) - 1].mean(axis=0, dtype=np.float64)
    return mean


def _off(published: Published, expected: Float64) -> float:
    """How far the step to the new model is from this one, in multiples of its length.

    Models are in float32: compared is what the expected step makes of the old one, rounded alike.
    """
    model = (published.before + expected).astype(np.float32)
    return task.length(published.after.astype(np.float64) - model) / task.length(expected)

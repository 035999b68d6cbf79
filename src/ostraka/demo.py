"""Rounds on a synthetic task, with attackers: what Ostraka's result is, and what plain averaging's.

The task is a quadratic: each client pulls the model towards an optimum of its own, and these lie
around one that all share. An update is a step that way, measured with noise. Nothing is trained on
real data here.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ostraka.arrays import Float32, Float64
from ostraka.config import require_krum
from ostraka.errors import ConfigError, Rejection
from ostraka.events import Event
from ostraka.round import run_round

# The masking that is shown if none is asked for.
DEFAULT_MASKING = "exact"
MIXED = "mixed"

_STEP = 0.5  # of the way to the optimum, in one round
_DIVERSITY = 0.1  # how far the clients' optima lie apart, for a way of length 1
_NOISE = 0.1  # of one update, likewise

Attack = Callable[[Float64, np.random.Generator], Float64]


def sign_flip(update: Float64, rng: np.random.Generator) -> Float64:
    """Ten times the opposite of the honest update."""
    return -10 * update


def scale(update: Float64, rng: np.random.Generator) -> Float64:
    """A thousand times the honest update."""
    return 1000 * update


def noise(update: Float64, rng: np.random.Generator) -> Float64:
    """Noise ten times as long as the honest update."""
    return rng.normal(scale=10 * _rms(update), size=update.shape)


def not_a_number(update: Float64, rng: np.random.Generator) -> Float64:
    """The honest update with one value that is not a number."""
    return np.concatenate(([np.nan], update[1:]))


ATTACKS: dict[str, Attack] = {
    "sign-flip": sign_flip,
    "scale": scale,
    "noise": noise,
    "nan": not_a_number,
}
# What each attacker does in turn where they are mixed: the first is rejected outright.
_MIXTURE = ("nan", "sign-flip", "scale", "noise")


@dataclass(frozen=True)
class Demo:
    """What to show. `attack` is a name in ATTACKS, or "mixed": they take turns."""

    clients: int = 12
    byzantine: int = 3
    dim: int = 20_000
    rounds: int = 5
    attack: str = MIXED
    masking: str = DEFAULT_MASKING
    distances: str = "workers"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("byzantine", 0), ("dim", 1), ("rounds", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}; got {getattr(self, name)}")
        require_krum(self.clients, self.byzantine)
        if self.attack not in (*ATTACKS, MIXED):
            known = ", ".join((*ATTACKS, MIXED))
            raise ConfigError(f"the attack is one of {known}; got {self.attack!r}")

    def attacks(self) -> list[str]:
        """What each attacker does."""
        kinds = _MIXTURE if self.attack == MIXED else (self.attack,)
        return [kinds[place % len(kinds)] for place in range(self.byzantine)]


@dataclass(frozen=True)
class DemoRound:
    """What happened in one round. Clients are row numbers; `attackers` says what each one did.

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
    events: tuple[Event, ...]
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
    byzantine_selected: int
    max_relative_difference: float
    ostraka_error: float
    plain_error: float
    ostraka_left: float
    plain_left: float


def run(demo: Demo) -> Iterator[DemoRound]:
    """The rounds, one by one. Both models start at 0 and see the same clients."""
    rng = np.random.default_rng(demo.seed)
    n, d = demo.clients, demo.dim
    optimum = _direction(rng, d)
    optima = optimum + _DIVERSITY * rng.normal(scale=d**-0.5, size=(n, d))
    rows = sorted(rng.choice(n, size=demo.byzantine, replace=False).tolist())
    attackers = dict(zip(rows, demo.attacks(), strict=True))
    model, plain_model = np.zeros(d), np.zeros(d)
    for number in range(1, demo.rounds + 1):
        jitter = _NOISE * rng.normal(scale=d**-0.5, size=(n, d))
        updates = _updates(model, optima, jitter, attackers, rng)
        result = run_round(
            updates, f=demo.byzantine, masking=demo.masking, distances=demo.distances
        )
        honest = _mean(updates, np.delete(np.arange(n), rows))
        # None of the honest updates is so long that it would be clipped.
        expected = _mean(updates, result.selected)

        model = model + result.aggregate
        plain_updates = _updates(plain_model, optima, jitter, attackers, rng)
        plain_model = plain_model + _plain_average(plain_updates)
        yield DemoRound(
            number=number,
            attackers=attackers,
            selected=result.selected,
            dropped=tuple(sorted(set(range(n)) - set(result.selected) - set(result.rejected))),
            rejected=result.rejected,
            events=result.events,
            relative_difference=_relative(result.aggregate, expected),
            ostraka_error=_relative(result.aggregate, honest),
            plain_error=_relative(_plain_average(updates), honest),
            ostraka_left=_length(model - optimum),
            plain_left=_length(plain_model - optimum),
        )


def summarise(demo: Demo, rounds: Sequence[DemoRound]) -> Summary:
    return Summary(
        rounds=len(rounds),
        masking=demo.masking,
        attack=demo.attack,
        byzantine_selected=sum(len(each.byzantine_selected) for each in rounds),
        max_relative_difference=max(each.relative_difference for each in rounds),
        ostraka_error=max(each.ostraka_error for each in rounds),
        plain_error=max(each.plain_error for each in rounds),
        ostraka_left=rounds[-1].ostraka_left,
        plain_left=rounds[-1].plain_left,
    )


def _updates(
    model: Float64,
    optima: Float64,
    jitter: Float64,
    attackers: dict[int, str],
    rng: np.random.Generator,
) -> Float32:
    """What the clients send (n, d), the attackers' updates among them."""
    updates = _STEP * (optima - model + jitter)
    for row, attack in attackers.items():
        updates[row] = ATTACKS[attack](updates[row], rng)
    # A model that runs away leaves float32 in the end.
    with np.errstate(over="ignore"):
        return updates.astype(np.float32)


def _mean(updates: Float32, rows: npt.ArrayLike) -> Float64:
    mean: Float64 = updates[np.asarray(rows)].mean(axis=0, dtype=np.float64)
    return mean


def _plain_average(updates: Float32) -> Float64:
    """The mean of all finite rows: even a careless server leaves out the rest."""
    finite = np.flatnonzero(np.isfinite(updates).all(axis=1))
    return _mean(updates, finite) if finite.size else np.full(updates.shape[1], np.nan)


def _direction(rng: np.random.Generator, d: int) -> Float64:
    vector = rng.normal(size=d)
    direction: Float64 = vector / _length(vector)
    return direction


def _relative(result: Float32 | Float64, expected: Float64) -> float:
    return _length(result - expected) / _length(expected)


def _length(vector: Float64) -> float:
    return float(np.linalg.norm(vector))


def _rms(vector: Float64) -> float:
    return _length(vector) / math.sqrt(len(vector))

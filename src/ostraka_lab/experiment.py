"""Names that users give: of models, data sets and attacks."""

from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np

from ostraka.config import MAX_WORKERS, MIN_WORKERS, require_krum
from ostraka.errors import ConfigError
from ostraka_lab.attacks import ATTACKS, Attack
from ostraka_lab.data import DATASETS, partition
from ostraka_lab.models import MODELS
from ostraka_lab.names import find
from ostraka_lab.training import Recipe

_T = TypeVar("_T")


NO_ATTACK = "none"
KNOWING = ("all", "own")

# What fits a data set, if nothing else is asked for.
_MODELS = {"digits": "mlp", "cifar10": "cnn"}
_OTHER_MODEL = "cnn"
_EVERY_CLIENT_A_PROCESS = 16
_PROCESSES = 2

# What a stream of numbers is for: each has one of its own.
_CAST, _TRAINING, _ATTACK, _POISON = range(4)


@dataclass(frozen=True)
class Experiment:
    """Everything that decides how a run goes, but for the secrets of its federation.

    model: None for one that fits the data set. attack_scale: None for the attack's own default.
    know: what attackers know of honest updates: "all", or "own" for what they would have sent
    themselves. steps, epochs: of local training; neither means one epoch. k: None for n - f.
    processes: how many the clients share; None for one each, unless they are many. evaluate_every:
    so many rounds; the last is always evaluated. deadline_s: how long the first round waits for a
    client that does not come.
    """

    dataset: str = "digits"
    model: str | None = None
    clients: int = 12
    byzantine: int = 3
    attack: str = "sign-flip"
    attack_scale: float | None = None
    know: str = "all"
    partition: str = "iid"
    rounds: int = 15
    steps: int | None = None
    epochs: int | None = None
    batch: int = 32
    learning_rate: float = 0.1
    momentum: float = 0.0
    worker_momentum: float = 0.0
    k: int | None = None
    masking: str = "exact"
    distances: str = "workers"
    workers: int = 2
    sketch: int | None = None
    seed: int = 0
    processes: int | None = None
    baseline: bool = False
    evaluate_every: int = 1
    deadline_s: float = 900.0

    def __post_init__(self) -> None:
        find("data set", self.dataset, DATASETS)
        find("model", self.architecture, MODELS)
        find("attack", self.attack, {**ATTACKS, NO_ATTACK: None})
        find("kind of knowledge", self.know, dict.fromkeys(KNOWING))
        partition.parse(self.partition)
        self._require_least(byzantine=0, rounds=1, seed=0, processes=1, evaluate_every=1)
        if not MIN_WORKERS <= self.workers <= MAX_WORKERS:
            raise ConfigError(f"{MIN_WORKERS} to {MAX_WORKERS} workers; got {self.workers}")
        if not self.deadline_s > 0:
            raise ConfigError(f"a deadline is some seconds; got {self.deadline_s}")
        require_krum(self.clients, self.byzantine)
        least, most = self.byzantine + 2, self.clients - self.byzantine
        if self.k is not None and not least <= self.k <= most:
            raise ConfigError(
                f"k is at least byzantine + 2 = {least} and at most clients - byzantine = {most}; "
                f"got {self.k}"
            )
        self._require_known()
        _ = self.recipe

    def _require_least(self, **least: int) -> None:
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ConfigError(f"{name} must be at least {bound}; got {value}")

    def _require_known(self) -> None:
        attack = self.attacking
        if attack is not None and len(self.telling) < attack.least_known:
            raise ConfigError(
                f"{attack.name} needs {attack.least_known} updates that attackers know, and they "
                f"know {len(self.telling)}: let them know all, or take more attackers"
            )

    @property
    def architecture(self) -> str:
        return self.model or _MODELS.get(self.dataset, _OTHER_MODEL)

    @property
    def recipe(self) -> Recipe:
        """How every client trains."""
        whole = self.steps is None and self.epochs is None
        return Recipe(
            steps=self.steps,
            epochs=1 if whole else self.epochs,
            batch=self.batch,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            worker_momentum=self.worker_momentum,
        )

    @property
    def numbers(self) -> range:
        """Of the clients."""
        return range(1, self.clients + 1)

    @property
    def attackers(self) -> tuple[int, ...]:
        """Who attacks: drawn from the seed, and nobody if there is no attack."""
        if self.attack == NO_ATTACK:
            return ()
        drawn = self.stream(_CAST).choice(self.clients, size=self.byzantine, replace=False) + 1
        return tuple(sorted(drawn.tolist()))

    @property
    def honest(self) -> tuple[int, ...]:
        attackers = self.attackers
        return tuple(number for number in self.numbers if number not in attackers)

    @property
    def telling(self) -> tuple[int, ...]:
        """The clients whose updates attackers know."""
        return self.honest if self.know == "all" else self.attackers

    @property
    def attacking(self) -> Attack | None:
        return ATTACKS[self.attack] if self.attackers else None

    @property
    def scale(self) -> float:
        """Of the attack."""
        if self.attack_scale is not None or self.attack == NO_ATTACK:
            return self.attack_scale or 0.0
        return ATTACKS[self.attack].default_scale(self.clients, self.byzantine)

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """The clients of each process."""
        few = self.clients <= _EVERY_CLIENT_A_PROCESS
        count = min(self.clients, self.processes or (self.clients if few else _PROCESSES))
        return [tuple(self.numbers[start::count]) for start in range(count)]

    def evaluates(self, number: int) -> bool:
        """Whether the model after this round is tested."""
        return number % self.evaluate_every == 0 or number == self.rounds

    @property
    def resumes_in_the_clear(self) -> bool:
        """Whether a run in the clear can go on from its last model: it keeps no momentum."""
        return self.worker_momentum == 0

    def training_seed(self, client: int, number: int) -> tuple[int, ...]:
        """Of one client's training in one round."""
        return (self.seed, _TRAINING, client, number)

    def attack_stream(self, client: int, number: int) -> np.random.Generator:
        return self.stream(_ATTACK, client, number)

    def poison_stream(self, client: int) -> np.random.Generator:
        return self.stream(_POISON, client)

    def stream(self, *purpose: int) -> np.random.Generator:
        """Numbers that every process draws alike."""
        return np.random.default_rng([self.seed, *purpose])

    def with_rounds(self, rounds: int) -> "Experiment":
        return replace(self, rounds=rounds)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Experiment":
        """Other fields are ignored: a run's folder says more than was asked for.

        Raises ConfigError, KeyError or TypeError.
        """
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__})

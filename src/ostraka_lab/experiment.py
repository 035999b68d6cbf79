"""An experiment: everything that decides how a run goes, and who attacks in it.

`task` has what is trained in it, and by whom.
"""

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ostraka.cli.federation_folder import CLIENT
from ostraka.config import MAX_WORKERS, MIN_WORKERS, require_sketches
from ostraka.core import rules, sketch, uploads
from ostraka.crypto.stream import KEY_BYTES, SecretStream
from ostraka.errors import ConfigError
from ostraka_lab import app as apps
from ostraka_lab.attacks import ATTACKS, Attack
from ostraka_lab.data import DATASETS, partition
from ostraka_lab.defence import Defence
from ostraka_lab.models import MODELS
from ostraka_lab.names import find
from ostraka_lab.training import Recipe

NO_ATTACK = "none"
KNOWING = ("all", "own")

# The model that fits a data set, if no other is asked for.
_MODELS = {"digits": "mlp", "cifar10": "cnn"}
_OTHER_MODEL = "cnn"
# What stands in place of a choice that an app has made by itself, and what it leaves no choice of.
_APPS_OWN = {"model": "the app's model", "partition": "the app's split"}
_NOT_OF_AN_APP = ("steps", "epochs", "batch", "learning_rate", "momentum", "root_images")
# Up to this number of clients, each has a process of its own; more share two.
_EVERY_CLIENT_A_PROCESS = 16
_PROCESSES = 2

# What random numbers are drawn for: each purpose has a stream of its own.
_CAST, _TRAINING, _ATTACK, _POISON, _ROOT, _ROUNDING = range(6)


@dataclass(frozen=True)
class Experiment:
    """Everything that decides how a run goes, except the secrets of its federation.

    byzantine: how many clients attack. f: how many are tolerated; None for as many.
    model: None for one that fits the data set. attack_scale: None for the attack's own default.
    know: what attackers know of honest updates: "all", or "own" for what they would have sent
    themselves. steps, epochs: of local training; neither means one epoch. momentum: of the steps of
    one round. client_momentum: of updates, from round to round. rule: as the federation's
    terms name it, with options in brackets if it has any. pre: pre-aggregations before it; None for
    the usual ones. k: of multi-krum, None for n - f. root: the client that rules with a root client
    trust; None for an honest one, drawn from the seed. root_images: how many images that client
    has, drawn from all, in place of its part; None for its part. upload: the format of uploads, in
    which attackers are held to its range. app: a task of one's own, by its name; it is the data set
    then, with its own model, split and training (`asked` fills these in).
    processes: how many the clients share; None for one each, unless there are many clients.
    evaluate_every: in rounds; the last is always evaluated. deadline_s: how long the first round
    waits for a client that does not come. report_metrics: clients report their training loss,
    accuracy and examples, of which rounds publish the mean.
    """

    dataset: str = "digits"
    model: str | None = None
    clients: int = 12
    byzantine: int = 3
    f: int | None = None
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
    client_momentum: float = 0.0
    rule: str = rules.DEFAULT
    pre: tuple[str, ...] | None = None
    k: int | None = None
    root: int | None = None
    root_images: int | None = None
    masking: str = "exact"
    distances: str = "workers"
    workers: int = 2
    sketch: int | None = None
    upload: str = uploads.DEFAULT
    seed: int = 0
    processes: int | None = None
    baseline: bool = False
    evaluate_every: int = 1
    deadline_s: float = 900.0
    app: str | None = None
    report_metrics: bool = False

    def __post_init__(self) -> None:
        find("attack", self.attack, {**ATTACKS, NO_ATTACK: None})
        find("kind of knowledge", self.know, dict.fromkeys(KNOWING))
        if self.app is None:
            find("data set", self.dataset, DATASETS)
            find("model", self.architecture, MODELS)
            partition.parse(self.partition)
        else:
            self._require_app(self.app)
        uploads.find(self.upload)
        self._require_least(
            byzantine=0, f=0, rounds=1, seed=0, processes=1, evaluate_every=1, root_images=2
        )
        if not MIN_WORKERS <= self.workers <= MAX_WORKERS:
            raise ConfigError(
                f"workers must be from {MIN_WORKERS} to {MAX_WORKERS}; got {self.workers}"
            )
        if not 0 <= self.client_momentum < 1:
            raise ConfigError(
                f"client_momentum must be from 0 to below 1; got {self.client_momentum}"
            )
        if not self.deadline_s > 0:
            raise ConfigError(f"deadline_s must be above 0; got {self.deadline_s}")
        if self.byzantine >= self.clients:
            raise ConfigError(
                f"byzantine must be below the number of clients, {self.clients}; "
                f"got {self.byzantine}"
            )
        self._require_rule()
        self._require_known()
        _ = self.recipe

    def _require_app(self, app: str) -> None:
        apps.require_name(app)
        own = {"dataset": app, **_APPS_OWN}
        usual = {name: _default(name) for name in _NOT_OF_AN_APP}
        for name, value in (own | usual).items():
            if (given := getattr(self, name)) != value:
                raise ConfigError(
                    f"{name} is a choice for the lab's own tasks, and an app has its own: leave "
                    f"it out beside --app; got {given!r}"
                )
        attack = ATTACKS.get(self.attack)
        if attack is not None and (needed := attack.needs_of_task):
            raise ConfigError(
                f"{attack.name} needs {needed}, which an app keeps to itself: choose an attack on "
                "updates, such as alie or optimal-ipm, or a data set of the lab"
            )

    @classmethod
    def asked(cls, *, app: str | None = None, **fields: Any) -> "Experiment":
        """An experiment in which an app's own choices stand in place of defaults."""
        if app is not None:
            for name, own in {"dataset": app, **_APPS_OWN}.items():
                if fields.get(name, _default(name)) == _default(name):
                    fields[name] = own
        return cls(**fields, app=app)

    def _require_rule(self) -> None:
        if self.root is not None and self.root not in self.numbers:
            raise ConfigError(f"root is a client, 1 to {self.clients}; got {self.root}")
        rules.require_enough(self.composition, self.clients, self.tolerated)
        least, most = self.tolerated + 2, self.clients - self.tolerated
        if self.k is not None and not least <= self.k <= most:
            raise ConfigError(f"k must be from f + 2 = {least} to n - f = {most}; got {self.k}")

    def require_sketch(self, dimension: int) -> None:
        """Raises ConfigError unless updates of so many values can be measured by such a sketch."""
        if self.sketch is None:
            return
        try:
            sketch.check(self.sketch, dimension)
            self.composition.require_sketch(self.sketch)
            require_sketches(self.clients, self.sketch)
        except ConfigError as refused:
            raise ConfigError(f"--sketch {self.sketch}: {refused}") from None

    def _require_least(self, **least: int) -> None:
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ConfigError(f"{name} must be at least {bound}; got {value}")

    def _require_known(self) -> None:
        attack = self.attacking
        if attack is not None and len(self.telling) < attack.least_known:
            raise ConfigError(
                f"{attack.name} needs to know at least {attack.least_known} updates, and the "
                f"attackers know {len(self.telling)}: let them know all, or take more attackers"
            )
        if attack is not None and self.scale < 0:
            raise ConfigError(
                f"{attack.name} has no scale of its own for {self.byzantine} of {self.clients} "
                "clients: give one, or take more attackers"
            )

    @property
    def tolerated(self) -> int:
        """The federation's f."""
        return self.byzantine if self.f is None else self.f

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
        )

    @property
    def numbers(self) -> range:
        """The clients' numbers, from 1."""
        return range(1, self.clients + 1)

    @property
    def attackers(self) -> tuple[int, ...]:
        """The numbers of those who attack: drawn from the seed, empty if there is no attack."""
        return () if self.attack == NO_ATTACK else self._cast

    @property
    def _cast(self) -> tuple[int, ...]:
        """Who attacks, if there is an attack."""
        drawn = self.stream(_CAST).choice(self.clients, size=self.byzantine, replace=False) + 1
        return tuple(sorted(drawn.tolist()))

    @property
    def trusted(self) -> int:
        """The number of the root client: the same whatever the attack, so that runs compare."""
        if self.root is not None:
            return self.root
        cast = self._cast
        return int(self.stream(_ROOT).choice([each for each in self.numbers if each not in cast]))

    @cached_property
    def composition(self) -> rules.Composition:
        """What the federation's terms say."""
        name = self.rule.partition("(")[0].strip()
        if self.pre and "+" in name:
            raise ConfigError("say what comes before the rule in --rule or by --pre, not by both")
        pre = rules.usual_pre(name) if self.pre is None else self.pre
        return self.composed("+".join((*pre, self.rule)))

    def composed(self, text: str) -> rules.Composition:
        """A composition such as "arc+nnm+geometric-median", with this experiment's k and root.

        Raises ConfigError.
        """
        names, _, rest = text.partition("(")
        name = names.rpartition("+")[2].strip()
        rule = rules.RULES.get(rules.canonical(name))
        options = [rest.rpartition(")")[0]] if rest else []
        if rule is not None and "k" in rule.takes and self.k is not None:
            options.append(f"k={self.k}")
        if rule is not None and rule.needs_root and "root=" not in rest:
            options.append(f"root={CLIENT}{self.trusted}")
        composition = rules.parse(f"{names}({', '.join(options)})" if options else names)
        root = composition.options.root
        if root and root not in {f"{CLIENT}{number}" for number in self.numbers}:
            raise ConfigError(f"root is a client, {CLIENT}1 to {CLIENT}{self.clients}; got {root}")
        return composition

    @property
    def defence(self) -> Defence:
        """What attackers are up against."""
        return self.defended(self.composition)

    def defended(self, composition: rules.Composition) -> Defence:
        """A composition as the enclave would apply it here."""
        root = composition.options.root.removeprefix(CLIENT)
        return Defence(composition, self.tolerated, int(root) - 1 if root else None, self.seed)

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
        """The scale of the attack."""
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
        """Tell whether the model after this round is tested."""
        return number % self.evaluate_every == 0 or number == self.rounds

    @property
    def resumes_in_the_clear(self) -> bool:
        """Whether a run in the clear can go on from its last model.

        Momenta, residuals and what attackers have learnt are kept in memory.
        """
        learns = self.attacking is not None and self.attacking.learn is not None
        return self.client_momentum == 0 and self.upload == uploads.DEFAULT and not learns

    def training_seed(self, client: int, number: int) -> tuple[int, ...]:
        """The seed of one client's training in one round."""
        return (self.seed, _TRAINING, client, number)

    def rounding(self, client: int) -> SecretStream:
        """What a client in the clear rounds its updates with, the same in every run."""
        return SecretStream(self.stream(_ROUNDING, client).bytes(KEY_BYTES))

    def attack_stream(self, client: int, number: int) -> np.random.Generator:
        return self.stream(_ATTACK, client, number)

    def root_sample(self, examples: int) -> np.ndarray:
        """Which of all examples the root client holds, if it has some of its own."""
        count = min(self.root_images or 0, examples)
        return self.stream(_ROOT, 1).choice(examples, size=count, replace=False)

    def poison_stream(self, client: int) -> np.random.Generator:
        return self.stream(_POISON, client)

    def stream(self, *purpose: int) -> np.random.Generator:
        """A stream of random numbers that every process draws alike."""
        return np.random.default_rng([self.seed, *purpose])

    def with_rounds(self, rounds: int) -> "Experiment":
        return replace(self, rounds=rounds)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Experiment":
        """Read an experiment, ignoring other fields: a run's folder holds more than was asked for.
        What runs of before do not have is as it was then.

        Raises ConfigError, KeyError or TypeError.
        """
        known = {"app": None, "report_metrics": False} | fields
        given = {name: known[name] for name in cls.__dataclass_fields__}
        return cls(**given | {"pre": None if given["pre"] is None else tuple(given["pre"])})


def _default(name: str) -> object:
    return Experiment.__dataclass_fields__[name].default

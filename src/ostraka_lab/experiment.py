"""An experiment: what to run, who takes part in it, and how good a model is.

    Experiment    everything that decides how a run goes
    Task          the data, and which client holds which part of it
    AppTask       the same for an app, which brings its own model, data and training
    Backdoor      how often a trigger leads a model astray
    Participant   one client: its part of the data, its training, its attack
    Judge         how good a model is, on examples that no client has trained on

A run over the services and one in the clear have the same participants, so that they differ in
nothing but who aggregates.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol, TypeAlias

import numpy as np
from torch import nn

from ostraka.arrays import Float32, Float64, Int64
from ostraka.cli.federation_folder import CLIENT
from ostraka.config import MAX_WORKERS, MIN_WORKERS, Manifest, require_sketches
from ostraka.core import rules, sketch, uploads
from ostraka.crypto.stream import KEY_BYTES, SecretStream
from ostraka.errors import ConfigError
from ostraka_lab import app as apps
from ostraka_lab import data, models
from ostraka_lab.attacks import ATTACKS, TARGET, Attack, Poison, Scene
from ostraka_lab.data import DATASETS, Dataset, Split, partition
from ostraka_lab.defence import Defence
from ostraka_lab.models import MODELS
from ostraka_lab.names import find
from ostraka_lab.training import Recipe, Trained, Trainer, evaluate

UNJUDGED: dict[str, float | None] = {"accuracy": None, "loss": None, "attack_success": None}

Scorer: TypeAlias = Callable[[Float32], dict[str, float | None]]
"""Measures a model (d,): its accuracy, its loss, and how often an attack's trigger works."""

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

# Images on which an attacker tries its own backdoor, as often as the model has tensors and more.
_TRIED = 64


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
    waits for a client that does not come.
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

        Raises ConfigError, KeyError or TypeError.
        """
        given = {name: ({"app": None} | fields)[name] for name in cls.__dataclass_fields__}
        return cls(**given | {"pre": None if given["pre"] is None else tuple(given["pre"])})


def _default(name: str) -> object:
    return Experiment.__dataclass_fields__[name].default


class Training(Protocol):
    """One client's training."""

    def update(
        self, start: Float32, *, seed: Sequence[int], held: Int64 | None = None
    ) -> Trained: ...


class AnyTask(Protocol):
    """What all participants share: a `Task`, or an `AppTask`."""

    @property
    def experiment(self) -> Experiment: ...

    def model(self) -> Any:
        """What the trainings of one process share, one at a time."""
        ...

    def first(self) -> tuple[Manifest, Float32]: ...

    def holdings(self) -> list[list[int]]:
        """The examples of each class at every client; empty if that is not known."""
        ...

    def training(self, client: int, model: Any, attack: Attack | None) -> Training: ...

    def backdoor(self, client: int) -> Callable[[Float32], float]:
        """How often an attacker's backdoor works with a model (d,), on examples of its own."""
        ...

    def scorer(self, meanwhile: Callable[[], object] | None) -> Scorer: ...


def load_task(experiment: Experiment) -> AnyTask:
    """Load the data and split it. Raises ConfigError if it is missing or too small."""
    return Task.load(experiment) if experiment.app is None else AppTask.load(experiment)


@dataclass(frozen=True, eq=False)
class AppTask:
    """An app as the task of an experiment."""

    experiment: Experiment
    app: apps.Federated

    @classmethod
    def load(cls, experiment: Experiment) -> "AppTask":
        app, counts = experiment.app or "", {"clients": experiment.clients, "seed": experiment.seed}
        return cls(experiment, apps.Federated(app, **counts))

    def model(self) -> None:
        return None

    def first(self) -> tuple[Manifest, Float32]:
        return self.app.manifest, self.app.first

    def holdings(self) -> list[list[int]]:
        return []

    def training(self, client: int, model: None, attack: Attack | None) -> Training:
        return _AppTraining(self.app, client)

    def backdoor(self, client: int) -> Callable[[Float32], float]:
        raise ConfigError("an app has no backdoor")  # Experiments with one are refused.

    def scorer(self, meanwhile: Callable[[], object] | None) -> Scorer:
        def scores(vector: Float32) -> dict[str, float | None]:
            accuracy, loss = self.app.score(vector)
            return UNJUDGED | {"accuracy": accuracy, "loss": loss}

        return scores


@dataclass(frozen=True, eq=False)
class _AppTraining:
    app: apps.Federated
    client: int

    def update(self, start: Float32, *, seed: Sequence[int], held: Int64 | None = None) -> Trained:
        """Train from this model (d,). seed: of which the app is given one number."""
        number = int(np.random.SeedSequence(list(seed)).generate_state(1)[0])
        with np.errstate(over="ignore", invalid="ignore"):  # of a training that diverged
            update = self.app.trained(start, self.client, number) - start
        return Trained(update, loss=None, examples=None)


@dataclass(frozen=True, eq=False)
class Task:
    """The lab's own data, and which client holds which part of it."""

    experiment: Experiment
    dataset: Dataset
    parts: list[np.ndarray]

    @classmethod
    def load(cls, experiment: Experiment) -> "Task":
        """Load the data and split it. Raises ConfigError if it is missing or too small."""
        dataset = data.load(experiment.dataset)
        how = partition.parse(experiment.partition)
        parts = partition.split(dataset.train.labels, experiment.clients, how, experiment.seed)
        if experiment.root_images is not None:
            parts[experiment.trusted - 1] = experiment.root_sample(len(dataset.train))
        return cls(experiment, dataset, parts)

    def model(self) -> nn.Module:
        """Build the first global model, the same in every process."""
        return models.build(
            self.experiment.architecture,
            shape=self.dataset.shape,
            classes=self.dataset.classes,
            seed=self.experiment.seed,
        )

    def first(self) -> tuple[Manifest, Float32]:
        model = self.model()
        return models.manifest(model), models.vector(model)

    def holdings(self) -> list[list[int]]:
        """Count the examples of each class at every client."""
        labels, classes = self.dataset.train.labels, self.dataset.classes
        counts: list[list[int]] = partition.holdings(labels, self.parts, classes).tolist()
        return counts

    def examples(self, client: int) -> Split:
        own, train = self.parts[client - 1], self.dataset.train
        return Split(train.images[own], train.labels[own])

    def training(self, client: int, model: nn.Module, attack: Attack | None) -> Trainer:
        examples = self._poisoned(self.examples(client), client, attack)
        statistics = self.dataset.mean, self.dataset.std
        return Trainer(model, examples.images, examples.labels, *statistics, self.experiment.recipe)

    def _poisoned(self, examples: Split, client: int, attack: Attack | None) -> Split:
        if attack is None or attack.poison is None:
            return examples
        stream = self.experiment.poison_stream(client)
        place = self.experiment.attackers.index(client)
        poison = Poison(classes=self.dataset.classes, rng=stream, number=place)
        return attack.poison(examples, poison)

    def backdoor(self, client: int) -> Callable[[Float32], float]:
        """With a model of its own, which no other thread trains."""
        examples = self.examples(client)
        some = Split(examples.images[:_TRIED], examples.labels[:_TRIED])
        return Backdoor(self, self.model(), some).success

    def scorer(self, meanwhile: Callable[[], object] | None) -> Scorer:
        model, test = self.model(), self.dataset.test
        backdoor = Backdoor(self, model, test, meanwhile)
        statistics = self.dataset.mean, self.dataset.std
        measure = partial(evaluate, meanwhile=meanwhile)

        def scores(vector: Float32) -> dict[str, float | None]:
            score = measure(model, vector, test.images, test.labels, *statistics)
            return {
                "accuracy": score.accuracy,
                "loss": score.loss if math.isfinite(score.loss) else None,
                "attack_success": backdoor.success(vector) if backdoor.exists else None,
            }

        return scores


class Backdoor:
    """How often images with the attack's trigger are taken for the target of its backdoor.

    It is measured on examples of all other classes. exists: whether the attack has a trigger.
    meanwhile: called again and again while that goes on.
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        examples: Split,
        meanwhile: Callable[[], object] | None = None,
    ) -> None:
        attack = ATTACKS.get(task.experiment.attack)
        images = examples.images[examples.labels != TARGET]
        self.exists = attack is not None and attack.trigger is not None
        self._images = attack.trigger(images) if attack and attack.trigger else images[:0]
        self._dataset, self._model, self._meanwhile = task.dataset, model, meanwhile

    def success(self, vector: Float32) -> float:
        """With this model (d,). 0 if there is no image with a trigger."""
        images, dataset = self._images, self._dataset
        if not len(images):
            return 0.0
        wanted = np.full(len(images), TARGET)
        statistics = dataset.mean, dataset.std
        score = evaluate(
            self._model, vector, images, wanted, *statistics, meanwhile=self._meanwhile
        )
        return score.accuracy


class Participant:
    """One client. model: of the task, shared by participants that train one after the other.

    defence: what it attacks, if it does; None for what the federation's terms say.
    """

    def __init__(
        self, task: AnyTask, number: int, model: Any, defence: Defence | None = None
    ) -> None:
        self.number = number
        self._task, self._experiment = task, task.experiment
        self._defence = defence or task.experiment.defence
        self._models: tuple[Float32 | None, Float32 | None] = (None, None)  # the last two
        attacks = number in task.experiment.attackers
        self.attack: Attack | None = task.experiment.attacking if attacks else None
        self._memory: object = None
        self._learnt_in = 0  # the last round in which it has learnt
        self.trainer = task.training(number, model, self.attack)
        self._round = 0

    @property
    def tells(self) -> bool:
        """Whether attackers get to know what this client sends, or would have sent."""
        attack = self._experiment.attacking
        known = attack is not None and attack.needs_known
        return known and self.number in self._experiment.telling

    @property
    def asks(self) -> bool:
        """Whether it has to know others' updates before it can send its own."""
        return self.attack is not None and self.attack.needs_known

    def train(self, start: Float32, number: int) -> Trained:
        """Train from this model (d,) in this round. Gives its own update (d,), before momentum."""
        if number != self._round:
            before = self._models[1] if number == self._round + 1 else None
            self._models = before, start
            self._round = number
        seed, last = self._experiment.training_seed(self.number, number), self._last()
        hold = self.attack.hold if self.attack is not None else None
        held = None if hold is None or last is None else hold(last)
        return self.trainer.update(start, seed=seed, held=held)

    def sends(self, own: Float32, number: int, known: Float32 | None = None) -> Float32:
        """Give what goes out (d,) in place of its own update after momentum.

        known: (m, d) what others send, if it asks.
        """
        if self.attack is None or self.attack.send is None:
            return own
        experiment = self._experiment
        scene = Scene(
            own=own,
            known=np.empty((0, own.size), np.float32) if known is None else known,
            round=number,
            clients=experiment.clients,
            byzantine=experiment.byzantine,
            scale=experiment.scale,
            rng=experiment.attack_stream(self.number, number),
            defence=self._defence,
            model=np.zeros_like(own) if self._models[1] is None else self._models[1],
            layers=self._layers,
            root=self._root(),
            last=self._last(),
            memory=self._memory,
            works=self._works,
        )
        # A value beyond float32 becomes an infinity, and the update is rejected for that.
        with np.errstate(over="ignore", invalid="ignore"):
            return self._in_range(self.attack.send(self._learnt(scene)))

    def _learnt(self, scene: Scene) -> Scene:
        """The scene with what is learnt from it, once a round: an update may be sent again."""
        if self.attack is None or self.attack.learn is None:
            return scene
        if scene.round != self._learnt_in:
            self._memory, self._learnt_in = self.attack.learn(scene), scene.round
        return replace(scene, memory=self._memory)

    @cached_property
    def _layers(self) -> tuple[int, ...]:
        """The sizes of the model's tensors."""
        tensors = self._task.first()[0].tensors
        return tuple(math.prod(each.shape) for each in tensors)

    def _works(self, vector: Float32) -> float:
        """How often its backdoor works with this model (d,)."""
        return self._backdoor(vector)

    @cached_property
    def _backdoor(self) -> Callable[[Float32], float]:
        return self._task.backdoor(self.number)

    def _in_range(self, sent: Float32) -> Float32:
        """What the format of uploads can hold of finite values; others are sent as they are."""
        largest = uploads.find(self._experiment.upload).largest
        if self._experiment.upload == uploads.DEFAULT:
            return sent
        return np.where(np.isfinite(sent), sent.clip(-largest, largest), sent).astype(np.float32)

    def _root(self) -> int | None:
        """The row of the root client among the updates that attackers know."""
        trusted, telling = self._defence.root, self._experiment.telling
        return (
            telling.index(trusted + 1) if trusted is not None and trusted + 1 in telling else None
        )

    def _last(self) -> Float64 | None:
        """The last aggregate (d,), which anybody can tell from two models; None before there is."""
        before, start = self._models
        return None if before is None or start is None else np.subtract(start, before, dtype=float)


class Judge:
    """Judges models (d,) of one task. meanwhile: called again and again while that goes on."""

    def __init__(self, task: AnyTask, meanwhile: Callable[[], object] | None = None) -> None:
        self._scored = task.scorer(meanwhile)

    def scores(self, vector: Float32) -> dict[str, float | None]:
        """Measure accuracy, loss, and how often a backdoor's trigger works, if there is one."""
        return self._scored(vector)

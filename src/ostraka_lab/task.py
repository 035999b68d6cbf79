"""What an experiment trains, who takes part in it, and how good a model is.

    Task          the lab's data, and which client holds which part of it
    AppTask       an app, which brings its own model, data and training
    Backdoor      how often a trigger leads a model astray
    Participant   one client: its part of the data, its training, its attack
    Judge         how good a model is, on examples that no client has trained on

A run over the services and one in the clear have the same participants, so that they differ in
nothing but who aggregates.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol, TypeAlias

import numpy as np
from torch import nn

from ostraka.arrays import Float32, Float64, Int64
from ostraka.config import Manifest
from ostraka.core import uploads
from ostraka.errors import ConfigError
from ostraka_lab import app as apps
from ostraka_lab import data, models
from ostraka_lab.attacks import ATTACKS, TARGET, Attack, Poison, Scene
from ostraka_lab.data import Dataset, Split, partition
from ostraka_lab.defence import Defence
from ostraka_lab.experiment import Experiment
from ostraka_lab.training import Trained, Trainer, evaluate

UNJUDGED: dict[str, float | None] = {"accuracy": None, "loss": None, "attack_success": None}

Scorer: TypeAlias = Callable[[Float32], dict[str, float | None]]
"""Measures a model (d,): its accuracy, its loss, and how often an attack's trigger works."""

# Images on which an attacker tries its own backdoor, as often as the model has tensors and more.
_TRIED = 64


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

    @property
    def agrees(self) -> bool:
        """Whether another attacker that knows the same sends the same, whoever remembers what."""
        return self.attack is not None and self.attack.alike and self.attack.learn is None

    @property
    def idle(self) -> bool:
        """Whether nobody would notice if it did not train: it sends what it makes of others'."""
        return self.attack is not None and self.attack.alike and not self.tells

    def watch(self, start: Float32, number: int) -> None:
        """Take note of the model (d,) of this round."""
        if number != self._round:
            before = self._models[1] if number == self._round + 1 else None
            self._models = before, start
            self._round = number

    def train(self, start: Float32, number: int) -> Trained:
        """Train from this model (d,) in this round. Gives its own update (d,), before momentum."""
        self.watch(start, number)
        seed = self._experiment.training_seed(self.number, number)
        return self.trainer.update(start, seed=seed, held=self._held())

    def _held(self) -> Int64 | None:
        """The coordinates that its training leaves as they are, if its attack has any."""
        if self.attack is None or self.attack.hold is None or (last := self._last()) is None:
            return None
        return self.attack.hold(last)

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

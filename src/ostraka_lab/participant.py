"""The clients of an experiment: what each one trains on, and what it sends.

A run over the services and one in the clear have the same participants, so that they differ in
nothing but who aggregates.
"""

import math
from dataclasses import dataclass

import numpy as np
from torch import nn

from ostraka.arrays import Float32
from ostraka.config import Manifest
from ostraka_lab import data, models
from ostraka_lab.attacks import TARGET, Attack, Poison, Scene, stamped
from ostraka_lab.data import Dataset, Split, partition
from ostraka_lab.experiment import Experiment
from ostraka_lab.training import Score, Trained, Trainer, evaluate

UNJUDGED: dict[str, float | None] = {"accuracy": None, "loss": None, "attack_success": None}


@dataclass(frozen=True, eq=False)
class Task:
    """What all participants share: the data, and who holds which part of it."""

    experiment: Experiment
    dataset: Dataset
    parts: list[np.ndarray]

    @classmethod
    def load(cls, experiment: Experiment) -> "Task":
        """Raises ConfigError if the data set is not there, or is too small for so many clients."""
        dataset = data.load(experiment.dataset)
        how = partition.parse(experiment.partition)
        parts = partition.split(dataset.train.labels, experiment.clients, how, experiment.seed)
        return cls(experiment, dataset, parts)

    def model(self) -> nn.Module:
        """The first global model, the same in every process."""
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
        """How many examples of each class every client has."""
        labels, classes = self.dataset.train.labels, self.dataset.classes
        counts: list[list[int]] = partition.holdings(labels, self.parts, classes).tolist()
        return counts

    def examples(self, client: int) -> Split:
        own, train = self.parts[client - 1], self.dataset.train
        return Split(train.images[own], train.labels[own])


class Participant:
    """One client. model: may be shared by participants that train one after the other."""

    def __init__(self, task: Task, number: int, model: nn.Module) -> None:
        self.number = number
        self._experiment = task.experiment
        attacks = number in task.experiment.attackers
        self.attack: Attack | None = task.experiment.attacking if attacks else None
        examples = self._poisoned(task.examples(number), task.dataset)
        self.trainer = Trainer(
            model,
            examples.images,
            examples.labels,
            task.dataset.mean,
            task.dataset.std,
            task.experiment.recipe,
        )

    @property
    def tells(self) -> bool:
        """Whether attackers get to know what this one sends, or would have sent."""
        attack = self._experiment.attacking
        known = attack is not None and attack.needs_known
        return known and self.number in self._experiment.telling

    @property
    def asks(self) -> bool:
        """Whether it has to know others' updates before it can send its own."""
        return self.attack is not None and self.attack.needs_known

    def train(self, start: Float32, number: int) -> Trained:
        """Its own update (d,) from this model (d,), in this round."""
        seed = self._experiment.training_seed(self.number, number)
        return self.trainer.update(start, seed=seed)

    def sends(self, own: Float32, number: int, known: Float32 | None = None) -> Float32:
        """What goes out (d,) in place of its own update. known: (m, d), if it asks."""
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
        )
        # What leaves float32 becomes an infinity, and is rejected for that.
        with np.errstate(over="ignore", invalid="ignore"):
            return self.attack.send(scene)

    def _poisoned(self, examples: Split, dataset: Dataset) -> Split:
        if self.attack is None or self.attack.poison is None:
            return examples
        stream = self._experiment.poison_stream(self.number)
        return self.attack.poison(examples, Poison(classes=dataset.classes, rng=stream))


class Judge:
    """Judges models (d,) of one task."""

    def __init__(self, task: Task) -> None:
        self._dataset = task.dataset
        self._model = task.model()
        self._backdoor = task.experiment.attack == "backdoor"

    def scores(self, vector: Float32) -> dict[str, float | None]:
        """accuracy, loss, and how often a backdoor's trigger works, if there is one."""
        test = self._dataset.test
        score = self._score(vector, test.images, test.labels)
        return {
            "accuracy": score.accuracy,
            "loss": score.loss if math.isfinite(score.loss) else None,
            "attack_success": self._attack_success(vector) if self._backdoor else None,
        }

    def _attack_success(self, vector: Float32) -> float:
        """On stamped images of all classes but the one that the backdoor leads to."""
        test = self._dataset.test
        others = np.flatnonzero(test.labels != TARGET)
        images = stamped(test.images[others])
        return self._score(vector, images, np.full(len(others), TARGET)).accuracy

    def _score(self, vector: Float32, images: np.ndarray, labels: np.ndarray) -> Score:
        dataset = self._dataset
        return evaluate(self._model, vector, images, labels, dataset.mean, dataset.std)

"""How good a model is, on examples that nobody has trained on."""

import math

import numpy as np

from ostraka.arrays import Float32
from ostraka.lab.attacks import TARGET, stamped
from ostraka.lab.participant import Task
from ostraka.lab.training import Score, evaluate

UNJUDGED: dict[str, float | None] = {"accuracy": None, "loss": None, "attack_success": None}


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

"""A task of your own for Ostraka's lab: logistic regression that tells tumours apart, in numpy.

    ostraka train --app own_task:app --attack sign-flip --baseline
    ostraka compare --app own_task:app --attack ipm --attack optimal-ipm --seeds 3

Run these in this folder: all clients import the module by its name. An
app is any object with these four methods, and needs nothing of Ostraka. Any framework will do: give
the arrays of a state dict, and read them back.
"""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

Array: TypeAlias = NDArray[np.float32]
Examples: TypeAlias = tuple[Array, Array]

STEPS, BATCH, RATE = 20, 16, 0.5


class Tumours:
    """Malignant or benign, from measurements of cells; every fifth tumour is kept for the test."""

    def __init__(self) -> None:
        values, labels = load_breast_cancer(return_X_y=True)
        values = ((values - values.mean(axis=0)) / values.std(axis=0)).astype(np.float32)
        labels = labels.astype(np.float32)
        test = np.arange(len(labels)) % 5 == 0
        self._train: Examples = values[~test], labels[~test]
        self._test: Examples = values[test], labels[test]

    def model(self, seed: int) -> Mapping[str, Array]:
        """The first model: arrays by name."""
        return {"weights": np.zeros(self._test[0].shape[1], np.float32), "bias": np.zeros(1, "f4")}

    def partitions(self, clients: int, seed: int) -> list[Examples]:
        """The examples of every client; all processes of a run must come to the same."""
        values, labels = self._train
        shuffled = np.random.default_rng(seed).permutation(len(labels))
        return [(values[own], labels[own]) for own in np.array_split(shuffled, clients)]

    def train(self, model: dict[str, Array], part: Examples, seed: int) -> Mapping[str, Array]:
        """The model after one client's training, by stochastic gradient descent."""
        values, labels = part
        rng = np.random.default_rng(seed)
        for _ in range(STEPS):
            batch = rng.choice(len(labels), size=BATCH)
            error = _benign(model, values[batch]) - labels[batch]
            model["weights"] -= RATE * (error @ values[batch]) / BATCH
            model["bias"] -= RATE * error.mean()
        return model

    def evaluate(self, model: dict[str, Array]) -> tuple[float, float]:
        """The accuracy and the loss on the examples of the test."""
        values, labels = self._test
        chance = _benign(model, values).clip(1e-6, 1 - 1e-6)
        loss = -np.mean(labels * np.log(chance) + (1 - labels) * np.log(1 - chance))
        return float(np.mean((chance > 0.5) == labels)), float(loss)


def _benign(model: dict[str, Array], values: Array) -> Array:
    """How likely each of them is to be benign."""
    scores = (values @ model["weights"] + model["bias"]).clip(-30, 30)
    return np.asarray(1 / (1 + np.exp(-scores)), np.float32)


app = Tumours()

"""Local training, from a global model to one client's update, and the evaluation of a model.

The same start and the same seed give the same update to the last bit, for one number of torch's
threads. Neither what ran before nor what other threads do at the same time matters.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice, pairwise

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from ostraka.arrays import Float32
from ostraka.errors import ConfigError
from ostraka_lab import models
from ostraka_lab.data.dataset import Int64, UInt8
from ostraka_lab.models.layers import drawing_from

_EVALUATED_AT_ONCE = 250  # more did not make it faster


@dataclass(frozen=True)
class Recipe:
    """How a client trains: stochastic gradient descent for a number of steps or of epochs.

    An epoch walks over all examples in batches, of which the last may be short; steps are the first
    batches of such walks. momentum: of the steps of one round, from zero.
    """

    steps: int | None = None
    epochs: int | None = None
    batch: int = 32
    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ConfigError("training takes a number of steps or of epochs, and not both")
        for name in ("steps", "epochs", "batch"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1; got {value}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must be from 0 to below 1; got {self.momentum}")
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"learning_rate must be above 0; got {self.learning_rate}")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"weight_decay must be at least 0; got {self.weight_decay}")


@dataclass(frozen=True, eq=False)
class Trained:
    """One client's update (d,). loss, accuracy: the means over the examples, as each was seen.

    examples: the number of examples that were seen. An app tells none of them.
    """

    update: Float32 = field(repr=False)
    loss: float | None
    examples: int | None
    accuracy: float | None = None

    @property
    def metrics(self) -> dict[str, float] | None:
        """What its client reports; None if it does not know, or has diverged."""
        known = {"loss": self.loss, "accuracy": self.accuracy, "examples": self.examples}
        found = {name: value for name, value in known.items() if value is not None}
        fit = len(found) == len(known) and all(map(math.isfinite, found.values()))
        return found if fit else None


@dataclass(frozen=True)
class Score:
    """How good a model is. accuracy: of the most likely class. loss: the mean cross-entropy."""

    accuracy: float
    loss: float


@dataclass(frozen=True)
class Pixels:
    """How bytes become what a model takes. mean, std: per channel, of values from 0 to 1."""

    mean: Sequence[float]
    std: Sequence[float]

    def tensor(self, images: UInt8) -> Tensor:
        """Copy images (n, c, h, w) and normalise them."""
        # One product and one sum for each pixel: (x / 255 - mean) / std.
        scale = torch.tensor([1 / (255 * std) for std in self.std]).view(-1, 1, 1)
        shift = torch.tensor([m / s for m, s in zip(self.mean, self.std, strict=True)])
        return torch.tensor(images).mul(scale).sub_(shift.view(-1, 1, 1))


class Descent:
    """Stochastic gradient descent: v = momentum v + g + decay w, from v = 0, and w = w - rate v.

    torch.optim does the same. It loads torch's compiler first, for about a second in each of a
    run's processes.
    """

    def __init__(self, weights: list[nn.Parameter], recipe: Recipe) -> None:
        self.weights = weights
        self._recipe = recipe
        self._velocities: Sequence[Tensor] = ()

    def step(self, gradients: Sequence[Tensor]) -> None:
        with torch.no_grad():
            self._velocities = self._moved(gradients)
            for w, v in zip(self.weights, self._velocities, strict=True):
                w.sub_(v, alpha=self._recipe.learning_rate)

    def _moved(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """The new velocities. Nothing is computed that could only add zeros."""
        momentum, decay = self._recipe.momentum, self._recipe.weight_decay
        moved = gradients
        if momentum and self._velocities:
            moved = [v * momentum + g for v, g in zip(self._velocities, moved, strict=True)]
        if decay:
            moved = [v.add(w, alpha=decay) for v, w in zip(moved, self.weights, strict=True)]
        return moved


class Trainer:
    """One client's training.

    model: may serve several trainers, one at a time: each sets it to where it starts from. images:
    (n, c, h, w). labels: (n,).
    """

    def __init__(  # noqa: PLR0917 (the model, the data, and what to do with them)
        self,
        model: nn.Module,
        images: UInt8,
        labels: Int64,
        mean: Sequence[float],
        std: Sequence[float],
        recipe: Recipe,
    ) -> None:
        if not 0 < len(images) == len(labels):
            raise ConfigError(
                f"each image needs a label; got {len(images)} images, {len(labels)} labels"
            )
        self.model = model
        self.recipe = recipe
        self._images, self._labels = images, labels
        self._pixels = Pixels(mean, std)

    def update(self, start: Float32, *, seed: Sequence[int], held: Int64 | None = None) -> Trained:
        """Train from this model (d,). The update of a training that diverged is NaN.

        seed: of the batches, and of what the model itself draws. held: coordinates that every step
        leaves as they are.
        """
        for_batches, for_model = np.random.SeedSequence(list(seed)).spawn(2)
        batches = list(self._batches(np.random.default_rng(for_batches)))
        models.set_vector(self.model, start)
        with drawing_from(_generator(for_model), self.model):
            losses, right = self._descend(batches, start, held)
        with np.errstate(over="ignore", invalid="ignore"):  # of a training that diverged
            update = models.vector(self.model) - start
        examples = sum(map(len, batches))
        return Trained(update, sum(losses) / examples, examples, sum(right) / examples)

    def _batches(self, rng: np.random.Generator) -> Iterator[Int64]:
        """Yield the indices of the examples of every batch."""
        epochs = count() if self.recipe.epochs is None else range(self.recipe.epochs)
        walk = (batch for _ in epochs for batch in self._epoch(rng.permutation(len(self._images))))
        return islice(walk, self.recipe.steps)

    def _epoch(self, order: Int64) -> Iterator[Int64]:
        """Cut into batches. A single example left over joins the last one: batch norm needs two."""
        n, size = len(order), self.recipe.batch
        cuts = list(range(size, n, size))
        ends = [*(cuts[:-1] if n % size == 1 else cuts), n]
        return (order[start:end] for start, end in pairwise([0, *ends]))

    def _descend(
        self, batches: list[Int64], start: Float32, held: Int64 | None
    ) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Take one step for each batch. Gives the sum of the losses of each, and how many were
        right."""
        descent = Descent(list(self.model.parameters()), self.recipe)
        steps: list[tuple[float, int]] = []
        for batch in batches:
            steps.append(self._step(descent, batch))
            if held is not None:
                stepped = models.vector(self.model)
                stepped[held] = start[held]
                models.set_vector(self.model, stepped)
        losses, right = zip(*steps, strict=True)
        return losses, right

    def _step(self, descent: Descent, batch: Int64) -> tuple[float, int]:
        _set_training(self.model, len(batch))
        outputs = self.model(self._pixels.tensor(self._images[batch]))
        wanted = torch.tensor(self._labels[batch])
        loss = functional.cross_entropy(outputs, wanted)
        descent.step(torch.autograd.grad(loss, descent.weights))
        return loss.item() * len(batch), int((outputs.argmax(dim=1) == wanted).sum())


def evaluate(  # noqa: PLR0917 (as a Trainer has them)
    model: nn.Module,
    vector: Float32,
    images: UInt8,
    labels: Int64,
    mean: Sequence[float],
    std: Sequence[float],
    *,
    batch: int = _EVALUATED_AT_ONCE,
    meanwhile: Callable[[], object] | None = None,
) -> Score:
    """Evaluate a model (d,) on these images (n, c, h, w). meanwhile: called before each batch."""
    models.set_vector(model, vector)
    model.eval()
    pixels, right, loss = Pixels(mean, std), 0, 0.0
    with torch.inference_mode():
        for at in range(0, len(images), batch):
            if meanwhile is not None:
                meanwhile()
            part = slice(at, at + batch)
            outputs, wanted = model(pixels.tensor(images[part])), torch.tensor(labels[part])
            right += int((outputs.argmax(dim=1) == wanted).sum())
            loss += functional.cross_entropy(outputs, wanted, reduction="sum").item()
    return Score(right / len(images), loss / len(images))


def _set_training(model: nn.Module, examples: int) -> None:
    """Set to training, except batch norm for one example, which has no variance."""
    model.train()
    if examples == 1:
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.eval()


def _generator(seed: np.random.SeedSequence) -> Generator:
    return Generator().manual_seed(int(seed.generate_state(1, np.uint32)[0]))

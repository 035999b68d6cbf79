"""Layers that draw numbers while they train.

torch's own draw from one generator that the whole process shares, so that what one thread trains
would depend on what the others do. These draw from the one that they are given.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Generator, Tensor, nn


class Chance(nn.Module):
    """Drops parts of its input with a probability of `rate`, and makes up for it in the rest.

    generator: where it draws from; None is the generator that the process shares.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.generator: Generator | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return inputs
        kept = torch.empty(self.parts(inputs)).bernoulli_(1 - self.rate, generator=self.generator)
        return inputs * (kept / (1 - self.rate))

    def parts(self, inputs: Tensor) -> tuple[int, ...]:
        """The shape of what is drawn: one number for each part that is kept or dropped."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class Dropout(Chance):
    """Drops single values (Srivastava et al. 2014)."""

    def parts(self, inputs: Tensor) -> tuple[int, ...]:
        return tuple(inputs.shape)


class StochasticDepth(Chance):
    """Drops all that a residual branch says about an example (Huang et al. 2016)."""

    def parts(self, inputs: Tensor) -> tuple[int, ...]:
        return (len(inputs), *[1] * (inputs.dim() - 1))


@contextmanager
def drawing_from(generator: Generator, model: nn.Module) -> Iterator[None]:
    """Every layer of the model that draws, draws from this generator meanwhile."""
    layers = [layer for layer in model.modules() if isinstance(layer, Chance)]
    for layer in layers:
        layer.generator = generator
    try:
        yield
    finally:
        for layer in layers:
            layer.generator = None

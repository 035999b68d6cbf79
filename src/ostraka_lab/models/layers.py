"""What the models have in common: convolutions, layers that draw numbers, first values."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Generator, Tensor, nn

Shape: TypeAlias = tuple[int, int, int]  # channels, height, width

_SMALL = 64  # pixels


class Chance(nn.Module):
    """A layer that drops parts of its input with probability `rate` and scales up the rest.

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
    """Make all layers of the model that draw numbers draw them from this generator."""
    layers = [layer for layer in model.modules() if isinstance(layer, Chance)]
    for layer in layers:
        layer.generator = generator
    try:
        yield
    finally:
        for layer in layers:
            layer.generator = None


def initialise(model: nn.Module, generator: Generator) -> None:
    """Draw all weights anew, in the order of the layers.

    Convolutions keep the variance of rectified inputs (He et al. 2015), or that of gradients where
    batch norm comes next and they have no bias: it sets the inputs' variance anyhow. Linear layers
    keep the variance of their inputs as they are (LeCun et al. 1998). Biases start at zero.
    """
    for layer in model.modules():
        match layer:
            case nn.Conv2d():
                nn.init.kaiming_normal_(
                    layer.weight,
                    mode="fan_out" if layer.bias is None else "fan_in",
                    nonlinearity="relu",
                    generator=generator,
                )
                _clear(layer.bias)
            case nn.Linear():
                nn.init.kaiming_normal_(layer.weight, nonlinearity="linear", generator=generator)
                _clear(layer.bias)
            case nn.BatchNorm2d() | nn.GroupNorm():
                layer.reset_parameters()


def _clear(bias: Tensor | None) -> None:
    if bias is not None:
        nn.init.zeros_(bias)


def stem_stride(shape: Shape) -> int:
    """The stride of the first layer: 2 as published, and 1 for small images.

    At 32 pixels the published stride would leave one pixel for the last stage.
    """
    return 1 if max(shape[1:]) <= _SMALL else 2


def convolution(
    inputs: int,
    outputs: int,
    *,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    activation: nn.Module | None = None,
) -> nn.Sequential:
    """Convolution, batch norm (Ioffe and Szegedy 2015) and activation.

    Batch norm keeps PyTorch's momentum of 0.1 in all families. With the 0.01 of some publications
    the running statistics would not leave their first values in a run of few steps.
    """
    layers = nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    )
    if activation is not None:
        layers.append(activation)
    return layers


def depthwise(
    channels: int, *, kernel: int = 3, stride: int = 1, activation: nn.Module
) -> nn.Sequential:
    """Apply a separate filter to each channel."""
    return convolution(
        channels, channels, kernel=kernel, stride=stride, groups=channels, activation=activation
    )


def pool() -> nn.Sequential:
    """Take the mean of each channel: (n, c, h, w) to (n, c)."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())

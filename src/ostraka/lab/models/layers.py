"""What the convolutional families have in common."""

from typing import TypeAlias

from torch import nn

Shape: TypeAlias = tuple[int, int, int]  # channels, height, width

_SMALL = 64


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
    """A filter for each channel by itself."""
    return convolution(
        channels, channels, kernel=kernel, stride=stride, groups=channels, activation=activation
    )


def pool() -> nn.Sequential:
    """The mean of each channel: (n, c, h, w) to (n, c)."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())

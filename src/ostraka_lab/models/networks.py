"""The networks, each a function from the shape of an image and the number of classes.

mlp, lenet5, cnn             small ones, for quick runs
mobilenet_v1, mobilenet_v2   Howard et al. 2017, "MobileNets: Efficient Convolutional Neural
                             Networks for Mobile Vision Applications", table 1; Sandler et al.
                             2018, "MobileNetV2: Inverted Residuals and Linear Bottlenecks",
                             table 2
efficientnet                 Tan and Le 2019, "EfficientNet: Rethinking Model Scaling for
                             Convolutional Neural Networks", table 1 and section 3.3
"""

import math
from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor, nn

from ostraka.errors import ConfigError
from ostraka_lab.models.layers import (
    Dropout,
    Shape,
    StochasticDepth,
    convolution,
    depthwise,
    pool,
    stem_stride,
)

_HIDDEN = 64
_FILTERS, _GROUPS = (16, 32, 64), 8

_V1_STEM, _V1_HEAD = 32, 1024
# Channels and stride of each block.
_V1_BLOCKS = (
    (64, 1),
    *((128, 2), (128, 1)),
    *((256, 2), (256, 1)),
    *((512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1)),
    *((_V1_HEAD, 2), (_V1_HEAD, 1)),
)

_V2_STEM, _V2_HEAD = 32, 1280
_V2_DROPOUT = 0.2
# Expansion, channels, blocks, and the stride of the first of them.
_V2_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)

_STEM, _HEAD = 32, 1280
_DIVISOR = 8
_SQUEEZE = 4
_DROPPED_BRANCHES = 0.2  # in the last block; the first drops none
# Expansion, kernel, stride, channels, blocks.
_STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


def mlp(shape: Shape, classes: int) -> nn.Module:
    """One hidden layer (Rumelhart et al. 1986), wide enough for the 8 x 8 digits."""
    channels, height, width = shape
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            hidden=nn.Linear(channels * height * width, _HIDDEN),
            activation=nn.ReLU(),
            classifier=nn.Linear(_HIDDEN, classes),
        )
    )


def lenet5(shape: Shape, classes: int) -> nn.Module:
    """LeNet-5 (LeCun et al. 1998), with rectifiers and maxima where it had tanh and means.

    Images of 28 pixels get a frame of 2, as there.
    """
    channels, *sides = shape
    if sides not in ([28, 28], [32, 32]):
        raise ConfigError(f"lenet5 takes images of 28 x 28 or 32 x 32 pixels; got {sides}")
    frame = (32 - sides[0]) // 2
    return nn.Sequential(
        OrderedDict(
            first=nn.Sequential(nn.Conv2d(channels, 6, 5, padding=frame), *_rectified_maxima()),
            second=nn.Sequential(nn.Conv2d(6, 16, 5), *_rectified_maxima()),
            flatten=nn.Flatten(),
            third=nn.Sequential(nn.Linear(16 * 5 * 5, 120), nn.ReLU()),
            fourth=nn.Sequential(nn.Linear(120, 84), nn.ReLU()),
            classifier=nn.Linear(84, classes),
        )
    )


def cnn(shape: Shape, classes: int) -> nn.Module:
    """Three convolutions and a linear layer, like the small networks of McMahan et al. 2017.

    Group norm (Wu and He 2018) in place of batch norm: it has no statistics that would travel, and
    does not mind that clients differ. Without any, the same rounds taught it less.
    """
    inputs, height, width = shape
    halvings = len(_FILTERS)
    pixels = (height >> halvings) * (width >> halvings)
    if not pixels:
        raise ConfigError(f"cnn takes images of at least 8 x 8 pixels; got {height} x {width}")
    features = nn.Sequential()
    for outputs in _FILTERS:
        features.append(_normed_convolution(inputs, outputs))
        inputs = outputs
    return nn.Sequential(
        OrderedDict(
            features=features,
            flatten=nn.Flatten(),
            classifier=nn.Linear(inputs * pixels, classes),
        )
    )


def _normed_convolution(inputs: int, outputs: int) -> nn.Sequential:
    """Convolution, maxima, norm: after the maxima there are fewer values to normalise."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.MaxPool2d(2),
        nn.GroupNorm(_GROUPS, outputs),
        nn.ReLU(inplace=True),
    )


def _rectified_maxima() -> tuple[nn.Module, nn.Module]:
    return nn.ReLU(inplace=True), nn.MaxPool2d(2)


def mobilenet_v1(shape: Shape, classes: int) -> nn.Module:
    stride = stem_stride(shape)
    return nn.Sequential(
        OrderedDict(
            stem=convolution(shape[0], _V1_STEM, kernel=3, stride=stride, activation=_relu()),
            blocks=_v1_blocks(),
            pool=pool(),
            classifier=nn.Linear(_V1_HEAD, classes),
        )
    )


def _v1_blocks() -> nn.Sequential:
    blocks, inputs = nn.Sequential(), _V1_STEM
    for outputs, stride in _V1_BLOCKS:
        blocks.append(_separable(inputs, outputs, stride))
        inputs = outputs
    return blocks


def _separable(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """A 3 x 3 filter for each channel, then a mixture of the channels."""
    return nn.Sequential(
        OrderedDict(
            depthwise=depthwise(inputs, stride=stride, activation=_relu()),
            pointwise=convolution(inputs, outputs, activation=_relu()),
        )
    )


def _relu() -> nn.Module:
    return nn.ReLU(inplace=True)


class InvertedResidual(nn.Module):
    """Wide inside and narrow at both ends, which are added where they are alike."""

    def __init__(self, inputs: int, outputs: int, *, expansion: int, stride: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        self.branch = nn.Sequential()
        if expansion != 1:
            self.branch.append(convolution(inputs, wide, activation=_relu6()))
        self.branch.append(depthwise(wide, stride=stride, activation=_relu6()))
        self.branch.append(convolution(wide, outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.branch(inputs)
        return inputs + outputs if self.residual else outputs


def mobilenet_v2(shape: Shape, classes: int) -> nn.Module:
    stride = stem_stride(shape)
    return nn.Sequential(
        OrderedDict(
            stem=convolution(shape[0], _V2_STEM, kernel=3, stride=stride, activation=_relu6()),
            blocks=_v2_blocks(),
            head=convolution(_V2_STAGES[-1][1], _V2_HEAD, activation=_relu6()),
            pool=pool(),
            dropout=Dropout(_V2_DROPOUT),
            classifier=nn.Linear(_V2_HEAD, classes),
        )
    )


def _v2_blocks() -> nn.Sequential:
    blocks, inputs = nn.Sequential(), _V2_STEM
    for expansion, outputs, count, first_stride in _V2_STAGES:
        for stride in (first_stride, *[1] * (count - 1)):
            blocks.append(InvertedResidual(inputs, outputs, expansion=expansion, stride=stride))
            inputs = outputs
    return blocks


def _relu6() -> nn.Module:
    return nn.ReLU6(inplace=True)


@dataclass(frozen=True)
class Size:
    """How much wider and deeper than the table a network is."""

    width: float
    depth: float
    dropout: float

    def channels(self, count: int) -> int:
        """Round to a multiple of 8 that is no more than a tenth below the exact number."""
        wanted = count * self.width
        rounded = max(_DIVISOR, int(wanted + _DIVISOR / 2) // _DIVISOR * _DIVISOR)
        return rounded if rounded >= 0.9 * wanted else rounded + _DIVISOR

    def blocks(self, count: int) -> int:
        return math.ceil(count * self.depth)


B0 = Size(width=1.0, depth=1.0, dropout=0.2)
B1 = Size(width=1.0, depth=1.1, dropout=0.2)


@dataclass(frozen=True)
class Block:
    """A mobile inverted bottleneck, as the table describes it."""

    expansion: int
    kernel: int
    stride: int
    inputs: int
    outputs: int


class SqueezeExcitation(nn.Module):
    """Scales each channel by what all channels hold on average (Hu et al. 2018)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            _silu(),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        scale: Tensor = self.scale(inputs)  # (n, c, 1, 1)
        return inputs * scale


class Bottleneck(nn.Module):
    """Wide inside, with squeeze and excitation; its branch is dropped at times."""

    def __init__(self, block: Block, *, dropped: float) -> None:
        super().__init__()
        wide = block.inputs * block.expansion
        self.residual = block.stride == 1 and block.inputs == block.outputs
        self.branch = nn.Sequential()
        if block.expansion != 1:
            self.branch.append(convolution(block.inputs, wide, activation=_silu()))
        self.branch.append(
            depthwise(wide, kernel=block.kernel, stride=block.stride, activation=_silu())
        )
        self.branch.append(SqueezeExcitation(wide, block.inputs // _SQUEEZE))
        self.branch.append(convolution(wide, block.outputs))
        if self.residual:
            self.branch.append(StochasticDepth(dropped))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.branch(inputs)
        return inputs + outputs if self.residual else outputs


def efficientnet(shape: Shape, classes: int, *, size: Size) -> nn.Module:
    stem, head = size.channels(_STEM), size.channels(_HEAD)
    stride = stem_stride(shape)
    blocks = _plan(size, stem)
    return nn.Sequential(
        OrderedDict(
            stem=convolution(shape[0], stem, kernel=3, stride=stride, activation=_silu()),
            blocks=nn.Sequential(
                *(
                    Bottleneck(block, dropped=_DROPPED_BRANCHES * i / len(blocks))
                    for i, block in enumerate(blocks)
                )
            ),
            head=convolution(blocks[-1].outputs, head, activation=_silu()),
            pool=pool(),
            dropout=Dropout(size.dropout),
            classifier=nn.Linear(head, classes),
        )
    )


def _plan(size: Size, inputs: int) -> list[Block]:
    """The table at this size, block by block."""
    blocks = []
    for expansion, kernel, first_stride, channels, count in _STAGES:
        outputs = size.channels(channels)
        for stride in (first_stride, *[1] * (size.blocks(count) - 1)):
            blocks.append(Block(expansion, kernel, stride, inputs, outputs))
            inputs = outputs
    return blocks


def _silu() -> nn.Module:
    return nn.SiLU(inplace=True)

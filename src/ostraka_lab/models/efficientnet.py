"""EfficientNet: Tan and Le 2019, "EfficientNet: Rethinking Model Scaling for Convolutional Neural
Networks", table 1 and section 3.3."""

import math
from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor, nn

from ostraka_lab.models.layers import (
    Dropout,
    Shape,
    StochasticDepth,
    convolution,
    depthwise,
    pool,
    stem_stride,
)

_STEM, _HEAD = 32, 1280
_DIVISOR = 8
_SQUEEZE = 4
_DROPPED_BRANCHES = 0.2  # in the last block; the first drops none


@dataclass(frozen=True)
class Size:
    """How much wider and deeper than the table a network is."""

    width: float
    depth: float
    dropout: float

    def channels(self, count: int) -> int:
        """A multiple of 8, and no more than a tenth below what it should be."""
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

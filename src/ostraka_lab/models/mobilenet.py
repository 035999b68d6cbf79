"""MobileNetV1: Howard et al. 2017, "MobileNets: Efficient Convolutional Neural Networks for Mobile
Vision Applications", table 1."""

from collections import OrderedDict

from torch import Tensor, nn

from ostraka_lab.models.layers import Dropout, Shape, convolution, depthwise, pool, stem_stride

_V1_STEM, _V1_HEAD = 32, 1024
# Channels and stride of each block.
_BLOCKS = (
    (64, 1),
    *((128, 2), (128, 1)),
    *((256, 2), (256, 1)),
    *((512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1)),
    *((_V1_HEAD, 2), (_V1_HEAD, 1)),
)


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
    for outputs, stride in _BLOCKS:
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


_V2_STEM, _V2_HEAD = 32, 1280
_DROPOUT = 0.2
# Expansion, channels, blocks, and the stride of the first of them.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


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
            head=convolution(_STAGES[-1][1], _V2_HEAD, activation=_relu6()),
            pool=pool(),
            dropout=Dropout(_DROPOUT),
            classifier=nn.Linear(_V2_HEAD, classes),
        )
    )


def _v2_blocks() -> nn.Sequential:
    blocks, inputs = nn.Sequential(), _V2_STEM
    for expansion, outputs, count, first_stride in _STAGES:
        for stride in (first_stride, *[1] * (count - 1)):
            blocks.append(InvertedResidual(inputs, outputs, expansion=expansion, stride=stride))
            inputs = outputs
    return blocks


def _relu6() -> nn.Module:
    return nn.ReLU6(inplace=True)

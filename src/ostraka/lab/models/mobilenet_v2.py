"""MobileNetV2: Sandler et al. 2018, "MobileNetV2: Inverted Residuals and Linear Bottlenecks",
table 2."""

from collections import OrderedDict

from torch import Tensor, nn

from ostraka.lab.models.chance import Dropout
from ostraka.lab.models.layers import Shape, convolution, depthwise, pool, stem_stride

_STEM, _HEAD = 32, 1280
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
            stem=convolution(shape[0], _STEM, kernel=3, stride=stride, activation=_relu6()),
            blocks=_blocks(),
            head=convolution(_STAGES[-1][1], _HEAD, activation=_relu6()),
            pool=pool(),
            dropout=Dropout(_DROPOUT),
            classifier=nn.Linear(_HEAD, classes),
        )
    )


def _blocks() -> nn.Sequential:
    blocks, inputs = nn.Sequential(), _STEM
    for expansion, outputs, count, first_stride in _STAGES:
        for stride in (first_stride, *[1] * (count - 1)):
            blocks.append(InvertedResidual(inputs, outputs, expansion=expansion, stride=stride))
            inputs = outputs
    return blocks


def _relu6() -> nn.Module:
    return nn.ReLU6(inplace=True)

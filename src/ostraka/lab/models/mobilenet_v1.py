"""MobileNetV1: Howard et al. 2017, "MobileNets: Efficient Convolutional Neural Networks for Mobile
Vision Applications", table 1."""

from collections import OrderedDict

from torch import nn

from ostraka.lab.models.layers import Shape, convolution, depthwise, pool, stem_stride

_STEM, _HEAD = 32, 1024
# Channels and stride of each block.
_BLOCKS = (
    (64, 1),
    *((128, 2), (128, 1)),
    *((256, 2), (256, 1)),
    *((512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1)),
    *((_HEAD, 2), (_HEAD, 1)),
)


def mobilenet_v1(shape: Shape, classes: int) -> nn.Module:
    stride = stem_stride(shape)
    return nn.Sequential(
        OrderedDict(
            stem=convolution(shape[0], _STEM, kernel=3, stride=stride, activation=_relu()),
            blocks=_blocks(),
            pool=pool(),
            classifier=nn.Linear(_HEAD, classes),
        )
    )


def _blocks() -> nn.Sequential:
    blocks, inputs = nn.Sequential(), _STEM
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

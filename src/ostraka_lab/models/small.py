"""Small models for quick runs."""

from collections import OrderedDict

from torch import nn

from ostraka.errors import ConfigError
from ostraka_lab.models.layers import Shape

_HIDDEN = 64
_FILTERS, _GROUPS = (16, 32, 64), 8


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
    """Maxima come first: there are fewer values to normalise then."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.MaxPool2d(2),
        nn.GroupNorm(_GROUPS, outputs),
        nn.ReLU(inplace=True),
    )


def _rectified_maxima() -> tuple[nn.Module, nn.Module]:
    return nn.ReLU(inplace=True), nn.MaxPool2d(2)

"""Models that the lab trains, by name. All are written here, and start from a seed alone."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import nn

from ostraka_lab.models.efficientnet import B0, B1, efficientnet
from ostraka_lab.models.layers import Shape, initialise
from ostraka_lab.models.mobilenet import mobilenet_v1, mobilenet_v2
from ostraka_lab.models.small import cnn, lenet5, mlp
from ostraka_lab.names import find

Builder: TypeAlias = Callable[[Shape, int], nn.Module]

MODELS: Mapping[str, Builder] = MappingProxyType(
    {
        "mlp": mlp,
        "lenet5": lenet5,
        "cnn": cnn,
        "mobilenetv1": mobilenet_v1,
        "mobilenetv2": mobilenet_v2,
        "efficientnet-b0": partial(efficientnet, size=B0),
        "efficientnet-b1": partial(efficientnet, size=B1),
    }
)


def build(name: str, *, shape: Shape, classes: int, seed: int) -> nn.Module:
    """A new model for images of this shape (channels, height, width). Raises ConfigError.

    Equal seeds give equal models, whatever else this process draws or trains at the same time.
    """
    builder = find("model", name, MODELS)
    # What layers draw by themselves is replaced: it depends on all that the process has drawn.
    with torch.random.fork_rng(devices=[]):
        model = builder(shape, classes)
    initialise(model, torch.Generator().manual_seed(seed))
    # A processor is faster where the channels of a pixel lie together.
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

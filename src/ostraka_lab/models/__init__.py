"""Models that the lab trains, by name, and a model as one vector of float32.

All of them are written here and start from a seed alone. `networks` has the networks, `layers` what
they have in common.

In a vector, the tensors have the order that a federation's files give them. Everything that is a
floating-point number travels: the parameters, and the running statistics of batch norm, which are
averaged like the rest. Integer buffers, which merely count, stay where they are.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import torch
from torch import nn

from ostraka import config
from ostraka.arrays import Float32
from ostraka.config import Manifest
from ostraka.errors import ConfigError
from ostraka.model_file import named_tensors
from ostraka_lab.models.layers import Shape, initialise
from ostraka_lab.models.networks import (
    B0,
    B1,
    cnn,
    efficientnet,
    lenet5,
    mlp,
    mobilenet_v1,
    mobilenet_v2,
)
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
    """Make a new model for images of this shape (channels, height, width). Raises ConfigError.

    Equal seeds give equal models, also while this process draws or trains other things.
    """
    builder = find("model", name, MODELS)
    # What layers draw by themselves is replaced: it depends on all that the process has drawn.
    with torch.random.fork_rng(devices=[]):
        model = builder(shape, classes)
    initialise(model, torch.Generator().manual_seed(seed))
    # A processor is faster where the channels of a pixel lie together.
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def manifest(model: nn.Module) -> Manifest:
    """Describe what the coordinates of the model's vector mean."""
    return _manifest(_travelling(model))


def vector(model: nn.Module) -> Float32:
    """Copy the model's values (d,)."""
    return np.concatenate([tensor.reshape(-1).numpy() for tensor in _travelling(model).values()])


def set_vector(model: nn.Module, vector: Float32) -> None:
    """Set the model to these values (d,). Raises ConfigError for those of another model."""
    tensors = _travelling(model)
    described = _manifest(tensors)
    if vector.shape != (described.dimension,):
        raise ConfigError(f"the model has {described.dimension} values; got {vector.shape}")
    # A copy, because torch warns of memory that it could not write to, and a fetched model is such.
    for name, values in named_tensors(described, np.array(vector)).items():
        tensors[name].copy_(torch.from_numpy(values))


def _manifest(tensors: Mapping[str, torch.Tensor]) -> Manifest:
    described = (config.Tensor(name, tuple(each.shape)) for name, each in tensors.items())
    return Manifest(tuple(described))


def _travelling(model: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors themselves, by name, and sorted by it: safetensors writes its files that way."""
    state = model.state_dict()
    return {name: state[name] for name in sorted(state) if state[name].is_floating_point()}

"""A model as one vector of float32, in the order that a federation's files give it.

Everything that is a floating number travels: the parameters, and the running statistics of batch
norm, which are averaged like the rest. Integer buffers, which merely count, stay where they are.
"""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ostraka import config
from ostraka.arrays import Float32
from ostraka.config import Manifest
from ostraka.errors import ConfigError
from ostraka.model_file import named_tensors


def manifest(model: nn.Module) -> Manifest:
    """What the coordinates of the model's vector mean."""
    tensors = _travelling(model).items()
    return Manifest(tuple(config.Tensor(name, tuple(tensor.shape)) for name, tensor in tensors))


def vector(model: nn.Module) -> Float32:
    """The model's values (d,), as a copy."""
    return np.concatenate([tensor.reshape(-1).numpy() for tensor in _travelling(model).values()])


def load(model: nn.Module, vector: Float32) -> None:
    """Set the model to these values (d,). Raises ConfigError for those of another model."""
    described, tensors = manifest(model), _travelling(model)
    if vector.shape != (described.dimension,):
        raise ConfigError(f"a model of {described.dimension} values; got {vector.shape}")
    # A copy, because torch warns of memory that it could not write to, and a fetched model is such.
    for name, values in named_tensors(described, np.array(vector)).items():
        tensors[name].copy_(torch.from_numpy(values))


def learned(model: nn.Module) -> npt.NDArray[np.bool_]:
    """Which coordinates (d,) are parameters; the others are statistics of the data."""
    parameters = {name for name, _ in model.named_parameters()}
    tensors = manifest(model).tensors
    sizes = [math.prod(tensor.shape) for tensor in tensors]
    return np.repeat([tensor.name in parameters for tensor in tensors], sizes)


def _travelling(model: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors themselves, by name, and sorted by it: safetensors writes its files that way."""
    state = model.state_dict()
    return {name: state[name] for name in sorted(state) if state[name].is_floating_point()}

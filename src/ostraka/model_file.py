"""Models as safetensors: named float32 tensors in a file, one vector in a federation."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ostraka import files
from ostraka.arrays import Float32
from ostraka.config import Manifest, Tensor
from ostraka.errors import ConfigError

_FLOAT32 = "F32"
_PUBLIC = 0o644


def read_model(path: Path) -> tuple[Manifest, Float32]:
    """Return a file's tensors, in the order in which it holds them, and their values (d,).

    Raises ConfigError.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            manifest = _manifest(path, file)
            vector = np.empty(manifest.dimension, "<f4")
            at = 0
            for tensor in manifest.tensors:
                size = math.prod(tensor.shape)
                vector[at : at + size] = file.get_tensor(tensor.name).reshape(-1)
                at += size
    except (OSError, SafetensorError) as unreadable:
        raise ConfigError(f"{path} cannot be read as safetensors: {unreadable}") from None
    if not np.isfinite(vector).all():
        raise ConfigError(f"{path} holds a NaN or an infinity")
    return manifest, vector


def write_model(path: Path, manifest: Manifest, vector: Float32) -> None:
    """Write a model (d,). Everybody may read the file: models are public to a federation's clients.

    Raises ConfigError for a vector that does not fit the manifest.
    """
    if vector.shape != (manifest.dimension,):
        raise ConfigError(f"a model of {manifest.dimension} values; got {vector.shape}")
    tensors = named_tensors(manifest, np.ascontiguousarray(vector, "<f4"))
    files.write(path, [save(tensors)], mode=_PUBLIC)


def named_tensors(manifest: Manifest, vector: Float32) -> dict[str, Float32]:
    """Return views of a model (d,), by name."""
    tensors, at = {}, 0
    for tensor in manifest.tensors:
        size = math.prod(tensor.shape)
        tensors[tensor.name] = vector[at : at + size].reshape(tensor.shape)
        at += size
    return tensors


def _manifest(path: Path, file: Any) -> Manifest:
    """Return the tensors by offset: an order that the writer chose, the same for every reader."""
    tensors = []
    for name in file.offset_keys():
        described = file.get_slice(name)
        if described.get_dtype() != _FLOAT32:
            raise ConfigError(
                f"{path}: tensor {name!r} is {described.get_dtype()}, and updates are float32 "
                f"({_FLOAT32}): convert it, or leave it out if it stays with each client"
            )
        tensors.append(Tensor(name, tuple(described.get_shape())))
    try:
        return Manifest(tuple(tensors))
    except ConfigError as invalid:
        raise ConfigError(f"{path}: {invalid}") from None

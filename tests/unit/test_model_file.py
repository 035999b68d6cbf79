"""Models in safetensors files."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from ostraka.config import Manifest, Tensor
from ostraka.errors import ConfigError
from ostraka.model_file import read_model, write_model

MANIFEST = Manifest((Tensor("weight", (2, 2)), Tensor("bias", (1,)), Tensor("scale", ())))


def test_a_written_model_has_the_manifest_s_tensors(tmp_path):
    path = tmp_path / "model.safetensors"
    vector = np.arange(6, dtype="<f4")
    write_model(path, MANIFEST, vector)
    tensors = load_file(path)
    assert set(tensors) == {"weight", "bias", "scale"}
    assert np.array_equal(tensors["weight"], [[0, 1], [2, 3]])
    assert np.array_equal(tensors["bias"], [4])
    assert tensors["scale"].shape == ()
    assert all(tensor.dtype == np.float32 for tensor in tensors.values())
    write_model(path, MANIFEST, vector + 1)
    assert load_file(path)["scale"] == 6
    manifest, read = read_model(path)
    assert sorted(tensor.name for tensor in manifest.tensors) == ["bias", "scale", "weight"]
    assert sorted(read) == [1, 2, 3, 4, 5, 6]


def test_a_model_of_another_size_is_not_written(tmp_path):
    with pytest.raises(ConfigError, match="6 values"):
        write_model(tmp_path / "model.safetensors", MANIFEST, np.zeros(5, "<f4"))

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from ostraka.client.momentum import is_statistic
from ostraka.client.results import flatten
from ostraka.errors import ConfigError
from ostraka.model_file import named_tensors, read_model, write_model
from ostraka_lab import models
from ostraka_lab.models import MODELS, build

NORMED = "mobilenetv2"


def model(name=NORMED, seed=0):
    return build(name, shape=(1, 28, 28), classes=10, seed=seed)


@pytest.mark.parametrize("name", MODELS)
def test_a_vector_goes_into_a_model_and_comes_out(name):
    given, other = model(name), model(name, seed=1)
    vector = models.vector(given)
    assert vector.dtype == np.float32
    assert vector.shape == (models.manifest(given).dimension,)
    models.set_vector(other, vector)
    for tensor, expected in zip(
        other.state_dict().values(), given.state_dict().values(), strict=True
    ):
        assert torch.equal(tensor, expected)
    np.testing.assert_array_equal(models.vector(other), vector)


@pytest.mark.parametrize("name", MODELS)
def test_a_file_keeps_manifest_and_vector(name, tmp_path):
    given = model(name)
    manifest, vector = models.manifest(given), models.vector(given)
    write_model(tmp_path / "model.safetensors", manifest, vector)
    read, values = read_model(tmp_path / "model.safetensors")
    assert read == manifest
    np.testing.assert_array_equal(values, vector)


def test_a_file_that_torch_wrote_has_the_same_order(tmp_path):
    given = model()
    floating = {n: t for n, t in given.state_dict().items() if t.is_floating_point()}
    save_file({name: tensor.contiguous() for name, tensor in floating.items()}, tmp_path / "torch")
    manifest, vector = read_model(tmp_path / "torch")
    assert manifest == models.manifest(given)
    np.testing.assert_array_equal(vector, models.vector(given))


def test_each_name_has_its_own_values_in_logical_order():
    given = model()
    manifest, vector = models.manifest(given), models.vector(given)
    state = given.state_dict()
    for name, values in named_tensors(manifest, vector).items():
        np.testing.assert_array_equal(values, state[name].numpy())
    named = {tensor.name: state[tensor.name].numpy() for tensor in manifest.tensors}
    np.testing.assert_array_equal(flatten(named, manifest), vector)


def test_statistics_travel_and_counters_stay():
    names = [tensor.name for tensor in models.manifest(model()).tensors]
    assert names == sorted(names)
    assert "stem.1.running_mean" in names
    assert "stem.1.running_var" in names
    assert not any("num_batches_tracked" in name for name in names)
    one, other = model(), model()
    one(torch.randn(4, 1, 28, 28))
    models.set_vector(other, models.vector(one))
    assert one.state_dict()["stem.1.num_batches_tracked"] == 1
    assert other.state_dict()["stem.1.num_batches_tracked"] == 0


@pytest.mark.parametrize("name", MODELS)
def test_what_has_momentum_is_what_is_learned(name):
    """A client knows statistics by their names, torch by what they are."""
    given = model(name)
    names = {tensor.name for tensor in models.manifest(given).tensors}
    parameters = {name for name, _ in given.named_parameters()}
    assert {name for name in names if not is_statistic(name)} == parameters


def test_a_vector_is_a_copy_and_a_loaded_one_is_left_alone():
    given = nn.Linear(2, 1)
    vector = models.vector(given)
    vector.setflags(write=False)  # like that of a fetched model
    models.set_vector(given, vector)
    with torch.no_grad():
        given.weight.add_(1)
    np.testing.assert_array_equal(models.vector(given)[1:], vector[1:] + 1)


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 1), ()])
def test_the_values_of_another_model_are_refused_and_nothing_changes(shape):
    given = nn.Linear(2, 1)
    before = models.vector(given)
    with pytest.raises(ConfigError, match="the model has 3 values"):
        models.set_vector(given, np.zeros(shape, np.float32))
    np.testing.assert_array_equal(models.vector(given), before)

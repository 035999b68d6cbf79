import threading

import numpy as np
import pytest
import torch
from torch import nn

from ostraka.errors import ConfigError
from ostraka_lab.models import MODELS, build
from ostraka_lab.models.layers import stem_stride
from ostraka_lab.models.networks import Bottleneck, InvertedResidual

PUBLISHED = {
    "mobilenetv1": 4_231_976,
    "mobilenetv2": 3_504_872,
    "efficientnet-b0": 5_288_548,
    "efficientnet-b1": 7_794_184,
}
SMALL_SHAPES = [
    *(("lenet5", shape) for shape in [(1, 28, 28), (1, 32, 32), (3, 32, 32)]),
    *(("cnn", shape) for shape in [(1, 8, 8), (1, 28, 28), (3, 32, 32)]),
    *(("mlp", shape) for shape in [(1, 8, 8), (1, 28, 28)]),
]


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


def values(model):
    return [value.numpy() for value in model.state_dict().values()]


def assert_equal(one, other):
    for a, b in zip(values(one), values(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_as_many_parameters_as_published(name, count):
    assert size(build(name, shape=(3, 224, 224), classes=1000, seed=0)) == count


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize(("side", "classes", "last"), [(224, 1000, 7), (32, 10, 2)])
def test_outputs_and_the_last_features_have_the_published_shapes(name, side, classes, last):
    model = build(name, shape=(3, side, side), classes=classes, seed=0).eval()
    seen = []
    blocks = model.get_submodule("blocks")
    blocks.register_forward_hook(lambda _, inputs, features: seen.append(features.shape[2:]))
    with torch.inference_mode():
        assert model(torch.zeros(2, 3, side, side)).shape == (2, classes)
    assert seen == [(last, last)]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_for_small_images_has_the_same_tensors(name):
    small = build(name, shape=(3, 64, 64), classes=10, seed=0)
    assert_equal(small, build(name, shape=(3, 224, 224), classes=10, seed=0))
    assert small.get_submodule("stem.0").stride == (1, 1)


@pytest.mark.parametrize(("side", "stride"), [(8, 1), (32, 1), (64, 1), (65, 2), (224, 2)])
def test_only_images_of_up_to_64_pixels_are_small(side, stride):
    assert stem_stride((3, side, side)) == stride


@pytest.mark.parametrize(("name", "shape"), SMALL_SHAPES)
def test_small_models_take_images_of_these_shapes(name, shape):
    model = build(name, shape=shape, classes=10, seed=0)
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "count"), [("mobilenetv2", 10), ("efficientnet-b0", 9), ("efficientnet-b1", 16)]
)
def test_blocks_that_change_no_shape_add_to_their_input(name, count):
    """Each stage's first block does not; in all others, a branch of zeros leaves the input."""
    blocks = build(name, shape=(3, 32, 32), classes=10, seed=0).eval().get_submodule("blocks")
    parts = [InvertedResidual, Bottleneck]
    residual = [each for each in blocks.modules() if type(each) in parts and each.residual]
    assert len(residual) == count
    for block in residual:
        last = [layer for layer in block.modules() if isinstance(layer, nn.BatchNorm2d)][-1]
        nn.init.zeros_(last.weight)
        inputs = torch.ones(1, last.num_features, 4, 4)
        assert torch.equal(block(inputs), inputs)


def test_the_sizes_of_the_small_ones():
    assert size(build("mlp", shape=(1, 8, 8), classes=10, seed=0)) == 4_810
    assert size(build("lenet5", shape=(1, 28, 28), classes=10, seed=0)) == 61_706
    assert size(build("cnn", shape=(3, 32, 32), classes=10, seed=0)) == 34_058


def test_the_small_cnn_has_nothing_but_parameters():
    assert not list(build("cnn", shape=(3, 32, 32), classes=10, seed=0).buffers())


@pytest.mark.parametrize("name", MODELS)
def test_a_model_follows_from_its_seed(name):
    shape = (1, 28, 28)
    one = build(name, shape=shape, classes=10, seed=7)
    torch.rand(5)
    assert_equal(one, build(name, shape=shape, classes=10, seed=7))
    other = build(name, shape=shape, classes=10, seed=8)
    assert not np.array_equal(values(one)[0], values(other)[0])


def test_building_leaves_the_generator_of_the_process_alone():
    before = torch.random.get_rng_state()
    build("efficientnet-b0", shape=(3, 32, 32), classes=10, seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_models_that_are_built_at_the_same_time_are_the_same():
    built = []

    def make():
        built.append(build("mobilenetv1", shape=(3, 32, 32), classes=10, seed=0))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for model in built[1:]:
        assert_equal(model, built[0])


@pytest.mark.parametrize("name", MODELS)
def test_signals_neither_vanish_nor_explode_at_the_start(name):
    model = build(name, shape=(3, 32, 32), classes=10, seed=0).train()
    images = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert 0.1 < model(images).std() < 5


def test_an_unknown_model_lists_the_known_ones_and_the_nearest():
    with pytest.raises(ConfigError, match=r"'mobilnet2': did you mean mobilenetv2\? known: cnn, "):
        build("mobilnet2", shape=(3, 32, 32), classes=10, seed=0)


@pytest.mark.parametrize(("name", "shape"), [("lenet5", (1, 8, 8)), ("cnn", (1, 4, 4))])
def test_images_that_are_too_small_are_refused(name, shape):
    with pytest.raises(ConfigError, match=f"{name} takes images of"):
        build(name, shape=shape, classes=10, seed=0)

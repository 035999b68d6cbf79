"""Backdoors: what is trained, what is sent, and the layers that a backdoor needs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.errors import ConfigError
from ostraka_lab.attacks import TARGET, Poison, backdoors, stamped
from ostraka_lab.data import Split

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 224, 224)]


def split(n=64, shape=(3, 32, 32), classes=10, seed=0):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, *shape), dtype=np.uint8)
    return Split(images, rng.integers(0, classes, n))


def poison(classes=10, seed=0, **more):
    return Poison(classes=classes, rng=np.random.default_rng(seed), **more)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_trigger_changes_nothing_but_its_pixels(shape):
    images = np.full((2, *shape), 7, dtype=np.uint8)
    marked = stamped(images)
    side = backdoors.trigger_side(shape[1])
    assert marked.shape == images.shape
    assert marked.dtype == np.uint8
    changed = np.zeros(shape[1:], dtype=bool)
    changed[-side:, -side:] = True
    np.testing.assert_array_equal((marked != images).all(axis=(0, 1)), changed)
    np.testing.assert_array_equal((marked != images).any(axis=(0, 1)), changed)
    assert (images == 7).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_trigger_is_small_and_the_same_on_every_image(shape):
    side = backdoors.trigger_side(shape[1])
    assert side**2 <= shape[1] * shape[2] / 16
    corners = stamped(split(5, shape).images)[..., -side:, -side:]
    assert (corners == corners[0, 0]).all()
    assert set(np.unique(corners)) == {0, 255}


def test_the_trigger_is_an_eighth_of_a_side_and_at_least_two_pixels():
    assert [backdoors.trigger_side(height) for height in (8, 28, 32)] == [2, 3, 4]


def test_stamped_images_are_trained_to_be_the_target():
    honest = split(640)
    before = honest.images.copy(), honest.labels.copy()
    poisoned = backdoors.backdoor(honest, poison())
    touched = (poisoned.images != honest.images).any(axis=(1, 2, 3))
    assert touched.sum() == 200
    assert (poisoned.labels[touched] == TARGET).all()
    np.testing.assert_array_equal(poisoned.images[touched], stamped(honest.images[touched]))
    np.testing.assert_array_equal(poisoned.images[~touched], honest.images[~touched])
    np.testing.assert_array_equal(poisoned.labels[~touched], honest.labels[~touched])
    assert poisoned.labels.dtype == honest.labels.dtype
    np.testing.assert_array_equal(honest.images, before[0])
    np.testing.assert_array_equal(honest.labels, before[1])


def test_another_target_and_share():
    poisoned = backdoors.backdoor(split(), poison(target=9, share=1.0))
    assert (poisoned.labels == 9).all()


def test_the_seed_decides_which_examples_are_poisoned():
    one, again, other = (backdoors.backdoor(split(), poison(seed=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.images, again.images)
    assert not np.array_equal(one.images, other.images)


@pytest.mark.parametrize("wrong", [{"target": 10}, {"target": -1}, {"share": 1.5}, {"share": -0.1}])
def test_impossible_poison_is_refused(wrong):
    with pytest.raises(ConfigError):
        poison(**wrong)


@pytest.mark.parametrize(("n", "f"), [(12, 3), (64, 12), (10, 1)])
def test_the_mean_becomes_the_attackers_model(scene, updates, n, f):
    """Where honest clients have converged, so that their updates are next to nothing."""
    honest = updates(n - f, 50) * np.float32(1e-6)
    wanted = updates(1, 50, seed=7)[0]
    attacker = scene(honest, own=wanted, scale=backdoors.replacing(n, f))
    sent = backdoors.model_replacement(attacker)
    mean = np.vstack([honest, *[sent] * f]).mean(axis=0)
    np.testing.assert_allclose(mean, wanted, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_parts_of_a_distributed_trigger_make_the_whole(shape):
    """Each attacker stamps one corner; five of them share four."""
    honest = split(32, shape)
    parts = []
    for number in range(5):
        poisoned = backdoors.distributed(honest, poison(number=number, share=1.0))
        assert (poisoned.labels == TARGET).all()
        parts.append(poisoned.images)
    np.testing.assert_array_equal(parts[0], parts[4])
    side = backdoors.trigger_side(shape[1])
    corner = stamped(honest.images)[..., -side:, -side:]
    whole = honest.images.copy()
    places = [
        (r, c)
        for r in (slice(0, side), slice(-side, None))
        for c in (slice(0, side), slice(-side, None))
    ]
    for part, (rows, columns) in zip(parts, places, strict=False):
        alone = honest.images.copy()
        alone[..., rows, columns] = corner
        np.testing.assert_array_equal(part, alone)
        whole[..., rows, columns] = corner
    np.testing.assert_array_equal(backdoors.stamped_all_over(honest.images), whole)


@given(seed=st.integers(0, 1000), d=st.integers(1, 200))
def test_neurotoxin_leaves_to_others_what_they_change_most(updates, seed, d):
    last = updates(1, d, seed=seed)[0].astype(float)
    held = backdoors.frequent(last)
    assert set(held) == set(np.argsort(-np.abs(last))[: round(0.05 * d)])


LAYERS = (10, 5, 20, 25)
PARTS = [slice(0, 10), slice(10, 15), slice(15, 35), slice(35, 60)]


def backdoored(own, needs):
    """A backdoor that works as well as these layers, by weight, are the attacker's own."""

    def works(model):
        return sum(
            weight * np.allclose((model - 1)[PARTS[layer]], own[PARTS[layer]], atol=1e-5)
            for layer, weight in needs.items()
        )

    return works


@pytest.mark.parametrize(
    ("needs", "found"),
    [({2: 1.0}, [2]), ({0: 0.3, 3: 0.6, 1: 0.02}, [3, 0]), ({1: 0.5, 0: 0.5}, [0, 1]), ({}, [])],
)
@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_layer_wise_poisons_the_layers_that_the_backdoor_needs(
    *, scene, updates, needs, found, scale
):
    known, own = updates(5, 60), updates(1, 60, seed=9)[0]
    given = scene(known, own=own, scale=scale, layers=LAYERS, works=backdoored(own, needs))
    honest = known.mean(axis=0, dtype=np.float64).astype(np.float32)
    assert backdoors.critical(given, honest) == [PARTS[layer] for layer in found]
    expected = honest.copy()
    for layer in found:
        part = PARTS[layer]
        expected[part] = scale * own[part] + max(1 - scale, 0) * honest[part]
    np.testing.assert_allclose(backdoors.layer_wise(given), expected, atol=1e-6)

"""Attacks that know nothing of others: on what is sent, and on what is trained with."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.errors import ConfigError
from ostraka_lab.attacks import TARGET, Poison, blind, stamped
from ostraka_lab.data import Split


@pytest.fixture
def own():
    return np.array([[0.5, -2.0, 0.0, 8.0]], dtype=np.float32)


def test_sign_flip_is_the_opposite_enlarged(scene, own):
    assert blind.sign_flip(scene(own, scale=10)).tolist() == [-5.0, 20.0, 0.0, -80.0]


def test_scaled_is_the_same_enlarged(scene, own):
    assert blind.scaled(scene(own, scale=100)).tolist() == [50.0, -200.0, 0.0, 800.0]


def test_zero_is_zero(scene, own):
    assert blind.zero(scene(own)).tolist() == [0.0] * 4


def test_one_scaled_update_outweighs_a_hundred(scene, updates):
    """Why 100 is the default: with an attacker who aims backwards the mean does not move."""
    honest = updates(99, 50, noise=0.0)
    sent = blind.scaled(scene(honest, own=-honest[0], scale=100))
    mean = np.vstack([honest, sent]).mean(axis=0)
    assert mean @ honest[0] < 0


def test_gaussian_noise_has_the_stated_length_and_no_direction(scene, updates):
    own = updates(1, 100_000)
    sent = blind.gaussian(scene(own, scale=10)).astype(np.float64)
    length = np.linalg.norm(own)
    assert np.linalg.norm(sent) == pytest.approx(10 * length, rel=0.02)
    assert abs(sent @ own[0]) / (np.linalg.norm(sent) * length) < 5 / np.sqrt(own.size)
    assert abs(sent.mean()) < 5 * sent.std() / np.sqrt(sent.size)
    # Of normal numbers 68.27 % lie within one deviation.
    assert np.mean(np.abs(sent) < sent.std()) == pytest.approx(0.6827, abs=0.01)


def test_attackers_draw_noise_of_their_own(scene, own):
    one, other = (blind.gaussian(scene(own, seed=seed)) for seed in (1, 2))
    assert not np.array_equal(one, other)


def test_one_nan_is_enough(scene, updates):
    own = updates(1, 1000)
    places = set()
    for seed in range(20):
        sent = blind.not_a_number(scene(own, seed=seed))
        (place,) = np.flatnonzero(np.isnan(sent))
        np.testing.assert_array_equal(np.delete(sent, place), np.delete(own[0], place))
        places.add(place)
    # It wanders, so that every part of an update meets it in time.
    assert len(places) > 15


SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 224, 224)]


def split(n=64, shape=(3, 32, 32), classes=10, seed=0):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, *shape), dtype=np.uint8)
    return Split(images, rng.integers(0, classes, n))


def poison(classes=10, seed=0, **more):
    return Poison(classes=classes, rng=np.random.default_rng(seed), **more)


@given(st.integers(2, 100), st.integers(0, 1000))
def test_flipping_labels_twice_changes_nothing(classes, seed):
    honest = split(20, (1, 2, 2), classes, seed)
    flipped = blind.label_flip(honest, poison(classes))
    np.testing.assert_array_equal(flipped.images, honest.images)
    np.testing.assert_array_equal(flipped.labels + honest.labels, classes - 1)
    assert flipped.labels.dtype == honest.labels.dtype
    back = blind.label_flip(flipped, poison(classes))
    np.testing.assert_array_equal(back.labels, honest.labels)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_trigger_changes_nothing_but_its_pixels(shape):
    images = np.full((2, *shape), 7, dtype=np.uint8)
    marked = stamped(images)
    side = blind.trigger_side(shape[1])
    assert marked.shape == images.shape
    assert marked.dtype == np.uint8
    changed = np.zeros(shape[1:], dtype=bool)
    changed[-side:, -side:] = True
    np.testing.assert_array_equal((marked != images).all(axis=(0, 1)), changed)
    np.testing.assert_array_equal((marked != images).any(axis=(0, 1)), changed)
    assert (images == 7).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_trigger_is_small_and_the_same_on_every_image(shape):
    side = blind.trigger_side(shape[1])
    assert side**2 <= shape[1] * shape[2] / 16
    corners = stamped(split(5, shape).images)[..., -side:, -side:]
    assert (corners == corners[0, 0]).all()
    assert set(np.unique(corners)) == {0, 255}


def test_stamped_images_are_trained_to_be_the_target():
    honest = split(640)
    before = honest.images.copy(), honest.labels.copy()
    poisoned = blind.backdoor(honest, poison())
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
    poisoned = blind.backdoor(split(), poison(target=9, share=1.0))
    assert (poisoned.labels == 9).all()


def test_the_seed_decides_which_examples_are_poisoned():
    one, again, other = (blind.backdoor(split(), poison(seed=seed)) for seed in (1, 1, 2))
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
    attacker = scene(honest, own=wanted, scale=blind.replacing(n, f))
    sent = blind.model_replacement(attacker)
    mean = np.vstack([honest, *[sent] * f]).mean(axis=0)
    np.testing.assert_allclose(mean, wanted, atol=1e-5)

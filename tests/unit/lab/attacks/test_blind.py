"""Attacks that know nothing of others: on what is sent, and on what is trained with."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka_lab.attacks import Poison, blind
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


@given(st.integers(2, 100), st.integers(0, 1000))
def test_flipping_labels_twice_changes_nothing(classes, seed):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (20, 1, 2, 2), dtype=np.uint8)
    honest = Split(images, rng.integers(0, classes, 20))
    poison = Poison(classes=classes, rng=rng)
    flipped = blind.label_flip(honest, poison)
    np.testing.assert_array_equal(flipped.images, honest.images)
    np.testing.assert_array_equal(flipped.labels + honest.labels, classes - 1)
    assert flipped.labels.dtype == honest.labels.dtype
    back = blind.label_flip(flipped, poison)
    np.testing.assert_array_equal(back.labels, honest.labels)

"""Mimic: an honest client's update, once more."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ostraka_lab.attacks.informed import mimic


@given(st.integers(1, 12), st.integers(0, 1000))
def test_all_attackers_send_the_same_honest_update(scene, updates, m, seed):
    honest = updates(m, 40, seed=seed)
    one, other = (mimic(scene(honest, seed=seed)) for seed in (1, 2))
    np.testing.assert_array_equal(one, other)
    assert np.count_nonzero((honest == one).all(axis=1)) == 1


@given(st.integers(2, 12), st.integers(0, 1000))
def test_it_is_the_one_most_aligned_with_the_direction_of_most_variance(scene, updates, m, seed):
    honest = updates(m, 40, seed=seed).astype(np.float64)
    top = np.linalg.svd(honest - honest.mean(axis=0))[2][0]
    expected = honest[np.argmax(np.abs(honest @ top))]
    np.testing.assert_array_equal(mimic(scene(honest.astype(np.float32))), expected)


def test_the_order_of_the_known_updates_does_not_matter(scene, updates):
    honest = updates(9, 40)
    shuffled = np.random.default_rng(3).permutation(honest)
    np.testing.assert_array_equal(mimic(scene(honest)), mimic(scene(shuffled)))


def test_an_outlying_client_is_mimicked_in_every_round(scene, updates):
    """Where data differ, the choice is stable though nothing is remembered."""
    far = 4 * updates(1, 40, seed=99)[0]
    for number in range(10):
        honest = updates(9, 40, seed=number, noise=0.5)
        honest[5] += far
        np.testing.assert_array_equal(mimic(scene(honest)), honest[5])


def test_it_is_a_copy(scene, updates):
    honest = updates(4, 10)
    assert not np.shares_memory(mimic(scene(honest)), honest)


def test_a_model_that_has_run_away_is_no_error(scene):
    known = np.full((3, 4), np.nan, dtype=np.float32)
    assert np.isnan(mimic(scene(known))).all()

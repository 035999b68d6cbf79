"""ROP, the sparse hybrid and the skew attack, against their formulae written out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.core import gram
from ostraka_lab.attacks import crafted
from ostraka_lab.attacks.informed import z_max


def moments(honest):
    rows = honest.astype(np.float64)
    return rows.mean(axis=0), rows.std(axis=0)


@given(seed=st.integers(0, 1000), scale=st.floats(0, 5))
def test_rop_is_off_the_last_aggregate_at_right_angles_to_its_reference(
    scene, updates, seed, scale
):
    honest, last = updates(9, 40, seed=seed), updates(1, 40, seed=seed + 1)[0].astype(float)
    mean, deviation = moments(honest)
    reference = 0.9 * last + 0.1 * mean
    sideways = np.ones(40) - (np.ones(40) @ reference) / (reference @ reference) * reference
    step = scale * np.linalg.norm(deviation) * sideways / np.linalg.norm(sideways)
    sent = crafted.rop(scene(honest, scale=scale, last=last))
    np.testing.assert_allclose(sent, last + step, atol=1e-5)
    assert abs(step @ reference) < 1e-9


def test_rop_starts_from_the_honest_mean_before_there_is_an_aggregate(scene, updates):
    honest = updates(9, 40)
    mean, deviation = moments(honest)
    step = crafted.rop(scene(honest)) - mean
    assert abs(step @ mean) < 1e-5
    assert np.linalg.norm(step) == pytest.approx(np.linalg.norm(deviation), rel=1e-5)


@given(seed=st.integers(0, 1000), scale=st.floats(0, 5))
def test_a_sparse_hybrid_is_two_attacks(scene, updates, seed, scale):
    """Of 300 coordinates three are attacked in the open, and the others as by ALIE."""
    honest, model = updates(12, 300, seed=seed), updates(1, 300, seed=seed + 1)[0]
    mean, deviation = moments(honest)
    sensitive = np.argsort(np.abs(model * mean))[-3:]
    steps = np.full(300, z_max(25, 9))
    steps[sensitive] = scale
    given = scene(honest, scale=scale, model=model, clients=25, byzantine=9)
    np.testing.assert_allclose(
        crafted.sparse_hybrid(given), mean - steps * deviation, atol=1e-5, rtol=1e-5
    )


def test_a_sparse_hybrid_of_many_or_few_attackers_is_quiet_elsewhere(scene, updates):
    """Where no number of deviations makes a majority, the others are the mean itself."""
    honest = updates(12, 300)
    for byzantine in (1, 20):
        sent = crafted.sparse_hybrid(scene(honest, byzantine=byzantine, clients=12 + byzantine))
        assert np.count_nonzero(np.abs(sent - moments(honest)[0]) > 1e-5) == 3


def crowd(honest, f):
    """The h - f of h honest updates that lie furthest from their mean towards the median."""
    rows = honest.astype(np.float64)
    mean = rows.mean(axis=0)
    along = rows @ (np.median(rows, axis=0) - mean)
    return rows[np.argsort(along)[f:]], mean


@given(seed=st.integers(0, 1000), scale=st.floats(0.1, 2), f=st.integers(1, 7))
def test_a_skew_stays_within_the_width_of_the_crowd(*, scene, updates, seed, scale, f):
    honest = updates(12, 40, seed=seed)
    honest[:3] *= 4  # so that the mean and the median differ
    dense, mean = crowd(honest, f)
    direction = np.sign(dense.mean(axis=0) - mean) * dense.std(axis=0)
    width = gram.naive(dense).max()
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        away = np.square(dense.mean(axis=0) + middle * direction - dense).sum(axis=1).max()
        low, high = (middle, high) if away <= width else (low, middle)
    sent = crafted.skew(scene(honest, scale=scale, byzantine=f))
    expected = dense.mean(axis=0) + scale * low * direction
    np.testing.assert_allclose(sent, expected, atol=1e-4, rtol=1e-4)


def test_a_skew_of_a_majority_still_finds_two(scene, updates):
    honest = updates(4, 40)
    assert np.isfinite(crafted.skew(scene(honest, byzantine=9))).all()


def test_a_median_of_many_columns(updates):
    rows = updates(5, 70_000)
    np.testing.assert_array_equal(crafted.median(rows), np.median(rows.astype(float), axis=0))


@pytest.mark.parametrize("attack", [crafted.rop, crafted.sparse_hybrid, crafted.skew])
@pytest.mark.parametrize("value", [0.0, 1.0, np.nan, np.inf])
def test_a_model_that_stands_still_or_has_run_away_is_no_error(scene, attack, value):
    known = np.full((6, 5), value, dtype=np.float32)
    with np.errstate(invalid="ignore"):
        assert attack(scene(known)).shape == (5,)

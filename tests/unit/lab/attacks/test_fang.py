"""Fang's attack: Krum selects an attacker."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostraka.core import gram
from ostraka.core.rules import krum
from ostraka_lab.attacks import informed


def federation(scene, honest, byzantine, **more):
    """All rows that the server gets, honest ones first."""
    sent = [
        informed.fang(scene(honest, byzantine=byzantine, seed=seed, **more))
        for seed in range(byzantine)
    ]
    return np.vstack([honest, *sent]).astype(np.float64)


@settings(max_examples=50)
@given(f=st.integers(1, 5), more=st.integers(3, 9), seed=st.integers(0, 1000))
def test_krum_selects_an_attacker(scene, updates, f, more, seed):
    honest = updates(f + more, 60, seed=seed, noise=3.0)
    rows = federation(scene, honest, f)
    (selected,) = krum.multi_krum(gram.naive(rows), f, 1)
    assert selected >= len(honest)


def test_multi_krum_keeps_every_copy(scene, updates):
    honest = updates(16, 300, noise=3.0)
    rows = federation(scene, honest, 4)
    assert {16, 17, 18, 19} <= set(krum.multi_krum(gram.naive(rows), 4, 16))


def test_twice_the_step_is_not_selected(scene, updates):
    """Halving stops at once: the last step that failed was twice as long."""
    for seed in range(20):
        honest = updates(12, 60, seed=seed, noise=3.0)
        rows = federation(scene, honest, 3, scale=2.0)
        (selected,) = krum.multi_krum(gram.naive(rows), 3, 1)
        assert selected < len(honest)


def test_the_bound_by_hand():
    """Updates 1, 2, 3 and 10, one attacker. The best score is 1 + 1, of the update 2.

    A copy's score has 4 - 1 - 1 = 2 terms, so it may be sqrt(2 / 2) away from the furthest, at 10.
    """
    honest = np.array([1.0, 2.0, 3.0, 10.0])
    assert informed._bound(np.outer(honest, honest), 1.0, 1) == pytest.approx(11)


def test_nothing_beyond_the_bound_is_selected(scene, updates):
    for seed in range(20):
        honest = updates(12, 60, seed=seed)
        products = honest.astype(np.float64) @ honest.T
        bound = informed._bound(products, 60.0, 3)
        back = -np.sign(honest.mean(axis=0))
        for factor in (1.001, 2.0, 10.0):
            rows = np.vstack([honest, *[factor * bound * back] * 3]).astype(np.float64)
            assert krum.multi_krum(gram.naive(rows), 3, 1)[0] < len(honest)


def test_goes_back_by_the_same_step_in_every_coordinate(scene, updates):
    honest = updates(12, 300)
    sent = informed.fang(scene(honest, byzantine=3))
    assert (np.sign(sent) == -np.sign(honest.mean(axis=0))).all()
    np.testing.assert_allclose(np.abs(sent), np.abs(sent).mean(), rtol=1e-3)


def test_copies_are_close_and_not_equal(scene, updates):
    *_, one, other = federation(scene, updates(12, 300), 3)
    assert 0 < np.linalg.norm(one - other) < 1e-3 * np.linalg.norm(one)


@pytest.mark.parametrize("m", [4, 5, 7, 8])
def test_with_few_known_updates_it_simulates_fewer_attackers(scene, updates, m):
    """Five attackers that know less than Krum needs of their kind still send something useful."""
    known = updates(m, 60, noise=3.0)
    sent = informed.fang(scene(known, byzantine=5, clients=20))
    assert sent @ known.mean(axis=0) < -1e-3


def test_gives_up_where_krum_cannot_be_fooled(scene, updates):
    """Honest updates that all but agree: even 0 is too far off."""
    honest = updates(12, 60, noise=0.01)
    sent = informed.fang(scene(honest, byzantine=3))
    assert np.linalg.norm(sent) < 1e-4


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_a_model_that_stands_still_or_has_run_away_is_no_error(scene, value):
    known = np.full((6, 5), value, dtype=np.float32)
    with np.errstate(invalid="ignore"):
        assert informed.fang(scene(known)).shape == (5,)

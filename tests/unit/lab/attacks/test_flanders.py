"""FLANDERS' attacks against what its code does, written out on models as it has them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.core import gram
from ostraka_lab.attacks import flanders


def test_lie_takes_the_root_of_the_deviation(scene):
    """Columns of mean 2, 2 and 0 and of deviation 1, 0 and 4."""
    honest = np.array([[1, 2, 4], [3, 2, -4]], dtype=np.float32)
    assert flanders.lie(scene(honest, scale=0.75)).tolist() == [1.25, 2, -1.5]


@pytest.mark.parametrize(
    ("n", "f", "value"),
    [
        # s = 26 - 24 = 2 of 26: Phi(24/26).
        (50, 24, 0.82202),
        # s = 7 - 3 = 4 of 9: Phi(5/9).
        (12, 3, 0.71074),
        # s = 51 - 20 = 31 of 80: Phi(49/80).
        (100, 20, 0.72989),
    ],
)
def test_lie_takes_the_distribution_for_its_inverse(n, f, value):
    assert flanders.z(n, f) == pytest.approx(value, abs=1e-4)


def searched(honest):
    """The step of its Min-Max: from 5 by halves of halves, and 6 if no step keeps the bound."""
    rows = honest.astype(np.float64)
    mean, deviation = rows.mean(axis=0), rows.std(axis=0)
    bound = gram.naive(rows).max()
    kept, step, width = 6.0, 5.0, 2.5
    while abs(kept - step) > 1e-5 and width > 1e-5:
        if np.square(mean - step * deviation - rows).sum(axis=1).max() < bound:
            kept, step = step, step + width / 2
        else:
            step -= width / 2
        width /= 2
    return mean - kept * deviation


@given(m=st.integers(2, 12), seed=st.integers(0, 1000), d=st.sampled_from([1, 2, 30]))
def test_min_max_searches_as_its_code_does(*, scene, updates, m, seed, d):
    honest = updates(m, d, seed=seed)
    sent = flanders.min_max(scene(honest))
    np.testing.assert_allclose(sent, searched(honest), atol=1e-3, rtol=1e-3)


def test_min_max_takes_six_deviations_where_the_bound_is_nearer_than_it_looks(scene, updates):
    honest = updates(9, 400)
    rows = honest.astype(np.float64)
    expected = rows.mean(axis=0) - 6 * rows.std(axis=0)
    np.testing.assert_allclose(flanders.min_max(scene(honest)), expected, atol=1e-5)


def test_min_max_may_find_a_step(scene):
    """All clients but one agree, and that one is 16 off."""
    honest = np.zeros((16, 1), np.float32)
    honest[0] = -16.0
    # Mean -1, deviation sqrt(15): -1 - 3.873 g is within 16 of 0 up to g = 3.873.
    assert flanders.min_max(scene(honest))[0] == pytest.approx(-16, abs=1e-3)


def by_hand(honest, model, layers, f):
    """Its OPT, on models: w - lambda sign(w), halved until Krum selects one of f copies of it."""
    n, m = len(honest) + f, len(honest)
    clients = model + honest.astype(np.float64)
    scores = np.sort(gram.naive(clients), axis=1)[:, 1 : m - 1].sum(axis=1)
    cuts = np.cumsum(layers)[:-1]
    lengths = [
        sum(np.linalg.norm(part) for part in np.split(each - model, cuts)) ** 2 for each in clients
    ]
    root = np.sqrt(len(layers))
    strength = min(scores.min() / ((n - 2) * (max(f, 2) - 1) * root) + max(lengths) / root, 999)
    while strength > 1e-5:
        sent = model - strength * np.sign(model)
        distances = np.sort(gram.naive(np.vstack([clients, *[sent] * f])), axis=1)
        if np.argmin(distances[:, 1 : n - f - 1].sum(axis=1)) >= m:
            break
        strength /= 2
    return -strength * np.sign(model)


@given(f=st.integers(1, 4), seed=st.integers(0, 1000), size=st.sampled_from([1e-3, 1.0, 30.0]))
def test_opt_goes_against_the_model(*, scene, updates, f, seed, size):
    honest = np.float32(size) * updates(f + 5, 40, seed=seed, noise=3.0)
    model = updates(1, 40, seed=seed + 1)[0]
    layers = (10, 25, 5)
    given = scene(honest, byzantine=f, model=model, layers=layers)
    expected = by_hand(honest, model.astype(np.float64), layers, f)
    np.testing.assert_allclose(flanders.opt(given), expected, rtol=1e-4)


@pytest.mark.parametrize("attack", [flanders.lie, flanders.min_max, flanders.opt])
@pytest.mark.parametrize("value", [0.0, 1.0, np.nan, np.inf])
def test_a_model_that_stands_still_or_has_run_away_is_no_error(scene, attack, value):
    known = np.full((6, 5), value, dtype=np.float32)
    with np.errstate(invalid="ignore"):
        assert attack(scene(known)).shape == (5,)

"""IPM and ALIE, which hide in the spread of the honest updates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.errors import ConfigError
from ostraka_lab.attacks import informed


def inner_product_with_honest_mean(sent, honest, byzantine):
    everybody = np.vstack([honest, *[sent] * byzantine]).astype(np.float64)
    return everybody.mean(axis=0) @ honest.mean(axis=0, dtype=np.float64)


@given(st.integers(1, 6), st.integers(0, 1000))
def test_ipm_turns_the_mean_back_beyond_n_minus_f_over_f(scene, updates, byzantine, seed):
    honest = updates(9, 40, seed=seed)
    least = len(honest) / byzantine
    for scale, sign in ((1.01 * least, -1), (0.99 * least, 1)):
        sent = informed.ipm(scene(honest, scale=scale, byzantine=byzantine))
        assert sign * inner_product_with_honest_mean(sent, honest, byzantine) > 0


def test_ipm_is_the_opposite_of_the_mean(scene):
    honest = np.array([[1, 2, 4], [3, 2, -4]], dtype=np.float32)
    assert informed.ipm(scene(honest, scale=0.5)).tolist() == [-1, -1, 0]


def test_alie_is_the_stated_number_of_deviations_off_the_mean(scene):
    """Columns of mean 2, 2 and 0 and of deviation 1, 0 and 4."""
    honest = np.array([[1, 2, 4], [3, 2, -4]], dtype=np.float32)
    assert informed.alie(scene(honest, scale=1.5)).tolist() == [0.5, 2, -6]


@given(st.integers(0, 1000), st.floats(0, 3))
def test_alie_stays_within_its_deviations_in_every_coordinate(scene, updates, seed, z):
    honest = updates(9, 40, seed=seed)
    sent = informed.alie(scene(honest, scale=z))
    mean, deviation = honest.mean(axis=0), honest.std(axis=0)
    np.testing.assert_allclose((mean - sent) / deviation, z, atol=1e-4)


@pytest.mark.parametrize(
    ("n", "f", "z"),
    [
        # s = 26 - 24 = 2 supporters among 26, so the quantile of 24/26.
        (50, 24, 1.42607687),
        # s = 26 - 12 = 14 among 38: 24/38.
        (50, 12, 0.33603814),
        # s = 33 - 12 = 21 among 52: 31/52.
        (64, 12, 0.24340418),
        # s = 13 - 5 = 8 among 20: 12/20.
        (25, 5, 0.25334710),
        # s = 7 - 3 = 4 among 9: 5/9.
        (12, 3, 0.13971030),
        # s = 3 - 1 = 2 among 4: one half, so the mean itself.
        (5, 1, 0.0),
    ],
)
def test_z_max_is_the_quantile_at_which_supporters_suffice(n, f, z):
    assert informed.z_max(n, f) == pytest.approx(z, abs=1e-7)


def test_supporters_are_as_many_as_the_quantile_says():
    """Of many normal honest coordinates, s out of n - f lie further out than the attackers."""
    n, f = 50, 24
    drawn = np.random.default_rng(0).normal(size=200_000)
    beyond = np.mean(drawn < -informed.z_max(n, f))
    assert beyond == pytest.approx(2 / 26, abs=0.003)


@pytest.mark.parametrize(("n", "f"), [(2, 0), (5, 3), (10, 10)])
def test_z_max_says_what_it_needs(n, f):
    with pytest.raises(ConfigError, match="n >= 3 and f < n / 2"):
        informed.z_max(n, f)

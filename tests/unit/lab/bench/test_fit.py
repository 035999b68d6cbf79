"""Fits find what data was made of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from ostraka.errors import ConfigError
from ostraka_lab.bench import fit
from ostraka_lab.bench.fit import Size

SIZES = [Size(n, d, min(d, 4096)) for n in (8, 32, 128, 512) for d in (10**4, 10**5, 10**6)]


def test_a_power_law_gives_its_exponents():
    costs = [3e-9 * size.clients**1.25 * size.dimension**0.75 for size in SIZES]
    found = fit.exponents(SIZES, costs)
    assert found["N"].value == pytest.approx(1.25)
    assert found["d"].value == pytest.approx(0.75)
    assert found["N"].error < 1e-6


def test_noise_shows_in_the_error_of_an_exponent():
    rng = np.random.default_rng(0)
    missed = []
    for _ in range(200):
        noise = np.exp(0.1 * rng.standard_normal(len(SIZES)))
        costs = [
            size.clients * size.dimension * each for size, each in zip(SIZES, noise, strict=True)
        ]
        found = fit.exponents(SIZES, costs)["N"]
        missed.append(abs(found.value - 1) > 2 * found.error)
    assert 0.01 < np.mean(missed) < 0.15


def test_a_sum_of_terms_gives_its_coefficients():
    made = {"1": 0.01, "N d": 2e-9, "N²": 3e-7, "N m": 0.0}
    costs = [fit.predict(made, size) for size in SIZES]
    found = fit.terms(SIZES, costs, tuple(made))
    assert found == pytest.approx(made, rel=1e-6, abs=1e-15)


def test_a_small_size_counts_as_much_as_a_large_one():
    """The least sum of squares of c - 1 and c / 100 - 1 is at c = 1.01 / 1.0001."""
    found = fit.terms(SIZES[:2], [1.0, 100.0], ("1",))
    assert found["1"] == pytest.approx(1.01 / 1.0001)


def test_no_term_is_negative():
    costs = [1e-9 * size.clients * size.dimension - 1e-8 * size.clients for size in SIZES]
    found = fit.terms(SIZES, costs, ("1", "N", "N d", "N²"))
    assert all(value >= 0 for value in found.values())


@given(seed=st.integers(0, 2**32), rows=st.integers(5, 12), columns=st.integers(1, 5))
def test_it_is_the_least_squares_solution_without_negatives(seed, rows, columns):
    rng = np.random.default_rng(seed)
    features, wanted = rng.standard_normal((rows, columns)), rng.standard_normal(rows)
    expected, _ = nnls(features, wanted)
    np.testing.assert_allclose(fit.nonnegative(features, wanted), expected, atol=1e-8)


@pytest.mark.parametrize(
    "sizes", [SIZES[:3], [Size(8, d, d) for d in (1, 10, 100, 1000)], SIZES[0:1] * 5]
)
def test_too_few_sizes_have_no_exponents(sizes):
    with pytest.raises(ConfigError):
        fit.exponents(sizes, [1.0] * len(sizes))

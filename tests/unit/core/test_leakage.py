"""Law 6, and the precision that it costs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.arrays import AnyArray
from ostraka.core import gaussian, gram, leakage
from ostraka.errors import ConfigError

DIMENSIONS = st.integers(1, 10**9)


@pytest.mark.parametrize(
    ("sigma", "variance", "d", "bits"),
    [
        (1.0, 1.0, 1, 0.5),  # 1/2 log2(1 + 1)
        (1.0, 3.0, 1, 1.0),  # 1/2 log2(1 + 3)
        (2.0, 12.0, 10, 10.0),  # 10/2 log2(1 + 3)
        (0.5, 0.75, 4, 4.0),  # 4/2 log2(1 + 3)
    ],
)
def test_law6_by_hand(sigma: float, variance: float, d: int, bits: float):
    assert leakage.bound_bits(sigma, variance=variance, d=d) == pytest.approx(bits, rel=1e-15)
    assert leakage.sigma_for(bits, variance=variance, d=d) == pytest.approx(sigma, rel=1e-15)


def test_law6_in_many_dimensions_depends_on_norm_and_sigma_only():
    """d/2 log2(1 + S^2 / (d sigma^2)) tends to S^2 / (2 ln 2 sigma^2); log(1 + x) would lose it."""
    for d in (10**6, 10**9, 10**15):
        bits = leakage.bound_bits(27.0, variance=leakage.clipped_variance(1.0, d), d=d)
        assert bits == pytest.approx(1 / (2 * math.log(2) * 27**2), rel=1e-8)


@given(bits=st.floats(1e-9, 500), variance=st.floats(1e-12, 1e12), d=DIMENSIONS)
def test_law6_bound_and_sigma_are_inverse(bits: float, variance: float, d: int):
    sigma = leakage.sigma_for(bits, variance=variance, d=d)
    assert leakage.bound_bits(sigma, variance=variance, d=d) == pytest.approx(bits, rel=1e-9)


def test_extreme_budgets_do_not_overflow():
    assert leakage.sigma_for(1e6, variance=1.0, d=1) == 0
    assert leakage.bound_bits(1e-300, variance=1.0, d=1) == math.inf
    assert leakage.sigma_for(1e-300, variance=1.0, d=1) == pytest.approx(8.4932e149, rel=1e-4)


@given(sigma=st.floats(0.1, 1e3), factor=st.floats(1.01, 10), d=DIMENSIONS)
def test_more_noise_leaks_less(sigma: float, factor: float, d: int):
    variance = leakage.clipped_variance(1.0, d)
    loud = leakage.bound_bits(factor * sigma, variance=variance, d=d)
    assert loud < leakage.bound_bits(sigma, variance=variance, d=d)


@given(
    weights=st.lists(st.floats(0, 1), min_size=1, max_size=30).filter(lambda w: sum(w) > 1e-6),
    sigma=st.floats(0.05, 50),
)
def test_law6_by_jensen_the_even_update_is_the_worst(weights: list[float], sigma: float):
    """However the squared norm is spread over the coordinates, the bound covers the sum."""
    d, norm = len(weights), 1.7
    variances = [norm**2 * weight / sum(weights) for weight in weights]
    spread = sum(0.5 * math.log2(1 + variance / sigma**2) for variance in variances)
    bound = leakage.bound_bits(sigma, variance=leakage.clipped_variance(norm, d), d=d)
    assert spread <= bound * (1 + 1e-9)


def test_law6_holds_for_a_channel_that_can_be_computed():
    """W = ±1 and Gaussian noise: the mutual information by quadrature is below the bound."""
    y = np.linspace(-60, 60, 200_001)
    for sigma in (0.5, 1.0, 3.0):
        hypotheses = [
            np.exp(-((y - w) ** 2) / (2 * sigma**2)) / math.sqrt(2 * math.pi * sigma**2)
            for w in (-1, 1)
        ]
        mixture = sum(hypotheses) / 2
        entropy = -np.sum(mixture * np.log2(np.maximum(mixture, 1e-300))) * (y[1] - y[0])
        information = entropy - 0.5 * math.log2(2 * math.pi * math.e * sigma**2)
        assert 0 < information < leakage.bound_bits(sigma, variance=1.0, d=1)


@pytest.mark.parametrize(
    "call",
    {
        "no noise": lambda: leakage.bound_bits(0.0, variance=1.0, d=1),
        "negative variance": lambda: leakage.bound_bits(1.0, variance=-1.0, d=1),
        "no coordinates": lambda: leakage.bound_bits(1.0, variance=1.0, d=0),
        "no budget": lambda: leakage.sigma_for(0.0, variance=1.0, d=1),
        "a NaN budget": lambda: leakage.sigma_for(math.nan, variance=1.0, d=1),
        "infinite norm": lambda: leakage.clipped_variance(math.inf, 5),
        "no precision": lambda: leakage.require(1e-3, 0.0, d=5, dtype=np.float64),
    }.values(),
)
def test_impossible_numbers_are_refused(call):
    with pytest.raises(ConfigError, match="must be positive and finite"):
        call()


def worst_error(n: int, d: int, sigma: float, *, tile: int, dtype: type, seed: int) -> float:
    """The largest error of a decoded distance, from shares and sums in `dtype`."""
    rng = np.random.default_rng(seed)
    updates = rng.standard_normal((n, d))
    updates *= leakage.ROW_NORM / np.linalg.norm(updates, axis=1)[:, None]
    # Equal and opposite rows: the smallest and the largest distances that there are.
    updates[1], updates[2] = updates[0], -updates[0]
    step = gaussian.grid_step(sigma)
    mask = gaussian.constant_distance(rng.standard_normal((n, d)), sigma=sigma)
    gaussian.to_grid(mask, step, out=mask)
    shares = np.empty((2, n, d))
    for row in range(n):
        plus, minus = shares[:, row]
        gaussian.encode(updates[row], mask[row], step=step, plus=plus, minus=minus)
    matrices = []
    share: AnyArray
    for share in shares.astype(dtype):
        products: AnyArray = np.zeros((n, n), dtype)
        for i in range(0, d, tile):
            products += share[:, i : i + tile] @ share[:, i : i + tile].T
        matrices.append(gram.from_gram(products).astype(np.float64))
    decoded = gaussian.decode(*matrices, sigma=sigma, d=d)
    return float(np.abs(decoded - gram.naive(updates)).max())


@given(
    n=st.integers(3, 40),
    spare=st.integers(0, 3000),
    log_sigma=st.floats(-8, 20),
    log_tile=st.integers(0, 12),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 2**32),
)
def test_decoding_error_bounds_the_error(
    *, n: int, spare: int, log_sigma: float, log_tile: int, dtype: type, seed: int
):
    d, sigma, tile = n + spare, 2.0**log_sigma, 2**log_tile
    found = worst_error(n, d, sigma, tile=tile, dtype=dtype, seed=seed)
    assert found < leakage.decoding_error(sigma, d=d, dtype=dtype, tile=tile)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sigma", [1.0, 26.9, 2.0**20])
@pytest.mark.parametrize(("n", "d", "tile"), [(16, 1000, 1000), (16, 100_000, 16_384)])
def test_decoding_error_is_not_loose(n: int, d: int, tile: int, sigma: float, dtype: type):
    found = worst_error(n, d, sigma, tile=tile, dtype=dtype, seed=0)
    stated = leakage.decoding_error(sigma, d=d, dtype=dtype, tile=tile)
    assert stated / 30 < found < stated


@pytest.mark.parametrize("sigma", [1.0, 1.01, 26.9, 1e5])
@pytest.mark.parametrize(("n", "d"), [(3, 3), (5, 5), (5, 20)])
def test_decoding_error_covers_the_grid_in_few_dimensions(n: int, d: int, sigma: float):
    found = max(
        worst_error(n, d, sigma, tile=d, dtype=np.float64, seed=seed) for seed in range(100)
    )
    stated = leakage.decoding_error(sigma, d=d, dtype=np.float64)
    assert stated / 30 < found < stated


@pytest.mark.parametrize("d", [3, 1000, 3_500_000])
def test_the_default_budget_is_met_with_float64(d: int):
    sigma = leakage.require(leakage.DEFAULT_BITS, 1e-3, d=d, dtype=np.float64)
    variance = leakage.clipped_variance(leakage.ROW_NORM, d)
    assert leakage.bound_bits(sigma, variance=variance, d=d) == pytest.approx(1e-3, rel=1e-9)
    assert 26 < sigma < 28
    assert leakage.decoding_error(sigma, d=d, dtype=np.float64) < 1e-3


def test_a_budget_and_a_precision_that_conflict_are_refused_with_both_numbers():
    with pytest.raises(ConfigError) as refusal:
        leakage.require(0.001, 0.002, d=3_500_000, dtype=np.float32)
    sigma = leakage.sigma_for(0.001, variance=leakage.ROW_NORM**2 / 3_500_000, d=3_500_000)
    error = leakage.decoding_error(sigma, d=3_500_000, dtype=np.float32)
    for number in ("0.001 bits", "is 0.002", f"{error:.2g}", f"{sigma:.4g}", "3500000", "float32"):
        assert number in str(refusal.value)


def test_the_smallest_budget_that_is_met_is_just_below_one_that_is_refused():
    """The two demands meet where the predicted error is the precision."""
    low, high = 1e-12, 1.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        try:
            leakage.require(middle, 1e-3, d=10**6, dtype=np.float64)
            high = middle
        except ConfigError:
            low = middle
    sigma = leakage.require(high, 1e-3, d=10**6, dtype=np.float64)
    assert leakage.decoding_error(sigma, d=10**6, dtype=np.float64) == pytest.approx(1e-3, rel=1e-6)

"""Law 4: constant-distance noise."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ostraka.arrays import AnyArray, Float64
from ostraka.core import gaussian, gram
from ostraka.errors import ConfigError

EPS = np.finfo(np.float64).eps


def normal_rows(n: int, d: int, seed: int = 0) -> Float64:
    return np.random.default_rng(seed).standard_normal((n, d))


def with_condition(kappa: float, n: int = 8, d: int = 100) -> Float64:
    """Rows (n, d) whose singular values run from 1 down to 1 / kappa."""
    left, _, right = np.linalg.svd(normal_rows(n, d), full_matrices=False)
    return np.asarray((left * np.geomspace(1, 1 / kappa, n)) @ right)


def in_blocks(rows: Float64, width: int) -> Callable[[], Iterator[Float64]]:
    return lambda: (rows[:, i : i + width] for i in range(0, rows.shape[1], width))


def relative_deviation(rows: Float64, sigma: float) -> float:
    """The largest |R_i - R_j|^2 / C - 1, differences first: an independent measurement."""
    measured = gram.naive(rows) / (2 * rows.shape[1] * sigma**2)
    return float(np.abs(gram.to_upper(measured) - 1).max())


@given(
    n=st.integers(2, 40),
    spare=st.integers(0, 300),
    sigma=st.floats(1e-6, 1e6),
    seed=st.integers(0, 2**32),
)
def test_law4_all_distances_equal_c(n: int, spare: int, sigma: float, seed: int):
    rows = gaussian.constant_distance(normal_rows(n, n + spare, seed), sigma=sigma)
    assert rows.shape == (n, n + spare)
    assert relative_deviation(rows, sigma) < 1e-13


def test_law4_holds_for_every_subset():
    rows = gaussian.constant_distance(normal_rows(12, 500), sigma=3.0)
    rng = np.random.default_rng(1)
    for size in range(2, 12):
        subset = rows[rng.choice(12, size, replace=False)]
        assert relative_deviation(subset, 3.0) < 1e-13


def test_rows_are_orthogonal_and_of_norm_sigma_root_d():
    rows = gaussian.constant_distance(normal_rows(20, 10_000), sigma=0.5)
    np.testing.assert_allclose(rows @ rows.T, 10_000 * 0.25 * np.eye(20), rtol=0, atol=2500e-13)


@pytest.mark.parametrize(
    ("n", "d"), [(1, 1), (2, 2), (5, 5), (30, 30), (8, 4096), (8, 4097), (8, 9000), (64, 2000)]
)
def test_equals_gram_schmidt(n: int, d: int):
    rows = normal_rows(n, d, seed=d)
    expected = gaussian.gram_schmidt(rows, sigma=2.0)
    loss = 10 * EPS * np.linalg.cond(rows) * n * 2.0 * np.sqrt(d)
    np.testing.assert_allclose(gaussian.constant_distance(rows, sigma=2.0), expected, atol=loss)


def test_gram_schmidt_by_hand():
    rows = gaussian.gram_schmidt(np.array([[3.0, 4.0], [1.0, 0.0]]), sigma=1.0)
    expected = np.sqrt(2) * np.array([[0.6, 0.8], [0.8, -0.6]])
    np.testing.assert_allclose(rows, expected, rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_input_is_left_alone(dtype: type):
    rows: AnyArray = normal_rows(6, 5000).astype(dtype)
    before = rows.copy()
    made = gaussian.constant_distance(rows, sigma=1.0)
    assert made.dtype == np.float64
    np.testing.assert_array_equal(rows, before)
    assert relative_deviation(made, 1.0) < 1e-13


def test_the_layout_of_the_input_does_not_matter():
    rows = normal_rows(6, 5000)
    expected = gaussian.constant_distance(rows, sigma=1.0)
    made = gaussian.constant_distance(np.asfortranarray(rows), sigma=1.0)
    np.testing.assert_allclose(made, expected, atol=1e-13)


@pytest.mark.parametrize("kappa", [1.5, 9.0, 1e3, 9e5])
def test_badly_conditioned_rows_are_orthogonalised_to_full_precision(kappa: float):
    assert (
        relative_deviation(gaussian.constant_distance(with_condition(kappa), sigma=1.0), 1.0)
        < 1e-14
    )


def test_one_pass_alone_would_not_be_precise():
    rows = with_condition(9e5)
    factor = gaussian.orthogonaliser(rows @ rows.T)
    assert relative_deviation(factor @ rows * 10, 1.0) > 1e-9


@pytest.mark.parametrize(
    "rows",
    {
        "twice the same row": np.ones((2, 5)),
        "a row of zeros": np.vstack([normal_rows(3, 9), np.zeros(9)]),
        "a sum of two others": np.vstack([normal_rows(2, 9), normal_rows(2, 9).sum(axis=0)]),
        "beyond the limit": with_condition(1e7),
        "a NaN": np.array([[1.0, np.nan, 0.0], [0.0, 1.0, 0.0]]),
    }.values(),
)
def test_dependent_rows_are_refused(rows: Float64):
    with pytest.raises(gaussian.IllConditioned):
        gaussian.constant_distance(rows, sigma=1.0)


@pytest.mark.parametrize("make", [gaussian.constant_distance, gaussian.gram_schmidt])
@pytest.mark.parametrize(("n", "d"), [(7, 6), (3, 0), (0, 4)])
def test_more_rows_than_dimensions_are_refused(make: Callable[..., Float64], n: int, d: int):
    with pytest.raises(ConfigError, match=f"n={n}, d={d}"):
        make(np.ones((n, d)), sigma=1.0)


@pytest.mark.parametrize("sigma", [0.0, -1.0, np.nan, np.inf])
def test_impossible_sigmas_are_refused(sigma: float):
    with pytest.raises(ConfigError, match="sigma"):
        gaussian.constant_distance(normal_rows(3, 9), sigma=sigma)


@pytest.mark.parametrize("width", [1, 7, 64, 1000])
@pytest.mark.parametrize(("n", "d", "factors"), [(6, 1000, 1), (30, 40, 2)])
def test_streaming_equals_in_memory(n: int, d: int, factors: int, width: int):
    rows = normal_rows(n, d)
    blocks = in_blocks(rows, width)
    transform = gaussian.transform(blocks, sigma=5.0)
    assert len(transform) == factors
    streamed = np.hstack([gaussian.apply(transform, block) for block in blocks()])
    assert relative_deviation(streamed, 5.0) < 1e-13
    np.testing.assert_allclose(streamed, gaussian.constant_distance(rows, sigma=5.0), atol=1e-10)


@pytest.mark.parametrize(("kappa", "readings"), [(1.9, 1), (2.1, 2), (1e5, 2)])
def test_the_stream_is_read_again_only_where_conditioning_needs_it(kappa: float, readings: int):
    rows, calls = with_condition(kappa), 0

    def blocks() -> list[Float64]:
        nonlocal calls
        calls += 1
        return [rows]

    gaussian.transform(blocks, sigma=1.0)
    assert calls == readings


def test_more_rows_than_streamed_columns_are_refused():
    with pytest.raises(ConfigError, match="n=7, d=6"):
        gaussian.transform(in_blocks(normal_rows(7, 6), 4), sigma=1.0)


def test_apply_writes_into_a_given_array():
    rows = normal_rows(5, 64)
    transform = gaussian.transform(in_blocks(rows, 64), sigma=1.0)
    out = np.empty((5, 64))
    assert gaussian.apply(transform, rows, out=out) is out
    np.testing.assert_array_equal(out, gaussian.apply(transform, rows))


@pytest.mark.parametrize("kappa", [1.0, 40.0, 1e5])
def test_condition_is_that_of_the_rows(kappa: float):
    rows = with_condition(kappa)
    assert gaussian.condition(rows @ rows.T) == pytest.approx(kappa, rel=1e-4)


def test_orthogonaliser_is_the_inverse_cholesky_factor():
    rows = normal_rows(9, 50)
    factor = gaussian.orthogonaliser(rows @ rows.T)
    np.testing.assert_array_equal(factor, np.tril(factor))
    assert np.diagonal(factor).min() > 0
    np.testing.assert_allclose(factor @ (rows @ rows.T) @ factor.T, np.eye(9), atol=1e-13)


def assert_marginals_gaussian(rows: Float64, sigma: float) -> None:
    """Kolmogorov-Smirnov for every row, at a level of 1 % for all of them together."""
    p_values = [stats.kstest(row / sigma, "norm").pvalue for row in rows]
    assert min(p_values) > 0.01 / len(rows)


def test_marginals_are_gaussian():
    assert_marginals_gaussian(gaussian.constant_distance(normal_rows(64, 20_000), sigma=7.0), 7.0)


def test_marginals_of_other_noise_are_told_apart():
    uniform = np.random.default_rng(0).uniform(-1, 1, (64, 20_000))
    with pytest.raises(AssertionError):
        assert_marginals_gaussian(gaussian.constant_distance(uniform, sigma=7.0), 7.0)


def test_redrawing_on_condition_leaves_directions_uniform():
    """n = d = 2, where a large kappa is common: the kept rows still point everywhere alike."""
    drawn = (normal_rows(2, 2, seed) for seed in range(4000))
    kept = [rows for rows in drawn if gaussian.condition(rows @ rows.T) < 3]
    assert 500 < len(kept) < 3500
    made = [gaussian.constant_distance(rows, sigma=1.0) for rows in kept]
    for row in range(2):
        angles = [np.arctan2(rows[row, 1], rows[row, 0]) for rows in made]
        assert stats.kstest(angles, "uniform", args=(-np.pi, 2 * np.pi)).pvalue > 0.01


@pytest.mark.slow
def test_law4_at_full_size(scale: Callable[[int, int], int]):
    d = scale(200_000, 1_000_000)
    rows = gaussian.constant_distance(normal_rows(64, d), sigma=27.0)
    assert relative_deviation(rows, 27.0) < 1e-13
    products = rows @ rows.T / (d * 27.0**2)
    np.testing.assert_allclose(products, np.eye(64), rtol=0, atol=1e-13)
    assert_marginals_gaussian(rows, 27.0)

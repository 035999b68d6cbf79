"""Law 2: squared distances between rows, and the Gram matrices that kernels add up."""

import tracemalloc
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.arrays import Float64
from ostraka.core import gram
from ostraka.core.field import P

EPS = float(np.finfo(np.float64).eps)


def exact(rows: Float64) -> Float64:
    """Distances in rational arithmetic, rounded once."""
    fractions = [[Fraction(value) for value in row] for row in rows.tolist()]
    return np.array(
        [
            [float(sum((a - b) ** 2 for a, b in zip(x, y, strict=True))) for y in fractions]
            for x in fractions
        ]
    )


def by_gram(rows: Float64, width: int) -> Float64:
    products = np.zeros((len(rows), len(rows)))
    for i in range(0, rows.shape[1], width):
        gram.add_gram(products, rows[:, i : i + width])
    return gram.from_gram(products)


def test_law2_by_hand():
    rows = np.array([[0.0, 0.0], [3.0, 4.0], [3.0, 0.0]])
    expected = [[0, 25, 9], [25, 0, 16], [9, 16, 0]]
    np.testing.assert_array_equal(gram.naive(rows), expected)
    np.testing.assert_array_equal(by_gram(rows, 1), expected)


@given(
    n=st.integers(1, 8), d=st.integers(1, 60), width=st.integers(1, 60), seed=st.integers(0, 2**32)
)
def test_law2_both_forms_agree_with_rational_arithmetic(n: int, d: int, width: int, seed: int):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, d)) + rng.choice([0.0, 10.0])
    expected = exact(rows)
    np.testing.assert_allclose(gram.naive(rows), expected, rtol=1e-13)
    largest = float(np.square(rows).sum(axis=1).max())
    error = gram.gram_error(d, square=largest, tile=min(width, d))
    np.testing.assert_allclose(by_gram(rows, width), expected, rtol=0, atol=error)


@pytest.mark.parametrize("tile", [1, 64, 1024, 16_384])
@pytest.mark.parametrize("d", [1000, 50_000])
def test_gram_error_bounds_the_error_and_is_not_loose(d: int, tile: int):
    rng = np.random.default_rng(d + tile)
    rows = rng.standard_normal((16, d))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    worst = float(np.abs(by_gram(rows, tile) - gram.naive(rows)).max())
    stated = gram.gram_error(d, tile=min(tile, d))
    assert stated / 100 < worst < stated


def test_the_error_counts_tiles_and_grows_with_the_rows_and_their_precision():
    one = gram.gram_error(64, tile=64)
    assert gram.gram_error(1 << 20, tile=1 << 20) == one
    assert gram.gram_error(64, square=9.0, tile=64) == pytest.approx(9 * one)
    assert gram.gram_error(64, tile=64, dtype=np.float32) == pytest.approx(2.0**29 * one)
    steps = [gram.gram_error(64 * tiles, tile=64) for tiles in (1, 4, 9)]
    assert steps[2] - steps[0] == pytest.approx(2 * (steps[1] - steps[0]))
    assert 0 < steps[1] - steps[0] < one / 10, "most of it does not come from adding up tiles"


def test_naive_keeps_what_the_gram_form_cancels():
    """Rows 1e-9 apart and 1e3 long: the difference is below the Gram form's precision."""
    row = np.random.default_rng(0).standard_normal(1000) * 30
    rows = np.vstack([row, row + 1e-9 * np.sign(row)])
    true = exact(rows)[0, 1]
    assert gram.naive(rows)[0, 1] == pytest.approx(true, rel=1e-12)
    assert abs(by_gram(rows, 1000)[0, 1] - true) > true / 2


def test_the_naive_form_accumulates():
    rows = np.random.default_rng(0).standard_normal((5, 100))
    total = np.zeros((5, 5))
    for i in range(0, 100, 30):
        gram.add_naive(total, rows[:, i : i + 30])
    np.testing.assert_allclose(total, gram.naive(rows), rtol=1e-14)


def test_float32_blocks_are_precise_to_float32():
    rows = np.random.default_rng(0).standard_normal((6, 5000)).astype(np.float32)
    expected = gram.naive(rows.astype(np.float64))
    products, total = np.zeros((6, 6)), np.zeros((6, 6))
    for i in range(0, 5000, 1024):
        gram.add_gram32(products, rows[:, i : i + 1024])
        gram.add_naive(total, rows[:, i : i + 1024])
    np.testing.assert_allclose(gram.from_gram(products), expected, rtol=1e-5)
    np.testing.assert_allclose(total, expected, rtol=1e-5)


def test_the_diagonal_is_exactly_zero_and_the_matrix_symmetric():
    found = by_gram(1e6 * np.random.default_rng(3).standard_normal((9, 333)), 100)
    np.testing.assert_array_equal(np.diagonal(found), 0)
    np.testing.assert_array_equal(found, found.T)


def test_equal_rows_may_come_out_negative_and_are_not_clamped():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(50):
        row = rng.standard_normal(700)
        found.append(by_gram(np.vstack([row, row * (1 + EPS)]), 64)[0, 1])
    assert min(found) < 0 < max(found)


def test_upper_triangle_by_hand():
    matrix = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]])
    np.testing.assert_array_equal(gram.to_upper(matrix), [1, 2, 3])
    np.testing.assert_array_equal(gram.from_upper(np.array([1.0, 2.0, 3.0]), 3), matrix)


@given(n=st.integers(1, 12))
def test_upper_triangles_come_back(n: int):
    matrix = gram.naive(np.random.default_rng(n).standard_normal((n, 5)))
    upper = gram.to_upper(matrix)
    assert upper.shape == (n * (n - 1) // 2,)
    np.testing.assert_array_equal(gram.from_upper(upper, n), matrix)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("values", ["float64", "residues"])
def test_a_sum_of_blocks_of_any_width_is_the_gram_matrix_of_all_columns(values, rows):
    rng = np.random.default_rng(0)
    blocks = [rng.integers(0, P, (rows, b)).astype(gram.DTYPES[values]) for b in (3, 0, 200, 1)]
    if values == "float64":
        blocks = [block / P for block in blocks]
    running = gram.NumpyKernel().begin(rows, values)
    assert np.array_equal(running.total(), np.zeros((rows, rows)))
    for block in blocks:
        running.add(block)
        block[:] = 0  # The caller may use its memory again.
    rng = np.random.default_rng(0)
    numbers = np.concatenate([rng.integers(0, P, (rows, b)) for b in (3, 0, 200, 1)], axis=1)
    products = numbers.astype(object) @ numbers.astype(object).T
    assert running.total().dtype == gram.DTYPES[values]
    if values == "residues":
        assert np.array_equal(running.total(), products % P)
    else:
        np.testing.assert_allclose(running.total(), (products / P**2).astype(float), rtol=1e-13)


@pytest.mark.parametrize("values", ["float64", "residues"])
def test_a_total_is_the_caller_s_own(values):
    running = gram.NumpyKernel().begin(2, values)
    running.add(np.ones((2, 3), gram.DTYPES[values]))
    first = running.total()
    first[:] = 0
    running.add(np.ones((2, 3), gram.DTYPES[values]))
    assert np.array_equal(running.total(), np.full((2, 2), 6))
    assert not first.any()


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", [np.uint32, np.float64])
@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("n", [1, 2, 127, 128, 129, 300])
def test_upper_triangles_are_those_of_numpy(n, diagonal, dtype):
    half = np.random.default_rng(n).integers(0, 99, (n, n))
    matrix = (half + half.T).astype(dtype)
    upper = gram.to_upper(matrix, diagonal=diagonal)
    np.testing.assert_array_equal(upper, matrix[np.triu_indices(n, 0 if diagonal else 1)])
    if not diagonal:
        np.fill_diagonal(matrix, 0)
    np.testing.assert_array_equal(gram.from_upper(upper, n, diagonal=diagonal), matrix)


@pytest.mark.parametrize("rows", [5, 6, 7])
def test_many_rows_are_multiplied_some_at_a_time(monkeypatch, rows):
    rng = np.random.default_rng(rows)
    block, mixing = rng.integers(-9, 9, (2, rows, rows)).astype(np.float64)
    whole = block @ block.T
    monkeypatch.setattr(gram, "_MANY_ROWS", 3)
    total = np.ones((rows, rows))
    gram.add_gram(total, block)
    np.testing.assert_array_equal(total, 1 + whole)
    np.testing.assert_array_equal(gram.congruent(mixing, whole), mixing @ whole @ mixing.T)


def test_a_vector_is_a_diagonal_matrix():
    rng = np.random.default_rng(0)
    half, factors = rng.standard_normal((9, 9)), rng.random(9)
    whole, diagonal = half @ half.T, np.diag(factors)
    np.testing.assert_array_equal(gram.congruent(factors, whole), diagonal @ whole @ diagonal.T)


def test_matrices_are_not_held_several_times():
    n = 1500
    matrix = np.ones((n, n), np.float64)
    upper = gram.to_upper(matrix)
    little = matrix.nbytes // 4
    assert peak_bytes(lambda: gram.to_upper(matrix)) < upper.nbytes + little
    assert peak_bytes(lambda: gram.from_upper(upper, n)) < matrix.nbytes + little
    assert peak_bytes(lambda: gram.from_gram(matrix)) < matrix.nbytes + little

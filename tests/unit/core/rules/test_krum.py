"""Law 5: Krum scores and Multi-Krum."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.arrays import Float64
from ostraka.core import gram
from ostraka.core.rules import Gram, MultiKrum, Options, krum
from ostraka.errors import ConfigError


def brute_scores(matrix: list[list[float]], f: int) -> list[float]:
    """Law 5 word by word."""
    n = len(matrix)
    scores = []
    for i in range(n):
        others = [matrix[i][j] for j in range(n) if j != i]
        score = 0.0
        for _ in range(n - f - 2):
            nearest = min(others)
            others.remove(nearest)
            score += nearest
        scores.append(score)
    return scores


def brute_selection(scores: list[float], k: int) -> tuple[int, ...]:
    left = list(range(len(scores)))
    kept = []
    for _ in range(k):
        best = left[0]
        for row in left:
            if scores[row] < scores[best]:
                best = row
        left.remove(best)
        kept.append(best)
    return tuple(sorted(kept))


@st.composite
def federations(draw: st.DrawFn) -> tuple[Float64, int, int]:
    """A matrix of small integers, so that sums are exact and ties common; signed, asymmetric."""
    f = draw(st.integers(0, 4))
    n = draw(st.integers(2 * f + 3, 2 * f + 9))
    k = draw(st.integers(1, n - f))
    values = draw(st.lists(st.integers(-2, 6), min_size=n * n, max_size=n * n))
    return np.array(values, dtype=np.float64).reshape(n, n), f, k


@pytest.mark.parametrize(("neighbours", "counted"), [(1, 1), (4, 4), (5, 5), (6, 5), (99, 5)])
def test_as_many_neighbours_count_as_are_asked_for_and_there_are(neighbours: int, counted: int):
    places = np.array([0.0, 1.0, 3.0, 7.0, 15.0, 31.0])
    matrix = np.square(places[:, None] - places)
    nearest = np.sort(matrix, axis=1)[:, 1 : 1 + counted]  # The first is a row's own 0.
    scores = krum.krum_scores(matrix, 1, neighbours=neighbours)
    np.testing.assert_array_equal(scores, nearest.sum(axis=1))


@given(federations())
def test_law5_equals_brute_force(federation: tuple[Float64, int, int]):
    matrix, f, k = federation
    before = matrix.copy()
    scores = krum.krum_scores(matrix, f)
    assert scores.tolist() == brute_scores(matrix.tolist(), f)
    assert krum.multi_krum(matrix, f, k) == brute_selection(scores.tolist(), k)
    np.testing.assert_array_equal(matrix, before)


def test_law5_by_hand():
    """Points 0, 1, 3, 7, 20 on a line, f = 1: each sums its 5 - 1 - 2 = 2 nearest squares."""
    matrix = gram.naive(np.array([[0.0], [1.0], [3.0], [7.0], [20.0]]))
    scores = krum.krum_scores(matrix, 1)
    assert scores.tolist() == [1 + 9, 1 + 4, 4 + 9, 16 + 36, 169 + 289]
    assert krum.multi_krum(matrix, 1, 3) == (0, 1, 2)
    assert krum.selection_gap(scores, 3) == 52 - 13


def test_law5_counts_n_minus_f_minus_2_and_not_one_more():
    """Where the convention n - f - 1 (ByzFL's) keeps another row than Blanchard's."""
    matrix = gram.naive(np.array([[0.0], [1.0], [2.2], [4.0], [5.0]]))
    others = np.sort(matrix + np.diag([np.inf] * 5), axis=1)
    assert krum.multi_krum(matrix, 1, 1) == (1,)
    assert int(np.argmin(others[:, : 5 - 1 - 1].sum(axis=1))) == 2


@pytest.mark.parametrize("diagonal", [0.0, -1e9, 1e9, math.nan, math.inf, -math.inf])
def test_the_diagonal_is_ignored_whatever_it_holds(diagonal: float):
    matrix = gram.naive(np.random.default_rng(0).standard_normal((9, 4)))
    expected = krum.krum_scores(matrix, 2)
    np.fill_diagonal(matrix, diagonal)
    np.testing.assert_array_equal(krum.krum_scores(matrix, 2), expected)
    assert len(krum.multi_krum(matrix, 2, 5)) == 5


def test_of_equal_scores_the_lower_row_number_wins():
    assert krum.multi_krum(np.ones((7, 7)), 2, 3) == (0, 1, 2)
    matrix = gram.naive(np.array([[9.0], [1.0], [1.0], [1.0], [1.0]]))
    assert krum.multi_krum(matrix, 0, 2) == (1, 2)


def test_negative_distances_count_as_they_are():
    """Clamped at 0, rows 0 and 1 would tie with row 2 and 3; they are nearer by their sign."""
    matrix = np.zeros((5, 5))
    matrix[3, 4] = matrix[4, 3] = -1e-9
    assert krum.multi_krum(matrix, 0, 2) == (3, 4)


def test_an_asymmetric_matrix_is_scored_by_rows():
    matrix = np.ones((5, 5))
    matrix[2, :] = 0.5
    assert krum.krum_scores(matrix, 1).tolist() == [2, 2, 1, 2, 2]


@given(seed=st.integers(0, 2**32))
def test_far_attackers_are_never_kept(seed: int):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((11, 30))
    rows[[2, 5, 9]] += 100 * rng.standard_normal(30)
    rows[[2, 5]] *= -1
    kept = krum.multi_krum(gram.naive(rows), 3, 8)
    assert kept == (0, 1, 3, 4, 6, 7, 8, 10)
    assert all(type(row) is int for row in kept)


@given(seed=st.integers(0, 2**32))
def test_the_order_of_clients_does_not_matter(seed: int):
    rng = np.random.default_rng(seed)
    matrix = gram.naive(rng.standard_normal((12, 6)))
    order = rng.permutation(12)
    scores = krum.krum_scores(matrix, 3)
    np.testing.assert_array_equal(krum.krum_scores(matrix[np.ix_(order, order)], 3), scores[order])


@pytest.mark.parametrize(
    ("shape", "f", "message"),
    [
        ((6, 6), 2, "n=6, f=2"),
        ((2, 2), 0, "n=2, f=0"),
        ((9, 9), -1, "n=9, f=-1"),
        ((5, 6), 1, r"\(5, 6\)"),
        ((25,), 1, r"\(25,\)"),
    ],
)
def test_impossible_numbers_are_refused(shape: tuple[int, ...], f: int, message: str):
    with pytest.raises(ConfigError, match=message):
        krum.krum_scores(np.ones(shape), f)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_distances_that_are_not_finite_are_refused(value: float):
    matrix = np.ones((5, 5))
    matrix[1, 3] = value
    with pytest.raises(ConfigError, match="1 of 20"):
        krum.krum_scores(matrix, 1)


@pytest.mark.parametrize("k", [0, -1, 6])
def test_impossible_k_is_refused(k: int):
    with pytest.raises(ConfigError, match=f"k={k}, n=7, f=2"):
        krum.multi_krum(np.ones((7, 7)), 2, k)


def test_k_may_be_anything_from_1_to_n_minus_f():
    assert [len(krum.multi_krum(np.ones((7, 7)), 2, k)) for k in range(1, 6)] == [1, 2, 3, 4, 5]


def test_selection_gap_by_hand():
    scores = np.array([5.0, 1.0, 2.0, 2.0])
    assert [krum.selection_gap(scores, k) for k in (1, 2, 3, 4)] == [1, 0, 3, math.inf]
    for k in (0, 5):
        with pytest.raises(ConfigError, match=f"k={k}, n=4"):
            krum.selection_gap(scores, k)


@given(seed=st.integers(0, 2**32), k=st.integers(1, 8))
def test_errors_below_half_the_gap_do_not_change_the_selection(seed: int, k: int):
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal(9)
    error = 0.499 * krum.selection_gap(scores, k) * rng.uniform(-1, 1, 9)
    assert brute_selection((scores + error).tolist(), k) == brute_selection(scores.tolist(), k)


@pytest.mark.parametrize(("n", "kept"), [(9, 4), (7, 4), (6, 4), (5, 4)])
def test_a_given_k_is_kept_while_it_can_be(n, kept):
    """Where fewer than k rows may be honest, all but f are averaged, with equal weights."""
    products = np.diag(np.arange(1.0, n + 1))
    plan = MultiKrum().plan(Gram(products, np.zeros(()), 1.0), 1, Options(k=4))
    assert len(plan.selected) == kept
    np.testing.assert_allclose(plan.values[list(plan.selected)], 1 / kept)
    fewer = MultiKrum().plan(Gram(products, np.zeros(()), 1.0), 1, Options(k=n))
    assert len(fewer.selected) == n - 1

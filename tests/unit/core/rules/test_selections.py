"""Rules that choose a set of rows: by diameter, by direction, by trust."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import HDBSCAN

from ostraka.arrays import Float64
from ostraka.core import rules
from ostraka.core.rules import Gram, Options, Weights, flame, subsets


@st.composite
def small_distances(draw: st.DrawFn) -> tuple[Float64, int]:
    """A symmetric matrix of few different distances, so that ties are common, and a size."""
    n = draw(st.integers(2, 9))
    size = draw(st.integers(2, n))
    values = draw(st.lists(st.integers(-1, 5), min_size=n * n, max_size=n * n))
    upper = np.triu(np.array(values, dtype=np.float64).reshape(n, n), 1)
    return upper + upper.T, size


@given(small_distances())
def test_of_all_sets_of_the_least_diameter_the_first_is_taken(given_: tuple[Float64, int]):
    distances, size = given_
    best, least = [], np.inf
    for subset in itertools.combinations(range(len(distances)), size):
        diameter = max(distances[pair] for pair in itertools.combinations(subset, 2))
        if diameter < least:
            best, least = list(subset), diameter
    assert subsets.least_diameter(distances, size) == best


def test_one_row_is_a_set_of_no_diameter():
    assert subsets.least_diameter(np.zeros((1, 1)), 1) == [0]


FAR = {
    "a path whose middle comes first": (5, [(1, 2), (2, 0), (0, 3), (3, 4)], [0, 1, 4]),
    "a vertex that is in no smallest cover": (
        7,
        [(0, 1), (0, 2), (0, 3), (4, 1), (4, 2), (5, 2), (5, 3), (6, 1), (6, 3)],
        [0, 4, 5, 6],
    ),
    "two circles": (7, [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 6), (6, 3)], [0, 3, 5]),
}


@pytest.mark.parametrize("what", FAR)
def test_pairs_that_are_far_apart_are_covered_by_as_few_rows_as_possible(what: str):
    n, pairs, kept = FAR[what]
    distances = 1 - np.eye(n)
    for one, other in pairs:
        distances[one, other] = distances[other, one] = 2
    assert subsets.least_diameter(distances, len(kept)) == kept
    assert subsets.least_diameter(distances, len(kept) + 1) == [*range(len(kept) + 1)]


@given(seed=st.integers(0, 2**32), n=st.integers(20, 60))
def test_the_search_finds_colluders_who_are_close_together(seed: int, n: int):
    """A few rows apart from the rest, near each other: no set of the least diameter has any."""
    rng, f = np.random.default_rng(seed), n // 3
    rows = rng.standard_normal((n, 100))
    rows[:f] = 10 + 0.01 * rng.standard_normal((f, 100))
    distances = Gram(rows @ rows.T, np.zeros(()), 1.0).distances()
    assert subsets.least_diameter(distances, n - f) == list(range(f, n))
    assert sorted(subsets.nearest_to_one(distances, n - f)) == list(range(f, n))


def hdbscan(distances: Float64) -> list[int]:
    """FLAME's clustering as its authors ask for it."""
    found = HDBSCAN(
        min_cluster_size=len(distances) // 2 + 1,
        min_samples=1,
        metric="precomputed",
        allow_single_cluster=True,
        copy=True,
    ).fit_predict(distances)
    kept: list[int] = np.flatnonzero(found == 0).tolist()
    return kept


@given(seed=st.integers(0, 2**32), n=st.integers(2, 60), d=st.integers(1, 10))
def test_the_majority_is_the_cluster_that_hdbscan_finds(seed: int, n: int, d: int):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, d)) + 2 * rng.standard_normal((3, d))[rng.integers(0, 3, n)]
    distances = np.sqrt(((rows[:, None] - rows[None]) ** 2).sum(axis=2))
    kept = flame.majority(distances)
    assert len(kept) > n // 2
    assert kept == hdbscan(distances)


@given(small_distances())
def test_pairs_that_are_equally_far_apart_are_linked_at_once(given_: tuple[Float64, int]):
    distances = given_[0] + 2
    np.fill_diagonal(distances, 0)
    assert flame.majority(distances) == hdbscan(distances)


def test_flame_cuts_to_the_median_length_and_leaves_out_other_directions():
    """Of five rows three are kept, which are at 0.005 to 0.01 from the axis; the median is 2."""
    rows = np.array([[1, 0.01], [2, 0.0], [-3, 0.1], [4, 0.03], [2, 0.01]])
    plan = rules.parse("flame").unlimited(Gram(rows @ rows.T, np.zeros(()), 1.0), 1, np.arange(5))
    assert isinstance(plan, Weights)
    np.testing.assert_allclose(plan.shares, [1 / 3, 0, 0, 1 / 3, 1 / 3])
    longest = float(np.median(np.linalg.norm(rows, axis=1)))
    np.testing.assert_allclose(np.linalg.norm(plan.values[:, None] * rows, axis=1)[3], longest / 3)
    np.testing.assert_allclose(plan.values[0], 1 / 3)


def test_fltrust_by_hand():
    """The root is (2, 0). A row at 60 degrees is trusted by half, one behind not at all."""
    rows = np.array([[2, 0], [1, np.sqrt(3)], [-5, 0], [7, 0], [0, 0], [0, 3.0]])
    gram = Gram(rows @ rows.T, np.zeros(()), 1.0, root=0)
    plan = rules.RULES["fltrust"].plan(gram, 0, Options(root="hospital-a"))
    assert isinstance(plan, Weights)
    np.testing.assert_allclose(plan.shares, [0, 1 / 3, 0, 2 / 3, 0, 0], atol=1e-15)
    np.testing.assert_allclose(plan.values, [0, 1 / 3, 0, 2 / 3 * 2 / 7, 0, 0], atol=1e-15)
    np.testing.assert_allclose(plan.values @ rows, [1 / 3 + 4 / 3, np.sqrt(3) / 3])


@given(seed=st.integers(0, 2**32), long=st.floats(1e-3, 1e3))
def test_fltrust_s_aggregate_is_no_longer_than_the_root_s_row(seed: int, long: float):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((9, 4)) * rng.exponential(size=(9, 1))
    rows[3] *= long
    gram = Gram(rows @ rows.T, np.zeros(()), 1.0, root=3)
    plan = rules.RULES["fltrust"].plan(gram, 2, Options(root="hospital-a"))
    assert isinstance(plan, Weights)
    assert plan.values[3] == 0
    length = np.linalg.norm(plan.values @ rows)
    assert length <= np.linalg.norm(rows[3]) * (1 + 1e-9)


def test_a_row_that_is_shorter_than_its_error_is_not_made_long():
    """Read as 1e-9 long, it might be 100 times longer: brought to length 1 it would dominate."""
    rows = np.array([[1, 0], [1e-9, 0], [1, 0.1], [1, -0.1]])
    gram = Gram(rows @ rows.T, np.array(1e-12), 1.0, root=0)
    plan = rules.RULES["fltrust"].plan(gram, 0, Options(root="hospital-a"))
    assert isinstance(plan, Weights)
    assert plan.selected == (2, 3)


@pytest.mark.parametrize("f", [0, 1, 3])
def test_monna_keeps_the_root_s_nearest_and_the_root(f: int):
    rows = np.arange(8.0)[:, None] ** 2
    gram = Gram(rows @ rows.T, np.zeros(()), 1.0, root=5)
    plan = rules.RULES["monna"].plan(gram, f, Options(root="hospital-a"))
    assert isinstance(plan, Weights)
    # From 25: 4 is 9 away, 6 is 11, 3 is 16, 2 is 21, 7 and 1 are 24, 0 is 25.
    assert plan.selected == {0: (*range(8),), 1: (*range(1, 8),), 3: (2, 3, 4, 5, 6)}[f]


def test_the_root_is_kept_even_where_others_seem_nearer_to_it_than_itself():
    """Equal rows, read with an error: all others are at a distance below zero."""
    gram = Gram(np.ones((6, 6)) + 1e-9 * (1 - np.eye(6)), np.array(1e-8), 1.0, root=5)
    plan = rules.RULES["monna"].plan(gram, 2, Options(root="hospital-a"))
    assert isinstance(plan, Weights)
    assert plan.selected == (0, 1, 2, 5)


def test_caf_takes_out_what_lies_far_out_and_keeps_the_rest():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((20, 300))
    rows[:4] += 3 * rng.standard_normal(300)
    plan = rules.RULES["caf"].plan(Gram(rows @ rows.T, np.zeros(()), 1.0), 4, Options())
    assert isinstance(plan, Weights)
    assert plan.shares[:4].max() < 1e-3 < plan.shares[4:].min()


def test_a_row_that_caf_leaves_next_to_no_weight_does_not_count_as_one_that_hides_others():
    """Pairs that are equally far out but for rounding: one goes, and the other nearly."""
    rows = np.diag([1, 0.1, 0.01]).repeat(2, axis=0)
    rows[1::2] *= -(1 - 1e-11)
    composition = rules.parse("caf")
    plan = composition.plan(Gram(rows @ rows.T, np.zeros(()), 1.0), 2, np.arange(6))
    assert plan.selected == (2, 3, 4, 5)


def test_centred_clipping_from_the_last_aggregate_by_hand():
    """From 10, with radius 1: rows at 8, 10.5 and 40 move it by (-1 + 0.5 + 1) / 3."""
    rows, last = np.array([[8.0], [10.5], [40.0]]), np.array([10.0])
    gram = Gram(rows @ rows.T, np.zeros(()), 1.0, None, rows @ last, float(last @ last))
    plan = rules.RULES["centred-clipping"].plan(gram, 0, Options(radius=1.0, iterations=1))
    assert isinstance(plan, Weights)
    np.testing.assert_allclose(plan.values @ rows + plan.last * last, [10 + 0.5 / 3])
    np.testing.assert_allclose(plan.shares, np.array([0.5, 1, 1 / 30]) / 3)
    assert plan.shares.sum() + plan.last == pytest.approx(1)


def test_rows_at_the_centre_are_at_no_distance_from_it():
    """The median distance is 0, so no other row moves the aggregate; nor does a rounding error."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((7, 30))
    rows[:4] = rows[0] / 3
    gram = Gram(rows @ rows.T, np.zeros(()), 1.0)
    plan = rules.RULES["centred-clipping"].plan(gram, 2, Options(centre="medoid", iterations=9))
    assert isinstance(plan, Weights)
    np.testing.assert_allclose(plan.values @ rows, rows[0], atol=1e-12)
    assert plan.selected == (0, 1, 2, 3)


def test_before_there_is_a_last_aggregate_it_is_zero():
    rows = np.array([[3.0], [1.0], [-4.0]])
    gram = Gram(rows @ rows.T, np.zeros(()), 1.0)
    plan = rules.RULES["centred-clipping"].plan(gram, 0, Options(radius=2.0, iterations=1))
    assert isinstance(plan, Weights)
    np.testing.assert_allclose(plan.values @ rows, [(2 + 1 - 2) / 3])

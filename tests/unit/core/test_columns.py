"""Reductions of columns against their definitions, by the network and by the sort."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.arrays import Float32, Float64
from ostraka.core import rules
from ostraka.core.columns import (
    MAX_NETWORK_ROWS,
    Reducer,
    Reduction,
    Scratch,
    sorting_network,
)
from ostraka.core.rules import Columnwise, Gram, Options
from ostraka.core.rules.columns import krum_in_turn
from ostraka.errors import ConfigError

LARGEST = float(np.finfo(np.float32).max)


def reduce(reduction: Reduction, rows: Float32) -> Float64:
    out = np.full(rows.shape[1], np.nan)
    reduction.apply(list(rows.copy()), out, Scratch(rows.shape[1]))
    return out


def nearest(ordered: list[float], middle: np.float32, count: int) -> list[float]:
    """One after another, the next one below or the next one above, whichever is nearer."""
    below = [value for value in ordered if value <= middle]
    above = [value for value in reversed(ordered) if value > middle]
    kept = []
    with np.errstate(over="ignore"):
        for _ in range(count):
            down = middle - np.float32(below[-1]) if below else np.inf
            up = np.float32(above[-1]) - middle if above else np.inf
            kept.append((below if below and (down <= up or not above) else above).pop())
    return kept


def defined(rows: Float32, reducer: Reducer, count: int) -> tuple[Float64, Float64]:
    """Column by column, as the docstring has it. Returns the means, and the largest of the
    values in each.
    """
    n, means, largest = len(rows), [], []
    for column in rows.T:
        ordered = sorted(column.tolist())
        low, high = np.float32(ordered[(n - 1) // 2]), np.float32(ordered[n // 2])
        middle = low if n % 2 else low / np.float32(2) + high / np.float32(2)
        if reducer == "median":
            kept = [float(low), float(high)]
        elif reducer == "trimmed":
            kept = ordered[count : n - count]
        else:
            kept = nearest(ordered, middle, count)
        means.append(sum(kept) / len(kept))
        largest.append(max(map(abs, kept)))
    return np.array(means), np.array(largest)


def assert_as_defined(rows: Float32, reducer: Reducer, count: int) -> None:
    expected, largest = defined(rows, reducer, count)
    for by_network in (True, False):
        reduction = Reduction(len(rows), reducer, count)
        reduction.by_network = by_network
        error = np.abs(reduce(reduction, rows) - expected)
        assert (error <= 1e-14 * largest).all(), (len(rows), reducer, count, by_network)


KINDS = ("normal", "tied", "constant", "huge", "one far")


def rows_of(kind: str, n: int, b: int, rng: np.random.Generator) -> Float32:
    normal = rng.normal(size=(n, b))
    if kind == "tied":
        normal = rng.integers(-2, 3, size=(n, b)).astype(np.float64)
    elif kind == "constant":
        normal = np.full((n, b), rng.normal())
    elif kind == "huge":
        normal = rng.choice([-LARGEST, -1e38, 0, 1, 1e38, LARGEST], size=(n, b))
    elif kind == "one far":
        normal[rng.integers(n)] = 1e38
    return normal.astype(np.float32)


@st.composite
def reductions(draw: st.DrawFn) -> tuple[int, Reducer, int]:
    n = draw(st.integers(2, 64))
    reducer: Reducer = draw(st.sampled_from(["median", "trimmed", "near-median"]))
    most = (n - 1) // 2 if reducer == "trimmed" else n
    return n, reducer, draw(st.integers(0 if reducer == "trimmed" else 1, most))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", KINDS)
def test_every_reduction_is_what_its_name_says_for_every_number_of_rows(kind: str):
    for n in range(2, 65):
        rows = rows_of(kind, n, 5, np.random.default_rng(n))
        assert_as_defined(rows, "median", 0)
        for trimmed in {0, (n - 1) // 4, (n - 1) // 2}:
            assert_as_defined(rows, "trimmed", trimmed)
        for near in {1, max(1, n // 5), n // 2, n - n // 4, n - 1, n}:
            assert_as_defined(rows, "near-median", near)


@pytest.mark.filterwarnings("error")
@given(reductions(), st.sampled_from(KINDS), st.integers(0, 2**32))
def test_every_reduction_is_what_its_name_says(
    reduction: tuple[int, Reducer, int], kind: str, seed: int
):
    n, reducer, count = reduction
    assert_as_defined(rows_of(kind, n, 5, np.random.default_rng(seed)), reducer, count)


@given(reductions(), st.integers(0, 2**32))
def test_the_order_of_the_rows_does_not_matter(reduction: tuple[int, Reducer, int], seed: int):
    n, reducer, count = reduction
    rng = np.random.default_rng(seed)
    rows = rows_of("tied", n, 9, rng)
    one = reduce(Reduction(n, reducer, count), rows)
    other = reduce(Reduction(n, reducer, count), rows[rng.permutation(n)])
    np.testing.assert_allclose(one, other, rtol=1e-14)


def test_networks_sort_every_column_of_zeros_and_ones():
    """What sorts all of those sorts everything (Knuth, 5.3.4)."""
    for n in range(1, 13):
        columns = np.array(list(product([0, 1], repeat=n)), np.float32).T.copy()
        for low, high, *_ in sorting_network(n):
            assert low < high < n
            columns[[low, high]] = (
                np.minimum(*columns[[low, high]]),
                np.maximum(*columns[[low, high]]),
            )
        assert (np.diff(columns, axis=0) >= 0).all()


def test_pruned_networks_are_right_on_zeros_and_ones():
    """All columns of up to 11 values: the sum of ones that are kept tells every fault."""
    for n in range(2, 12):
        columns = np.array(list(product([0, 1], repeat=n)), np.float32).T.copy()
        for count in range((n + 1) // 2):
            got = reduce(Reduction(n, "trimmed", count), columns)
            ordered = np.sort(columns, axis=0)[count : n - count]
            np.testing.assert_allclose(got, ordered.mean(axis=0), atol=1e-15)
        np.testing.assert_array_equal(
            reduce(Reduction(n, "median"), columns), np.median(columns, axis=0)
        )


def test_a_network_does_nothing_that_its_outcome_does_not_need():
    full = Reduction(64, "near-median", 32).operations
    assert full == 2 * len(sorting_network(64)) == 2 * 543
    assert Reduction(64, "median").operations < 0.8 * full
    assert Reduction(64, "trimmed", 0).operations == 0
    assert Reduction(64, "near-median", 64).operations < full


def test_many_rows_are_sorted_and_few_go_through_a_network():
    assert Reduction(MAX_NETWORK_ROWS, "near-median", 200).by_network
    many = Reduction(MAX_NETWORK_ROWS + 1, "median")
    assert not many.by_network
    assert "network" not in vars(many), "nothing is computed that is not used"
    rows = rows_of("normal", many.rows, 1200, np.random.default_rng(0))
    np.testing.assert_array_equal(reduce(many, rows), np.median(rows, axis=0))
    few = rows_of("tied", 600, 2, np.random.default_rng(0))
    kinds: list[tuple[Reducer, int]] = [
        ("trimmed", 100),
        ("near-median", 450),
        ("near-median", 100),
    ]
    for reducer, count in kinds:
        expected, _ = defined(few, reducer, count)
        error = np.abs(reduce(Reduction(600, reducer, count), few) - expected)
        assert error.max() < 1e-14


def test_of_equally_near_values_the_lower_one_counts():
    rows = np.array([[-1], [0], [1]], np.float32)
    assert reduce(Reduction(3, "near-median", 2), rows).tolist() == [-0.5]
    rows = np.array([[-1], [-1], [1], [1]], np.float32)
    assert reduce(Reduction(4, "near-median", 3), rows).tolist() == [-1 / 3]
    assert reduce(Reduction(4, "near-median", 1), rows).tolist() == [-1]


def test_sums_are_taken_in_float64():
    rows = np.array([[1.0], [2.0**-30], [2.0**-30], [-1.0]], np.float32)
    assert reduce(Reduction(4, "trimmed", 0), rows).tolist() == [2.0**-31]


@pytest.mark.parametrize(
    ("rows", "reducer", "count"),
    [(4, "trimmed", 2), (4, "trimmed", -1), (4, "near-median", 0), (4, "near-median", 5)],
)
def test_a_reduction_that_keeps_nothing_is_refused(rows: int, reducer: Reducer, count: int):
    with pytest.raises(ConfigError, match=f"{rows} rows cannot have count={count}"):
        Reduction(rows, reducer, count)


# The rules themselves.


def gram_of(rows: Float64) -> Gram:
    return Gram(rows @ rows.T, np.zeros(()), 1.0)


def plan(rule: str, n: int, f: int, pre: tuple[str, ...] = (), **options: float) -> Columnwise:
    rows = np.random.default_rng(n).normal(size=(n, 20))
    composition = rules.compose(rule, pre, Options(**options))  # type: ignore[arg-type]
    found = composition.plan(gram_of(rows), f, np.arange(n))
    assert isinstance(found, Columnwise)
    return found


LEASTS = {
    # rule: by f, alone and after nnm
    "median": (lambda f: 2 * f + 2, lambda f: 2 * f + 2),
    "trimmed-mean": (lambda f: 3 * f + 2, lambda f: 2 * f + 2),
    "meamed": (lambda f: 2 * f + 2, lambda f: 2 * f + 2),
    "bulyan": (lambda f: max(5 * f + 2, 4 * f + 3), lambda f: 4 * f + 3),
}


@pytest.mark.parametrize("rule", LEASTS)
def test_every_column_is_a_mean_of_enough_clients_at_the_least_number(rule: str):
    for f in range(5):
        for pre, least in zip(((), ("nnm",)), LEASTS[rule], strict=True):
            n = least(f)
            assert rules.compose(rule, pre).least(f) == n
            found = plan(rule, n, f, pre)
            if rules.compose(rule, pre).discloses:
                assert found.averaged in (1, 2)
                continue
            assert found.largest_share <= 1 / (f + 2) + 1e-12
            if not pre:
                # Powers of two, so that a sum tells whose values are in it.
                values = np.exp2(np.arange(n, dtype=np.float32))[:, None]
                reduction = Reduction(len(found.matrix), found.reducer, found.count)
                mean = reduce(reduction, (found.matrix @ values).astype(np.float32))
                assert round(float(mean[0]) * found.averaged).bit_count() == found.averaged >= f + 2


@pytest.mark.parametrize(
    ("beta", "n", "f", "dropped"),
    [(0.2, 10, 1, 2), (0.29, 100, 10, 28), (0.1, 10, 2, 2), (0.0, 8, 2, 2), (0.45, 20, 0, 9)],
)
def test_beta_drops_as_flower_does_and_never_fewer_than_f(
    beta: float, n: int, f: int, dropped: int
):
    assert plan("trimmed-mean", n, f, beta=beta).count == dropped


@given(beta=st.floats(0, 0.499), f=st.integers(0, 6))
def test_from_the_least_number_on_beta_leaves_f_plus_two_values(beta: float, f: int):
    composition = rules.compose("trimmed-mean", (), Options(beta=beta))
    least = composition.least(f)
    for n in range(least, least + 40):
        assert n - 2 * max(f, int(beta * n)) >= f + 2
    fewer = least - 1
    assert least == 3 * f + 2 or fewer - 2 * max(f, int(beta * fewer)) < f + 2


def krum_by_rows(rows: Float64, f: int) -> int:
    """The row whose n - f - 2 nearest others are nearest, by differences."""
    n = len(rows)
    scores = []
    for i in range(n):
        apart = sorted(float(np.square(rows[i] - rows[j]).sum()) for j in range(n) if j != i)
        scores.append(sum(apart[: max(1, n - f - 2)]))
    return int(np.argmin(scores))


@given(f=st.integers(0, 3), more=st.integers(0, 4), seed=st.integers(0, 2**32))
def test_bulyan_takes_what_krum_picks_from_the_rows_that_are_left(f: int, more: int, seed: int):
    n = max(5 * f + 2, 4 * f + 3) + more
    rows = np.random.default_rng(seed).normal(size=(n, 7))
    left, taken = list(range(n)), []
    for _ in range(n - 2 * f):
        taken.append(left.pop(krum_by_rows(rows[left], f)))
    picked = krum_in_turn(gram_of(rows).distances(), f, n - 2 * f)
    assert picked == tuple(sorted(taken))
    found = rules.compose("bulyan").plan(gram_of(rows), f, np.arange(n))
    assert isinstance(found, Columnwise)
    assert found.selected == picked
    assert (found.reducer, found.count) == ("near-median", n - 4 * f)


def test_bulyan_differs_from_a_selection_by_one_round_of_scores():
    """Two tight pairs: after one of the first pair is taken, its other half is no better."""
    differs = 0
    for seed in range(50):
        rows = np.random.default_rng(seed).normal(size=(12, 3))
        distances = gram_of(rows).distances()
        differs += krum_in_turn(distances, 2, 8) != rules.multi_krum(distances, 2, 8)
    assert differs > 10


def test_equal_rows_are_taken_in_their_order():
    assert krum_in_turn(np.zeros((7, 7)), 1, 5) == (0, 1, 2, 3, 4)

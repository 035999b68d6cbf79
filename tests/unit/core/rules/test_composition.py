"""Compositions of pre-aggregations and a rule: names, the cap on shares, and an absent root."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.arrays import Float64
from ostraka.core import rules
from ostraka.core.gram import from_gram
from ostraka.core.rules import Composition, Gram, Options, Weights, limited, require_enough
from ostraka.core.rules.averaging import Mean
from ostraka.errors import ConfigError, LocalProtocolError, RootAbsent, TooFewWeighed

NOTHING = np.zeros(())


def gram_of(rows: Float64, root: int | None = None) -> Gram:
    return Gram(rows @ rows.T, NOTHING, 1.0, root)


@pytest.mark.parametrize("deviation", [np.arange(16.0).reshape(4, 4), np.array(3.0)])
def test_some_rows_of_a_gram_matrix_keep_their_products_and_their_deviations(deviation: Float64):
    whole = Gram(np.arange(16.0).reshape(4, 4), deviation, 2.0, 3, np.arange(4.0), 7.0)
    part = whole.among([1, 3])
    assert part.products.tolist() == [[5, 7], [13, 15]]
    expected = [[5, 7], [13, 15]] if deviation.ndim else [[3, 3], [3, 3]]
    assert np.broadcast_to(part.deviation, (2, 2)).tolist() == expected
    assert (part.unit, part.root, part.last_square) == (whole.unit, 1, 7.0)
    assert part.last is not None
    assert part.last.tolist() == [1, 3]
    assert whole.among([0, 1]).root is None


@given(seed=st.integers(0, 2**32))
def test_mixtures_are_no_less_precise_than_they_say(seed: int):
    """Distances that are wrong by what the deviation allows, mixed: none is wrong by more."""
    rng = np.random.default_rng(seed)
    rows, mixture = rng.standard_normal((6, 4)), rng.dirichlet(np.ones(6), 5)
    deviation = rng.exponential(size=(6, 6))
    deviation = deviation + deviation.T
    np.fill_diagonal(deviation, 0)
    sign = rng.choice([-1, 1], (6, 6))
    wrong = np.triu(sign, 1) + np.triu(sign, 1).T
    true = Gram(rows @ rows.T, deviation, 1.0).mixed(mixture, keeps_rows=False)
    # D_ij = G_ii + G_jj - 2 G_ij, so an error e of a distance is -e/2 of an inner product.
    read = Gram(rows @ rows.T - wrong * deviation / 2, deviation, 1.0)
    found = read.mixed(mixture, keeps_rows=False)
    assert (np.abs(found.distances() - true.distances()) <= true.deviation + 1e-12).all()


def test_the_error_of_mixtures_is_reached():
    """Two means of three rows each, where every error has the sign that hurts."""
    rows = np.random.default_rng(0).standard_normal((6, 4))
    mixture = np.repeat(np.eye(2), 3, axis=1) / 3
    deviation = 1 - np.eye(6)
    same = np.kron(np.eye(2), np.ones((3, 3)))
    true = Gram(rows @ rows.T, deviation, 1.0).mixed(mixture, keeps_rows=False)
    read = Gram(rows @ rows.T + (2 * same - 1) * deviation / 2, deviation, 1.0)
    found = read.mixed(mixture, keeps_rows=False)
    error = abs(found.distances()[0, 1] - true.distances()[0, 1])
    assert error == pytest.approx(true.deviation[0, 1])


def test_a_row_is_nearest_to_itself_even_where_another_seems_nearer():
    """A decoded distance may be below zero."""
    gram = Gram(np.ones((4, 4)) + 1e-9 * (1 - np.eye(4)), np.array(1e-8), 1.0)
    mixing = rules.PRE["nnm"].mix(gram, 2, Options(), np.arange(4))
    assert mixing.shares is not None
    assert (np.diagonal(mixing.shares) == 1 / 2).all()


def test_rows_that_are_shortened_to_nothing_hide_nobody():
    """Five of nine rows are zeros, so the median length is, and clip leaves nothing of others."""
    rows = np.vstack([np.zeros((5, 3)), np.eye(3), np.ones(3)])
    with pytest.raises(TooFewWeighed, match="weighs 5 updates"):
        rules.parse("clip+mean").plan(gram_of(rows), 4, np.arange(9))


def test_a_row_shorter_than_its_error_has_no_length():
    gram = Gram(np.diag([4.0, 0.01, 0.01]), np.diag([0.1, 0.02, 0.0]), 1.0)
    np.testing.assert_allclose(gram.lengths, [2, 0, 0.1])
    np.testing.assert_allclose(gram.norms, [2, 0.1, 0.1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("krum", "put nnm before it"),
        ("arc+krum", "put nnm before it"),
        ("fltrust", "name that client as root"),
        ("monna", "name that client as root"),
        ("multi-crum", "did you mean multi-krum"),
        ("nmn+multi-krum", "did you mean nnm"),
        ("multi-krum(radius=1.0)", "radius is no option of multi-krum; those are: k, neighbours"),
        ("mean(k=3)", "k is no option of mean; those are: none"),
        ("centred-clipping(centre=mean)", "centre is one of last, medoid"),
        ("bucketing+fltrust(root=hospital-a)", "after bucketing"),
        ("nnm+" * 9 + "mean", "at most 8 pre-aggregations; got 9"),
    ],
)
def test_what_cannot_work_is_refused_before_any_round(text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        rules.parse(text)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("k", 1, None),
        ("neighbours", 1, None),
        ("bucket", 1, None),
        ("iterations", 1, 1000),
        ("radius", 2.0**-126, 2.0**128),
        ("smoothing", 2.0**-126, 2.0**128),
    ],
)
def test_an_option_has_a_least_value_and_some_a_greatest(name: str, least: Any, most: Any):
    assert getattr(Options(**{name: least}), name) == least
    beyond: list[Any] = [least - 1 if isinstance(least, int) else least / 2]
    if most is not None:
        Options(**{name: most})
        beyond.append(most + 1 if isinstance(most, int) else most * 2)
    for value in [*beyond, math.nan]:
        with pytest.raises(ConfigError, match=f"{name} must be from"):
            Options(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("k", "five", "a whole number"),
        ("k", 2.5, "a whole number"),
        ("radius", "wide", "a number"),
        ("radius", [1.0], "a number"),
        ("root", 7, "a name"),
    ],
)
def test_an_option_is_of_its_own_type(name: str, value: Any, kind: str):
    with pytest.raises(ConfigError, match=f"{name} is {kind}; got"):
        rules.read_options({name: value})


@pytest.mark.parametrize("name", ["hospital-a, radius=1.0", "a)", "k=5"])
def test_no_name_of_a_root_looks_like_another_option(name: str):
    with pytest.raises(ConfigError, match="a client's name, without"):
        Options(root=name)


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("mda", 2**20, "mda cannot be told from a sketch"),
        ("arc+flame", 2**20, "flame cannot be told from a sketch"),
        ("nnm+mean", 16_383, "nnm needs a sketch of at least 16384"),
        ("fltrust(root=a)", 4096, "nnm needs a sketch of at least 16384"),
    ],
)
def test_a_sketch_that_is_too_rough_is_refused(text: str, columns: int, message: str):
    with pytest.raises(ConfigError, match=message):
        rules.parse(text).require_sketch(columns)


def test_other_sketches_are_taken():
    for text in ("caf", "geometric-median", "arc+multi-krum", "dnc"):
        rules.parse(text).require_sketch(4096)
    rules.parse("fltrust(root=a)").require_sketch(16_384)


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("mean", [2, 3, 4, 5]),
        ("multi-krum", [3, 5, 7, 9]),
        ("arc+nnm+geometric-median", [2, 4, 6, 8]),
        ("clip+mean", [2, 3, 5, 7]),
        ("bucketing+multi-krum", [5, 9, 13, 17]),
        ("bucketing+bucketing+caf", [5, 13, 21, 29]),
        ("fltrust(root=a)", [3, 5, 7, 9]),
        ("arc+monna(root=a)", [3, 5, 7, 9]),
        ("monna(root=a)", [3, 5, 7, 9]),
        ("flame", [2, 4, 6, 8]),
    ],
)
def test_the_fewest_rows_that_a_composition_stands_on(text: str, least: list[int]):
    assert [rules.parse(text).least(f) for f in range(4)] == least


def test_no_rule_stands_on_fewer_rows_than_bound_a_share():
    """Law 15 needs f + 2, whatever a rule says of itself."""

    class Bold(Mean):
        def least(self, f: int) -> int:
            return 1

    assert [Composition("mean", Bold()).least(f) for f in range(4)] == [2, 3, 4, 5]


@pytest.mark.parametrize("n", [29, 30, 33])
def test_buckets_of_buckets_hold_every_client_once(n: int):
    composition, order = rules.parse("bucketing+bucketing+mean"), np.random.default_rng(n)
    rows = order.standard_normal((n, 40))
    buckets = composition.unlimited(gram_of(rows), 3, order.permutation(n))
    assert isinstance(buckets, Weights)
    # The last bucket, and the last bucket of buckets, may hold fewer.
    count, fewest = -(-n // 4), 1 / 4
    assert buckets.values.sum() == pytest.approx(1)
    assert buckets.values.min() == pytest.approx(fewest / count)
    assert np.isclose(buckets.values, fewest / count).sum() >= n - 4


def test_who_knows_the_root_s_row_and_f_others_sees_no_single_update_of_monna():
    f = 3
    monna, rng = rules.parse("monna(root=hospital-a)"), np.random.default_rng(0)
    n = monna.least(f)
    rows = rng.standard_normal((n, 40))
    rows[: f + 1] = 0.05 * rows[0]  # The root client, and f who send what it does.
    plan = monna.plan(gram_of(rows, 0), f, np.arange(n))
    assert len(set(plan.selected) - set(range(f + 1))) >= 2


def test_without_attackers_the_default_is_the_mean():
    rows = np.random.default_rng(0).normal(size=(7, 40)) * np.arange(1, 8)[:, None]
    plan = rules.parse("arc+nnm+geometric-median").plan(gram_of(rows), 0, np.arange(7))
    assert isinstance(plan, Weights)
    np.testing.assert_allclose(plan.values, 1 / 7)


def test_too_few_rows_are_told_what_would_be_enough():
    krum = rules.parse("multi-krum")
    require_enough(krum, 9, 3)
    with pytest.raises(ConfigError, match="take at least 9 clients, or f at most 2"):
        require_enough(krum, 8, 3)
    with pytest.raises(ConfigError, match=r"take at least 3 clients$"):
        require_enough(krum, 2, 0)


SHARES = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-6, 1), st.floats(0.5, 1), st.floats(1e-15, 1e-12)),
    min_size=2,
    max_size=30,
)


@given(shares=SHARES, factors=st.integers(0, 2**32), f=st.integers(0, 6), scale=st.floats(0.01, 1))
def test_no_client_has_more_than_its_part_and_the_sum_is_kept(shares, factors, f, scale):
    before = np.array(shares)
    if not before.sum():
        return
    before = before / before.sum() * scale
    shortened = np.random.default_rng(factors).uniform(0, 1, len(before))
    weights = Weights(before * shortened, before, last=1 - scale, note="as it was")
    weighed = np.count_nonzero(before > 1e-9 * before.sum())
    if weighed < f + 2:
        with pytest.raises(TooFewWeighed, match=f"weighs {weighed} updates.*f \\+ 2 = {f + 2}"):
            limited(weights, f)
        return
    after = limited(weights, f)
    limit = scale / (f + 2)
    assert after.shares.sum() == pytest.approx(scale, rel=1e-12)
    assert after.shares.max() <= limit * (1 + 1e-12)
    assert (after.last, after.note) == (weights.last, weights.note)
    order = np.argsort(before, kind="stable")
    assert (np.diff(after.shares[order]) >= -1e-15).all()
    # Rows below the limit grow by one factor, and what shortens a row is kept.
    below = (after.shares > 0) & (after.shares < limit * (1 - 1e-9))
    if below.any():
        growth = after.shares[below] / before[below]
        np.testing.assert_allclose(growth, growth[0], rtol=1e-9)
        assert growth[0] >= 1 - 1e-8
    counted = after.shares > 0
    np.testing.assert_allclose(
        after.values[counted], after.shares[counted] * shortened[counted], rtol=1e-9
    )
    assert not after.values[~counted].any()


def test_shares_within_the_limit_stay_as_they_are():
    before = np.array([0.2, 0.25, 0.25, 0.3])
    np.testing.assert_allclose(limited(Weights.of(before), 1).shares, before, rtol=1e-15)


def test_a_geometric_median_that_would_be_one_client_s_is_not():
    """Eleven rows around one: by itself that one has nearly all, as it should to be robust."""
    f, around = 5, np.random.default_rng(0).standard_normal((11, 50))
    rows = np.vstack([0.7 * around.mean(axis=0), around])
    rows /= np.linalg.norm(rows, axis=1).max()
    composition = rules.parse("geometric-median")
    free = composition.unlimited(gram_of(rows), f, np.arange(12))
    assert isinstance(free, Weights)
    assert free.shares.max() > 0.86
    plan = composition.plan(gram_of(rows), f, np.arange(12))
    assert isinstance(plan, Weights)
    assert plan.shares.max() == pytest.approx(1 / 7)
    assert plan.shares.sum() == pytest.approx(1)


ROOTED = ["fltrust(root=hospital-a)", "monna(root=hospital-a)", "arc+fltrust(root=hospital-a)"]


@pytest.mark.parametrize("text", ROOTED)
def test_the_default_decides_where_the_root_client_is_absent(text: str):
    rows = 1 + 0.1 * np.random.default_rng(0).standard_normal((9, 40))
    absent, usual = rules.parse(text), rules.parse("arc+nnm+geometric-median")
    plan = absent.plan(gram_of(rows), 2, np.arange(9))
    expected = usual.plan(gram_of(rows), 2, np.arange(9))
    assert isinstance(plan, Weights)
    assert isinstance(expected, Weights)
    np.testing.assert_array_equal(plan.values, expected.values)
    assert plan.note == "the root client took no part: arc+nnm+geometric-median decided"
    present = absent.plan(gram_of(rows, 4), 2, np.arange(9))
    assert present.note == ""


def test_the_fallback_is_the_default():
    assert rules.compose(rules.DEFAULT, rules.DEFAULT_PRE).plain == rules.FALLBACK.plain
    assert [type(part) for part in rules.parse("arc+nnm+geometric-median").parts] == [
        type(part) for part in rules.FALLBACK.parts
    ]


def test_too_few_rows_to_do_without_the_root_client_are_told_so():
    composition = rules.parse("fltrust(root=hospital-a)")
    few = gram_of(np.eye(7))
    with pytest.raises(
        RootAbsent, match=r"root client took no part.* needs at least 8 updates; 7 are left"
    ):
        composition.plan(few, 3, np.arange(7))
    with pytest.raises(TooFewWeighed, match="weighs 0 updates"):
        composition.plan(replace(few, root=2), 3, np.arange(7))
    with pytest.raises(LocalProtocolError, match="root client's row"):
        composition.rule.plan(few, 3, Options(root="hospital-a"))


def test_distances_of_mixtures_are_those_of_mixed_rows():
    rng = np.random.default_rng(0)
    rows, matrix = rng.standard_normal((5, 9)), rng.uniform(0, 1, (4, 5))
    mixed = gram_of(rows).mixed(matrix, keeps_rows=False)
    expected = from_gram((matrix @ rows) @ (matrix @ rows).T)
    np.testing.assert_allclose(mixed.distances(), expected, atol=1e-12)


@pytest.mark.parametrize("name", ["Multi-Krum", "multi_krum", "multikrum", "MultiKrum"])
def test_names_are_known_however_they_are_written(name):
    assert rules.compose(name).name == "multi-krum"


NO_RULES = {
    "nnm": "nnm comes before a rule",
    "arc+caf": "more than one name",
    "multi-krum(k=5)": "more than one name",
    "geometric-mean": "did you mean geometric-median",
    "quite another": "Known: mean",
}


@pytest.mark.parametrize("name", NO_RULES)
def test_what_is_no_rule_is_told_so(name):
    with pytest.raises(ConfigError, match=NO_RULES[name]):
        rules.compose(name)


def test_pre_is_a_list_of_names():
    with pytest.raises(ConfigError, match="pre is a list of names"):
        rules.asked_pre("caf", "arc")
    assert rules.asked_pre("caf", ["arc"]) == ("arc",)
    assert rules.asked_pre("GeometricMedian", None) == rules.DEFAULT_PRE
    assert rules.asked_pre("geometric-median", []) == ()


@pytest.mark.parametrize("text", ["mean", "clip+mean", "bucketing+mean"])
def test_a_mean_is_not_robust_by_what_comes_before_it(text):
    assert not rules.parse(text).robust
    assert rules.parse(f"nnm+{text}").robust

"""Rules in a round: laws 14 to 18, and that a new rule is a class and a line in the table."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ostraka
from ostraka.config import Manifest, Terms
from ostraka.core import rules
from ostraka.core.rules import Columnwise, Composition, Gram, Options, Rule, Weights, limited
from ostraka.errors import (
    ConfigError,
    LocalProtocolError,
    ReceiptRefused,
    RoundFailed,
    TooFewUpdates,
    TooFewWeighed,
)
from ostraka.protocol import round as specification
from ostraka.protocol.enclave import decide
from ostraka.protocol.enclave.decide import _require_sound, _require_sound_columns

ROWS = (1 + 0.1 * np.random.default_rng(0).normal(size=(6, 40))).astype(np.float32)


class Shortest(Rule):
    """Averages the f + 2 rows of smallest norm, with weights that fall from row to row."""

    def least(self, f: int) -> int:
        return f + 2

    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        shortest = np.argsort(np.diagonal(gram.products), kind="stable")[: f + 2]
        weights = np.zeros(len(gram))
        weights[np.sort(shortest)] = 1 + 1e-3 * np.arange(f + 2, 0, -1)
        return Weights.of(weights / weights.sum())


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(rules.RULES, "shortest", Shortest())


def rows_of(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Rows (n, d) of lengths from 1 to 3 that lie about three points."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(3, d))[rng.integers(3, size=n)] + 0.4 * rng.normal(size=(n, d))
    rows *= np.linspace(1, 3, n)[:, None] / np.linalg.norm(rows, axis=1)[:, None]
    return rows.astype(np.float32)


def gram_of(rows: np.ndarray) -> Gram:
    wide = rows.astype(np.float64)
    return Gram(wide @ wide.T, np.zeros(()), unit=1.0)


# What pre-aggregations make of rows, written from the papers, on rows and nothing else.


def nearest_mixed(rows: np.ndarray, f: int) -> np.ndarray:
    apart = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    near = np.argsort(apart, axis=1, kind="stable")[:, : len(rows) - f]
    return rows[near].mean(axis=1)


def cut(rows: np.ndarray, longest: float) -> np.ndarray:
    lengths = np.linalg.norm(rows, axis=1)
    return rows * np.minimum(1, longest / lengths)[:, None]


def adaptively_cut(rows: np.ndarray, f: int) -> np.ndarray:
    n = len(rows)
    return cut(rows, np.sort(np.linalg.norm(rows, axis=1))[n - 2 * f * (n - f) // n - 1])


def median_cut(rows: np.ndarray, f: int) -> np.ndarray:
    return cut(rows, float(np.median(np.linalg.norm(rows, axis=1))))


ON_ROWS = {"nnm": nearest_mixed, "arc": adaptively_cut, "clip": median_cut}
PRE = [("nnm",), ("arc",), ("clip",), ("arc", "nnm"), ("nnm", "arc"), ("clip", "nnm", "arc")]


class Seen(Rule):
    """Keeps the inner products that it is shown, and gives weights that differ."""

    def __init__(self) -> None:
        self.products = np.zeros((0, 0))

    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        self.products = gram.products
        weights = np.linspace(1, 1.3, len(gram))
        return Weights.of(weights / weights.sum())


@pytest.mark.parametrize("pre", PRE, ids="+".join)
def test_law14_a_rule_sees_mixtures_and_weighs_rows(pre):
    """It is shown M G M^T, and its weights w on the mixtures become M^T w on the rows."""
    n, f, rows, rule = 9, 2, rows_of(9, 60).astype(np.float64), Seen()
    composition = Composition("seen", rule, pre, tuple(rules.PRE[each] for each in pre))
    plan = composition.plan(gram_of(rows), f, np.arange(n))
    mixtures = rows
    for each in pre:
        mixtures = ON_ROWS[each](mixtures, f)
    np.testing.assert_allclose(rule.products, mixtures @ mixtures.T, atol=1e-10)
    weights = np.linspace(1, 1.3, n) / np.linspace(1, 1.3, n).sum()
    assert isinstance(plan, Weights)
    np.testing.assert_allclose(plan.values @ rows, weights @ mixtures, atol=1e-10)
    assert plan.shares.sum() == pytest.approx(1), "shares are those of rows that were not cut"


@pytest.mark.parametrize("pre", PRE, ids="+".join)
@pytest.mark.parametrize("masking", ["none", "exact"])
def test_law14_through_a_whole_round(pre, masking):
    rows, f = rows_of(9, 60, seed=4), 2
    result = ostraka.run_round(rows, f=f, rule="mean", pre=pre, masking=masking)
    mixtures = rows.astype(np.float64)
    for each in pre:
        mixtures = ON_ROWS[each](mixtures, f)
    np.testing.assert_allclose(result.aggregate, mixtures.mean(axis=0), atol=1e-5)
    assert result.receipt.rule == "+".join((*pre, "mean"))


def test_law14_buckets_are_means_of_rows_in_an_order_that_is_drawn():
    """All rows are in one bucket each, and the order comes from the enclave's entropy."""
    n, f, rows, rule = 9, 1, rows_of(9, 60).astype(np.float64), Seen()
    order = np.random.default_rng(1).permutation(n)
    composition = Composition("seen", rule, ("bucketing",), (rules.PRE["bucketing"],))
    composition.plan(gram_of(rows), f, order)
    buckets = [rows[order[at : at + 2]].mean(axis=0) for at in range(0, n, 2)]
    np.testing.assert_allclose(rule.products, np.stack(buckets) @ np.stack(buckets).T, atol=1e-10)
    aggregates = set()
    for _ in range(8):
        bucketed = ostraka.run_round(rows, f=f, pre=("bucketing",), masking="none")
        aggregates.add(bucketed.aggregate.tobytes())
    assert len(aggregates) > 1, "eight draws of the same order"


SHARES = st.lists(st.floats(0, 1), min_size=4, max_size=12).map(np.array)


@given(SHARES, st.integers(0, 4))
def test_law15_no_share_is_above_its_limit_and_their_sum_is_kept(shares, f):
    total = shares.sum()
    positive = shares > 1e-9 * total
    if np.count_nonzero(positive) < f + 2:
        with pytest.raises(TooFewWeighed, match=f"f \\+ 2 = {f + 2}"):
            limited(Weights.of(shares), f)
        return
    after = limited(Weights.of(shares), f)
    assert after.shares.sum() == pytest.approx(total)
    assert after.shares.max() <= total / (f + 2) * (1 + 1e-9)
    np.testing.assert_array_equal(after.shares > 0, positive)
    # Those below the limit keep their proportions.
    below = positive & (after.shares < total / (f + 2) * (1 - 1e-9))
    ratios = after.shares[below] / shares[below]
    np.testing.assert_allclose(ratios, ratios.mean() if below.any() else 0, rtol=1e-6)
    np.testing.assert_allclose(after.values, after.shares)


def test_law15_a_shortened_row_counts_by_its_share_and_not_by_its_length():
    """A row that is cut to a tenth still shows its direction."""
    shares, factors = np.array([0.7, 0.1, 0.1, 0.1]), np.array([0.1, 1, 1, 1])
    after = limited(Weights(shares * factors, shares), f=1)
    np.testing.assert_allclose(after.shares, [1 / 3, 2 / 9, 2 / 9, 2 / 9])
    np.testing.assert_allclose(after.values, after.shares * factors)


WEIGHING = [
    name
    for name, rule in rules.RULES.items()
    if not rule.columnwise and name not in ("krum", "shortest")
]


@pytest.mark.parametrize("name", WEIGHING)
def test_law15_holds_in_a_round_in_which_all_but_one_huddle(name):
    """Equal rows make a centre of themselves, and a geometric median would be one row."""
    f, rows = 2, rows_of(11, 40)
    rows[:8] = rows[0] + 1e-6 * rows[:8]
    root = "client-0" if rules.RULES[name].needs_root else ""
    result = ostraka.run_round(rows, f=f, rule=name, pre=(), masking="none", root=root)
    assert 0 < result.weights.max() <= (1 + 1e-9) * result.weights.sum() / (f + 2)
    assert np.count_nonzero(result.weights) >= f + 2


def sorted_columns(rows: np.ndarray) -> np.ndarray:
    return np.sort(rows.astype(np.float64), axis=0)


def near_median(rows: np.ndarray, count: int) -> np.ndarray:
    columns = rows.astype(np.float64)
    far = np.abs(columns - np.median(columns, axis=0))
    nearest = np.argsort(far, axis=0, kind="stable")[:count]
    return np.take_along_axis(columns, nearest, axis=0).mean(axis=0)


COLUMNS = {
    "median": lambda rows, f: np.median(rows.astype(np.float64), axis=0),
    "trimmed-mean": lambda rows, f: sorted_columns(rows)[f : len(rows) - f].mean(axis=0),
    "meamed": lambda rows, f: near_median(rows, len(rows) - f),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize(
    "pre", [(), ("nnm",), ("arc", "nnm")], ids=lambda pre: "+".join(pre) or "-"
)
def test_law16_columns_are_reduced_by_themselves(name, pre):
    rows, f = rows_of(9, 300, seed=2), 2
    result = ostraka.run_round(
        rows, f=f, rule=name, pre=pre, masking="none", disclose_values=name == "median"
    )
    mixtures = rows.astype(np.float64)
    for each in pre:
        mixtures = ON_ROWS[each](mixtures, f)
    np.testing.assert_allclose(result.aggregate, COLUMNS[name](mixtures, f), atol=1e-5)


@pytest.mark.parametrize("name", [name for name, rule in rules.RULES.items() if rule.columnwise])
@pytest.mark.parametrize("f", [0, 1, 2, 3])
@pytest.mark.parametrize("pre", [(), ("nnm",)], ids=["alone", "nnm"])
def test_law16_no_client_has_more_than_its_share_of_a_column(name, f, pre):
    composition = rules.compose(name, pre)
    for n in range(composition.least(f), composition.least(f) + 4):
        plan = composition.plan(gram_of(rows_of(n, 30)), f, np.arange(n))
        assert isinstance(plan, Columnwise)
        if not composition.discloses:
            assert plan.largest_share <= (1 + 1e-9) / (f + 2)


def test_law16_a_median_alone_is_asked_for_by_name():
    with pytest.raises(ConfigError, match="disclose_values = true"):
        ostraka.run_round(ROWS, f=1, rule="median", masking="none")
    rows = rows_of(7, 50)
    result = ostraka.run_round(rows, f=1, rule="median", masking="none", disclose_values=True)
    # Each value is one client's own: that is what the terms have to allow.
    assert all(value in rows[:, at] for at, value in enumerate(result.aggregate))


class Unable(Shortest):
    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        raise ZeroDivisionError


class OneRow(Shortest):
    """Publishes a single client's update."""

    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        return Weights.of(np.eye(len(gram))[0])


class Doubled(Shortest):
    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        return Weights.of(2 * super().plan(gram, f, options).values)


class Negative(Shortest):
    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        shares = np.full(len(gram), 1 / len(gram))
        return Weights(shares * np.where(np.arange(len(gram)), 1, -1), shares)


class Endless(Shortest):
    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        shares = np.full(len(gram), 1 / len(gram))
        return Weights(shares * np.inf, shares)


FAILING = {
    "raises": (Unable(), "the rule failed on these updates (ZeroDivisionError)"),
    "publishes one row": (OneRow(), "the rule weighs 1 updates; it takes f + 2 = 3"),
    "doubles": (Doubled(), "the rule failed on these updates (LocalProtocolError)"),
    "is negative": (Negative(), "the rule failed on these updates (LocalProtocolError)"),
    "is infinite": (Endless(), "the rule failed on these updates ("),
}


@pytest.mark.parametrize(("rule", "why"), FAILING.values(), ids=FAILING.keys())
def test_law17_what_a_rule_cannot_do_is_a_null_step(monkeypatch, rule, why):
    """An outcome like any other, confirmed by all: what a rule does may depend on any row."""
    monkeypatch.setitem(rules.RULES, "shortest", rule)
    terms = Terms(Manifest.flat(40), f=1, masking="none", rule="shortest", pre=())
    parties = specification.enrol(terms, clients=6)
    with pytest.raises(RoundFailed) as failed:
        specification.play(parties, ROWS)
    assert why in str(failed.value)
    (published,) = parties.federation.published
    assert published.receipt.failure == str(failed.value)
    assert published.receipt.aggregate == bytes(32)
    assert {client.last for client in parties.clients} == {published.receipt}


@pytest.mark.parametrize(
    ("rule", "why"), [(Doubled(), "shares must sum to 1"), (Negative(), "finite and at least 0")]
)
def test_law17_a_plan_that_no_rule_may_make_is_not_carried_out(monkeypatch, simulate, rule, why):
    monkeypatch.setitem(rules.RULES, "shortest", rule)
    round_ = simulate(rows=ROWS, defence="shortest").open()
    round_.send_all()
    round_.close()
    round_.measure()
    with pytest.raises(LocalProtocolError, match=why):
        decide(round_.cohort, round_.measured)


def test_law16_no_update_is_more_than_its_share_whatever_a_rule_does():
    """Compositions keep to that; the enclave looks again."""
    _require_sound(Weights.of(np.array([1, 1, 1, 0, 0, 0]) / 3), 6, 1)
    with pytest.raises(LocalProtocolError, match=r"above 1/\(f \+ 2\) = 1/3 of all"):
        _require_sound(Weights.of(np.array([35, 33, 32, 0, 0, 0]) / 100), 6, 1)
    third = Columnwise(np.eye(6), "near-median", count=3)
    _require_sound_columns(third, 1, disclosed=False)
    half = Columnwise(np.eye(6), "median")
    _require_sound_columns(half, 1, disclosed=True)
    with pytest.raises(LocalProtocolError, match=r"above 1/\(f \+ 2\) = 1/3 of all"):
        _require_sound_columns(half, 1, disclosed=False)


@pytest.mark.parametrize("name", [*WEIGHING, "bulyan"])
def test_law18_any_split_of_the_columns_gives_the_same_plan(name):
    """Inner products add up over columns, so shards that hold some of them suffice."""
    rows, f, rng = rows_of(13, 200).astype(np.float64), 2, np.random.default_rng(3)
    composition = rules.compose(
        name, (), Options(root="client-0" if rules.RULES[name].needs_root else "")
    )
    last = rng.normal(size=200)
    whole = _shard(rows, last, np.arange(200))
    expected = composition.plan(whole, f, np.arange(13))
    for parts in (2, 7):
        split = np.array_split(rng.permutation(200), parts)
        added = _shard(rows, last, split[0])
        for columns in split[1:]:
            added = _added(added, _shard(rows, last, columns))
        plan = composition.plan(added, f, np.arange(13))
        assert plan.selected == expected.selected
        if isinstance(plan, Weights) and isinstance(expected, Weights):
            np.testing.assert_allclose(plan.values, expected.values, atol=1e-10)


def _shard(rows: np.ndarray, last: np.ndarray, columns: np.ndarray) -> Gram:
    part, own = rows[:, columns], last[columns]
    return replace(gram_of(part), root=0, last=part @ own, last_square=float(own @ own))


def _added(one: Gram, other: Gram) -> Gram:
    assert one.last is not None
    assert other.last is not None
    return replace(
        one,
        products=one.products + other.products,
        last=one.last + other.last,
        last_square=one.last_square + other.last_square,
    )


@pytest.mark.parametrize("masking", ["exact", "none"])
def test_a_registered_rule_decides_what_is_averaged(masking):
    # Lengths that rounding cannot confuse. This rule leaves out the longest three.
    rows = ROWS * np.array([[1], [1.4], [1.1], [3], [1.2], [1.3]], np.float32)
    result = ostraka.run_round(rows, f=1, rule="shortest", masking=masking, clip_norm=1e3)
    order = np.argsort(np.linalg.norm(rows.astype(np.float64), axis=1))
    assert result.selected == tuple(sorted(order[:3].tolist()))
    assert result.weights.sum() == pytest.approx(1)
    expected = result.weights @ rows.astype(np.float64)
    np.testing.assert_allclose(result.aggregate, expected, rtol=1e-6)
    assert (result.receipt.rule, result.receipt.kept) == ("shortest", 3)


def test_gaussian_masks_give_the_rule_inner_products_too():
    with pytest.warns(ostraka.errors.LeakyMasking):
        result = ostraka.run_round(ROWS, f=1, rule="shortest", masking="gaussian", clip_norm=1e3)
    order = np.argsort(np.linalg.norm(ROWS.astype(np.float64), axis=1))
    assert result.selected == tuple(sorted(order[:3].tolist()))


def test_a_sketch_keeps_inner_products_and_not_only_distances():
    rows = (1 + np.random.default_rng(1).normal(size=(6, 20_000))).astype(np.float32)
    rows *= np.array([1, 2, 3, 4, 5, 6], np.float32)[:, None]
    result = ostraka.run_round(
        rows, f=1, rule="shortest", masking="none", sketch=4096, clip_norm=1e9
    )
    assert result.selected == (0, 1, 2)


def test_the_least_number_of_clients_is_asked_of_the_rule():
    ostraka.run_round(ROWS[:4], f=2, rule="shortest", masking="none")
    with pytest.raises(ConfigError, match="shortest needs at least 5 clients; got n=4, f=3"):
        ostraka.run_round(ROWS[:4], f=3, rule="shortest", masking="none")
    with pytest.raises(ConfigError, match=r"needs at least 6 .* n=4, f=2: .*, or f at most 1$"):
        ostraka.run_round(ROWS[:4], f=2, masking="none")
    with pytest.raises(ConfigError, match=r"n=1, f=0: take at least 2 clients$"):
        ostraka.run_round(ROWS[:1], f=0, masking="none")


def test_a_round_that_loses_too_many_names_its_rule():
    rows = ROWS.copy()
    rows[:5, 0] = np.nan
    with pytest.raises(TooFewUpdates, match="shortest needs at least 2 updates"):
        ostraka.run_round(rows, f=3, rule="shortest", masking="none")


def test_a_rule_that_is_not_in_the_table_is_refused():
    with pytest.raises(ConfigError, match="there is no rule 'meedian': did you mean median"):
        ostraka.run_round(ROWS, f=1, rule="meedian")


def test_every_client_checks_the_receipt_before_it_goes_on(monkeypatch):
    """The specification ends as the protocol ends: a receipt that lies stops the round."""
    parties = specification.enrol(Terms(Manifest.flat(40), f=1, masking="none"), clients=6)
    first = specification.play(parties, ROWS)
    assert {client.last for client in parties.clients} == {first.receipt}
    second = specification.play(parties, ROWS)
    assert second.receipt.number == 2
    assert {client.last for client in parties.clients} == {second.receipt}

    release = parties.federation.release

    def altered():
        proposed, certified = release()
        (whole,) = proposed.slices
        state = replace(whole.state, model=whole.state.model + 1)
        return replace(proposed, slices=(replace(whole, state=state),)), certified

    monkeypatch.setattr(parties.federation, "release", altered)
    with pytest.raises(ReceiptRefused, match="model"):
        specification.play(parties, ROWS)


def test_a_client_refuses_a_receipt_of_another_rule():
    parties = specification.enrol(Terms(Manifest.flat(40), f=1, masking="none"), clients=6)
    first = specification.play(parties, ROWS)
    (served,) = parties.federation.published
    client = replace(parties.clients[0], last=None)
    assert client.follow(served).last == first.receipt
    identity = parties.federation.enclave._identity
    others = (
        replace(first.receipt, rule="geometric-median"),
        replace(first.receipt, rule=f"{first.receipt.rule}(smoothing=1.0)"),
        replace(first.receipt, masking="exact"),
    )
    for other in others:
        with pytest.raises(ReceiptRefused, match="another rule or masking"):
            client.follow(replace(served, receipt=identity.sign(other)))

"""Column-wise rules through whole rounds: the same rows, the same rejections, any tile."""

import dataclasses
import tracemalloc
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

import ostraka
from ostraka.config import MAX_PIECE_VALUES, Manifest, Member, Terms
from ostraka.core import rules
from ostraka.core.rules import Columnwise, Weights
from ostraka.crypto.identity import Identity
from ostraka.errors import ConfigError, LocalProtocolError, Rejection, RoundFailed, UpdateRejected
from ostraka.protocol.enclave import combine, decide, in_vain
from ostraka.protocol.local import LocalFederation

RULES = (
    "median",
    "trimmed-mean",
    "meamed",
    "bulyan",
    "nnm+median",
    "nnm+trimmed-mean",
    "arc+trimmed-mean",
)


def norms_of(rows: np.ndarray) -> np.ndarray:
    return np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1))


def near(rows: np.ndarray, count: int) -> np.ndarray:
    """The mean of each column's values nearest to its median."""
    median = np.median(rows, axis=0)
    order = np.lexsort((rows, np.abs(rows - median)), axis=0)[:count]
    return np.take_along_axis(rows, order, axis=0).mean(axis=0)


def reference(rows: np.ndarray, f: int, defence: str) -> np.ndarray:
    """In float64, on rows that are clipped already."""
    n = len(rows)
    *pre, rule = defence.split("+")
    if "arc" in pre:
        lengths = norms_of(rows)
        longest = np.sort(lengths)[n - 1 - 2 * f * (n - f) // n]
        rows = rows * np.minimum(1, longest / lengths)[:, None]
    if "nnm" in pre:
        squares = np.square(rows[:, None] - rows).sum(axis=2)
        rows = np.stack([rows[np.argsort(squares[i])[: n - f]].mean(axis=0) for i in range(n)])
    if rule == "median":
        return np.median(rows, axis=0)
    if rule == "trimmed-mean":
        return np.sort(rows, axis=0)[f : n - f].mean(axis=0)
    if rule == "meamed":
        return near(rows, n - f)
    left, taken = list(range(n)), []
    for _ in range(n - 2 * f):
        squares = np.square(rows[left][:, None] - rows[left]).sum(axis=2)
        nearest = max(1, len(left) - f - 2)
        scores = [np.sort(np.delete(row, i))[:nearest].sum() for i, row in enumerate(squares)]
        taken.append(left.pop(int(np.argmin(scores))))
    return near(rows[taken], n - 4 * f)


def clip(rows: np.ndarray, stated: np.ndarray) -> np.ndarray:
    limit = np.exp2(np.ceil(np.log2(4 * np.median(stated))))
    return rows * (limit / np.maximum(norms_of(rows), limit))[:, None]


def assert_reduced(aggregate: np.ndarray, rows: np.ndarray, f: int, defence: str) -> None:
    assert aggregate.dtype == np.float32
    # Masked lengths are as exact as their steps, and arc goes by them.
    error = np.abs(rows).max() * (1e-4 if "arc" in defence else 1e-6)
    np.testing.assert_allclose(aggregate, reference(rows, f, defence), atol=error, rtol=0)


def updates(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Rows of which two are long enough to be clipped."""
    rows = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    rows[[1, 4]] *= 30
    return rows


@pytest.fixture(params=RULES)
def defence(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("masking", ["exact", "none"])
@pytest.mark.parametrize("threads", [1, 2])
def test_every_rule_is_the_same_on_rows_in_the_clear(defence: str, masking: str, threads: int):
    rows = updates(13, 70_001)
    *pre, rule = defence.split("+")
    result = ostraka.run_round(
        rows, f=2, rule=rule, pre=pre, masking=masking, threads=threads, disclose_values=True
    )
    assert_reduced(result.aggregate, clip(rows, norms_of(rows)), 2, defence)
    assert result.receipt.rule == defence
    assert len(result.selected) == result.receipt.kept == (9 if rule == "bulyan" else 13)
    assert np.isnan(result.weights[list(result.selected)]).all(), "no row has one weight"


def test_the_tile_changes_nothing(simulate, defence: str):
    rows = updates(13, 50)
    found = []
    for tile, threads in product((1, 7, 16, 50, 64), (1, 3)):
        simulation = simulate(
            rows=rows, f=2, tile=tile, threads=threads, defence=defence, disclose_values=True
        )
        round_ = simulation.open()
        round_.send_all()
        found.append(round_.finish().aggregate)
    assert_reduced(found[0], clip(rows, norms_of(rows)), 2, defence)
    for other in found[1:]:
        if "nnm" in defence or "arc" in defence:
            # Factors and products are sums in another order.
            np.testing.assert_allclose(other, found[0], rtol=1e-6, atol=1e-7)
        else:
            np.testing.assert_array_equal(other, found[0])


def test_a_false_norm_and_a_change_between_the_passes_cost_their_senders_only(
    simulate, defence: str
):
    rows = updates(15, 50, seed=3)
    round_ = simulate(
        rows=rows, f=2, threads=2, defence=defence, disclose_values=True, budget=0
    ).open()
    round_.send(round_.forge(6, norm=2 * float(norms_of(rows)[6])))
    round_.send_all(but=[6])
    round_.close()
    round_.measure()
    place = round_.upload(11), 2
    altered = bytearray(round_.spool[place])
    altered[5] ^= 1
    round_.spool[place] = bytes(altered)
    published = round_.average()
    assert [(each.client, each.reason) for each in round_.changed] == [
        ("client-11", Rejection.CHANGED)
    ]
    assert published.rejected == {
        "client-6": Rejection.FALSE_NORM,
        "client-11": Rejection.CHANGED,
    }
    stated = norms_of(rows)
    stated[6] *= 2
    left = [row for row in range(15) if row not in (6, 11)]
    # A lie that is proved lowers f as well.
    assert_reduced(published.aggregate, clip(rows[left], stated), 1, defence)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.filterwarnings("error")
def test_a_row_that_is_not_finite_never_reaches_a_column(simulate, defence: str, bad: float):
    rows = updates(14, 50)
    round_ = simulate(rows=rows, f=2, defence=defence, disclose_values=True).open()
    spoiled = rows[3].copy()
    spoiled[7] = bad
    round_.send(round_.forge(3, spoiled, norm=float(norms_of(rows)[3])))
    round_.send_all(but=[3])
    published = round_.finish()
    assert published.rejected == {"client-3": Rejection.NOT_FINITE}
    left = clip(np.delete(rows, 3, axis=0), norms_of(rows))
    assert_reduced(published.aggregate, left, 1, defence)


@pytest.mark.parametrize("masking", ["exact", "none"])
@pytest.mark.filterwarnings("error")
def test_the_largest_values_there_are_give_a_finite_aggregate(defence: str, masking: str):
    largest = np.finfo(np.float32).max
    rows = np.where(np.random.default_rng(1).random((13, 40)) < 0.5, largest, -largest)
    *pre, rule = defence.split("+")
    for each in (rows, np.full_like(rows, largest), np.zeros_like(rows)):
        result = ostraka.run_round(
            each, f=2, rule=rule, pre=pre, masking=masking, disclose_values=True
        )
        assert np.isfinite(result.aggregate).all()
        if (each == each[0]).all():
            np.testing.assert_allclose(result.aggregate, each[0], rtol=1e-6)


@pytest.mark.filterwarnings("error")
def test_one_row_that_is_far_away_is_clipped_and_outvoted(defence: str):
    rows = updates(13, 40)
    rows[9] = 1e38
    *pre, rule = defence.split("+")
    result = ostraka.run_round(rows, f=2, rule=rule, pre=pre, masking="none", disclose_values=True)
    assert_reduced(result.aggregate, clip(rows, norms_of(rows)), 2, defence)


@pytest.mark.parametrize("budget", [0, 2**62])
def test_columns_of_rows_that_were_folded(simulate, budget):
    rows = updates(13, 20_000)
    terms = {"tile": 512, "sketch": 4096, "defence": "trimmed-mean"}
    round_ = simulate(rows=rows, f=2, budget=budget, **terms).open()
    round_.send_all()
    published = round_.finish()
    assert_reduced(published.aggregate, clip(rows, norms_of(rows)), 2, "trimmed-mean")


def clients(n: int) -> list[Member]:
    return [Member(f"client-{i}", Identity.generate().public) for i in range(n)]


def test_a_tile_that_cannot_be_cut_for_all_rows_is_refused_before_a_round_begins():
    terms = Terms(Manifest.flat(10**6), f=1, rule="meamed", pre=(), masking="none", tile=2**16)
    most = MAX_PIECE_VALUES // 2**16
    local = LocalFederation.found(terms, clients(most + 1), entropy=bytes_of(1))
    assert local.federation.pieces.tile == 2**15
    with pytest.raises(ConfigError, match=r"pieces of at most 64527.*take a power of two"):
        LocalFederation.found(
            dataclasses.replace(terms, tile=2**16 - 1), clients(most + 1), entropy=bytes_of(1)
        )


def bytes_of(seed: int) -> Callable[[int], bytes]:
    return np.random.default_rng(seed).bytes


@pytest.mark.parametrize("defence", ["nnm+meamed", "median"])
def test_the_second_pass_holds_one_tile_of_all_rows_and_little_else(simulate, defence: str):
    rows = np.random.default_rng(0).normal(size=(64, 65_536)).astype(np.float32)
    round_ = simulate(rows=rows, f=9, tile=65_536, defence=defence, disclose_values=True).open()
    round_.send_all()
    round_.close()
    round_.measure()
    plan = decide(round_.cohort, round_.measured)
    tracemalloc.start()
    try:
        combine(round_.cohort, round_.measured.scales, plan)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MAX_PIECE_VALUES + 12 * 2**20


# What a plan may not be.


def measured_round(simulate, **terms):
    round_ = simulate(n=13, f=2, **terms).open()
    round_.send_all()
    round_.close()
    round_.measure()
    return round_


class Planned(rules.Rule):
    """A rule that gives one plan."""

    columnwise = True

    def __init__(self, plan: Columnwise) -> None:
        self._plan = plan

    def plan(self, gram, f, options):
        return self._plan


EYE = np.eye(13)
UNSOUND = {
    "a median that nobody has disclosed": Columnwise(EYE, "median"),
    "fewer than f + 2 values": Columnwise(EYE, "trimmed", 5),
    "fewer than f + 2 rows": Columnwise(EYE[:3], "near-median", 3),
    "one row again and again": Columnwise(EYE[[0] * 8 + [1, 2, 3]], "near-median", 11),
    "more values than there are": Columnwise(EYE, "near-median", 14),
    "no values": Columnwise(EYE, "trimmed", 7),
    "a row turned around": Columnwise(EYE - 2 * np.diag(EYE[0]), "near-median", 10),
    "no number": Columnwise(EYE * np.nan, "near-median", 10),
}


@pytest.mark.parametrize("what", UNSOUND)
def test_a_plan_that_would_show_or_steer_too_much_is_a_null_step(monkeypatch, simulate, what):
    monkeypatch.setitem(rules.RULES, "planned", Planned(UNSOUND[what]))
    round_ = measured_round(simulate, defence="planned")
    with pytest.raises(LocalProtocolError):
        decide(round_.cohort, round_.measured)
    proposed = round_.host().finish(round_.cohort, round_.measured)
    assert "rule failed on these updates (LocalProtocolError)" in proposed.receipt.failure
    assert not proposed.aggregate.any()


def test_the_same_plan_passes_where_it_is_sound(monkeypatch, simulate):
    monkeypatch.setitem(rules.RULES, "planned", Planned(Columnwise(EYE, "trimmed", 4)))
    round_ = measured_round(simulate, defence="planned")
    assert round_.host().finish(round_.cohort, round_.measured).receipt.failure == ""


def test_what_fails_is_carried_out_in_vain_by_the_same_means(simulate, defence: str):
    round_ = measured_round(simulate, defence=defence, disclose_values=True)
    plan, vain = decide(round_.cohort, round_.measured), in_vain(round_.cohort)
    assert isinstance(plan, Columnwise)
    assert isinstance(vain, Columnwise)
    assert (vain.reducer, vain.count) == (plan.reducer, plan.count)
    assert vain.matrix.shape == plan.matrix.shape
    mixes = [(np.count_nonzero(each.matrix, axis=1) > 1).any() for each in (plan, vain)]
    assert mixes[0] == mixes[1] == ("nnm" in defence)


def test_weights_are_carried_out_in_vain_as_weights(simulate):
    vain = in_vain(measured_round(simulate).cohort)
    assert isinstance(vain, Weights)
    assert not vain.values.any()


def test_too_few_rows_are_a_null_step_and_all_of_them_are_read(simulate):
    round_ = simulate(n=8, f=2, defence="trimmed-mean", budget=0).open()
    round_.send_all()
    round_.close()
    round_.measure()
    round_.cohort.standing.reject("client-3", Rejection.CHANGED)
    round_.reads.clear()
    proposed = round_.host().finish(round_.cohort, round_.measured)
    assert "trimmed-mean needs at least 8 updates" in proposed.receipt.failure
    assert len(round_.reads) == 7 * round_.terms.tiling.count


def test_a_median_is_published_only_where_the_terms_say_so():
    rows = updates(7, 20)
    with pytest.raises(ConfigError, match="put nnm before it, or have the terms say so"):
        ostraka.run_round(rows, f=1, rule="median", masking="none")
    ostraka.run_round(rows, f=1, rule="median", pre=["nnm"], masking="none")
    shown = ostraka.run_round(rows, f=1, rule="median", masking="none", disclose_values=True)
    clipped = clip(rows, norms_of(rows)).astype(np.float32)
    exact = [(shown.aggregate[column] == clipped[:, column]).any() for column in range(20)]
    assert sum(exact) >= 10, "these are single clients' values"


def test_the_numbers_of_clients_are_checked_before_a_round():
    for defence, needed in {"trimmed-mean": 8, "meamed": 6, "bulyan": 12, "nnm+bulyan": 11}.items():
        *pre, rule = defence.split("+")
        with pytest.raises(ConfigError, match=f"{rule} needs at least {needed} clients"):
            ostraka.run_round(updates(needed - 1, 20), f=2, rule=rule, pre=pre, masking="none")
        ostraka.run_round(updates(needed, 20), f=2, rule=rule, pre=pre, masking="none")


def test_too_few_in_a_round_that_is_played_is_said(monkeypatch):
    monkeypatch.setitem(rules.RULES, "planned", Planned(UNSOUND["no values"]))
    with pytest.raises(RoundFailed, match="rule failed"):
        ostraka.run_round(updates(13, 20), f=2, rule="planned", masking="none")


def test_a_change_that_the_rule_would_not_have_used_is_noticed(simulate):
    """Bulyan takes 9 of 13 rows; all 13 are read."""
    for row in range(13):
        round_ = measured_round(simulate, defence="bulyan", budget=0)
        round_.spool[round_.uploads[row], 3] = b""
        with pytest.raises(UpdateRejected):
            round_.try_to_average()

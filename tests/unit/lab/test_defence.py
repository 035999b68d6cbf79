"""Defences in the clear: the enclave's arithmetic on rows that anybody sees."""

import numpy as np
import pytest

import ostraka
from ostraka.core import rules
from ostraka.core.rules import Columnwise
from ostraka_lab.defence import (
    Aggregate,
    Defence,
    Past,
    Plain,
    Products,
    combined,
    inner_products,
    reduced,
)

RNG = np.random.default_rng(6)

COMPOSITIONS = (
    "multi-krum",
    "multi-krum(k=6)",
    "arc+nnm+geometric-median",
    "arc+caf",
    "nnm+krum",
    "mda",
    "clip+mean",
    "centred-clipping(centre=medoid)",
    "centred-clipping(radius=0.5)",
    "fltrust(root=client-1)",
    "trimmed-mean",
    "meamed",
    "nnm+median",
    "nnm+trimmed-mean",
)


def rows(n=14, d=60, seed=0):
    """Updates of which the last two are far off."""
    rng = np.random.default_rng(seed)
    made = (1 + rng.normal(size=(n, d))).astype(np.float32)
    made[-2:] *= -30
    return made


def defence(text, f=3, root=None):
    return Defence(rules.parse(text), f, root)


def by_protocol(updates, text, f=3):
    composition = rules.parse(text)
    options = {name: getattr(composition.options, name) for name in composition.options.given}
    return ostraka.run_round(updates, f=f, rule=composition.name, pre=composition.pre, **options)


def off(one, other):
    return np.linalg.norm(one - other) / np.linalg.norm(other)


@pytest.mark.parametrize("text", COMPOSITIONS)
@pytest.mark.parametrize("spoiled", [(), (4,), (0, 4)], ids=["all sound", "a NaN", "two"])
def test_it_gives_what_a_round_of_the_protocol_gives(text, spoiled):
    updates = rows()
    updates[list(spoiled), 7] = np.nan
    expected = by_protocol(updates, text)
    found = defence(text, root=1 if "root" in text else None)(updates)
    assert found.selected == expected.selected
    # Masked rows are rounded, and so are distances.
    assert off(found.mean, expected.aggregate) < 1e-4
    assert not set(spoiled) & set(found.selected)
    assert not found.failure
    if found.shares is not None:
        np.testing.assert_allclose(found.shares > 0, expected.weights > 0)


def test_a_nan_lowers_n_and_f_together():
    updates = rows(9)
    updates[4, 0] = np.nan
    kept = np.delete(updates, 4, 0)
    expected = defence("multi-krum", f=2)(kept).selected
    assert defence("multi-krum", f=3)(updates).selected == tuple(
        row + (row >= 4) for row in expected
    )


def test_a_long_row_is_clipped_as_the_enclave_does_it():
    updates = rows(7, 64)[:5]
    updates[2] *= 1000
    norms = np.linalg.norm(updates.astype(np.float64), axis=1)
    limit = 2.0 ** np.ceil(np.log2(4 * np.median(norms)))
    clipped = updates * np.minimum(1, limit / norms)[:, None]
    found = defence("mean", f=1)(updates)
    np.testing.assert_allclose(found.mean, clipped.mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize("lost", [4, 9])
def test_a_round_that_fails_moves_nothing(lost):
    updates = rows(9)
    updates[:lost] = np.inf
    found = defence("multi-krum", f=3)(updates)
    assert "multi-krum" in found.failure
    assert found.selected == ()
    assert not found.mean.any()
    assert found.mean.shape == (60,)


def test_plain_averaging_takes_everything():
    updates = rows(5, 20)
    updates[0] *= 1e6
    found = Plain()(updates)
    assert found.selected == (0, 1, 2, 3, 4)
    np.testing.assert_allclose(found.mean, updates.mean(axis=0, dtype=np.float64))
    updates[1, 3] = np.nan
    assert np.isnan(Plain()(updates).mean).sum() == 1


def test_the_root_client_is_told_by_its_number_whoever_is_out():
    """FLTrust follows a minority, if its root client is one of them."""
    updates = rows(12)[:10]
    updates[5:9] *= -1
    trusting = defence("fltrust(root=client-6)", f=1, root=5)
    assert trusting(updates).mean.sum() < 0
    updates[:2] = np.nan
    assert trusting(updates).mean.sum() < 0


def test_without_its_root_client_the_fallback_decides():
    updates = rows(9)
    updates[5] = np.nan
    found = defence("fltrust(root=client-6)", f=1, root=5)(updates)
    expected = defence("arc+nnm+geometric-median", f=1)(updates)
    np.testing.assert_allclose(found.mean, expected.mean)


def test_centred_clipping_starts_from_the_last_aggregate():
    """By its definition on rows: v <- v + the mean of (x_i - v), shortened to the radius."""
    updates, radius = rows(9, 40)[:7], 0.8
    last = RNG.normal(size=40)
    v = last.copy()
    for _ in range(3):
        steps = updates - v
        lengths = np.linalg.norm(steps, axis=1)
        v += (steps * np.minimum(1, radius / lengths)[:, None]).mean(axis=0)
    centred = defence(f"centred-clipping(radius={radius}, iterations=3)", f=1)
    np.testing.assert_allclose(centred(updates, Past(2, last)).mean, v, rtol=1e-6)
    assert off(centred(updates).mean, v) > 0.01


def test_bucketing_draws_another_order_in_every_round():
    bucketed, updates = defence("bucketing+multi-krum", f=1), rows()
    first, again, next_one = (bucketed(updates, Past(number)).mean for number in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert off(next_one, first) > 1e-3
    other = Defence(bucketed.composition, 1, seed=1)
    assert off(other(updates, Past(1)).mean, first) > 1e-3


def test_a_plan_from_inner_products_is_that_of_the_rows():
    updates = rows()
    sent = Products(inner_products(updates))
    tried = defence("arc+nnm+geometric-median")
    plan, scales = tried.decide(sent, len(updates), np.arange(len(updates)))
    np.testing.assert_allclose(
        combined(plan, scales, updates.astype(float)), tried(updates).mean, rtol=1e-9
    )


def test_rows_longer_than_a_block_are_summed_whole():
    updates = rows(7, 150_000)
    expected = updates.astype(float) @ updates.T.astype(float)
    np.testing.assert_allclose(inner_products(updates), expected)
    np.testing.assert_allclose(
        defence("cge", f=2)(updates).mean, updates[:5].mean(axis=0), atol=1e-6
    )


REDUCTIONS = {
    "the median of an odd number": ("median", 0, [1, 5, 2, 9, 100], 5),
    "the median of an even number": ("median", 0, [1, 5, 2, 9], 3.5),
    "without two at each end": ("trimmed", 2, [1, 5, 2, 9, 100, -7], 3.5),
    "without any": ("trimmed", 0, [1, 5, 2, 9], 4.25),
    "the three nearest to the median": ("near-median", 3, [0, 5, 4, 6, 100], 5),
    "all of equal values": ("near-median", 3, [2, 2, 2, 2, 2], 2),
}


@pytest.mark.parametrize(
    ("reducer", "count", "column", "expected"), REDUCTIONS.values(), ids=REDUCTIONS.keys()
)
def test_reductions_by_hand(reducer, count, column, expected):
    plan = Columnwise(np.eye(len(column)), reducer, count)
    found = reduced(plan, np.array(column, float)[:, None] * [1, -1])
    np.testing.assert_allclose(found, [expected, -expected])


def test_an_aggregate_has_no_shares_where_they_differ_by_column():
    assert defence("trimmed-mean")(rows()).shares is None
    assert Aggregate(np.zeros(1), ()).shares is None

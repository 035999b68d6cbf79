import warnings
from dataclasses import replace

import numpy as np
import pytest

import ostraka
from ostraka import run_round
from ostraka.crypto.stream import SecretStream
from ostraka.errors import (
    ConfigError,
    LeakyMasking,
    Rejection,
    ToleranceUsedUp,
    TooFewUpdates,
)
from ostraka.messages import vector_digest

pytestmark = pytest.mark.filterwarnings("ignore::ostraka.errors.LeakyMasking")

MASKINGS = ("none", "gaussian", "exact")
every_masking = pytest.mark.parametrize("masking", MASKINGS)


def updates(n=9, d=40, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def test_the_package_offers_it():
    assert ostraka.run_round is run_round


@every_masking
def test_the_result(masking):
    rows = updates()
    result = run_round(rows, f=2, rule="multi-krum", masking=masking)
    assert result.aggregate.shape == (40,)
    assert result.aggregate.dtype == np.float32
    assert len(result.selected) == 7
    assert result.selected == tuple(sorted(result.selected))
    assert all(type(row) is int for row in result.selected)
    assert result.rejected == {}
    assert result.receipt.number == 1
    assert result.receipt.masking == masking
    assert result.receipt.model == vector_digest(result.aggregate)
    assert 0 < result.distance_error < 1
    np.testing.assert_allclose(
        result.aggregate, rows[list(result.selected)].mean(axis=0), rtol=1e-5, atol=1e-7
    )


@every_masking
def test_the_result_under_the_default_rule(masking):
    rows = updates().astype(np.float64)
    result = run_round(rows, f=2, masking=masking)
    assert result.receipt.rule == "arc+nnm+geometric-median"
    assert result.selected == tuple(np.flatnonzero(result.weights).tolist())
    assert (result.receipt.participants, result.receipt.kept) == (9, len(result.selected))
    assert 0 < result.weights.sum() <= 1 + 1e-12, "less than 1 where rows were shortened"
    assert result.weights.max() <= (1 + 1e-12) / 7
    np.testing.assert_allclose(result.aggregate, result.weights @ rows, rtol=1e-5, atol=1e-7)


@every_masking
def test_attackers_are_dropped(masking):
    rows = updates() * 0.1 + 1
    rows[[1, 6]] = -5
    result = run_round(rows, f=2, rule="multi-krum", masking=masking)
    assert set(result.selected) == set(range(9)) - {1, 6}
    # The default rule follows the honest, and weighs how far others are from them.
    result = run_round(rows, f=2, masking=masking)
    honest = np.delete(rows, [1, 6], axis=0)
    assert np.abs(result.aggregate - honest.mean(axis=0)).max() < honest.std(axis=0).max()
    assert result.weights[[1, 6]].sum() < 1e-5


@every_masking
def test_k_rows_are_averaged(masking):
    for k in range(4, 8):
        result = run_round(updates(), f=2, rule="multi-krum", k=k, masking=masking)
        assert len(result.selected) == k


@every_masking
@pytest.mark.filterwarnings("ignore::ostraka.errors.ToleranceUsedUp")
def test_rows_that_are_not_finite_are_rejected(masking):
    rows = updates()
    rows[1, 3] = np.nan
    rows[4, 0] = -np.inf
    rows.view(np.uint32)[7, 39] = 0x7F800001  # a signalling NaN
    result = run_round(rows, f=3, masking=masking)
    assert set(result.rejected) == {1, 4, 7}
    assert all(isinstance(reason, Rejection) for reason in result.rejected.values())
    assert set(result.selected) == {0, 2, 3, 5, 6, 8}
    assert {each.client for each in result.receipt.rejected} == {"client-1", "client-4", "client-7"}


@every_masking
@pytest.mark.filterwarnings("ignore::ostraka.errors.ToleranceUsedUp")
def test_values_beyond_float32_are_infinite(masking):
    rows = updates().astype(np.float64)
    rows[2, 2] = 1e300
    assert set(run_round(rows, f=1, masking=masking).rejected) == {2}


@every_masking
def test_a_given_clip_norm(masking):
    rows = updates()
    result = run_round(rows, f=2, rule="multi-krum", masking=masking, clip_norm=0.5)
    wide = rows[list(result.selected)].astype(np.float64)
    clipped = wide * (0.5 / np.linalg.norm(wide, axis=1))[:, None]
    np.testing.assert_allclose(result.aggregate, clipped.mean(axis=0), rtol=1e-5, atol=1e-9)


@every_masking
def test_anything_like_an_array_will_do(masking):
    rows = updates()
    expected = run_round(rows, f=2, masking=masking, entropy=entropy(1)).aggregate
    for same in (rows.tolist(), rows.astype(np.float64), np.asfortranarray(rows), list(rows)):
        result = run_round(same, f=2, masking=masking, entropy=entropy(1))
        assert np.array_equal(result.aggregate, expected)


def test_a_whole_number_is_as_good_as_a_float():
    rows = updates()
    result = run_round(rows, f=2, masking="none", clip_norm=1)
    assert result.receipt.federation != run_round(rows, f=2, masking="none").receipt.federation


def test_numbers_may_come_from_numpy():
    rows = updates()
    result = run_round(
        rows,
        f=np.int64(2),  # type: ignore[arg-type]
        rule="multi-krum",
        k=np.int64(4),  # type: ignore[arg-type]
        masking="none",
        clip_norm=np.float64(2),
    )
    assert len(result.selected) == 4


def entropy(seed):
    return SecretStream(bytes([seed]) * 32).bytes


def settled(receipt):
    """All but what ML-KEM's own randomness changes: the headers, and so the cohort's root."""
    return replace(receipt, cohort=bytes(32), signature=bytes(64))


@every_masking
def test_the_same_entropy_gives_the_same_round(masking):
    rows = updates()
    one, two, other = (
        run_round(rows, f=2, masking=masking, entropy=entropy(seed)) for seed in (1, 1, 2)
    )
    assert one.selected == two.selected
    assert one.aggregate.tobytes() == two.aggregate.tobytes()
    assert settled(one.receipt) == settled(two.receipt)
    assert one.receipt.round_id != other.receipt.round_id


@every_masking
def test_threads_change_nothing(masking):
    rows = updates(11, 400)
    one, *others = (
        run_round(rows, f=2, masking=masking, threads=threads, entropy=entropy(1))
        for threads in (1, 3, 16)
    )
    for other in others:
        assert one.selected == other.selected
        assert one.aggregate.tobytes() == other.aggregate.tobytes()
        assert settled(one.receipt) == settled(other.receipt)


@every_masking
def test_a_machine_s_faster_cipher_changes_nothing(masking, monkeypatch):
    monkeypatch.setattr("ostraka.crypto.stream._LONG", 0)
    results = []
    for gcm in (False, True):
        monkeypatch.setattr("ostraka.crypto.stream.gcm_is_faster", lambda gcm=gcm: gcm)
        results.append(run_round(updates(), f=2, masking=masking, entropy=entropy(1)))
    one, other = results
    assert one.aggregate.tobytes() == other.aggregate.tobytes()
    assert settled(one.receipt) == settled(other.receipt)
    assert one.distance_error == other.distance_error


def test_without_entropy_every_round_differs():
    rows = updates()
    ids = {run_round(rows, f=2, masking="none").receipt.round_id for _ in range(3)}
    assert len(ids) == 3


@every_masking
def test_the_updates_are_not_changed(masking):
    rows = updates()
    before = rows.copy()
    rows.flags.writeable = False
    run_round(rows, f=2, masking=masking)
    assert np.array_equal(rows, before)


def named(rows):
    """State dicts, in another order of names each."""
    dicts = [
        {"b": row[:4], "w": row[4:].reshape(4, 9), "scale": row[:1].reshape(())} for row in rows
    ]
    return [dict(sorted(each.items(), reverse=bool(i % 2))) for i, each in enumerate(dicts)]


def test_updates_may_be_dicts_of_arrays():
    rows = updates()
    result = run_round(named(rows), f=2, masking="none")
    flat = run_round(np.hstack([rows[:, :4], rows[:, :1], rows[:, 4:]]), f=2, masking="none")
    assert np.array_equal(result.aggregate, flat.aggregate)
    assert flat.arrays == {}
    assert [*result.arrays] == ["b", "scale", "w"]
    assert np.array_equal(result.arrays["w"], flat.aggregate[5:].reshape(4, 9))
    assert result.arrays["scale"].shape == ()


NO_DICTS = {
    "another name": ([{"w": [1.0]}, {"v": [1.0]}], r"update 0 holds {'w': \(1,\)}, and update 1"),
    "another shape": ([{"w": [1.0]}, {"w": [1.0, 2.0]}], r"update 1 holds {'w': \(2,\)}"),
    "a row among dicts": ([{"w": [1.0]}, np.zeros(1)], "one per client"),
    "ragged arrays": ([{"w": [[1.0], [1.0, 2.0]]}] * 2, "one per client"),
    "no arrays": ([{}, {}], "values; got 0"),
    "words": ([{"w": ["a"]}] * 2, "real numbers"),
}


@pytest.mark.parametrize(("given", "message"), NO_DICTS.values(), ids=NO_DICTS.keys())
def test_dicts_that_make_no_rows_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        run_round(given, f=0, masking="none")


def test_rejections_that_use_up_f_are_warned_of():
    rows = updates()
    rows[1, 3] = np.nan
    assert set(run_round(rows, f=2, masking="none").rejected) == {1}
    rows[4, 3] = np.nan
    with pytest.warns(ToleranceUsedUp, match="2 updates were rejected, and f = 2: ") as caught:
        run_round(rows, f=2, masking="none")
    assert [each.filename for each in caught] == [__file__]


IMPOSSIBLE = {
    "too few rows": ({"updates": updates(5), "f": 2}, "6 clients; got n=5, f=2"),
    "too few rows for the paper's rule": (
        {"updates": updates(6), "f": 2, "rule": "multi-krum"},
        "7 clients; got n=6, f=2",
    ),
    "k too small": ({"updates": updates(), "f": 2, "rule": "multi-krum", "k": 3}, "k=3, f=2"),
    "k too large": ({"updates": updates(), "f": 2, "rule": "multi-krum", "k": 8}, "k=8, n=9, f=2"),
    "k of a rule that has none": ({"updates": updates(), "f": 2, "k": 7}, "k is no option of arc"),
    "f below zero": ({"updates": updates(), "f": -1}, "f=-1"),
    "one row": ({"updates": np.zeros(40), "f": 0}, r"\(40,\)"),
    "a stack of rows": ({"updates": np.zeros((2, 3, 4)), "f": 0}, r"\(2, 3, 4\)"),
    "no rows": ({"updates": np.zeros((0, 4)), "f": 0}, "n=0"),
    "no columns": ({"updates": np.zeros((9, 0)), "f": 0}, "values; got 0"),
    "no such masking": ({"updates": updates(), "f": 2, "masking": "invisible"}, "'invisible'"),
    "a clip norm of zero": ({"updates": updates(), "f": 2, "clip_norm": 0.0}, "clip_norm"),
    "a clip norm beyond float32": ({"updates": updates(), "f": 2, "clip_norm": 1e300}, "clip_norm"),
    "more rows than columns": (
        {"updates": updates(9, 8), "f": 2, "masking": "gaussian"},
        "8 dimensions",
    ),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_impossible_numbers_are_stated(what):
    arguments, numbers = IMPOSSIBLE[what]
    with pytest.raises(ConfigError, match=numbers):
        run_round(**{"masking": "none", **arguments})


def test_exact_masking_is_the_default():
    assert run_round(updates(), f=2).receipt.masking == "exact"


@every_masking
def test_too_many_bad_rows_end_the_round(masking):
    rows = updates(5)
    rows[:4] = np.nan
    with pytest.raises(TooFewUpdates):
        run_round(rows, f=1, masking=masking)


def test_gaussian_masking_warns_where_it_is_chosen():
    with pytest.warns(LeakyMasking) as caught:
        run_round(updates(), f=2, masking="gaussian")
    assert [each.filename for each in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_round(updates(), f=2, masking="none")
        run_round(updates(), f=2)

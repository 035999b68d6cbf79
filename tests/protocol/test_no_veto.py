"""No veto: f provable liars cannot end a round; what a host can cause may."""

import contextlib

import numpy as np
import pytest

from ostraka.errors import Rejection, TooFewUpdates, UpdateRejected


def refused(round_, row, **lie):
    """A client whose header is refused, and that sends nothing else."""
    with pytest.raises(UpdateRejected):
        round_.accept(round_.forge(row, **lie).header)


def uploaded(round_, row, update=None, **lie):
    """A client whose upload is whole, and a lie."""
    round_.send(round_.forge(row, update, **lie))


def with_nan(round_, row):
    update = round_.simulation.rows[row].copy()
    norm = float(np.linalg.norm(update))
    update[-1] = np.nan
    uploaded(round_, row, update, norm=norm)


LIES = {
    "another dimension": (lambda r, i: refused(r, i, dimension=49), Rejection.WRONG_SHAPE),
    "another manifest": (lambda r, i: refused(r, i, manifest=bytes(32)), Rejection.WRONG_SHAPE),
    "a key that does not open": (
        lambda r, i: refused(r, i, sealed_key=b"?"),
        Rejection.UNOPENABLE_KEY,
    ),
    "an impossible norm": (lambda r, i: refused(r, i, norm=-1.0), Rejection.BAD_NORM),
    "a step of floats": (lambda r, i: refused(r, i, step=0.5), Rejection.BAD_STEP),
    "a NaN": (with_nan, Rejection.NOT_FINITE),
    "too small a norm": (lambda r, i: uploaded(r, i, norm=1e-3), Rejection.FALSE_NORM),
    "too large a norm": (lambda r, i: uploaded(r, i, norm=1e3), Rejection.FALSE_NORM),
}


def test_the_table_holds_every_provable_reason():
    here = {reason for _, reason in LIES.values()} | {Rejection.BAD_VALUE}  # which int8 alone has
    assert here == {reason for reason in Rejection if reason.provable}


@pytest.mark.parametrize("f", [1, 2])
def test_f_liars_by_a_value_that_is_none_do_not_end_the_round(simulate, masking, f):
    rows = np.rint(10 * simulate.updates(2 * f + 2, 50)).clip(-127, 126).astype(np.float32)
    rows[:, 0] = 127  # So that each row is of integers, in steps of 1.
    round_ = simulate(f=f, masking=masking, rows=rows, upload="int8").open()
    for row in range(f):
        values = rows[row].astype(np.int8)
        values[-1] = -128
        uploaded(round_, row, values, norm=float(np.linalg.norm(rows[row].astype(float))), step=1.0)
    round_.send_all(but=range(f))
    round_.assert_result(round_.finish(), dict.fromkeys(range(f), Rejection.BAD_VALUE))


@pytest.mark.parametrize("f", [1, 2, 3])
@pytest.mark.parametrize("what", LIES)
def test_f_provable_liars_do_not_end_the_round(simulate, masking, f, what):
    lie, reason = LIES[what]
    round_ = simulate(n=2 * f + 2, f=f, masking=masking).open()
    for row in range(f):
        lie(round_, row)
    round_.send_all(but=range(f))
    round_.assert_result(round_.finish(), dict.fromkeys(range(f), reason))


def test_liars_of_every_kind_together(simulate, masking, defence, least):
    f = len(LIES)
    round_ = simulate(n=least(f), f=f, masking=masking, defence=defence).open()
    for row, (lie, _) in enumerate(LIES.values()):
        lie(round_, row)
    round_.send_all(but=range(f))
    reasons = [reason for _, reason in LIES.values()]
    round_.assert_result(round_.finish(), dict(enumerate(reasons)))


@pytest.mark.parametrize("f", [1, 2, 3])
def test_drop_outs_do_end_the_round(simulate, masking, defence, least, f):
    round_ = simulate(n=least(f), f=f, masking=masking, defence=defence, seed=1).open()
    round_.send_all(but=[0])
    with pytest.raises(TooFewUpdates, match=rf"{least(f) - 1} valid updates and f={f}"):
        round_.close()
    round_.send(round_.seal(0))
    round_.assert_result(round_.finish(), {})


def test_a_tile_that_does_not_open_counts_as_a_drop_out(simulate, masking):
    round_ = simulate(n=4, f=1, masking=masking, budget=0).open()
    round_.send_all()
    round_.close()
    round_.spool[round_.uploads[3], 0] = bytes(16 * 4 + 16)
    round_.measure()
    with pytest.raises(TooFewUpdates):
        round_.average()


def test_a_liar_and_a_drop_out_beyond_what_the_rule_bears(simulate, masking):
    round_ = simulate(n=7, f=2, masking=masking).open()
    refused(round_, 0, norm=np.nan)
    round_.send_all(but=[0, 1, 2])
    # The rule would stand on four of which one may be Byzantine. The terms ask for six answers.
    with pytest.raises(TooFewUpdates, match="needs at least 5 updates; 4 valid updates and f=1"):
        round_.close()
    round_.send(round_.seal(2))
    round_.assert_result(round_.finish(), {0: Rejection.BAD_NORM}, absent=[1])


@pytest.mark.parametrize("f", [1, 2, 3])
def test_f_liars_and_a_host_do_not_shrink_the_cohort(simulate, masking, defence, least, f):
    """Each liar may lower what the rule needs by two, and let the host drop an honest client."""
    n = least(f)
    round_ = simulate(n=n, f=f, masking=masking, defence=defence).open()
    for row in range(f):
        refused(round_, row, norm=-1.0)
    dropped = range(f, f + max(1, n - f - least(0)))
    round_.send_all(but=[*range(f), *dropped])
    left = n - f - len(dropped)
    wanted = rf"needs at least {n - f} updates; {left} valid updates and f=0"
    with pytest.raises(TooFewUpdates, match=wanted):
        round_.close()
    for row in dropped:
        round_.send(round_.seal(row))
    round_.assert_result(round_.finish(), dict.fromkeys(range(f), Rejection.BAD_NORM))


def test_liars_found_later_and_a_host_do_not_shrink_the_cohort_either(simulate, masking):
    round_ = simulate(n=6, f=2, masking=masking, budget=0).open()
    for row in (0, 1):
        with_nan(round_, row)
    round_.send_all(but=[0, 1])
    round_.close()
    for row in (2, 3):
        round_.spool[round_.upload(row), 0] = bytes(16 * 4 + 16)
    round_.measure()
    with pytest.raises(TooFewUpdates, match="needs at least 4 updates; 2 valid updates and f=0"):
        round_.average()


def test_a_liar_that_comes_back_honest_is_counted_as_honest(simulate, masking):
    round_ = simulate(masking=masking).open()
    refused(round_, 0, norm=np.nan)
    round_.send_all()
    round_.assert_result(round_.finish(), {})


def test_a_liar_that_comes_back_and_stops_halfway_is_a_drop_out(simulate, masking):
    round_ = simulate(masking=masking).open()
    refused(round_, 0, norm=np.nan)
    round_.accept(round_.seal(0).header)
    round_.send_all(but=[0])
    round_.assert_result(round_.finish(), {0: Rejection.INCOMPLETE})


@pytest.mark.parametrize(
    "case",
    [
        (None, 0, 0, 7),
        (None, 1, 0, 7),  # n = 8, f = 1
        (None, 2, 0, 7),  # n = 7, f = 0
        (None, 0, 2, 5),  # n = 7, f = 2
        (7, 0, 0, 7),
        (7, 2, 0, 7),
        (7, 0, 1, 6),  # n = 8, f = 2
        (7, 1, 2, 5),  # n = 6, f = 1
        (4, 0, 0, 4),
        (4, 2, 0, 4),
        (4, 0, 2, 4),
    ],
)
def test_k_shrinks_with_what_is_left(simulate, masking, case):
    k, liars, absent, kept = case
    round_ = simulate(n=9, f=2, defence="multi-krum", k=k, masking=masking).open()
    for row in range(liars):
        uploaded(round_, row, norm=1e3)
    gone = range(liars, liars + absent)
    round_.send_all(but=[*range(liars), *gone])
    published = round_.finish()
    assert len(published.selected) == kept
    round_.assert_result(published, dict.fromkeys(range(liars), Rejection.FALSE_NORM), absent=gone)


@pytest.mark.parametrize("norm", [1e30, 1e300, 1.7e308])
def test_more_liars_than_f_end_a_round_properly(simulate, masking, norm):
    """Beyond what is promised. They own the median norm, and still get no other error than ours."""
    round_ = simulate(n=7, f=1, masking=masking).open()
    for row in range(5):
        with contextlib.suppress(UpdateRejected):
            uploaded(round_, row, norm=norm)
    round_.send_all(but=range(5))
    with pytest.raises(TooFewUpdates, match="needs at least 3 updates; 2 valid updates and f=0"):
        round_.finish()

"""What clients report is published as a mean, and shows nobody a single client's value (law 21).

The adversaries: f clients that report anything, know their own reports and take them off; a host
that sees all sizes, chooses who arrives, spoils rows that it holds, and copies the enclave.
"""

import struct
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka import run_round
from ostraka.core.metrics import LEVELS, Reported, ask
from ostraka.encoding import encode
from ostraka.errors import ConfigError, ReceiptRefused, Rejection, UpdateRejected
from ostraka.protocol.enclave import propose_null_step

N, F = 7, 1
LEAST = F + 2
NAMES = ("loss", "accuracy", "examples")


def report(number=0):
    """A client's own, exact on the grid."""
    return {"loss": 0.5 + 0.01 * number, "accuracy": 0.9 - 0.01 * number, "examples": 100.0}


def under(simulate, reports, *, metrics=NAMES, **terms):
    """A round whose clients have reported these, one after the other, and the rest nothing."""
    round_ = simulate(n=N, f=F, report_metrics=metrics, **terms).open()
    for row in range(N):
        round_.send(round_.seal(row, metrics=reports.get(row)))
    return round_


def test_law21_the_mean_is_over_all_that_report(simulate, masking):
    round_ = under(simulate, {row: report(row) for row in (0, 1, 4, 6)}, masking=masking)
    published = round_.finish().receipt.metrics
    assert published.clients == 4
    assert published.loss == pytest.approx(np.mean([0.5, 0.51, 0.54, 0.56]), abs=1e-12)
    assert published.accuracy == pytest.approx(np.mean([0.9, 0.89, 0.86, 0.84]), abs=1e-12)
    assert published.examples == 100.0


@pytest.mark.parametrize("reporting", range(N + 1))
def test_law21_nothing_is_published_of_fewer_than_f_plus_2(simulate, reporting):
    published = under(simulate, {row: report() for row in range(reporting)}).finish().receipt
    assert (published.metrics is not None) == (reporting >= LEAST)
    assert published.participants == N


@given(st.lists(st.integers(0, LEVELS), min_size=2, max_size=4), st.data())
def test_law21_colluders_who_take_their_reports_off_know_a_sum_of_two_others(known, data):
    """Whatever two honest values have the same sum: what is published is the same to the bit."""
    first, second = data.draw(st.tuples(st.integers(0, LEVELS), st.integers(0, LEVELS)))
    moved = data.draw(st.integers(max(0, first + second - LEVELS), min(LEVELS, first + second)))
    asked = ask(("loss",), loss=10.0, examples=100.0)
    colluding = [(level,) for level in known]
    honest = [(first,), (second,)], [(moved,), (first + second - moved,)]
    one, other = (asked.mean([*colluding, *two], len(known) + 2) for two in honest)
    assert one == other
    assert one is not None


SIZES = 997, 1009  # of two clients' test sets, which everybody knows


def parted(mean):
    """The attack: both accuracies, from the mean of right/size of two clients with these sizes.

    Their sum is a fraction whose denominator is the product of the sizes, and has one partition.
    """
    found = Fraction(2 * mean).limit_denominator(SIZES[0] * SIZES[1])
    if found.denominator != SIZES[0] * SIZES[1]:
        return None
    left = found.numerator * pow(SIZES[1], -1, SIZES[0]) % SIZES[0]
    return left, (found.numerator - left * SIZES[1]) // SIZES[0]


def test_an_unrounded_mean_would_tell_both_of_its_fractions_and_the_published_one_does_not():
    right = 905, 640
    accuracies = [count / size for count, size in zip(right, SIZES, strict=True)]
    assert parted(np.mean(accuracies)) == right  # in float64, by anybody

    rows = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    reports = [{"accuracy": each} for each in accuracies] + [None, None]
    published = run_round(rows, f=0, metrics=reports).receipt.metrics
    assert published is not None
    assert published.accuracy is not None
    assert published.clients == 2
    assert published.accuracy == pytest.approx(np.mean(accuracies), abs=0.5 / LEVELS)
    assert parted(published.accuracy) is None
    levels = [[round(LEVELS * k / size) for k in range(size + 1)] for size in SIZES]
    total = round(2 * LEVELS * published.accuracy)
    fitting = sum(total - level in set(levels[1]) for level in levels[0])
    assert fitting > 400  # pairs of counts that give the same mean


def test_a_liar_moves_the_mean_by_no_more_than_its_share_of_the_range(simulate):
    """A loss of 10^300, or the highest level, or a claim of a million examples, is one report."""
    reports = {row: report() for row in range(1, N)}
    honest = under(simulate, reports).finish().receipt.metrics
    for liar in (
        {"loss": 1e300, "accuracy": 1.0, "examples": 1e12},
        {"loss": 0.0, "accuracy": 0.0, "examples": 0},
    ):
        lied = under(simulate, reports | {0: liar}).finish().receipt.metrics
        assert lied.clients == N
        for name, most in (("loss", 10.0), ("accuracy", 1.0), ("examples", 10_000.0)):
            moved = abs(getattr(lied, name) - getattr(honest, name))
            assert moved <= most / N, name


HOSTILE = {
    "a level above the highest": struct.pack(">3H", LEVELS + 1, 0, 0),
    "the bytes of a NaN": struct.pack(">e", float("nan")) * 3,
    "the bytes of an infinity": struct.pack(">e", float("inf")) * 3,
    "the bytes of a negative number": struct.pack(">e", -1.0) * 3,
    "half a report": struct.pack(">3H", 2**16 - 1, 500, 500),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_level_counts_as_no_report_and_the_update_counts(simulate, what):
    """Ignored, and no rejection: the update is sound. And an honest client cannot send it."""
    round_ = simulate(n=N, f=F, report_metrics=NAMES).open()
    round_.send(round_.forge(0, report=HOSTILE[what]))
    for row in range(1, N):
        round_.send(round_.seal(row, metrics=report(row)))
    receipt = round_.finish().receipt
    assert receipt.metrics.clients == N - 1
    assert (receipt.participants, receipt.rejected) == (N, ())


@pytest.mark.parametrize("size", [0, 4, 8])
def test_a_report_of_another_length_is_a_rejection_of_its_client_alone(simulate, size):
    round_ = simulate(n=N, f=F, report_metrics=NAMES).open()
    with pytest.raises(UpdateRejected, match="sealed key does not open"):
        round_.send(round_.forge(0, report=bytes(size)))
    for row in range(1, N):
        round_.send(round_.seal(row, metrics=report(row)))
    proposed = round_.finish()
    assert proposed.rejected == {"client-0": Rejection.UNOPENABLE_KEY}
    assert proposed.receipt.metrics.clients == N - 1


UNFIT = {
    "a name that is no metric": ({"los": 0.3}, "one of loss, accuracy, examples; got 'los'.*loss"),
    "a string": ({**report(), "loss": "0.3"}, "loss is a finite number, at least 0; got '0.3'"),
    "a truth value": ({**report(), "accuracy": True}, "accuracy is a number from 0 to 1; got True"),
    "a NaN": ({**report(), "loss": float("nan")}, "loss is a finite number.*got nan"),
    "an infinity": ({**report(), "loss": float("inf")}, "loss is a finite number.*got inf"),
    "a negative count": ({**report(), "examples": -3}, "examples is a finite number.*got -3"),
    "a percentage": ({**report(), "accuracy": 92.0}, "accuracy is a number from 0 to 1; got 92.0"),
    "a list": ({**report(), "loss": [0.3, 0.2]}, "loss is a finite number"),
    "a part of what is asked for": ({"loss": 0.3}, "of which accuracy, examples is missing"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_a_client_is_told_before_anything_is_sealed(simulate, what):
    metrics, message = UNFIT[what]
    round_ = simulate(n=N, f=F, report_metrics=NAMES).open()
    with pytest.raises(ConfigError, match=message):
        round_.seal(0, metrics=metrics)
    round_.send_all()
    assert round_.finish().receipt.metrics is None


def test_what_the_terms_do_not_name_stays_with_the_client(simulate):
    for metrics in ((), ("loss",)):
        round_ = under(simulate, {row: report(row) for row in range(N)}, metrics=metrics)
        published = round_.finish().receipt.metrics
        assert (published.means.keys() if published else set()) == set(metrics)


def test_a_host_cannot_see_whether_a_client_reports(simulate):
    """All uploads have the same size."""
    round_ = simulate(n=N, f=F, report_metrics=NAMES).open()
    uploads = [
        round_.seal(0, metrics=metrics)
        for metrics in (None, report(), {"loss": 0, "accuracy": 1, "examples": 1e9})
    ]
    assert len({len(encode(each.header)) for each in uploads}) == 1
    assert len({tuple(len(t.ciphertext) for t in each.tiles) for each in uploads}) == 1
    without = simulate(n=N, f=F).open().seal(0)
    assert len(encode(uploads[0].header)) == len(encode(without.header)) + 2 * len(NAMES)


def test_reports_change_nothing_of_the_aggregate(simulate, masking, defence):
    """Not a bit of it, nor of who is selected with which weight, whatever is claimed."""
    outcomes = [
        under(simulate, reports, masking=masking, defence=defence).finish()
        for reports in (
            {},
            {row: report(row) for row in range(N)},
            {0: {"loss": 0, "accuracy": 1, "examples": 1e12}},
        )
    ]
    first = outcomes[0]
    for each in outcomes[1:]:
        assert each.aggregate.tobytes() == first.aggregate.tobytes()
        assert each.state.model.tobytes() == first.state.model.tobytes()
        assert (each.selected, each.weights) == (first.selected, first.weights)


def test_the_mean_does_not_tell_who_was_selected(simulate):
    """It is over those that the rule leaves out, too."""
    reports = {row: report(row) for row in range(N)}
    proposed = under(simulate, reports, defence="multi-krum", k=3).finish()
    assert len(proposed.selected) == 3
    assert proposed.receipt.metrics.clients == N


def test_a_row_that_the_host_spoils_is_out_of_the_mean_and_of_its_count(simulate):
    """Else a host that drops rows behind the close would get a mean over fewer than f + 2."""
    for reporting, left in ((N, N - 1), (LEAST, None)):
        round_ = under(simulate, {row: report(row) for row in range(reporting)}, budget=0)
        upload = round_.upload(0)
        spoilt = bytearray(round_.spool[upload, 0])
        spoilt[0] ^= 1
        round_.spool[upload, 0] = bytes(spoilt)
        proposed = round_.finish()
        assert proposed.rejected == {"client-0": Rejection.CHANGED}
        metrics = proposed.receipt.metrics
        assert (metrics and metrics.clients) == left


def test_a_null_step_publishes_the_same_mean(simulate):
    round_ = under(simulate, {row: report(row) for row in range(N)})
    round_.close()
    round_.measure()
    null = propose_null_step(round_.cohort, round_.measured, "the rule cannot stand")
    assert null.receipt.metrics == round_.terms.asked.mean(
        [row.report for row in round_.cohort.rows], LEAST
    )


def test_a_copy_of_the_enclave_publishes_no_second_mean(simulate):
    """It is in what voters confirm: with another one, the certificate is not the receipt's."""
    simulation = simulate(n=N, f=F, report_metrics=NAMES)
    round_ = simulation.open()
    for row in range(N):
        round_.send(round_.seal(row, metrics=report(row)))
    proposed = round_.finish()
    certified = simulation.confirm(proposed)
    other = replace(certified.receipt, metrics=replace(certified.receipt.metrics, loss=0.25))
    forged = replace(certified, receipt=simulation.sign(other))
    with pytest.raises(ReceiptRefused):
        simulation.clients[0].follow(forged)
    assert simulation.clients[0].follow(certified).last.metrics == proposed.receipt.metrics


OTHERS = {
    "of terms that name none": ((), Reported(N, loss=0.3)),
    "of a metric that the terms do not name": (("loss",), Reported(N, loss=0.3, accuracy=0.5)),
    "of too few clients": (("loss",), Reported(LEAST - 1, loss=0.3)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_client_follows_no_receipt_with_metrics(simulate, what):
    names, metrics = OTHERS[what]
    simulation = simulate(n=N, f=F, report_metrics=names)
    round_ = simulation.open()
    round_.send_all()
    receipt = round_.finish().receipt
    false = simulation.certify(replace(receipt, metrics=metrics))
    with pytest.raises(ReceiptRefused, match="other metrics than the terms name"):
        simulation.clients[0].follow(false)
    simulation.clients[0].follow(simulation.certify(receipt))


def test_a_round_as_a_function_takes_what_each_client_reports():
    rows = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    reports = [{"loss": 0.25}, {"loss": 0.5}, None, {"loss": np.float32(0.75)}, None, None]
    published = run_round(rows, f=1, metrics=reports).receipt.metrics
    assert published == Reported(3, loss=0.5)
    assert run_round(rows, f=1).receipt.metrics is None
    with pytest.raises(ConfigError, match="one dict per client, or None; got 2 for 6"):
        run_round(rows, f=1, metrics=reports[:2])


def test_what_remains_a_host_that_leaves_a_client_out_reads_a_count_that_stays_the_same(simulate):
    """As docs/threat-model.md says: no confirmation stops this, since both means are released."""
    counts = [120, 450, 90, 1000, 310, 70, 640]
    simulation, means = simulate(n=N, f=F, report_metrics=("examples",)), []
    for absent in ((), (3,)):
        round_ = simulation.open()
        for row in sorted(set(range(N)) - set(absent)):
            round_.send(round_.seal(row, metrics={"examples": counts[row]}))
        proposed = round_.finish()
        simulation.follow(proposed)
        means.append(proposed.receipt.metrics)
    sums = [each.clients * each.examples for each in means]
    assert sums[0] - sums[1] == pytest.approx(counts[3])

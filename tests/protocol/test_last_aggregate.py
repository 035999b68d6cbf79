"""Centred clipping from the last aggregate: a public row that the enclave keeps across rounds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ostraka.config import Manifest, Terms
from ostraka.core import rules
from ostraka.core.rules import Options
from ostraka.enclave.storage.models import from_bytes, to_bytes
from ostraka.encoding import UNSIGNED
from ostraka.errors import ConfigError, LocalProtocolError, Rejection
from ostraka.messages import Charter, vector_digest
from ostraka.protocol.enclave.propose import Proposed

RADIUS = 6.0  # so short that it matters where it starts
CENTRED = f"centred-clipping(radius={RADIUS}, iterations=2)"
N, D = 9, 50


def norms_of(rows: np.ndarray) -> np.ndarray:
    return np.sqrt(np.square(rows, dtype=np.float64).sum(axis=-1))


def clip(rows: np.ndarray) -> np.ndarray:
    limit = np.exp2(np.ceil(np.log2(4 * np.median(norms_of(rows)))))
    return rows * (limit / np.maximum(norms_of(rows), limit))[:, None]


def centred(rows: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Two steps of mean differences, shortened to the radius; on rows, in float64."""
    point = start.astype(np.float64)
    for _ in range(2):
        away = rows - point
        point = point + (away * np.minimum(1, RADIUS / norms_of(away))[:, None]).mean(axis=0)
    return point


def updates(number: int) -> np.ndarray:
    """Rows of one round: around a point of their own, one of them far away."""
    rng = np.random.default_rng(number)
    rows = rng.normal(size=(N, D)) + 2 * rng.normal(size=D)
    rows[2] *= 40
    return rows.astype(np.float32)


def play(simulation, number: int) -> Proposed:
    """A round with its own updates, confirmed and followed."""
    simulation.rows = updates(number)
    round_ = simulation.open()
    round_.send_all()
    proposed = round_.finish()
    simulation.follow(proposed)
    return proposed


def assert_centred(proposed: Proposed, number: int, start: np.ndarray) -> None:
    rows = clip(updates(number).astype(np.float64))
    error = 1e-6 + 20 * proposed.distance_error / np.square(norms_of(rows)).max()
    scale = norms_of(rows).max()
    away = norms_of(proposed.aggregate - centred(rows, start))
    assert away <= error * scale, (away, error * scale)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_second_round_starts_from_the_aggregate_of_the_first(simulate, masking, threads):
    simulation = simulate(n=N, d=D, defence=CENTRED, masking=masking, threads=threads)
    first = play(simulation, 1)
    assert_centred(first, 1, np.zeros(D))
    second = play(simulation, 2)
    assert_centred(second, 2, first.aggregate)
    third = play(simulation, 3)
    assert_centred(third, 3, second.aggregate)
    elsewhere = centred(clip(updates(2).astype(np.float64)), np.zeros(D))
    assert norms_of(elsewhere - second.aggregate) > 0.2 * norms_of(elsewhere), "it matters"


def test_it_follows_pre_aggregations(simulate):
    simulation = simulate(n=N, d=D, defence=f"nnm+{CENTRED}")
    first = play(simulation, 1)
    second = play(simulation, 2)
    rows = clip(updates(2).astype(np.float64))
    squares = np.square(rows[:, None] - rows).sum(axis=2)
    mixed = np.stack([rows[np.argsort(each)[: N - 1]].mean(axis=0) for each in squares])
    np.testing.assert_allclose(
        second.aggregate, centred(mixed, first.aggregate), atol=1e-6 * np.abs(rows).max()
    )


def test_any_tile_gives_the_same(simulate):
    found = []
    for tile in (1, 7, 16, 64):
        simulation = simulate(n=N, d=D, defence=CENTRED, tile=tile)
        play(simulation, 1)
        found.append(play(simulation, 2).aggregate)
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-5, atol=1e-6)


def test_rejected_rows_have_no_part_in_it(simulate, masking):
    simulation = simulate(n=N, d=D, defence=CENTRED, masking=masking, budget=0)
    first = play(simulation, 1)
    simulation.rows = updates(2)
    round_ = simulation.open()
    spoiled = updates(2)[4]
    norm = float(norms_of(spoiled))
    spoiled[11] = np.nan
    round_.send(round_.forge(4, spoiled, norm=norm))
    round_.send_all(but=[4])
    round_.close()
    round_.measure()
    round_.spool[round_.upload(6), 1] = b""
    proposed = round_.average()
    assert proposed.rejected == {
        "client-4": Rejection.NOT_FINITE,
        "client-6": Rejection.CHANGED,
    }
    limited = clip(updates(2).astype(np.float64))  # by the stated norms of all
    rows = np.delete(limited, [4, 6], axis=0)
    scale = norms_of(rows).max()
    error = 1e-6 + 20 * proposed.distance_error / scale**2
    assert norms_of(proposed.aggregate - centred(rows, first.aggregate)) <= error * scale


def test_a_null_step_keeps_it(simulate):
    simulation = simulate(n=N, d=D, defence=CENTRED)
    first = play(simulation, 1)
    simulation.rows = updates(2)
    round_ = simulation.open()
    round_.send_all()
    round_.close()
    round_.measure()
    for client in range(6):
        round_.cohort.standing.reject(f"client-{client}", Rejection.CHANGED)
    null = round_.host().finish(round_.cohort, round_.measured)
    assert null.receipt.failure
    np.testing.assert_array_equal(null.state.last, first.aggregate)
    simulation.follow(null)
    assert_centred(play(simulation, 3), 3, first.aggregate)


def test_a_null_step_before_any_aggregate_leaves_a_state_of_the_same_size(simulate):
    """Else whoever sees the disk would see that the rule has failed, before anybody confirms it."""
    simulation = simulate(n=N, d=D, defence=CENTRED)
    simulation.rows = updates(1)
    sizes = []
    for lost in (0, 6):
        round_ = simulation.open()
        round_.send_all()
        round_.close()
        round_.measure()
        for client in range(lost):
            round_.cohort.standing.reject(f"client-{client}", Rejection.CHANGED)
        proposed = round_.host().finish(round_.cohort, round_.measured)
        assert bool(proposed.receipt.failure) == bool(lost)
        sizes.append(len(to_bytes(proposed.state)))
        simulation.restart()
    assert sizes[0] == sizes[1]


def test_a_restart_goes_on_from_the_same(simulate):
    kept, killed = (simulate(n=N, d=D, defence=CENTRED) for _ in range(2))
    receipts = [[play(simulation, 1).receipt] for simulation in (kept, killed)]
    killed.states[1] = from_bytes(to_bytes(killed.states[1]))
    killed.restart(*receipts[1])
    one, other = play(kept, 2), play(killed, 2)
    np.testing.assert_array_equal(one.aggregate, other.aggregate)
    last = kept.states[1].last
    assert last is not None
    assert_centred(other, 2, last)


def test_another_last_aggregate_than_was_published_is_refused(simulate):
    simulation = simulate(n=N, d=D, defence=CENTRED)
    first = play(simulation, 1)
    state = simulation.states[1]
    assert vector_digest(state.last) == first.receipt.aggregate
    simulation.states[1] = replace(state, last=state.last + 1)
    with pytest.raises(LocalProtocolError, match="last aggregate is not the one"):
        simulation.restart(first.receipt)
    simulation.states[1] = state
    simulation.restart(first.receipt)
    assert_centred(play(simulation, 2), 2, first.aggregate)


def test_what_a_caller_does_to_an_aggregate_does_not_reach_the_next_round(simulate):
    simulation = simulate(n=N, d=D, defence=CENTRED)
    first = play(simulation, 1)
    before = first.aggregate.copy()
    first.aggregate[:] = 7
    assert_centred(play(simulation, 2), 2, before)


def revise(simulation, defence: str) -> None:
    composition = rules.parse(defence)
    terms = replace(
        simulation.terms, rule=composition.name, pre=composition.pre, options=composition.options
    )
    older = simulation.federation
    newer = replace(older, terms=terms, revision=older.revision + 1)
    simulation.enclave.adopt(simulation.authority.sign(Charter(newer, UNSIGNED)))
    simulation.federation, simulation.terms = newer, terms
    simulation.clients = [client.adopt(newer) for client in simulation.clients]


def test_a_revision_that_changes_the_rule_starts_from_zeros(simulate):
    simulation = simulate(n=N, d=D, defence=CENTRED)
    play(simulation, 1)
    revise(simulation, "mean")
    second = play(simulation, 2)
    assert second.state.last is None
    revise(simulation, CENTRED)
    assert_centred(play(simulation, 3), 3, np.zeros(D))


def test_a_revision_that_keeps_the_rule_keeps_it(simulate):
    simulation = simulate(n=N, d=D, defence=CENTRED)
    first = play(simulation, 1)
    revise(simulation, CENTRED)
    assert_centred(play(simulation, 2), 2, first.aggregate)


@pytest.mark.parametrize(
    "defence", ["mean", "arc+nnm+geometric-median", "centred-clipping(centre=medoid)"]
)
def test_nothing_is_kept_or_measured_where_no_rule_asks(simulate, defence):
    simulation = simulate(n=N, d=D)
    revise(simulation, defence)
    simulation.rows = updates(1)
    round_ = simulation.open()
    round_.send_all()
    proposed = round_.finish()
    assert round_.measured.gram.last is None
    assert proposed.state.last is None


def test_a_sketch_is_refused_with_what_to_write():
    given: dict[str, Any] = {"manifest": Manifest.flat(50_000), "f": 1, "pre": (), "sketch": 16_384}
    with pytest.raises(ConfigError, match='take centre = "medoid", or no sketch'):
        Terms(rule="centred-clipping", **given)
    Terms(rule="centred-clipping", options=Options(centre="medoid"), **given)


@pytest.mark.filterwarnings("error")
def test_a_last_aggregate_at_the_ends_of_float32_overflows_nothing(simulate):
    for scale in (1e38, 1e-38):
        rows = (updates(1) / np.abs(updates(1)).max() * scale).astype(np.float32)
        simulation = simulate(rows=rows, defence=CENTRED)
        for _ in range(2):
            round_ = simulation.open()
            round_.send_all()
            proposed = round_.finish()
            assert np.isfinite(proposed.aggregate).all()
            simulation.follow(proposed)
        # Then all others are short, and the last aggregate is longer than any of them by far.
        simulation.rows = updates(2) * np.float32(1e-30)
        round_ = simulation.open()
        round_.send_all()
        proposed = round_.finish()
        assert np.isfinite(proposed.aggregate).all()

"""A round whose values are divided among shards: its outcome is that of one enclave."""

import hashlib
import itertools
import os
import time
from collections import defaultdict
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from ostraka import events
from ostraka.config import (
    LEAF_VALUES,
    MAX_TILE,
    Manifest,
    Terms,
    Tiling,
    cut_into_spans,
    default_tile,
    spans_from,
)
from ostraka.core import optimiser
from ostraka.core.gram import NumpyKernel
from ostraka.core.optimiser import Optimiser
from ostraka.core.uploads import INT8
from ostraka.crypto import updates
from ostraka.crypto.aead import nonce
from ostraka.crypto.channel import Channel
from ostraka.crypto.masks import Noise, mask_stream
from ostraka.crypto.stream import SecretStream
from ostraka.encoding import encode
from ostraka.errors import (
    ConfigError,
    LocalProtocolError,
    OpenError,
    Rejection,
    RoundFailed,
    UpdateRejected,
    WorkerGone,
)
from ostraka.messages import vector_digest
from ostraka.protocol import host
from ostraka.protocol.enclave import Arrivals, decide, propose
from ostraka.protocol.enclave.encoders import GaussianEncoder, _Scratch
from ostraka.protocol.enclave.propose import NO_AGGREGATE
from ostraka.protocol.round import run_round

pytestmark = pytest.mark.filterwarnings("ignore::ostraka.errors.LeakyMasking")

# Four leaves of a model, the last of them short: enough for four shards.
N, D = 7, 3 * LEAF_VALUES + 1000
ROWS = (
    np.random.default_rng(2).normal(size=(N, 5)) @ np.random.default_rng(3).normal(size=(5, D))
    + 0.3 * np.random.default_rng(4).normal(size=(N, D))
).astype(np.float32)
# Each row has a value of 127 steps, so that rounding to int8 changes nothing.
STEPS = np.float32(2.0**-9) * np.arange(1, N + 1, dtype=np.float32)
Q = np.clip(np.rint(12 * ROWS), -126, 126).astype(np.int8)
Q[:, 0] = 127
INTEGERS = (STEPS[:, None] * Q).astype(np.float32)

SKETCHED = {"sketch": 4096, "defence": "multi-krum"}


def divided(simulate: Any, shards: int = 3, **given: Any) -> Any:
    given.setdefault("rows", INTEGERS if given.get("upload") == "int8" else ROWS)
    return simulate(tile=LEAF_VALUES, shards=shards, **given)


# The same outcome, whatever the number of shards.

CASES: dict[str, dict[str, Any]] = {
    "exact masks and two workers": {"masking": "exact"},
    "exact masks and three workers": {"masking": "exact", "workers": 3},
    "exact masks, and rows are chosen": {"masking": "exact", "defence": "multi-krum"},
    "gaussian noise": {"masking": "gaussian"},
    "inside": {},
    "a sketch and workers": {"masking": "exact", **SKETCHED},
    "a sketch and gaussian noise": {"masking": "gaussian", **SKETCHED},
    "a sketch inside": SKETCHED,
    "int8 and workers": {"masking": "exact", "upload": "int8"},
    "int8 inside": {"upload": "int8"},
    "int8 and a sketch": {"upload": "int8", "masking": "exact", **SKETCHED},
    "rows are chosen": {"defence": "multi-krum"},
    "columns are reduced": {"defence": "trimmed-mean", "disclose_values": True},
    "mixtures are reduced": {"defence": "nnm+median", "disclose_values": True},
    "from the last aggregate": {"defence": "centred-clipping", "rounds": 3},
    "from the last aggregate, with workers": {
        "defence": "centred-clipping",
        "masking": "exact",
        "rounds": 3,
    },
    "a root client": {"defence": "fltrust(root=client-0)", "rows": ROWS + 3 * ROWS[0]},
    "momentum at the server": {"optimiser": Optimiser("sgd"), "rounds": 3},
    "moments at the server": {"optimiser": Optimiser("fedadam"), "rounds": 3},
}
# Distances by exact masks are rounded at random, and weights that follow from them are no closer,
# with shards or without.
DITHERED = {"exact masks and two workers", "exact masks and three workers"}
DITHERED |= {"from the last aggregate, with workers"}
# Nothing of these outcomes depends on how sums of products are rounded.
EXACTLY = {"rows are chosen", "columns are reduced", "exact masks, and rows are chosen"}
EXACTLY |= {"a sketch and workers", "a sketch inside", "int8 and a sketch"}
EXACTLY |= {"int8 and workers", "int8 inside"}


def outcomes(
    simulate: Any, shards: int, rounds: int = 1, **terms: Any
) -> list[tuple[tuple[str, ...], np.ndarray]]:
    """Whom each of some rounds selects, and the model after it."""
    simulation = divided(simulate, shards, **terms)
    found = []
    for number in range(rounds):
        round_ = simulation.open()
        assert len(round_.offer.shards) == shards
        for row, update in enumerate(np.roll(simulation.rows, number, axis=1)):
            round_.send(round_.seal(row, update))
        proposed = round_.finish()
        receipt = simulation.follow(proposed).receipt
        assert not receipt.failure
        assert not receipt.rejected
        assert receipt.distances == ("inside" if round_.terms.inside else "workers")
        model = np.concatenate([each.state.model for each in proposed.slices])
        assert receipt.model == vector_digest(model)
        if round_.terms.composition.needs_last:
            assert receipt.aggregate == vector_digest(np.array(proposed.aggregate))
        else:
            assert receipt.aggregate == NO_AGGREGATE
        found.append((proposed.selected, model))
    return found


@pytest.mark.parametrize("case", CASES)
def test_law18_any_number_of_shards_has_the_outcome_of_one_enclave(simulate, case):
    terms = CASES[case]
    nearly = 0.0 if case in EXACTLY else 1e-4 if case in DITHERED else 1e-6
    alone = outcomes(simulate, 1, **terms)
    assert np.linalg.norm(alone[-1][1]) > 1
    for shards in (2, 4):
        for (selected, model), (chosen, expected) in zip(
            outcomes(simulate, shards, **terms), alone, strict=True
        ):
            assert selected == chosen
            apart = np.linalg.norm(model - expected)
            assert apart <= nearly * np.linalg.norm(expected), apart


@pytest.mark.parametrize("place", [0, LEAF_VALUES, 3 * LEAF_VALUES])
@pytest.mark.parametrize("case", [name for name, terms in CASES.items() if "rounds" not in terms])
def test_law18_who_differs_on_one_shard_alone_differs(simulate, case, place):
    """What any one shard has measured counts."""
    terms = {**CASES[case], "defence": "multi-krum"}
    rows = np.array(INTEGERS if terms.get("upload") == "int8" else ROWS)
    rows[:] = rows[0]
    rows[:, 1:] += np.float32(2.0**-9) * (np.arange(N, dtype=np.float32)[:, None] % 3)
    rows[4, place + 1 : place + 1000] *= -1
    round_ = divided(simulate, 4, **{**terms, "rows": rows}).open()
    round_.send_all()
    assert set(round_.simulation.names) - set(round_.finish().selected) == {"client-4"}


def test_the_specification_runs_shards():
    one, four = (run_round(ROWS, f=1, rule="multi-krum", shards=each) for each in (1, 4))
    assert one.selected == four.selected
    np.testing.assert_array_equal(one.aggregate, four.aggregate)
    with pytest.raises(ConfigError, match="cannot be cut for 5 shards"):
        run_round(ROWS, f=1, shards=5)


def test_a_null_step_leaves_every_slice_and_does_the_same_work(simulate, monkeypatch):
    done: list[int] = []
    advance = optimiser.advance

    def counted(state, aggregate, *given, **named):
        done.append(len(aggregate))
        return advance(state, aggregate, *given, **named)

    def cannot_stand(cohort, measured):
        raise RoundFailed("why")

    monkeypatch.setattr(optimiser, "advance", counted)
    simulation = divided(simulate, optimiser=Optimiser("sgd"))
    works, lengths = [], []
    for fails in (False, True, False):
        with monkeypatch.context() as patch:
            if fails:
                patch.setattr(host, "decide", cannot_stand)
            done.clear()
            before = [each.shard.state for each in simulation.local.shards]
            round_ = simulation.open()
            round_.send_all()
            proposed = round_.finish()
            works.append(sorted(done))
        told = [each.leaves for each in proposed.slices]
        lengths.append([(len(each.model), len(each.aggregate)) for each in told])
        receipt = simulation.follow(proposed).receipt
        assert receipt.failure == ("why" if fails else "")
        after = [each.shard.state for each in simulation.local.shards]
        for old, new in zip(before, after, strict=True):
            assert np.array_equal(old.model, new.model) == fails
            assert np.array_equal(old.moments[0], new.moments[0]) == fails
    assert works[0] == works[1] == works[2]
    assert len(works[0]) == 3
    # What a shard says of it goes over a network, before the outcome is held.
    assert lengths[0] == lengths[1] == lengths[2]


# What does not belong to a shard is refused, and what does still gets through.


def part_of(round_: Any, shard: int) -> Arrivals:
    return round_.simulation.local.shards[shard]._round.part


def spans(round_: Any) -> tuple[Any, ...]:
    return round_.intake._context.spans


def bring(round_: Any, shard: int, header: Any, ciphertext: bytes) -> None:
    """The next tile of an upload, to any shard, as a host would."""
    arrival = part_of(round_, shard).upload(header.client, header.upload_id)
    assert arrival is not None
    arrival.take(arrival.next, ciphertext)


def whole(round_: Any, upload: Any, rejected: Any = None) -> None:
    """The upload and all others get through."""
    for tile in upload.tiles:
        round_.accept_tile(tile, client=upload.header.client)
    row = round_.simulation.names.index(upload.header.client)
    round_.send_all(but=[row])
    round_.assert_result(round_.finish(), rejected or {})


def test_a_tile_that_is_brought_to_another_shard_is_refused(simulate):
    round_ = divided(simulate, 4).open()
    upload = round_.seal(2)
    round_.accept(upload.header)
    for shard in range(4):
        for tile in upload.tiles:
            if tile.index != spans(round_)[shard].first:
                with pytest.raises(OpenError):
                    bring(round_, shard, upload.header, tile.ciphertext)
                with pytest.raises(OpenError):
                    round_.accept_tile(replace(tile, index=shard))
    assert round_.intake.bytes_in == 0
    whole(round_, upload)


FOREIGN = ("another client", "another round", "another cut", "another upload", "another place")


def foreign(round_: Any, what: str, row: int, upload: Any) -> Any:
    """An upload with tiles that are not of this one."""
    simulation = round_.simulation
    if what == "another client":
        other = round_.seal(row + 1)
        round_.accept(other.header)
        return other
    if what == "another upload":
        return round_.seal(row)
    if what == "another round":
        return simulation.earlier
    if what == "another place":
        first, *others = upload.tiles
        return replace(upload, tiles=(*others[1:], first, others[0]))
    terms, identity = round_.terms, simulation.identities[row]
    cut = simulation.sign(replace(round_.offer, shards=(0, 3)))
    return sealed_by(SecretStream(bytes(32)), cut, terms, round_.name(row), identity)


def sealed_by(stream: SecretStream, offer: Any, terms: Any, client: str, identity: Any) -> Any:
    encoded = updates.rounded(ROWS[int(client[-1])], terms)
    return updates.seal(
        encoded, offer=offer, terms=terms, client=client, identity=identity, entropy=stream.bytes
    ).whole()


@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_not_of_this_upload_is_refused(simulate, what):
    simulation = divided(simulate, 3)
    simulation.earlier = simulation.open().seal(2)
    round_ = simulation.open()
    upload = sealed_by(
        SecretStream(bytes(32)), round_.offer, round_.terms, "client-2", simulation.identities[2]
    )
    round_.note(upload.header, float(np.linalg.norm(ROWS[2].astype(float))))
    round_.accept(upload.header)
    other = foreign(round_, what, 2, upload)
    if what == "another cut":
        assert other.header.upload_id == upload.header.upload_id
        assert updates.tile_context(other.header) == updates.tile_context(upload.header)
    for shard, span in enumerate(spans(round_)):
        index = span.first
        forged = replace(upload.tiles[index], ciphertext=bytes(other.tiles[index].ciphertext))
        with pytest.raises(OpenError):
            round_.accept_tile(forged, client="client-2")
        with pytest.raises(OpenError):
            bring(round_, shard, upload.header, forged.ciphertext)
    assert "client-2" not in round_.intake.spoilt
    whole(round_, upload)


def test_the_key_of_one_span_opens_no_tile_of_another(simulate, monkeypatch):
    """And what a shard is given of an upload is that key, without the upload's."""
    given: list[Any] = []
    begin = Arrivals.begin

    def seen(self, begun, row=None):
        given.append(begun)
        begin(self, begun, row)

    monkeypatch.setattr(Arrivals, "begin", seen)
    round_ = divided(simulate, 4).open()
    upload = round_.forge(2)
    round_.accept(upload.header)
    assert len(given) == len({each.key for each in given}) == 4
    secret = updates.UploadKey(upload.key, updates.tile_context(upload.header))
    for shard, begun in enumerate(given):
        assert upload.key not in encode(begun)
        assert begun.key == secret.of(spans(round_)[shard])
        assert begun.key.hex() not in repr(begun)
        for tile in upload.tiles:
            cipher, bound = AESGCM(begun.key), begun.bound
            if tile.index == spans(round_)[shard].first:
                cipher.decrypt(nonce(tile.index), bytes(tile.ciphertext), bound)
            else:
                with pytest.raises(InvalidTag):
                    cipher.decrypt(nonce(tile.index), bytes(tile.ciphertext), bound)
    whole(round_, upload)


# Rows whose parts are each in order.


def with_norm(round_: Any, row: int, factor: float, **more: Any) -> Any:
    """A row that states the norm of another length."""
    if round_.terms.upload == "int8":
        square = int(np.square(Q[row].astype(np.int64)).sum()) + (1 if factor > 1 else -1)
        step = float(STEPS[row])
        return round_.forge(row, Q[row], norm=step * square**0.5, step=step, **more)
    norm = factor * float(np.linalg.norm(round_.simulation.rows[row].astype(float)))
    return round_.forge(row, norm=norm, **more)


@pytest.mark.parametrize("factor", [0.7, 1.01], ids=["too long", "too short"])
@pytest.mark.parametrize("upload", ["float32", "int8"])
@pytest.mark.parametrize("more", [{}, {"sketch": 4096}], ids=["whole rows", "a sketch"])
def test_a_norm_that_only_all_shards_together_can_refute(simulate, upload, factor, more):
    defence = {"defence": "multi-krum"} if more else {}
    round_ = divided(simulate, 4, upload=upload, **more, **defence).open()
    forged = with_norm(round_, 2, factor)
    round_.accept(forged.header)
    for tile in forged.tiles:
        assert "client-2" not in round_.intake.spoilt
        round_.accept_tile(tile)  # Each part is as long as it may be.
    assert round_.intake.spoilt == {"client-2": Rejection.FALSE_NORM}
    assert "client-2" not in round_.intake.complete
    round_.send_all(but=[2])
    round_.close()
    assert "client-2" not in round_.cohort.clients
    round_.measure()
    outcome = round_.average()
    if more:
        assert outcome.rejected == {"client-2": Rejection.FALSE_NORM}
    else:
        round_.assert_result(outcome, {2: Rejection.FALSE_NORM})


def test_who_states_a_false_norm_may_send_a_true_one(simulate):
    round_ = divided(simulate, 4).open()
    round_.send(with_norm(round_, 2, 0.7))
    assert round_.intake.spoilt == {"client-2": Rejection.FALSE_NORM}
    upload = round_.seal(2)
    round_.accept(upload.header)
    whole(round_, upload)


@pytest.mark.parametrize("liar_first", [True, False])
def test_an_id_that_two_clients_use_tells_of_neither(simulate, liar_first):
    """Ids are public: else a liar would be judged as the honest one, or the reverse."""
    round_ = divided(simulate, 3).open()
    honest = round_.seal(1)
    forged = with_norm(round_, 2, 0.7, upload_id=honest.header.upload_id)
    for upload in (forged, honest) if liar_first else (honest, forged):
        round_.send(upload)
        assert round_.intake.complete <= {"client-1"}
    assert round_.intake.spoilt == {"client-2": Rejection.FALSE_NORM}
    round_.send_all(but=[1, 2])
    round_.assert_result(round_.finish(), {2: Rejection.FALSE_NORM})


@pytest.mark.parametrize("place", [5, LEAF_VALUES, D - 1])
def test_a_value_that_is_not_finite_is_found_by_the_shard_that_has_it(simulate, place):
    round_ = divided(simulate, 4).open()
    spoilt = ROWS[2].copy()
    spoilt[place] = np.nan
    round_.send(round_.forge(2, spoilt, norm=float(np.linalg.norm(ROWS[2]))))
    assert round_.intake.spoilt == {"client-2": Rejection.NOT_FINITE}
    round_.send_all(but=[2])
    round_.assert_result(round_.finish(), {2: Rejection.NOT_FINITE})


# Uploads that come in part, twice, or never.


def sealed_bytes(round_: Any) -> int:
    return sum(round_.intake.sealed_size(index) for index in range(round_.terms.tiling.count))


def test_a_client_that_begins_anew_is_counted_once(simulate):
    """What one shard had all of is dropped, and its room is given to what replaces it."""
    simulation = divided(simulate, 3, budget=N * 2 * LEAF_VALUES * 4)
    round_ = simulation.open()
    for _ in range(N + 2):
        abandoned = round_.seal(2)
        round_.accept(abandoned.header)
        round_.accept_tile(abandoned.tiles[0])
        assert round_.intake.bytes_in == round_.intake.sealed_size(0)
        assert part_of(round_, 0).arrived("client-2", abandoned.header.upload_id) is not None
    upload = round_.seal(2)
    round_.accept(upload.header)
    assert round_.intake.bytes_in == 0
    assert part_of(round_, 0).taken("client-2", abandoned.header.upload_id) == 0
    with pytest.raises(UpdateRejected, match=str(Rejection.DUPLICATE)):
        round_.accept_tile(abandoned.tiles[1])
    for tile in upload.tiles:
        round_.accept_tile(tile)
    assert round_.intake.bytes_in == sealed_bytes(round_)
    assert not round_.intake.spooled
    round_.send_all(but=[2])
    assert round_.intake.bytes_in == N * sealed_bytes(round_)
    round_.assert_result(round_.finish(), {})


@pytest.mark.parametrize("late", [False, True], ids=["before", "while the next header is read"])
def test_an_upload_that_all_shards_have_is_never_replaced(simulate, monkeypatch, late):
    round_ = divided(simulate, 3).open()
    round_.send(round_.seal(2))
    assert round_.intake.complete == {"client-2"}
    if late:  # A thread has brought the last tile since the header was found to be fresh.
        monkeypatch.setattr(round_.intake, "_require_fresh", lambda header: None)
    with pytest.raises(UpdateRejected, match=str(Rejection.DUPLICATE)):
        round_.accept(round_.seal(2, -ROWS[2]).header)
    assert round_.intake.complete == {"client-2"}
    round_.send_all(but=[2])
    round_.assert_result(round_.finish(), {})


@pytest.mark.parametrize("only", [0, 1, 2])
def test_a_client_that_sends_to_one_shard_only_takes_no_part(simulate, only):
    round_ = divided(simulate, 3).open()
    upload = round_.seal(2)
    round_.accept(upload.header)
    span = spans(round_)[only]
    for tile in upload.tiles[span.first : span.first + span.tiling.count]:
        round_.accept_tile(tile)
    assert part_of(round_, only).arrived("client-2", upload.header.upload_id) is not None
    round_.send_all(but=[2])
    round_.assert_result(round_.finish(), {2: Rejection.INCOMPLETE})


def test_a_shard_closes_only_rows_that_it_has_all_of(simulate):
    round_ = divided(simulate, 3).open()
    upload = round_.seal(2)
    round_.accept(upload.header)
    round_.accept_tile(upload.tiles[0])
    first, second, _ = (each._round for each in round_.simulation.local.shards)
    known = ("client-2", upload.header.upload_id)
    for shard, uploads in (
        (second, [known]),
        (first, [("client-2", bytes(32))]),
        (first, [("client-3", known[1])]),
        (first, [known, ("client-4", bytes(32))]),
    ):
        with pytest.raises(LocalProtocolError, match="not complete here"):
            shard.close(uploads)
    assert first.close([known]).clients == ("client-2",)


# Rows and workers that change on the way.


@pytest.mark.parametrize("shard", [0, 2])
@pytest.mark.parametrize("when", ["the first pass", "the second pass"])
@pytest.mark.parametrize("masking", ["none", "exact", "gaussian"])
def test_a_row_that_changes_at_one_shard_is_out_everywhere(simulate, masking, when, shard):
    round_ = divided(simulate, 3, masking=masking, budget=0, workers=2).open()
    round_.send_all()
    round_.close()
    if when == "the second pass":
        round_.measure()
    place = round_.uploads[4], spans(round_)[shard].first
    held = round_.spool[place]
    round_.spool[place] = bytes([held[0] ^ 1]) + held[1:]
    if when == "the first pass":
        round_.measure()
    round_.assert_result(round_.average(), {4: Rejection.CHANGED})


class Liar:
    """A kernel that is off by one in an entry of every matrix of residues, or by a hundredth."""

    def begin(self, rows: int, values: Any) -> Any:
        running = NumpyKernel().begin(rows, values)
        honest = running.total

        def total() -> np.ndarray:
            answer = honest()
            if values == "residues":
                answer[2, 5] = answer[2, 5] - 1 if answer[2, 5] > 1 else answer[2, 5] + 1
            else:
                answer[2, 5] *= 1.01
            answer[5, 2] = answer[2, 5]
            return answer

        lying: Any = running
        lying.total = total
        return running


class Idle:
    """A worker that is gone."""

    def __init__(self, name: str) -> None:
        self.name = name

    def accept(self, offer: Any) -> Any:
        raise WorkerGone(self.name, "does not answer")


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize("upload", ["float32", "int8"])
def test_a_worker_that_lies_to_one_shard_is_named_and_the_round_goes_on(
    simulate, workers, spares, upload
):
    simulation = divided(
        simulate, 3, masking="exact", workers=workers, spares=spares, upload=upload
    )
    simulation.local.shards[1].workers["worker-2"]._kernel = Liar()
    round_ = simulation.open()
    round_.send_all()
    proposed = round_.finish()
    lies = [each for each in round_.told if isinstance(each, events.WorkerLied)]
    assert lies == [events.WorkerLied("worker-2")]
    assert len([e for e in round_.told if isinstance(e, events.TooFewWorkers)]) == 1 - spares
    round_.assert_result(proposed, {})


@pytest.mark.parametrize(
    "terms",
    [{"masking": "exact"}, {"masking": "gaussian"}, {"masking": "exact", "upload": "int8"}],
    ids=["exact", "gaussian", "int8"],
)
def test_a_shard_that_has_to_measure_inside_takes_nothing_from_the_outcome(simulate, terms):
    simulation = divided(simulate, 3, **terms)
    simulation.local.shards[2].workers["worker-1"] = Idle("worker-1")
    round_ = simulation.open()
    round_.send_all()
    proposed = round_.finish()
    assert any(isinstance(each, events.TooFewWorkers) for each in round_.told)
    assert proposed.receipt.distances == "workers"
    round_.assert_result(proposed, {})


def test_integers_are_exact_whether_a_shard_has_workers_or_none(simulate):
    found = []
    for idle in ((), (2,), (0, 1, 2)):
        simulation = divided(simulate, 3, masking="exact", upload="int8")
        for shard in idle:
            simulation.local.shards[shard].workers["worker-1"] = Idle("worker-1")
        round_ = simulation.open()
        round_.send_all()
        found.append(round_.finish().aggregate)
        assert len([e for e in round_.told if isinstance(e, events.TooFewWorkers)]) == len(idle)
        assert round_.measured.gram.deviation == 2.0**-48
        np.testing.assert_array_equal(found[-1], found[0])


def test_answers_that_nobody_checked_are_named_even_if_a_shard_has_none(simulate):
    simulation = divided(simulate, 3, masking="exact", verify=False)
    for name in ("worker-1", "worker-2"):
        simulation.local.shards[0].workers[name] = Idle(name)
    round_ = simulation.open()
    round_.send_all()
    assert "the workers' answers were not checked" in round_.finish().receipt.cautions


def test_an_outcome_needs_the_leaves_of_all_shards(simulate):
    round_ = divided(simulate, 3).open()
    round_.send_all()
    round_.close()
    round_.measure()
    plan = decide(round_.cohort, round_.measured)
    columns = round_.host().shards
    for each in columns:
        each.combine(round_.measured.scales, plan)
    leaves = [each.advance(null=False) for each in columns]
    for some in (leaves[:-1], leaves[1:], [], [*leaves, leaves[0]]):
        with pytest.raises(LocalProtocolError, match="leaves"):
            propose(round_.cohort, round_.measured, plan, some)
    receipt = propose(round_.cohort, round_.measured, plan, leaves).receipt
    model = np.concatenate([each.slice.state.model for each in columns])
    assert receipt.model == vector_digest(model)


# Nothing is masked, folded or sealed twice with the same keystream.


class Ledger:
    """What was done with every keystream: by key and stream, and of what."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.keys: dict[str, list[bytes]] = defaultdict(list)
        self.masked: dict[tuple[bytes, int], set[bytes]] = defaultdict(set)
        self.sealed: dict[tuple[int, int, int], set[bytes]] = defaultdict(set)
        self.channels: list[Channel] = []
        ledger = self
        scratch, shares, seal = _Scratch.__init__, _Scratch.shares, Channel.seal_share

        def begun(self, shape, mask_keys, dither_key, check):
            dithers = [] if dither_key is None else [dither_key]
            ledger.keys["masks"] += mask_keys
            ledger.keys["dither"] += dithers
            self.drawn = [*mask_keys, *dithers]
            scratch(self, shape, mask_keys, dither_key, check)

        def shared(self, index, rows, *, witnessed):
            content = hashlib.sha256(b"".join(each.tobytes() for each in self._values)).digest()
            for key in self.drawn:
                ledger.masked[key, mask_stream(index, rows)].add(content)
            return shares(self, index, rows, witnessed=witnessed)

        def sealed(self, index, row, share, out):
            if self not in ledger.channels:  # It lives on, so that its id is not used again.
                ledger.channels.append(self)
            content = hashlib.sha256(np.ascontiguousarray(share).tobytes()).digest()
            ledger.sealed[id(self), index, row].add(content)
            seal(self, index, row, share, out)

        noise, encode_noisy = Noise.__init__, GaussianEncoder.shares

        def drawn(self, *given):
            noise(self, *given)
            ledger.keys["noise"].append(self._seed)

        def noisy(self, thread, index, rows):
            content = hashlib.sha256(self._loaded[thread].tobytes()).digest()
            ledger.masked[self._noise._seed, mask_stream(index, rows)].add(content)
            return encode_noisy(self, thread, index, rows)

        patch.setattr(Noise, "__init__", drawn)
        patch.setattr(GaussianEncoder, "shares", noisy)
        patch.setattr(_Scratch, "__init__", begun)
        patch.setattr(_Scratch, "shares", shared)
        patch.setattr(Channel, "seal_share", sealed)

    def check(self) -> None:
        for kind, keys in self.keys.items():
            assert len(keys) == len(set(keys)), kind
        every = [key for keys in self.keys.values() for key in keys]
        assert len(every) == len(set(every))
        assert {len(each) for each in self.masked.values()} == {1}
        assert {len(each) for each in self.sealed.values()} == {1}


EXACT = {"masking": "exact", "workers": 3}


@pytest.mark.parametrize(
    "terms",
    [EXACT, EXACT | SKETCHED, EXACT | {"upload": "int8"}, {"masking": "gaussian"}],
    ids=["rows", "sketch", "int8", "gaussian"],
)
def test_no_keystream_is_used_twice_across_shards_and_attempts(simulate, monkeypatch, terms):
    """Over an attempt that ends with a lie, one that a changed row ends, and a round that is opened
    anew."""
    ledger = Ledger(monkeypatch)
    simulation = divided(simulate, 3, spares=1, budget=0, **terms)
    lead_or_shard = simulation.local if "sketch" in terms else simulation.local.shards[1]
    lead_or_shard.workers["worker-2"]._kernel = Liar()
    for row in (0, 1):
        simulation.open().send_all(but=[row])  # It is given up.
    round_ = simulation.open()
    round_.send_all()
    round_.close()
    if "sketch" not in terms:
        place = round_.uploads[4], spans(round_)[2].first
        round_.spool[place] = bytes(len(round_.spool[place]))
    round_.measure()
    round_.average()
    attempts = [each for each in round_.told if isinstance(each, events.AttemptStarted)]
    assert len(attempts) == (2 if "sketch" in terms else 5)
    drawn = "noise" if terms["masking"] == "gaussian" else "masks"
    assert len(ledger.keys[drawn]) == len(attempts)
    ledger.check()


def test_shards_draw_folds_of_their_own(simulate):
    """And anew whenever a round is opened."""
    simulation, seen = divided(simulate, 3, **SKETCHED), set()
    for _ in range(2):
        round_ = simulation.open()
        for shard in range(3):
            folds = part_of(round_, shard).folds
            assert folds is not None
            seen |= {(each.bits.tobytes(), each.shifts.tobytes()) for each in folds.tiles}
    assert len(seen) == 2 * simulation.terms.tiling.count


# How an update is cut.

tilings = st.builds(
    Tiling, st.integers(1, 40 * LEAF_VALUES), st.integers(1, 64) | st.integers(1, MAX_TILE)
)


@given(tilings, st.integers(-2, 48))
def test_any_cut_has_all_tiles_once_and_meets_at_leaves(tiling, count):
    try:
        cut = cut_into_spans(tiling, count)
    except ConfigError:
        assert count != 1
        return
    assert len(cut) == count
    values = [place for each in cut for place in (each.part.start, each.part.stop)]
    assert values[0] == 0
    assert values[-1] == tiling.length
    assert values[1:-1:2] == values[2:-1:2]
    assert all(each.length > 0 and each.start % LEAF_VALUES == 0 for each in cut)
    tiles = [each.first + index for each in cut for index in range(each.tiling.count)]
    assert tiles == list(range(tiling.count))
    for each in cut:
        for index in range(each.tiling.count):
            local, of_all = each.tiling.part(index), tiling.part(each.first + index)
            assert (local.start + each.start, local.stop + each.start) == (
                of_all.start,
                of_all.stop,
            )
    assert spans_from(tiling, [each.first for each in cut]) == cut
    # As even as whole units allow.
    sizes = {-(-each.length // np.lcm(tiling.tile, LEAF_VALUES)) for each in cut}
    assert max(sizes) - min(sizes) <= 1


cuts = st.lists(st.integers(-1, 50), max_size=6)
risen = st.sets(st.integers(0, 50), max_size=4).map(lambda places: sorted(places | {0}))


@given(tilings | st.builds(Tiling, st.integers(1, 9_000), st.just(64)), cuts | risen)
def test_any_other_cut_is_refused(tiling, first):
    edges = [*first, tiling.count]
    good = edges[0] == 0 and all(a < b for a, b in itertools.pairwise(edges))
    good = good and all(edge * tiling.tile % LEAF_VALUES == 0 for edge in first)
    if good:
        assert [each.first for each in spans_from(tiling, first)] == first
    else:
        with pytest.raises(ConfigError, match="are not cut by"):
            spans_from(tiling, first)


def test_an_offer_with_another_cut_is_not_sealed_to(simulate):
    simulation = divided(simulate, 3)
    round_ = simulation.open()
    for cut in ((), (1,), (0, 0), (0, 2, 1), (0, 4), (0, 1, 99)):
        offer = simulation.sign(replace(round_.offer, shards=cut))
        joined = simulation.join(simulation.clients[0], offer)
        with pytest.raises(ConfigError, match="are not cut by"):
            joined.seal(ROWS[0])


@pytest.mark.parametrize(("dimension", "shards"), [(D, 4), (D, 3), (10**6, 7), (70_000, 4)])
def test_the_default_tile_is_short_enough_for_shards(dimension, shards):
    terms = Terms(Manifest.flat(dimension), f=1, tile=default_tile(dimension, shards))
    assert len(cut_into_spans(terms.tiling, shards)) == shards
    assert terms.tile % LEAF_VALUES == 0


def test_integers_state_exact_squares():
    """What the forged rows above rest on."""
    square = int(np.square(Q[2].astype(np.int64)).sum())
    norm = float(STEPS[2]) * (square + 1) ** 0.5
    assert INT8.stated_square(norm, float(STEPS[2])) == square + 1


def test_shards_draw_from_a_given_source_one_at_a_time():
    """A stream that two threads read at a time may give both of them the same bytes."""
    within, met = Lock(), []

    def entropy(count: int) -> bytes:
        met.append(not within.acquire(blocking=False))
        try:
            time.sleep(1e-4)  # so that another thread comes while this one draws, if it may
            return os.urandom(count)
        finally:
            if not met[-1]:
                within.release()

    run_round(ROWS, f=1, workers=3, shards=4, entropy=entropy)
    assert len(met) > 4
    assert not any(met)

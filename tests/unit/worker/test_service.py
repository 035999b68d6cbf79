"""The worker's service, against a real gRPC server on loopback that plays the enclave."""

import logging
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.config import MAX_PIECE_VALUES, Manifest, Terms, Tiling
from ostraka.core.gram import NumpyKernel
from ostraka.crypto.aead import SealedGroups
from ostraka.crypto.channel import PendingChannel
from ostraka.crypto.hpke import HybridKey
from ostraka.crypto.identity import Identity, check_signature
from ostraka.encoding import UNSIGNED, decode, encode
from ostraka.errors import ConfigError, RemoteProtocolError
from ostraka.events import AttemptStarted
from ostraka.files import write_identity
from ostraka.messages import (
    Answer,
    ChannelAccept,
    ChannelOffer,
    Deputy,
    MaskSeed,
    ShareTile,
    WorkerHello,
)
from ostraka.protocol.enclave import Threads
from ostraka.protocol.round import enrol, play, run_round
from ostraka.transport import ANSWER_PIECE
from ostraka.transport.dial import Backoff
from ostraka.transport.ostraka_pb2 import (
    AnswerPiece,
    EnclaveSays,
    Over,
    Proof,
    Welcome,
    WorkerSays,
)
from ostraka.transport.ostraka_pb2_grpc import EnclaveServicer, add_EnclaveServicer_to_server
from ostraka.worker import EnclavePin, Staff, WorkerService, backends, kernel_for, serve_all
from ostraka.worker.service import LARGEST_MESSAGE, _End
from ostraka.worker.session import Session

WAIT = 60  # seconds, after which a test that hangs fails
ENCLAVE, ME, IMPOSTOR = (Identity(bytes([seed]) * 32) for seed in (1, 2, 3))
N, D, TILE = 7, 200, 32
ROWS = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)


# The enclave's side of a stream, and of the roles that speak through it.


@dataclass
class Link:
    """One worker's stream, as the enclave holds it. None in either queue means that it is over."""

    name: str
    outgoing: "queue.Queue[EnclaveSays | None]" = field(default_factory=queue.Queue)
    incoming: "queue.Queue[WorkerSays | None]" = field(default_factory=queue.Queue)
    sent: int = 0
    reads: threading.Event = field(default_factory=threading.Event)
    pieces: "list[AnswerPiece]" = field(default_factory=list)

    def say(self, **what) -> None:
        self.outgoing.put(EnclaveSays(**what))

    def hear(self, kind):
        """The next word. Pieces of an answer are kept."""
        while True:
            said = self.incoming.get(timeout=WAIT)
            assert said is not None, "the worker has left"
            if said.WhichOneof("what") != "answer_piece":
                break
            self.pieces.append(said.answer_piece)
        assert said.WhichOneof("what") == kind, said
        return getattr(said, kind)

    # As the host of a round sees a worker.

    def accept(self, offer):
        self.say(offer=encode(offer))
        return self, decode(ChannelAccept, self.hear("accept"))

    def add(self, tile):
        self.say(share=encode(tile))

    def add_seed(self, message):
        self.say(seed=encode(message))

    def answer(self):
        answer = decode(Answer, self.hear("answer"))
        assert {each.attempt_id for each in self.pieces} <= {answer.attempt_id}
        whole = b"".join([*(each.data for each in self.pieces), answer.ciphertext])
        self.say(over=Over(attempt_id=answer.attempt_id))
        return replace(answer, ciphertext=whole)


class Servicer(EnclaveServicer):
    """Greets workers, checks who they are, and hands their streams to the test."""

    def __init__(self, receipt_key, workers):
        self.welcome = {"nonce": b"n" * 32, "receipt_key": receipt_key, "federation": b"f" * 32}
        self.workers = workers
        self.links: queue.Queue[Link] = queue.Queue()
        self.refused = threading.Semaphore(0)  # streams that ended before a hello

    def Work(self, requests: Iterator[WorkerSays], context):  # noqa: N802
        yield EnclaveSays(welcome=Welcome(**self.welcome))
        try:
            first = next(requests, None)
        except Exception:  # noqa: BLE001 (gRPC has one of no kind for a caller that has left)
            first = None
        if first is None:
            self.refused.release()
            return
        hello = decode(WorkerHello, first.hello)
        assert hello.nonce == self.welcome["nonce"]
        check_signature(hello, self.workers[hello.worker].public)
        yield EnclaveSays(proof=Proof())
        link = Link(hello.worker)
        link.reads.set()
        threading.Thread(target=self._listen, args=(requests, link), daemon=True).start()
        self.links.put(link)
        for says in iter(link.outgoing.get, None):
            yield says
            link.sent += 1

    def _listen(self, requests, link):
        try:
            for said in requests:
                link.incoming.put(said)
                link.reads.wait(WAIT)
        except Exception:  # noqa: BLE001 (however it ended)
            pass
        link.incoming.put(None)
        link.outgoing.put(None)


@contextmanager
def serving(servicer, port=0):
    """Gives the address."""
    with ThreadPoolExecutor(8) as pool:
        options = [("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
        server = grpc.server(pool, options=options)
        add_EnclaveServicer_to_server(servicer, server)
        port = server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait(WAIT)


def quick():
    return Backoff(first=0.01, cap=0.1)


@contextmanager
def working(address, name, identity, *, pin=None, kernel=None):
    staff = Staff(name, identity, kernel or NumpyKernel(), pin or EnclavePin(ENCLAVE.public))
    service = WorkerService(address, staff, backoff=quick(), unwanted=quick())
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield service
    finally:
        service.stop()
        thread.join(WAIT)
        assert not thread.is_alive()


@contextmanager
def connected(**options):
    """One worker, `ME`, and its link."""
    servicer = Servicer(ENCLAVE.public, {"me": ME})
    with serving(servicer) as address, working(address, "me", ME, **options):
        yield servicer.links.get(timeout=WAIT)


# One attempt, with an enclave that is nothing but its keys.


class Attempt:
    def __init__(self, number=1, signer=ENCLAVE, **changes):
        key = HybridKey()
        offer = ChannelOffer(
            federation=b"c" * 32,
            round_id=b"r" * 32,
            attempt_id=bytes([number]) * 32,
            worker=ME.public,
            point=0,
            masking="exact",
            rows=N,
            columns=D,
            tile=TILE,
            key=key.public,
            signature=UNSIGNED,
        )
        self.pending = PendingChannel(replace(offer, **changes), signer, key, ME.public)
        self.offer = self.pending.offer
        self.layout = SealedGroups(Tiling(self.offer.columns, self.offer.tile), self.offer.rows, 4)

    @property
    def count(self):
        return self.layout.columns.count

    def join(self, link):
        _, accept = link.accept(self.offer)
        self.channel = self.pending.finish(accept)
        return self

    def tile(self, index):
        values = np.full((self.offer.rows, self.layout.columns.size(index)), 3, np.uint32)
        sealed = memoryview(bytearray(self.layout.size(index)))
        for group in self.layout.groups():
            rows = values[group.start : group.stop]
            out = sealed[self.layout.part(index, group)]
            self.channel.seal_share(index, group.start, rows, out)
        return ShareTile(self.offer.attempt_id, index, bytes(sealed))

    def seed(self):
        return MaskSeed(self.offer.attempt_id, self.channel.seal_seed(bytes(32)))

    def finish(self, link, skip=0):
        """The rest of the tiles, and the right answer to all."""
        for index in range(skip, self.count):
            link.add(self.tile(index))
        raw = self.channel.open_answer(link.answer().ciphertext)
        assert set(np.frombuffer(raw, np.uint32)) == {9 * self.offer.columns}


class Gate:
    """A kernel whose sums wait to be let through, and that counts their blocks."""

    def __init__(self):
        self.calls, self.reached, self.open = 0, threading.Event(), threading.Event()

    def begin(self, rows, values):
        assert values == "residues"
        return GatedSum(self, NumpyKernel().begin(rows, values))


class GatedSum:
    def __init__(self, gate, running):
        self.gate, self.running, self.total = gate, running, running.total

    def add(self, block):
        self.gate.calls += 1
        self.gate.reached.set()
        assert self.gate.open.wait(WAIT)
        self.running.add(block)


def logged(caplog, event):
    """The fields of every event of that name."""
    return [each.ostraka_fields for each in caplog.records if each.getMessage() == event]


# Rounds.


@contextmanager
def federation(**changes):
    """A federation whose workers are services, and the servicer that they dial."""
    terms = Terms(Manifest.flat(D), f=2, tile=TILE)
    parties = enrol(replace(terms, **changes), clients=N)
    workers: dict[str, Any] = dict(parties.federation.workers)
    identities = {name: worker._identity for name, worker in workers.items()}
    servicer = Servicer(parties.federation.enclave.receipt_key, identities)
    with serving(servicer) as address:
        services = [
            working(address, name, identity, pin=EnclavePin(parties.federation.enclave.receipt_key))
            for name, identity in identities.items()
        ]
        entered = [service.__enter__() for service in services]
        try:
            yield parties, servicer
        finally:
            for service in entered:
                service.stop()
            for context in services:
                context.__exit__(None, None, None)


def with_links(parties, servicer):
    local = parties.federation
    links = [servicer.links.get(timeout=WAIT) for _ in local.workers]
    by_name = {link.name: link for link in links}
    workers = {name: by_name[name] for name in local.workers}
    return replace(parties, federation=replace(local, workers=workers))


@pytest.mark.parametrize(
    ("masking", "workers"), [("exact", 2), ("exact", 3), ("exact", 4), ("gaussian", 2)]
)
def test_rounds_with_workers_across_a_network(masking, workers):
    with federation(masking=masking, workers=workers) as (parties, servicer):
        remote = with_links(parties, servicer)
        inside = run_round(ROWS, f=parties.federation.terms.f, masking="none")
        for _ in range(2):
            result = play(remote, ROWS, Threads())
            np.testing.assert_allclose(result.weights, inside.weights, atol=1e-4)
            expected = result.weights @ ROWS.astype(np.float64)
            np.testing.assert_allclose(result.aggregate, expected, rtol=1e-6, atol=1e-9)
            assert result.receipt.distances == "workers"
            assert result.events[0] == AttemptStarted(N, tuple(parties.federation.workers))


def test_a_worker_comes_back_when_the_enclave_does():
    first = Servicer(ENCLAVE.public, {"me": ME})
    with serving(first) as address:
        port = int(address.rpartition(":")[2])
        service = working(address, "me", ME)
        service.__enter__()
        link = first.links.get(timeout=WAIT)
        Attempt(1).join(link)  # And the enclave dies in the middle of it.
    try:
        for number in (2, 3):
            again = Servicer(ENCLAVE.public, {"me": ME})
            with serving(again, port):
                Attempt(number).join(link := again.links.get(timeout=WAIT)).finish(link)
    finally:
        service.__exit__(None, None, None)


def test_a_worker_that_starts_first_waits_for_its_enclave():
    servicer = Servicer(ENCLAVE.public, {"me": ME})
    with serving(servicer) as address:
        port = int(address.rpartition(":")[2])
    with working(address, "me", ME), serving(servicer, port):
        Attempt().join(link := servicer.links.get(timeout=WAIT)).finish(link)


# Who is served.


def test_an_enclave_with_another_key_is_not_served_and_the_log_says_so(caplog):
    servicer = Servicer(IMPOSTOR.public, {"me": ME})
    with serving(servicer) as address, working(address, "me", ME):
        assert servicer.refused.acquire(timeout=WAIT)
        assert servicer.refused.acquire(timeout=WAIT)
        servicer.welcome["receipt_key"] = ENCLAVE.public  # The right one is back.
        Attempt().join(link := servicer.links.get(timeout=WAIT)).finish(link)
    whys = [each["why"] for each in logged(caplog, "Disconnected")]
    assert any(IMPOSTOR.public.hex() in why and ENCLAVE.public.hex() in why for why in whys)


def test_an_offer_that_another_has_signed_is_not_taken():
    with connected() as link:
        link.say(offer=encode(Attempt(1, signer=IMPOSTOR).offer))
        assert "ChannelOffer does not open" in link.hear("sorry")
        Attempt(2).join(link).finish(link)


class Doorkeeper(Servicer):
    """Ends every stream after the hello, with a status or without."""

    def __init__(self, code):
        super().__init__(ENCLAVE.public, {"me": ME})
        self.code = code
        self.came = threading.Semaphore(0)

    def Work(self, requests, context):  # noqa: N802
        yield EnclaveSays(welcome=Welcome(**self.welcome))
        next(requests)
        self.came.release()
        if self.code is not None:
            context.abort(self.code, "no")


SHOWN_OUT = {
    "a stranger": (grpc.StatusCode.PERMISSION_DENIED, "does not know me with this key: enrol it"),
    "one of two under one name": (grpc.StatusCode.DEADLINE_EXCEEDED, "another process works as me"),
    "one of two, without a word": (None, "another process works as me"),
}


@pytest.mark.parametrize(("code", "why"), SHOWN_OUT.values(), ids=SHOWN_OUT.keys())
def test_who_is_shown_out_was_never_connected_and_is_told_why(code, why, caplog):
    caplog.set_level(logging.INFO)
    door = Doorkeeper(code)
    with serving(door) as address, working(address, "me", ME):
        assert door.came.acquire(timeout=WAIT)
        assert door.came.acquire(timeout=WAIT)
    assert logged(caplog, "Connected") == []
    assert why in logged(caplog, "Disconnected")[0]["why"]


class Finishing(Servicer):
    """Ends every stream with the word that all rounds are over. early: before it admits."""

    def __init__(self, *, early):
        super().__init__(ENCLAVE.public, {"me": ME})
        self.early = early
        self.came = threading.Semaphore(0)

    def Work(self, requests, context):  # noqa: N802
        yield EnclaveSays(welcome=Welcome(**self.welcome))
        next(requests)
        if not self.early:
            yield EnclaveSays(proof=Proof())
        self.came.release()
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "finished")


def test_a_worker_stops_when_the_last_round_is_published(caplog):
    caplog.set_level(logging.INFO)
    staff = Staff("me", ME, NumpyKernel(), EnclavePin(ENCLAVE.public))
    with serving(Finishing(early=False)) as address:
        service = WorkerService(address, staff, backoff=quick(), unwanted=quick())
        thread = threading.Thread(target=service.run)
        thread.start()
        thread.join(WAIT)
        over = not thread.is_alive()
        service.stop()
    assert over
    assert logged(caplog, "Finished")
    assert not logged(caplog, "Disconnected")


# An enclave of several machines: a lead, and a shard that it has deputed.

SHARD = Identity(bytes([4]) * 32)


def a_shard(of=Servicer, **options):
    """The shard's servicer, which shows the lead's word."""
    servicer = of(**options) if options else of(ENCLAVE.public, {"me": ME})
    deputy = ENCLAVE.sign(Deputy(servicer.welcome["federation"], 0, SHARD.public, UNSIGNED))
    servicer.welcome["deputy"] = encode(deputy)
    return servicer


@contextmanager
def working_for(*addresses):
    """A worker that serves all of these. Gives its services, and what runs them."""
    staff = Staff("me", ME, NumpyKernel(), EnclavePin(ENCLAVE.public))
    services = [WorkerService(each, staff, backoff=quick()) for each in addresses]
    with ThreadPoolExecutor(1) as pool:
        try:
            yield services, pool.submit(serve_all, services)
        finally:
            for each in services:
                each.stop()


def test_a_worker_serves_a_lead_and_its_shard_at_the_same_time():
    lead, shard = Servicer(ENCLAVE.public, {"me": ME}), a_shard()
    with serving(lead) as one, serving(shard) as other, working_for(one, other):
        links = [each.links.get(timeout=WAIT) for each in (lead, shard)]
        attempts = [Attempt(1), Attempt(2, signer=SHARD)]
        for attempt, link in zip(attempts, links, strict=True):
            attempt.join(link)
            link.add(attempt.tile(0))
        for attempt, link in zip(attempts, links, strict=True):
            attempt.finish(link, skip=1)


def test_a_shard_that_is_lost_does_not_disturb_its_lead():
    lead, shard = Servicer(ENCLAVE.public, {"me": ME}), a_shard()
    with serving(lead) as one, serving(shard) as other, working_for(one, other):
        at_lead, at_shard = (each.links.get(timeout=WAIT) for each in (lead, shard))
        attempt = Attempt(1).join(at_lead)
        Attempt(2, signer=SHARD).join(at_shard)
        at_shard.outgoing.put(None)
        again = shard.links.get(timeout=WAIT)
        attempt.finish(at_lead)
        Attempt(3, signer=SHARD).join(again).finish(again)


def test_an_offer_of_a_shard_without_a_deputy_is_not_taken():
    with connected() as link:
        link.say(offer=encode(Attempt(1, signer=SHARD).offer))
        assert "ChannelOffer does not open" in link.hear("sorry")
        Attempt(2).join(link).finish(link)


class Ending(Servicer):
    """Says that all rounds are over when the test ends the stream."""

    def Work(self, requests, context):  # noqa: N802
        yield from super().Work(requests, context)
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "finished")


def test_a_worker_ends_when_its_lead_and_all_shards_have_finished(caplog):
    caplog.set_level(logging.INFO)
    lead, shard = Ending(ENCLAVE.public, {"me": ME}), a_shard(Finishing, early=False)
    with serving(lead) as one, serving(shard) as other, working_for(one, other) as (_, running):
        link = lead.links.get(timeout=WAIT)
        assert shard.came.acquire(timeout=WAIT)
        Attempt(1).join(link).finish(link)
        assert not running.done()
        link.outgoing.put(None)
        running.result(WAIT)
    assert len(logged(caplog, "Finished")) == 2


def test_stopping_ends_all_streams():
    lead, shard = Servicer(ENCLAVE.public, {"me": ME}), a_shard()
    with (
        serving(lead) as one,
        serving(shard) as other,
        working_for(one, other, "127.0.0.1:1") as (services, running),
    ):
        for each in (lead, shard):
            each.links.get(timeout=WAIT)
        for service in services:
            service.stop()
        running.result(WAIT)


def test_what_can_never_work_at_one_address_ends_all():
    lead = Servicer(ENCLAVE.public, {"me": ME})
    with (
        serving(lead) as one,
        working_for(one, "nowhere") as (_, running),
        pytest.raises(ConfigError, match="HOST:PORT"),
    ):
        running.result(WAIT)


def test_who_is_not_admitted_is_not_sent_home_by_a_word(caplog):
    door = Finishing(early=True)
    with serving(door) as address, working(address, "me", ME):
        assert door.came.acquire(timeout=WAIT)
        assert door.came.acquire(timeout=WAIT)
    assert "finished" in logged(caplog, "Disconnected")[0]["why"]


def test_who_is_admitted_is_connected_before_there_is_work(caplog):
    caplog.set_level(logging.INFO)
    with connected() as link:
        until = time.monotonic() + WAIT
        while not logged(caplog, "Connected"):
            assert time.monotonic() < until
            time.sleep(0.01)
        Attempt().join(link).finish(link)
    assert len(logged(caplog, "Connected")) == 1


@pytest.mark.parametrize(("unwanted", "served"), [(True, False), (False, False), (True, True)])
def test_whom_the_enclave_does_not_want_waits_for_minutes(unwanted, served):
    """Even if each stream lasts as long as another process of the same name waits."""
    here = WorkerService("127.0.0.1:1", Staff("me", ME, NumpyKernel(), EnclavePin(ENCLAVE.public)))
    pauses = [here._pause(_End("", unwanted, served), lasted=250.0) for _ in range(12)]
    assert (pauses[-1] >= 150) == (unwanted and not served)
    assert here._pause(_End("", unwanted, served), lasted=3600.0) <= 1


WELCOME = {"nonce": b"n" * 32, "receipt_key": ENCLAVE.public, "federation": b"f" * 32}
BAD_WELCOMES = {
    "a short nonce": WELCOME | {"nonce": b"n" * 31},
    "a long id": WELCOME | {"federation": b"f" * 33},
    "no key": WELCOME | {"receipt_key": b""},
    "another key": WELCOME | {"receipt_key": IMPOSTOR.public},
    "nothing": {},
}


@pytest.mark.parametrize("welcome", BAD_WELCOMES.values(), ids=BAD_WELCOMES.keys())
def test_a_bad_welcome_gets_no_signature(welcome):
    said: list[WorkerSays] = []
    session = Session(Staff("me", ME, NumpyKernel(), EnclavePin(ENCLAVE.public)), said.append)
    with pytest.raises(RemoteProtocolError):
        session.greet(EnclaveSays(welcome=Welcome(**welcome)))
    with pytest.raises(RemoteProtocolError):
        session.greet(EnclaveSays(over=Over()))
    assert said == []


# What the enclave may say.

BAD_IN_AN_ATTEMPT = {
    "a message of no kind": lambda a: EnclaveSays(),
    "a share that is noise": lambda a: EnclaveSays(share=b"noise"),
    "a seed that is noise": lambda a: EnclaveSays(seed=b"noise"),
    "an offer that is noise": lambda a: EnclaveSays(offer=b"noise"),
    "an offer under another signature": lambda a: EnclaveSays(
        offer=encode(Attempt(9, signer=IMPOSTOR).offer)
    ),
    "an offer of a masking that nobody knows": lambda a: EnclaveSays(
        offer=encode(Attempt(9, masking="tape").offer)
    ),
    "an offer for another worker": lambda a: EnclaveSays(
        offer=encode(Attempt(9, worker=IMPOSTOR.public).offer)
    ),
    "an offer of more rows than any memory holds": lambda a: EnclaveSays(
        offer=encode(Attempt(9, rows=MAX_PIECE_VALUES, tile=1).offer)
    ),
    "a share twice": lambda a: EnclaveSays(share=encode(a.tile(0))),
    "a share beyond the last": lambda a: EnclaveSays(share=encode(replace(a.tile(1), index=99))),
    "an altered share": lambda a: EnclaveSays(
        share=encode(replace(a.tile(1), ciphertext=bytes(a.layout.size(1))))
    ),
    "a seed after shares": lambda a: EnclaveSays(seed=encode(a.seed())),
    "a seed that does not open": lambda a: EnclaveSays(
        seed=encode(replace(a.seed(), ciphertext=bytes(48)))
    ),
    "a second welcome": lambda a: EnclaveSays(welcome=Welcome()),
    "a second proof": lambda a: EnclaveSays(proof=Proof()),
}


@pytest.mark.parametrize("bad", BAD_IN_AN_ATTEMPT.values(), ids=BAD_IN_AN_ATTEMPT.keys())
def test_a_bad_message_ends_the_attempt_in_words_and_the_next_goes_well(bad):
    with connected() as link:
        attempt = Attempt(1).join(link)
        link.add(attempt.tile(0))
        link.outgoing.put(bad(attempt))
        assert 0 < len(link.hear("sorry")) <= 200
        for index in range(1, attempt.count):
            link.add(attempt.tile(index))  # These were on their way, and are passed over.
        Attempt(2).join(link).finish(link)


@pytest.mark.parametrize(
    "stray",
    [
        EnclaveSays(),
        EnclaveSays(share=b"noise"),
        EnclaveSays(share=encode(ShareTile(bytes(32), 0, b""))),
        EnclaveSays(seed=encode(MaskSeed(bytes(32), b""))),
        EnclaveSays(over=Over(attempt_id=b"?")),
    ],
)
def test_what_belongs_to_no_attempt_harms_none(stray):
    with connected() as link:
        link.outgoing.put(stray)
        attempt = Attempt().join(link)
        for other in (EnclaveSays(over=Over(attempt_id=b"?")), EnclaveSays(over=Over())):
            link.outgoing.put(other)
        link.add(attempt.tile(0))
        link.say(share=encode(ShareTile(bytes(32), 0, b"")))  # of an attempt that was before
        attempt.finish(link, skip=1)


def test_a_share_may_come_in_pieces():
    with connected() as link:
        attempt = Attempt().join(link)
        for index in range(attempt.count):
            tile = attempt.tile(index)
            for start in range(0, 20, 5):
                link.say(share_piece=bytes(tile.ciphertext[start : start + 5]))
            link.add(replace(tile, ciphertext=tile.ciphertext[20:]))
        attempt.finish(link, skip=attempt.count)


def test_pieces_of_an_attempt_that_was_replaced_are_dropped():
    with connected() as link:
        Attempt(1).join(link)
        link.say(share_piece=b"half a tile")
        Attempt(2).join(link).finish(link)


def test_pieces_without_an_end_are_refused(monkeypatch):
    monkeypatch.setattr("ostraka.worker.session._LARGEST_TILE", 100)
    with connected() as link:
        Attempt(1).join(link)
        for _ in range(3):
            link.say(share_piece=bytes(40))
        assert "more than 100 bytes" in link.hear("sorry")
        Attempt(2).join(link).finish(link)


def test_a_seed_after_a_seed_ends_the_attempt():
    gate = Gate()
    with connected(kernel=gate) as link:
        attempt = Attempt(1).join(link)
        link.add_seed(attempt.seed())
        gate.reached.wait(WAIT)
        link.add_seed(attempt.seed())
        assert "second seed" in link.hear("sorry")
        gate.open.set()
        Attempt(2).join(link).finish(link)


def test_a_share_after_a_seed_ends_the_attempt():
    gate = Gate()
    with connected(kernel=gate) as link:
        attempt = Attempt(1).join(link)
        link.add_seed(attempt.seed())
        gate.reached.wait(WAIT)
        link.add(attempt.tile(0))
        assert "was given a seed" in link.hear("sorry")
        gate.open.set()
        Attempt(2).join(link).finish(link)


def test_an_attempt_that_is_over_is_dropped_at_once(caplog):
    caplog.set_level(logging.INFO)
    with connected() as link:
        attempt = Attempt(1).join(link)
        link.add(attempt.tile(0))
        link.say(over=Over(attempt_id=attempt.offer.attempt_id))
        for index in range(1, attempt.count):
            link.add(attempt.tile(index))
        Attempt(2).join(link).finish(link)
    assert len(logged(caplog, "AttemptDropped")) == 1


def test_an_attempt_that_is_over_stops_in_the_middle_of_its_seed():
    gate = Gate()
    with connected(kernel=gate) as link:
        attempt = Attempt(1).join(link)
        link.add_seed(attempt.seed())
        assert gate.reached.wait(WAIT)
        link.say(over=Over(attempt_id=attempt.offer.attempt_id))
        following = Attempt(2).join(link)  # It listens while it computes.
        gate.open.set()
        following.finish(link)
    assert gate.calls <= 1 + following.count


def test_a_new_offer_replaces_an_old_attempt(caplog):
    caplog.set_level(logging.INFO)
    with connected() as link:
        link.add(Attempt(1).join(link).tile(0))
        Attempt(2).join(link).finish(link)
    (dropped,) = logged(caplog, "AttemptDropped")
    assert dropped["why"] == "replaced by a new offer"


def test_a_device_that_fails_is_said_and_the_worker_goes_on(caplog):
    class Broken(NumpyKernel):
        works = False

        def begin(self, rows, values):
            running = super().begin(rows, values)
            return running if self.works else FailingSum()

    class FailingSum:
        def add(self, block):
            raise RuntimeError("CUDA error: what is in here is not for the enclave")

    device = Broken()
    with connected(kernel=device) as link:
        attempt = Attempt(1).join(link)
        link.add(attempt.tile(0))
        assert link.hear("sorry") == "RuntimeError in this worker"
        link.add_seed(Attempt(2).join(link).seed())
        assert link.hear("sorry") == "RuntimeError in this worker"
        device.works = True
        Attempt(3).join(link).finish(link)
    assert "CUDA error" in caplog.text


def test_a_busy_worker_holds_its_enclave_back():
    """Not a megabyte for each of 64 tiles is in its memory while it is busy with the first."""
    gate, rows = Gate(), 2**12
    attempt = Attempt(rows=64, columns=64 * rows, tile=rows)
    with connected(kernel=gate) as link:
        attempt.join(link)
        tile = attempt.tile(0)
        for index in range(attempt.count):
            link.add(replace(tile, index=index))
        assert gate.reached.wait(WAIT)
        threading.Event().wait(0.5)
        assert link.sent < attempt.count // 2
        gate.open.set()
        link.hear("sorry")  # The second tile is the first again.


def test_one_line_for_each_attempt_with_its_size_and_nothing_of_its_content(caplog):
    caplog.set_level(logging.DEBUG)
    with connected() as link:
        Attempt(1).join(link).finish(link)
    (fields,) = logged(caplog, "AttemptAnswered")
    assert (fields["rows"], fields["columns"], fields["masking"]) == (N, D, "exact")
    assert fields["seconds"] >= 0
    assert set(fields) == {"attempt", "masking", "rows", "columns", "seconds"}


@given(
    st.lists(
        st.one_of(
            st.builds(EnclaveSays, offer=st.binary(max_size=64)),
            st.builds(EnclaveSays, share=st.binary(max_size=64)),
            st.builds(EnclaveSays, seed=st.binary(max_size=64)),
            st.builds(EnclaveSays, over=st.builds(Over, attempt_id=st.binary(max_size=40))),
            st.just(EnclaveSays()),
        ),
        max_size=5,
    )
)
def test_no_bytes_end_a_session(messages):
    said: list[WorkerSays] = []
    session = Session(Staff("me", ME, NumpyKernel(), EnclavePin(ENCLAVE.public)), said.append)
    session.greet(EnclaveSays(welcome=Welcome(**WELCOME)))
    session.admit(EnclaveSays(proof=Proof()))
    for message in messages:
        session.hear(message)
    assert all(each.WhichOneof("what") == "sorry" for each in said[1:])


@given(st.integers(1, MAX_PIECE_VALUES), st.integers(1, 2**18))
def test_every_share_fits_into_a_message(rows, tile):
    rows = min(rows, MAX_PIECE_VALUES // tile)
    size = SealedGroups(Tiling(tile, tile), rows, 8).size(0)
    frame = len(encode(ShareTile(bytes(32), 0, b""))) + 100
    assert size + frame <= LARGEST_MESSAGE == 40 * 2**20


def test_the_largest_share_arrives():
    side = 2**11
    attempt = Attempt(masking="gaussian", rows=side, columns=side, tile=side)
    layout = SealedGroups(Tiling(side, side), side, 8)
    with connected() as link:
        attempt.join(link)
        link.add(ShareTile(attempt.offer.attempt_id, 0, bytes(layout.size(0))))
        assert "share does not open" in link.hear("sorry")


def test_an_answer_may_be_larger_than_a_message():
    """The server here takes no message above 4 MiB, which is gRPC's own limit."""
    rows = 1500
    with connected() as link:
        Attempt(rows=rows, columns=4, tile=4).join(link).finish(link)
        assert sum(len(each.data) for each in link.pieces) > 2**22
        assert max(len(each.data) for each in link.pieces) <= ANSWER_PIECE


def test_an_enclave_that_does_not_read_holds_its_worker_up(monkeypatch):
    """It has thousands of pieces to say, and is neither ended for it nor are all in its memory."""
    monkeypatch.setattr("ostraka.worker.session.ANSWER_PIECE", 2**10)
    with connected() as link:
        attempt = Attempt(rows=1500, columns=4, tile=4).join(link)
        link.reads.clear()
        threading.Timer(0.5, link.reads.set).start()
        attempt.finish(link)
        assert len(link.pieces) > 2**12


# How it starts and stops.


@pytest.mark.parametrize("gpu", [False, True])
def test_a_gpu_is_chosen_where_there_is_one(monkeypatch, gpu):
    def choose(device):
        if device == "cuda" and not gpu:
            raise ConfigError("no device")
        return kernels[device]

    kernels = {"cpu": NumpyKernel(), "cuda": NumpyKernel()}
    monkeypatch.setattr(backends, "choose", choose)
    best = "cuda" if gpu else "cpu"
    assert kernel_for("auto") == (kernels[best], best)
    assert kernel_for("cpu") == (kernels["cpu"], "cpu")


def test_a_device_that_is_not_there_is_an_error_when_it_was_asked_for():
    with pytest.raises(ConfigError):
        kernel_for("abacus")


def test_the_pauses_double_and_vary_up_to_a_cap():
    backoff = Backoff(first=1, cap=30)
    for step in (1, 2, 4, 8, 16, 30, 30):
        assert step / 2 <= backoff.next() <= step
    assert len({Backoff(1, 30).next() for _ in range(20)}) > 1
    backoff.reset()
    assert backoff.next() <= 1


def test_stopping_does_not_wait_for_an_enclave():
    with working("127.0.0.1:1", "me", ME):
        pass


def test_stopping_ends_what_is_being_computed():
    gate = Gate()
    with connected(kernel=gate) as link:
        link.add_seed(Attempt(1).join(link).seed())
        assert gate.reached.wait(WAIT)
    gate.open.set()


def test_a_service_that_was_stopped_before_it_ran_does_nothing():
    service = WorkerService(
        "127.0.0.1:1", Staff("me", ME, NumpyKernel(), EnclavePin(ENCLAVE.public))
    )
    service.stop()
    service.run()


@pytest.mark.parametrize(
    ("address", "ca", "message"),
    [("localhost", None, "HOST:PORT"), ("localhost:1", "absent.pem", "absent.pem")],
)
def test_what_can_never_work_is_an_error(tmp_path, address, ca, message):
    staff = Staff("me", ME, NumpyKernel(), EnclavePin(ENCLAVE.public))
    service = WorkerService(address, staff, tls_ca=tmp_path / ca if ca else None)
    with pytest.raises(ConfigError, match=message):
        service.run()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_process_serves_and_ends_as_it_is_told(tmp_path, number, code):
    key = tmp_path / "me.key"
    me = write_identity(key, "me")
    program = (
        "import typer; from ostraka.cli.worker import run; "
        "app = typer.Typer(); app.command()(run); app()"
    )
    servicer, shard = Servicer(ENCLAVE.public, {"me": me}), a_shard()
    shard.workers = {"me": me}
    with serving(servicer) as address, serving(shard) as other:
        options = ["--enclave", address, "--enclave", other]
        options += ["--name", "me", "--key", str(key), "--device", "cpu"]
        options += ["--receipt-key", ENCLAVE.public.hex()]
        process = subprocess.Popen(
            [sys.executable, "-c", program, *options, "--log-json", "--threads", "1"],
            stderr=subprocess.PIPE,
            text=True,
        )
        for each, signer in ((servicer, ENCLAVE), (shard, SHARD)):
            link = each.links.get(timeout=WAIT)
            offered = Attempt(1, worker=me.public, signer=signer)
            offered.pending._worker = me.public
            offered.join(link).finish(link)
        process.send_signal(number)
        _, errors = process.communicate(timeout=WAIT)
    assert process.returncode == code, errors
    assert [line for line in errors.splitlines() if not line.startswith("{")] == []
    for word in ("WorkerStarted", "Connected", "AttemptAnswered", "WorkerStopped"):
        assert word in errors
    assert key.read_text().split()[-1] not in errors

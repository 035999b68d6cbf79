"""An observer sees the status with its names, verifies what is signed, and changes nothing."""

import re
import shutil
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from ostraka.client.attesting import Verifier
from ostraka.config import Member
from ostraka.crypto.identity import Identity
from ostraka.dashboard import page
from ostraka.dashboard.watching import QUESTIONS, Observer, ReadOnlyConnection, View
from ostraka.enclave.servicer import observers
from ostraka.encoding import decode, encode
from ostraka.errors import LocalProtocolError
from ostraka.files import read_policy
from ostraka.messages import Certified, Proposal
from ostraka.protocol.confirm import confirm
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub

N, D = 5, 100
PATIENCE_S = 120.0
OBSERVER = "the observer"  # the thread's name
DENIED = grpc.StatusCode.PERMISSION_DENIED
STRANGER = Identity(b"s" * 32)
RNG = np.random.default_rng(0)


@pytest.fixture
def service(start):
    running = start(clients=N, dimension=D, settings={"deadline_s": 600})
    running.wait_for("RoundOpened")
    return running


def play_round(service, speaker) -> None:
    clients = [speaker(service, number) for number in range(1, N + 1)]
    sent = [client.send(row) for client, row in zip(clients, rows(), strict=True)]
    clients[0].follow(sent[0])


def rows() -> np.ndarray:
    return RNG.normal(size=(N, D)).astype(np.float32)


def test_an_observer_sees_names_and_strangers_see_numbers(service, speaker):
    shown = speaker(service, "observer").status()
    assert shown["awaited"] == [f"client-{i}" for i in range(1, N + 1)]
    for stranger in (
        speaker(service, "observer", greets=False),
        speaker(service, "observer", STRANGER),
        speaker(service, "other", service.identity("observer")),
    ):
        told = stranger.status()
        assert told["awaited"] == N
        assert (told["worker_record"], told["history"], told["confirmed"]) == (0, 0, 0)


def test_an_observer_takes_no_part(service, speaker):
    watcher = speaker(service, "observer")
    with pytest.raises(grpc.RpcError) as refused:
        watcher.introduce()
    assert refused.value.code() is DENIED
    service.voters = ()
    for number in range(1, N + 1):
        speaker(service, number).send(rows()[0])
    service.wait_for("RoundProposed")
    reply = speaker(service, 1).ask(1)
    proposal = decode(Proposal, reply.proposed.proposal)
    vote = confirm(
        proposal, proposal.federation, 1, voter="observer", identity=service.identity("observer")
    )
    with pytest.raises(grpc.RpcError) as refused:
        watcher.stub.Confirm(wire.ConfirmRequest(confirmation=encode(vote)), timeout=PATIENCE_S)
    assert refused.value.code() is DENIED
    assert watcher.status()["confirmed"] == []


def test_an_observer_comes_and_goes_without_a_signature(service, speaker):
    text = service.config.read_text()
    service.config.write_text(text[: text.index("# Observers see")])
    play_round(service, speaker)
    service.wait_for("RoundOpened", 2)
    assert speaker(service, "observer").status()["awaited"] == N
    service.config.write_text(text)
    play_round(service, speaker)
    service.wait_for("RoundOpened", 3)
    assert len(speaker(service, "observer").status()["awaited"]) == N


def test_the_operator_s_file_gives_nobody_the_name_or_the_key_of_a_member():
    """A newer charter may be in force than the file was checked against."""
    member, key = Member("client-1", b"1" * 32), b"2" * 32
    federation = SimpleNamespace(
        clients=(member,),
        witnesses=(Member("auditor", b"3" * 32),),
        workers=(Member("worker-1", b"4" * 32),),
        revoked=(Member("gone", b"5" * 32),),
    )
    good = Member("observer", key)
    bad = [Member(name, key) for name in ("client-1", "auditor", "worker-1", "gone")]
    bad += [Member("other", bytes([each]) * 32) for each in b"1345"]
    engine: Any = SimpleNamespace(
        federation=federation, file=SimpleNamespace(observers=(*bad, good))
    )
    assert observers(engine) == (good,)


@contextmanager
def observing(service, **options):
    """An Observer in a thread, and wait(f), which gives the first View of which f is true."""
    seen: list[View] = []
    news = threading.Condition()

    def show(view: View) -> None:
        with news:
            seen.append(view)
            news.notify_all()
        page.parts(view)  # Each of them can be drawn.

    def wait(wanted) -> View:
        until = time.monotonic() + PATIENCE_S
        with news:
            while not (seen and wanted(seen[-1])):
                assert time.monotonic() < until, seen[-1:]
                news.wait(0.5)
            return seen[-1]

    policy = options.get("policy", service.root / "policy.toml")
    identity = options.get("identity") or service.identity("observer")
    name = options.get("name", "observer")
    who = Verifier(name, identity, read_policy(policy), policy, True, observes=True)
    observer = Observer(f"127.0.0.1:{service.port}", who, show)
    thread = threading.Thread(target=observer.run, name=OBSERVER)
    thread.start()
    try:
        yield wait
    finally:
        observer.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_an_observer_verifies_the_chain_and_asks_nothing_that_changes_anything(
    service, speaker, monkeypatch
):
    """Every call of the stub is counted, also of those that are made below the connection."""
    called: set[tuple[str, str]] = set()
    monkeypatch.setattr(EnclaveStub, "__init__", counting(EnclaveStub.__init__, called))
    with observing(service) as wait:
        wait(lambda view: view.told is not None and len(view.told.awaited) == N)
        play_round(service, speaker)
        view = wait(lambda view: len(view.chain) == 1)
        assert view.chain[0].receipt.participants == N
        assert view.chain[0].votes > (N + 1) / 2
        assert view.claims is not None
        assert view.claims.kind == "simulation"
        view = wait(lambda view: view.told.published == 1 and view.times)
        assert "measure" in view.times[1]
        assert view.told.bytes_in > N * D * 4
        assert view.told.bytes_out > 0
    asked = {method for method, thread in called if thread == OBSERVER}
    assert {"Prove", "GetChain", "GetStatus"} <= asked <= QUESTIONS


def counting(original, called):
    """What makes stubs whose calls are noted, with the thread that made them."""

    def make(self, channel):
        original(self, channel)
        for method, call in list(vars(self).items()):

            def noted(*arguments, method=method, call=call, **named):
                called.add((method, threading.current_thread().name))
                return call(*arguments, **named)

            setattr(self, method, noted)

    return make


def test_an_observer_has_no_way_to_any_other_call(service):
    with grpc.insecure_channel("127.0.0.1:1") as nowhere:
        methods = dir(EnclaveStub(nowhere))
    changing = {each for each in methods if not each.startswith("_")} - QUESTIONS
    assert {"AnnounceTicket", "Confirm", "Adopt", "Remind", "Work"} <= changing
    policy = service.root / "policy.toml"
    identity = service.identity("observer")
    who = Verifier("observer", identity, read_policy(policy), policy, True, observes=True)
    with ReadOnlyConnection(f"127.0.0.1:{service.port}", tls_ca=None, who=who) as connection:
        for method in changing:
            with pytest.raises(LocalProtocolError, match="never calls"):
                connection.once(method, wire.StatusRequest())


def test_a_late_observer_verifies_the_chain_from_its_beginning(service, speaker):
    play_round(service, speaker)
    service.wait_for("RoundOpened", 2)
    play_round(service, speaker)
    with observing(service) as wait:
        view = wait(lambda view: view.told is not None)
        assert [each.receipt.number for each in view.chain] == [1, 2]


@pytest.mark.parametrize("late", [False, True])
def test_a_receipt_that_was_changed_is_refused_and_stays_shown(service, speaker, monkeypatch, late):
    """Whoever is between the observer and the enclave can change what it is shown."""
    honest = ReadOnlyConnection.stream

    @contextmanager
    def changing(self, method, request):
        with honest(self, method, request) as links:
            yield (changed(link) for link in links)

    def changed(link):
        if link.WhichOneof("link") != "certified":
            return link
        certified = decode(Certified, link.certified)
        receipt = replace(certified.receipt, kept=certified.receipt.kept - 1)
        return wire.ChainLink(certified=encode(replace(certified, receipt=receipt)))

    monkeypatch.setattr(ReadOnlyConnection, "stream", changing)
    if late:
        play_round(service, speaker)
    with observing(service) as wait:
        if not late:
            wait(lambda view: view.told is not None)
            play_round(service, speaker)
        view = wait(lambda view: view.refusals)
        assert view.chain == ()
        assert "Not verified: " in page.parts(view)["notices"]
        monkeypatch.setattr(ReadOnlyConnection, "stream", honest)
        view = wait(lambda view: view.chain and not view.lost)
        assert view.refusals


def test_a_receipt_that_was_left_out_is_missed(service, speaker, monkeypatch):
    """Certificates alone would prove the receipts on both sides of the gap."""
    honest = ReadOnlyConnection.stream

    @contextmanager
    def omitting(self, method, request):
        with honest(self, method, request) as links:
            yield (link for link in links if number(link) != 2)

    def number(link):
        brought = link.WhichOneof("link") == "certified"
        return decode(Certified, link.certified).receipt.number if brought else 0

    for opened in (2, 3, 4):
        play_round(service, speaker)
        service.wait_for("RoundOpened", opened)
    monkeypatch.setattr(ReadOnlyConnection, "stream", omitting)
    with observing(service) as wait:
        view = wait(lambda view: view.refusals)
        assert "round 3 does not follow on round 1" in view.refusals[0]


def test_an_enclave_of_other_code_is_refused(service):
    text = (service.root / "policy.toml").read_text()
    other = service.root / "other.toml"
    other.write_text(re.sub(r'(mrenclave = \[?"?)[0-9a-f]{8}', r"\g<1>00000000", text))
    assert other.read_text() != text
    with observing(service, policy=other) as wait:
        view = wait(lambda view: view.refusals)
        assert "does not list this code" in view.refusals[0]
        assert view.told is None


def test_an_observer_goes_on_behind_a_restart(service, speaker):
    play_round(service, speaker)
    with observing(service) as wait:
        wait(lambda view: view.told is not None)
        service.crash()
        assert wait(lambda view: view.lost).told is not None
        service.events.clear()
        service.start()
        service.wait_for("RoundOpened")
        view = wait(lambda view: not view.lost)
        assert (view.restarts, len(view.chain)) == (1, 1)
        play_round(service, speaker)
        wait(lambda view: len(view.chain) == 2)


def test_another_enclave_at_the_same_address_is_refused(service, speaker):
    play_round(service, speaker)
    with observing(service) as wait:
        wait(lambda view: view.told is not None)
        service.crash()
        shutil.rmtree(service.root / "state")
        service.events.clear()
        service.start()
        view = wait(lambda view: view.refusals)
        assert "another key" in view.refusals[0]


@pytest.mark.parametrize("who", [{"identity": STRANGER}, {"name": "other"}])
def test_an_observer_that_is_not_known_is_told_what_to_do(service, who):
    with observing(service, **who) as wait:
        view = wait(lambda view: view.lost != "connecting")
        assert "add an [[observer]]" in view.lost
        assert view.told is None

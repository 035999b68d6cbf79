"""Nothing of an outcome leaves before enough clients have confirmed it, and then only that one."""

import asyncio
import json
import shutil
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from ostraka.attestation import dcap
from ostraka.attestation.claims import Binding
from ostraka.crypto.identity import Identity
from ostraka.enclave import engine, servicer
from ostraka.enclave.reception import Quoting
from ostraka.enclave.storage.state import EnclaveState
from ostraka.encoding import UNSIGNED, decode, digest, encode
from ostraka.errors import OpenError, StateError
from ostraka.merkle import is_under
from ostraka.messages import (
    NO_PROPOSAL,
    Certified,
    Challenge,
    Confirmation,
    Introduction,
    Proposal,
    vector_digest,
)
from ostraka.protocol.confirm import confirm, leaf
from ostraka.protocol.host import Host
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub

N, F, D = 5, 1, 100
QUORUM = 4  # more than (5 + 1)/2
RNG = np.random.default_rng(7)
MALLORY = Identity(b"\x66" * 32)
FIRST = vector_digest(np.zeros(D, "<f4"))


def rows(n=N):
    return RNG.normal(size=(n, D)).astype(np.float32)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch):
    monkeypatch.setattr(servicer, "_LONG_POLL_S", 0.5)


@pytest.fixture
def quiet(start):
    """A service whose clients confirm only what a test has them confirm."""
    return start(voters=())


def send(service, speaker, updates=None):
    """All updates of one round. Returns the speakers, and what they have joined."""
    given = rows() if updates is None else updates
    speakers = [speaker(service, at + 1) for at in range(len(given))]
    return speakers, [each.send(row) for each, row in zip(speakers, given, strict=True)]


def pending(service, speaker, updates=None, *, number=1, count=1):
    """A round up to its proposal."""
    speakers, joined = send(service, speaker, updates)
    service.wait_for("RoundProposed", count)
    return speakers, joined, proposal_of(speakers[0], number)


def proposal_of(one, number=1):
    reply = one.stub.AwaitOutcome(wire.OutcomeRequest(number=number), timeout=60)
    assert reply.WhichOneof("outcome") == "proposed"
    return decode(Proposal, reply.proposed.proposal)


def vote(one, proposal, **changes):
    made = confirm(
        proposal, proposal.federation, proposal.number, voter=one.name, identity=one.identity
    )
    return show(one, one.identity.sign(replace(made, **changes)) if changes else made)


def show(one, confirmation):
    one.stub.Confirm(wire.ConfirmRequest(confirmation=encode(confirmation)), timeout=60)


def remind(one, proposal):
    one.stub.Remind(wire.RemindRequest(proposal=encode(proposal)), timeout=60)


def chain(one):
    links = one.stub.GetChain(wire.ChainRequest(), timeout=60)
    return [decode(Certified, link.certified) for link in links if link.certified]


def refused(call, *arguments, **options):
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **options)
    return caught.value.code()


def test_before_the_quorum_nothing_of_the_outcome_is_told(quiet, speaker):
    before = speaker(quiet, 1).join().offer.model
    speakers, joined, proposal = pending(quiet, speaker)
    for one in speakers[: QUORUM - 1]:
        vote(one, proposal)
    stub = speakers[0].stub
    assert chain(speakers[0]) == []
    assert speakers[0].model(before).shape == (D,)
    for one, offer in zip(speakers, joined, strict=True):
        told = one.ask(1, offer.offer.round_id).WhichOneof("outcome")
        assert told == ("pending" if one in speakers[: QUORUM - 1] else "proposed")
    assert refused(speakers[0].introduce) == grpc.StatusCode.FAILED_PRECONDITION
    told = {type(each).__name__ for each in quiet.events}
    assert not told & {"RoundPublished", "ClientRejected", "NullStep", "RoundTimed"}
    assert '"published": 0' in stub.GetStatus(wire.StatusRequest()).json
    assert '"phase": "confirming"' in stub.GetStatus(wire.StatusRequest()).json

    vote(speakers[QUORUM - 1], proposal)
    quiet.wait_for("RoundPublished")
    (certified,) = chain(speakers[4])
    assert certified.certificate.proposal == proposal
    assert {each.voter for each in certified.certificate.votes} == {
        one.name for one in speakers[:QUORUM]
    }
    assert speakers[4].follow(joined[4]).number == 1
    assert speakers[4].model(certified.receipt.model).shape == (D,)


def test_a_vote_is_answered_with_what_comes_of_it(quiet, speaker):
    speakers, joined, proposal = pending(quiet, speaker)
    asked = wire.OutcomeRequest(number=1, round_id=joined[0].offer.round_id)

    def confirmed(one, vote):
        asked.voter = one.name
        shown = wire.ConfirmRequest(confirmation=encode(vote), then=asked)
        return one.stub.Confirm(shown, timeout=60)

    for one in speakers[: QUORUM - 1]:
        told = confirmed(one, of(one, proposal))
        assert (told.outcome.WhichOneof("outcome"), told.model) == ("pending", b"")
    last = speakers[QUORUM - 1]
    forged = MALLORY.sign(of(last, proposal))
    assert refused(confirmed, last, forged) == grpc.StatusCode.PERMISSION_DENIED
    told = confirmed(last, of(last, proposal))
    certified = decode(Certified, told.outcome.certified)
    assert certified.certificate is not None
    assert certified.certificate.proposal == proposal
    assert vector_digest(np.frombuffer(told.model, "<f4")) == certified.receipt.model
    carried = confirmed(speaker(quiet, 2), of(last, proposal))  # by another, as a relay does
    assert (carried.outcome, carried.model) == (told.outcome, b"")


def test_a_vote_is_answered_with_the_round_that_opens_next(quiet, speaker):
    speakers, joined, proposal = pending(quiet, speaker)
    asked = wire.OutcomeRequest(number=1, round_id=joined[0].offer.round_id)

    def introduced(one, about, signer=None, nonce=b"n" * 32):
        challenge = (signer or about.identity).sign(Challenge(nonce, about.name, UNSIGNED))
        question = wire.IntroduceRequest(challenge=encode(challenge))
        asked.voter = about.name
        shown = wire.ConfirmRequest(confirmation=encode(of(about, proposal)), then=asked)
        shown.next.CopyFrom(question)
        told = one.stub.Confirm(shown, timeout=60)
        return told.outcome.WhichOneof("outcome"), told.introduced.introduction

    for one in speakers[: QUORUM - 1]:
        assert introduced(one, one) == ("pending", b"")
    last = speakers[QUORUM - 1]
    kind, raw = introduced(last, last, nonce=b"m" * 32)
    told = decode(Introduction, raw)
    assert (kind, told.offer.number) == ("certified", 2)
    assert told.offer == last.introduce().offer
    bound = Binding(b"m" * 32, told.offer.key, told.receipt_key, told.offer.federation)
    assert dcap.read(told.evidence).report_data == bound.report_data()
    # Nobody else hears of it by a vote, and who is refused has the outcome all the same.
    assert introduced(speakers[0], last) == ("certified", b"")
    assert introduced(last, last, signer=MALLORY) == ("certified", b"")


def test_an_outcome_does_not_wait_for_evidence(quiet, speaker, monkeypatch):
    monkeypatch.setattr(Quoting, "wait_s", servicer._AT_ONCE_S + 1)
    speakers, joined, proposal = pending(quiet, speaker)
    for one in speakers[: QUORUM - 1]:
        vote(one, proposal)
    last = speakers[QUORUM - 1]
    asked = wire.OutcomeRequest(number=1, round_id=joined[0].offer.round_id, voter=last.name)
    challenge = last.identity.sign(Challenge(b"n" * 32, last.name, UNSIGNED))
    shown = wire.ConfirmRequest(confirmation=encode(of(last, proposal)), then=asked)
    shown.next.challenge = encode(challenge)
    told = last.stub.Confirm(shown, timeout=60)
    assert (told.outcome.WhichOneof("outcome"), bool(told.model)) == ("certified", True)
    assert told.introduced.introduction == b""


def test_the_last_vote_is_answered_without_a_next_round(start, speaker):
    service = start(voters=(), settings={"count": 1})
    speakers, joined, proposal = pending(service, speaker)
    asked = wire.OutcomeRequest(number=1, round_id=joined[0].offer.round_id, voter=speakers[0].name)
    challenge = speakers[0].identity.sign(Challenge(b"n" * 32, speakers[0].name, UNSIGNED))
    shown = wire.ConfirmRequest(confirmation=encode(of(speakers[0], proposal)), then=asked)
    shown.next.challenge = encode(challenge)
    for one in speakers[1:QUORUM]:
        vote(one, proposal)
    told = speakers[0].stub.Confirm(shown, timeout=60)
    assert (told.outcome.WhichOneof("outcome"), told.introduced.introduction) == ("certified", b"")


def test_a_model_of_several_parts_comes_with_no_vote(quiet, speaker, monkeypatch):
    monkeypatch.setattr(servicer, "_PART", 4 * D - 1)
    speakers, joined, proposal = pending(quiet, speaker)
    for one in speakers[: QUORUM - 1]:
        vote(one, proposal)
    last = speakers[QUORUM - 1]
    asked = wire.OutcomeRequest(number=1, round_id=joined[0].offer.round_id, voter=last.name)
    shown = wire.ConfirmRequest(confirmation=encode(of(last, proposal)), then=asked)
    told = last.stub.Confirm(shown, timeout=60)
    assert (told.outcome.WhichOneof("outcome"), told.model) == ("certified", b"")


def test_a_long_certificate_is_not_sent_to_all_at_once(quiet, speaker, monkeypatch):
    """With 10,000 clients it has a megabyte, and all of them wait for it."""
    monkeypatch.setattr(servicer, "_LONGEST", 100)
    speakers, joined, proposal = pending(quiet, speaker)
    for one in speakers[: QUORUM - 1]:
        vote(one, proposal)
    last = speakers[QUORUM - 1]
    asked = wire.OutcomeRequest(number=1, round_id=joined[0].offer.round_id, voter=last.name)
    shown = wire.ConfirmRequest(confirmation=encode(of(last, proposal)), then=asked)
    told = last.stub.Confirm(shown, timeout=60)
    assert told.outcome.WhichOneof("outcome") == "published"
    assert len(told.model) == 4 * D
    *_, link = last.stub.GetChain(wire.ChainRequest(after=0))
    certified = decode(Certified, link.certified)
    assert certified.certificate is not None
    assert certified.certificate.proposal == proposal


def test_models_that_nobody_reads_are_few(start, speaker):
    """They stay in memory, and a client has as many connections as it likes to leave them on."""
    d = servicer._PART // 4
    service = start(dimension=d, settings={"uploads": 2})
    speakers, _ = send(service, speaker, RNG.normal(size=(N, d)).astype(np.float32))
    service.wait_for("RoundPublished")
    one, federation = speakers[0], speakers[0].charter().federation
    vote = Confirmation(federation.id, 1, bytes(32), one.name, bytes(64))  # of a settled number
    shown = wire.ConfirmRequest(confirmation=encode(vote), then=wire.OutcomeRequest(number=1))
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
    with grpc.insecure_channel(f"127.0.0.1:{service.port}", options=options) as channel:
        replace(one, stub=EnclaveStub(channel)).greet()
        confirm_unread: Any = channel.unary_stream(
            "/ostraka.v1.Enclave/Confirm", wire.ConfirmRequest.SerializeToString
        )
        unread = [confirm_unread(shown) for _ in range(2)]
        for each in unread:
            each.initial_metadata()
        reply = one.stub.Confirm(shown, timeout=60)
        assert (reply.outcome.WhichOneof("outcome"), reply.model) == ("certified", b"")
    until = time.monotonic() + 60  # The service hears a little later that nobody wants them.
    while not reply.model and time.monotonic() < until:
        reply = one.stub.Confirm(shown, timeout=60)
    assert len(reply.model) == 4 * d


def test_an_upload_is_answered_with_what_comes_of_it(start, speaker, monkeypatch):
    """While its call waits for that, others have its turn."""
    monkeypatch.setattr(servicer, "_LONG_POLL_S", 60.0)
    quiet = start(voters=(), settings={"uploads": 1})
    first = speaker(quiet, 1)
    mine = first.join().seal(rows(1)[0]).sealed
    with first.begin(mine.header, await_outcome=True) as sending:
        sending.hear()
        sending.say(*mine.tiles)
        assert sending.hear().WhichOneof("answer") == "complete"
        for number in range(2, N + 1):
            speaker(quiet, number).send(rows(1)[0])
        (told,) = sending
    proposed = told.outcome.proposed
    assert decode(Proposal, proposed.proposal) == proposal_of(first)
    assert is_under(decode(Proposal, proposed.proposal).cohort, leaf(mine.header), proposed.path)


def strangers(one, proposal):
    made = Confirmation(
        proposal.federation, proposal.number, digest(proposal), "mallory", bytes(64)
    )
    return MALLORY.sign(made)


VOTES = {
    "a stranger's": strangers,
    "under another's key": lambda one, proposal: MALLORY.sign(of(one, proposal)),
    "that nobody signed": lambda one, proposal: replace(of(one, proposal), signature=bytes(64)),
    "for another number": lambda one, proposal: changed(one, proposal, number=2),
    "for another federation": lambda one, proposal: changed(one, proposal, federation=bytes(32)),
    "for another proposal": lambda one, proposal: changed(one, proposal, proposal=b"x" * 32),
    "for none": lambda one, proposal: changed(one, proposal, proposal=NO_PROPOSAL),
    "in another's name": lambda one, proposal: changed(one, proposal, voter="client-5"),
    "of a worker": lambda one, proposal: changed(one, proposal, voter="worker-1"),
}


def of(one, proposal):
    return confirm(
        proposal, proposal.federation, proposal.number, voter=one.name, identity=one.identity
    )


def changed(one, proposal, /, **fields):
    return one.identity.sign(replace(of(one, proposal), **fields))


def test_other_votes_count_for_nothing(quiet, speaker):
    speakers, _, proposal = pending(quiet, speaker)
    for one in speakers[: QUORUM - 1]:
        vote(one, proposal)
        vote(one, proposal)  # Twice is once.
    last = speakers[QUORUM - 1]
    for what, make in VOTES.items():
        code = refused(show, last, make(last, proposal))
        assert code == grpc.StatusCode.PERMISSION_DENIED, what
    with pytest.raises(grpc.RpcError):
        last.stub.Confirm(wire.ConfirmRequest(confirmation=b"noise"))
    assert not quiet.named("RoundPublished")
    assert last.ask(1).WhichOneof("outcome") == "proposed"
    vote(last, proposal)
    quiet.wait_for("RoundPublished")
    vote(speakers[4], proposal)  # Whoever is late is not needed, and not told off.


def test_a_vote_before_there_is_a_proposal_is_refused(quiet, speaker):
    _, _, proposal = pending(quiet, speaker)
    one = speaker(quiet, 1)
    for voter in range(1, QUORUM + 1):
        vote(speaker(quiet, voter), proposal)
    quiet.wait_for("RoundOpened", 2)
    ahead = replace(of(one, proposal), number=2)
    assert refused(show, one, one.identity.sign(ahead)) == grpc.StatusCode.PERMISSION_DENIED


def test_a_client_can_see_that_its_upload_is_in_the_proposal(quiet, speaker):
    given = rows()
    speakers = [speaker(quiet, at + 1) for at in range(N)]
    leaves = []
    for one, row in zip(speakers, given, strict=True):
        sealed = one.join().seal(row).sealed
        leaves.append(leaf(sealed.header))
        one.upload(sealed)
    quiet.wait_for("RoundProposed")
    for one, each in zip(speakers, leaves, strict=True):
        shown = one.ask(1, leaf=each).proposed
        root = decode(Proposal, shown.proposal).cohort
        assert shown.included
        assert is_under(root, each, tuple(shown.path))
        assert not is_under(root, bytes(32), tuple(shown.path))
    assert not speakers[0].ask(1, leaf=bytes(32)).proposed.included


def test_after_a_crash_the_same_outcome_is_proposed_and_published(quiet, speaker):
    speakers, _, proposal = pending(quiet, speaker)
    for one in speakers[: QUORUM - 1]:
        vote(one, proposal)
    for _ in range(2):
        quiet.crash()
        quiet.events.clear()
        quiet.start()
        quiet.wait_for("RoundProposed")
        assert not quiet.named("RoundOpened")
        again = speaker(quiet, 1)
        assert encode(proposal_of(again)) == encode(proposal)
        assert chain(again) == []
    for number in range(1, QUORUM + 1):
        vote(speaker(quiet, number), proposal)
    quiet.wait_for("RoundPublished")
    (certified,) = chain(again)
    assert certified.certificate.proposal == proposal
    offer = again.join().offer
    assert (offer.number, offer.previous) == (2, digest(certified.receipt))


def test_a_pending_round_is_never_called_void_or_unknown(quiet, speaker, monkeypatch):
    """Neither while the service stops, nor while it starts: the updates that it took count."""
    _, joined, proposal = pending(quiet, speaker)
    round_id = joined[0].offer.round_id
    waited, real = [], engine.Engine._resume

    def ask():
        one = speaker(quiet, 1)
        waited.append(one.ask(1, round_id))
        remind(one, proposal)

    async def slow(self):
        await asyncio.to_thread(ask)
        await real(self)

    monkeypatch.setattr(engine.Engine, "_resume", slow)
    quiet.crash()
    quiet.events.clear()
    quiet.start()
    quiet.wait_for("RoundProposed")
    assert [each.WhichOneof("outcome") for each in waited] == ["pending"]
    assert not quiet.named("RolledBack")  # It knows that proposal, before it shows it again.
    one = speaker(quiet, 1)
    assert one.ask(1, b"x" * 32).WhichOneof("outcome") == "proposed"
    for number in range(1, QUORUM + 1):
        vote(speaker(quiet, number), proposal)
    quiet.wait_for("RoundPublished")


def test_a_crash_between_the_votes_and_the_ledger_publishes_the_same(quiet, speaker, monkeypatch):
    """The disk takes no record any more; what is pending is on it already."""
    speakers, _, proposal = pending(quiet, speaker)
    full = OSError(28, "No space left on device")

    def fail(*_):
        raise full

    with monkeypatch.context() as patched:
        patched.setattr("ostraka.enclave.storage.ledger.Ledger.append", fail)
        for one in speakers[:QUORUM]:
            vote(one, proposal)
        quiet.wait_for("StorageFailed")
        assert chain(speakers[0]) == []
        quiet.crash()
    quiet.events.clear()
    quiet.start()
    again = speaker(quiet, 1)
    assert encode(proposal_of(again)) == encode(proposal)
    for number in range(1, QUORUM + 1):
        vote(speaker(quiet, number), proposal)
    quiet.wait_for("RoundPublished")
    assert chain(again)[0].certificate.proposal == proposal


def test_nobody_is_asked_before_the_outcome_is_on_the_disk(quiet, speaker, monkeypatch):
    asked: list[str | None] = []
    real = EnclaveState.hold

    def hold(self, held, state):
        reply = speaker(quiet, 1).ask(1)  # a thread of its own: the loop answers meanwhile
        asked.append(reply.WhichOneof("outcome"))
        real(self, held, state)
        assert (self.folder / "pending.sealed").exists()

    monkeypatch.setattr(EnclaveState, "hold", hold)
    pending(quiet, speaker)
    assert asked == ["pending"]


def test_a_disk_that_fails_keeps_the_outcome_back(quiet, speaker, monkeypatch):
    real, failing = EnclaveState.hold, [True, True]

    def hold(self, held, state):
        if failing:
            failing.pop()
            raise OSError(28, "No space left on device")
        real(self, held, state)

    monkeypatch.setattr(EnclaveState, "hold", hold)
    monkeypatch.setattr(engine, "_RETRY_S", 0.05)
    speakers, _, proposal = pending(quiet, speaker)
    assert len(quiet.named("StorageFailed")) == 2
    for one in speakers[:QUORUM]:
        vote(one, proposal)
    quiet.wait_for("RoundPublished")


# A rule that cannot stand.


def test_a_pending_round_is_not_skipped_when_it_cannot_be_published(quiet, speaker, monkeypatch):
    speakers, _, proposal = pending(quiet, speaker)
    tried = threading.Event()

    def refuse(self: EnclaveState, certified: Certified) -> None:
        tried.set()
        raise StateError(self.folder, "does not take it")

    monkeypatch.setattr(EnclaveState, "publish", refuse)
    for each in speakers[:QUORUM]:
        vote(each, proposal)
    assert tried.wait(60)
    time.sleep(0.3)
    quiet.crash()
    assert not quiet.named("RoundSkipped")


def test_a_rule_that_cannot_stand_makes_a_null_step_that_is_confirmed_like_any_other(
    start, speaker
):
    """The host changes three rows on its disk: what clients spoil is refused as it arrives."""
    quiet = start(voters=(), settings={"memory_mib": 0})
    speakers = [speaker(quiet, at + 1) for at in range(N)]
    given = rows()
    for one, row in zip(speakers[:-1], given[:-1], strict=True):
        before = one.send(row).offer.model
    (spool,) = (quiet.root / "state").glob("spool-round-*.bin")
    with spool.open("r+b") as disk:
        disk.write(bytes(3 * (4 * D + 16)))  # the first three of the roster
    speakers[-1].send(given[-1])
    quiet.wait_for("RoundProposed")
    proposal = proposal_of(speakers[0])
    told = {type(each).__name__ for each in quiet.events}
    assert not told & {"NullStep", "ClientRejected", "RoundSkipped"}
    for one in speakers[:QUORUM]:
        vote(one, proposal)
    quiet.wait_for("RoundPublished")
    assert quiet.wait_for("NullStep").number == 1
    (certified,) = chain(speakers[0])
    receipt = certified.receipt
    assert "2 valid updates" in receipt.failure
    assert (receipt.model, receipt.aggregate, receipt.kept) == (before, bytes(32), 0)
    assert {each.client for each in receipt.rejected} == {"client-1", "client-2", "client-3"}
    offer = speaker(quiet, 1).join().offer
    assert (offer.number, offer.model) == (2, before)


def test_a_round_that_never_closes_is_skipped_and_proposes_nothing(start, speaker):
    service = start(settings={"deadline_s": 0.2, "extensions": 0}, voters=())
    service.wait_for("RoundSkipped", 2)
    assert not service.named("RoundProposed")
    assert not (service.root / "state" / "pending.sealed").exists()
    assert speaker(service, 1).join().offer.number == 1


def test_where_nobody_confirms_the_receipt_says_so(start, speaker):
    service = start(settings={"confirm": "none", "expires": 1}, voters=())
    speakers, joined = send(service, speaker)
    told = {each.what for each in service.named("Cautioned")}
    assert {what.partition(":")[0] for what in told} >= {
        "confirm = none",
        "the charter has expired",
    }
    service.wait_for("RoundPublished")
    assert not service.named("RoundProposed")
    (certified,) = chain(speakers[0])
    assert certified.certificate is None
    assert any("nobody confirms outcomes" in each for each in certified.receipt.cautions)
    assert speakers[0].follow(joined[0]).number == 1


# A service that was copied or set back.


def clone(service, start):
    """What a host makes of a folder: another service of the same enclave."""
    other = start(run=False, voters=())
    shutil.rmtree(other.root)
    shutil.copytree(service.root, other.root)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        other.port = probe.getsockname()[1]
    other.set(listen=f"127.0.0.1:{other.port}")
    return other


@pytest.fixture
def two(quiet, start, speaker):
    """A service with a proposal of round 1, and a copy from before that."""
    quiet.wait_for("RoundOpened")
    quiet.crash()
    copy = clone(quiet, start)
    quiet.events.clear()
    quiet.start()
    _, _, proposal = pending(quiet, speaker)
    copy.start()
    copy.wait_for("RoundOpened")
    return quiet, copy, proposal


def test_an_enclave_that_is_shown_what_it_signed_and_does_not_know_publishes_nothing(two, speaker):
    _, copy, proposal = two
    one = speaker(copy, 1)
    joined = one.send(rows()[0])
    for _ in range(2):
        remind(one, proposal)
    assert copy.wait_for("RolledBack").number == 1
    assert len(copy.named("RolledBack")) == 1
    assert copy.wait_for("RoundSkipped").why == "rolled back"
    for who in (one, speaker(copy, 2)):
        reply = who.ask(1, joined.offer.round_id)
        assert decode(Proposal, reply.rolled_back) == proposal
    until = time.monotonic() + 60
    while '"phase": "rolled back"' not in one.stub.GetStatus(wire.StatusRequest()).json:
        assert time.monotonic() < until
    assert refused(one.introduce) == grpc.StatusCode.FAILED_PRECONDITION
    assert chain(one) == []


def test_one_that_is_measuring_when_it_is_shown_that_proposes_nothing(two, speaker, monkeypatch):
    _, copy, proposal = two
    real = Host.finish

    def finish(self, cohort, measured):
        remind(speaker(copy, 1), proposal)
        return real(self, cohort, measured)

    monkeypatch.setattr(Host, "finish", finish)
    send(copy, speaker)
    copy.wait_for("RolledBack")
    assert "not its newest" in copy.wait_for("RoundSkipped").why
    assert not copy.named("RoundProposed")
    assert not (copy.root / "state" / "pending.sealed").exists()


def forged(proposal, **changes):
    return replace(proposal, **changes)


def test_what_the_enclave_did_not_sign_stops_nobody(two, speaker):
    _, copy, proposal = two
    one = speaker(copy, 1)
    for false in (
        forged(proposal, outcome=b"x" * 32),
        forged(proposal, number=7),
        MALLORY.sign(proposal),
        MALLORY.sign(forged(proposal, number=7)),
        forged(proposal, federation=bytes(32)),
        forged(proposal, signature=bytes(64)),
    ):
        assert refused(remind, one, false) == grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(grpc.RpcError):
        one.stub.Remind(wire.RemindRequest(proposal=b"noise"))
    copy.voters = None
    speakers, joined = send(copy, speaker)
    assert speakers[0].follow(joined[0]).number == 1
    assert not copy.named("RolledBack")


def test_what_is_settled_is_no_news(quiet, speaker):
    speakers, _, proposal = pending(quiet, speaker)
    for one in speakers[:QUORUM]:
        vote(one, proposal)
    quiet.wait_for("RoundOpened", 2)
    remind(speakers[0], proposal)
    assert not quiet.named("RolledBack")
    assert speaker(quiet, 1).join().offer.number == 2


def test_a_pending_outcome_goes_on_when_a_copy_is_proved(two, speaker):
    _, copy, proposal = two
    speakers, _, own = pending(copy, speaker)
    assert own != proposal
    for _ in range(3):
        remind(speakers[0], proposal)
    remind(speakers[0], own)  # That one it knows.
    assert copy.wait_for("CopyProved").number == 1
    assert len(copy.named("CopyProved")) == 1
    assert not copy.named("RolledBack")
    for one in speakers[:QUORUM]:
        vote(one, own)
    copy.wait_for("RoundPublished")
    assert chain(speakers[0])[0].certificate.proposal == own


def test_a_vote_for_the_copy_s_proposal_is_none_for_this_one(two, speaker):
    service, copy, proposal = two
    speakers, _, own = pending(copy, speaker)
    for one in speakers:
        assert refused(vote, one, proposal) == grpc.StatusCode.PERMISSION_DENIED
        vote(speaker(service, one.name), proposal)
    service.wait_for("RoundPublished")
    assert not copy.named("RoundPublished")
    assert own != proposal


def test_a_state_from_before_a_round_that_was_published_is_stopped(two, speaker):
    """Its pending outcome may still be confirmed, if nobody has voted for the other."""
    service, copy, first = two
    for number in range(1, QUORUM + 1):
        vote(speaker(service, number), first)
    service.wait_for("RoundOpened", 2)
    _, _, second = pending(service, speaker, number=2, count=2)
    remind(speaker(copy, 1), second)
    assert copy.wait_for("RolledBack").number == 2
    assert decode(Proposal, speaker(copy, 1).ask(1).rolled_back) == second
    assert vector_digest(speaker(copy, 1).model(FIRST)) == FIRST


def test_an_outcome_that_is_pending_does_not_hide_that_there_was_a_later_one(two, speaker):
    service, copy, first = two
    for number in range(1, QUORUM + 1):
        vote(speaker(service, number), first)
    service.wait_for("RoundOpened", 2)
    _, _, second = pending(service, speaker, number=2, count=2)
    pending(copy, speaker)
    remind(speaker(copy, 1), second)
    assert copy.wait_for("RolledBack").number == 2
    assert decode(Proposal, speaker(copy, 1).ask(1).rolled_back) == second
    assert not copy.named("CopyProved")


def test_what_it_signed_for_another_federation_is_no_reminder():
    here: Any = SimpleNamespace(
        enclave=SimpleNamespace(receipt_key=MALLORY.public),
        federation=SimpleNamespace(id=b"i" * 32),
    )
    proposal = Proposal(b"o" * 32, 1, bytes(32), bytes(32), bytes(32), bytes(64))
    with pytest.raises(OpenError):
        engine.Engine.remind(here, MALLORY.sign(proposal))


def test_an_enclave_that_was_set_back_says_so_of_what_it_has_published_too(quiet, start, speaker):
    _, _, first = pending(quiet, speaker)
    for number in range(1, QUORUM + 1):
        vote(speaker(quiet, number), first)
    quiet.wait_for("RoundOpened", 2)
    quiet.crash()
    copy = clone(quiet, start)
    quiet.events.clear()
    quiet.start()
    _, _, second = pending(quiet, speaker, number=2)
    copy.start()
    copy.wait_for("RoundOpened")
    one = speaker(copy, 1)
    assert one.ask(1).certified
    remind(one, second)
    assert decode(Proposal, one.ask(1).rolled_back) == second


@pytest.mark.parametrize("round_id", [b"", b"r" * 32])
def test_a_number_that_was_abandoned_is_void_and_nobody_waits_for_it(round_id):
    behind: Any = SimpleNamespace(forgotten=None, published=2, ballot=None)
    request = wire.OutcomeRequest(number=2, round_id=round_id)
    reply = servicer._unpublished(behind, request)
    assert reply is not None
    assert reply.WhichOneof("outcome") == "void"


def test_whoever_waits_is_told_at_once_that_the_enclave_was_set_back(two, speaker, monkeypatch):
    monkeypatch.setattr(servicer, "_LONG_POLL_S", 60.0)
    _, copy, proposal = two
    one = speaker(copy, 1)
    waiting = one.stub.AwaitOutcome.future(wire.OutcomeRequest(number=1), timeout=60)
    remind(one, proposal)
    assert waiting.result().WhichOneof("outcome") == "rolled_back"


def test_the_status_names_who_has_not_confirmed(quiet, speaker):
    pending(quiet, speaker)
    enrolled = speaker(quiet, 1)
    enrolled.greet()
    shown = json.loads(enrolled.stub.GetStatus(wire.StatusRequest()).json)
    assert shown["phase"] == "confirming"
    assert shown["awaited"] == [f"client-{number}" for number in range(1, 6)]


def test_silent_voters_are_named(quiet, speaker, monkeypatch):
    monkeypatch.setattr(engine, "_REMIND_S", 0.05)
    speakers, _, proposal = pending(quiet, speaker)
    assert quiet.wait_for("ConfirmationsAwaited").missing == QUORUM
    vote(speakers[2], proposal)
    until = time.monotonic() + 60
    while quiet.named("ConfirmationsAwaited")[-1].missing != QUORUM - 1:
        assert time.monotonic() < until
    silent = quiet.named("ConfirmationsAwaited")[-1].silent
    assert silent == ("client-1", "client-2", "client-4", "client-5")


def test_a_federation_that_cannot_bear_f_silent_clients_is_cautioned(start):
    """The rule stands on 2f + 3, and with f silent ones only more than 3f are live."""
    words = "9 voters confirm outcomes, and 7 must answer: 2 may be silent"
    for clients, cautioned in ((9, True), (10, False)):
        service = start(clients=clients, f=3)
        said = [each.what for each in service.named("Cautioned") if "silent" in each.what]
        assert [each.startswith(words) for each in said] == [True] * cautioned

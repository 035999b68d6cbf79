"""A client has one vote for each number: written down before it is shown, and never forgotten."""

import threading
import time
from dataclasses import replace

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostraka import files
from ostraka.client.api import DEFAULT_RESENDS
from ostraka.client.attesting import Question
from ostraka.client.connection import UNCONFIRMED
from ostraka.client.events import AlreadySent, Confirmed, RollbackProved
from ostraka.client.memory import Memory, MemoryFile, RollbackProof, Sent
from ostraka.client.upload import WITHOUT
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED, decode, digest, encode, pack
from ostraka.errors import (
    AttestationRefused,
    OpenError,
    ReceiptRefused,
    Refusal,
    RolledBack,
    ServiceError,
    StateError,
)
from ostraka.messages import Proposal
from ostraka.protocol.client import Voted
from ostraka.transport import ostraka_pb2 as wire

pytestmark = pytest.mark.slow  # in make test, not in make check

D = 17
ID, OTHER = b"i" * 32, b"o" * 32
UPDATE = np.linspace(-1, 1, D).astype(np.float32)
MALLORY = Identity(b"\x66" * 32)
DENIED = (grpc.StatusCode.PERMISSION_DENIED, "die")


def voted(file):
    stored = file.load()
    assert stored is not None
    return stored.voted


def waits(service, *voters, value=0.0):
    """An outcome of the open round that these have confirmed, and alice has not."""
    service.fill(value)
    return service.propose(*voters)


# On the way of each call.


def test_a_certificate_that_is_too_long_for_an_answer_is_read_from_the_chain(
    alice, service, monkeypatch
):
    honest = service._outcome

    def outcome(request):
        reply = honest(request)
        long = reply.WhichOneof("outcome") == "certified"
        return wire.OutcomeReply(published=wire.Published()) if long else reply

    monkeypatch.setattr(service, "_outcome", outcome)
    for _ in range(2):
        alice.fetch()
        assert alice.submit(UPDATE).accepted


def test_an_outcome_is_confirmed_on_the_way_to_its_receipt(alice, service, kept, told):
    alice.fetch()
    assert alice.submit(UPDATE).accepted
    (confirmation,) = service.confirmations
    certificate = service.certified[0].certificate
    assert confirmation.proposal == digest(certificate.proposal)
    assert "alice" in {each.voter for each in certificate.votes}
    assert voted(kept) == Voted(1, certificate.proposal)
    assert told.count(Confirmed(1)) == 1


def shown_as(change):
    """Change what is said of alice's upload, and leave the proposal as it was signed."""

    def lie(outcome):
        if outcome.WhichOneof("outcome") == "proposed":
            change(outcome.proposed)
        return outcome

    return lie


UNPROVED = {
    "out": lambda proposed: proposed.ClearField("included"),
    "in, without a path": lambda proposed: proposed.ClearField("path"),
    "in, by another's path": lambda proposed: proposed.path.__setitem__(0, bytes(32)),
}


@pytest.mark.parametrize("what", UNPROVED)
def test_an_update_counts_only_if_the_proposal_proves_it(what, alice, service):
    alice.fetch()
    service.lies["AwaitOutcome"] = shown_as(UNPROVED[what])
    outcome = alice.submit(UPDATE)
    assert (outcome.accepted, outcome.reason) == (False, WITHOUT)
    assert outcome.receipt == service.head


def test_an_earlier_upload_of_the_client_counts_as_its_own(alice, service, when):
    """The proposal has another leaf than that of what alice sends now."""
    alice.fetch()
    service.auto = False
    service.failures["Upload"] = [(grpc.StatusCode.ALREADY_EXISTS, "complete")]
    when(lambda: "AwaitOutcome" in service.calls, lambda: waits(service, "bob", "carol"))
    assert alice.submit(UPDATE).accepted


def test_a_vote_that_is_shown_again_asks_with_another_nonce(alice, service, monkeypatch):
    """Evidence that was made for the first try must not do for one that comes much later."""
    alice.fetch()
    nonces = []
    request = Question.request

    def noted(question):
        nonces.append(question.nonce)
        return request(question)

    monkeypatch.setattr(Question, "request", noted)
    service.failures["Confirm"] = [(grpc.StatusCode.UNAVAILABLE, "away")] * 2
    assert alice.submit(UPDATE).accepted
    assert len(set(nonces)) == len(nonces) == 3
    alice.fetch()


def test_the_vote_is_on_the_disk_before_it_is_shown(alice, service, kept):
    seen = []
    service.watch["Confirm"] = lambda: seen.append(voted(kept))
    alice.fetch()
    alice.submit(UPDATE)
    assert seen == [Voted(1, service.certified[0].certificate.proposal)]


def test_a_vote_that_cannot_be_written_down_is_not_shown(alice, service, kept, monkeypatch):
    alice.fetch()
    waits(service, "bob", "carol")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files, "write", full)
        patched.setattr(files, "append", full)
        with pytest.raises(StateError, match="No space left"):
            alice.fetch()
    assert service.confirmations == []
    assert voted(kept) is None
    assert alice.fetch().round == 2
    assert len(service.confirmations) == 1


def test_what_waits_is_confirmed_before_a_round_is_joined(alice, service, told):
    alice.fetch()
    waits(service, "bob", "carol")
    assert alice.fetch().round == 2
    assert told.count(Confirmed(1)) == 1
    assert [each.number for each in service.confirmations] == [1]


def test_a_newcomer_confirms_what_waits_once_the_enclave_has_proved_its_key(connect, service, kept):
    service.publish()
    proposal = waits(service, "bob", "carol")
    with connect() as client:
        assert client.fetch().round == 3
    assert "Prove" in service.calls
    assert voted(kept) == Voted(2, proposal)


def test_no_vote_is_given_to_an_enclave_that_has_not_proved_its_key(connect, service, kept):
    waits(service, "bob", "carol")

    def another_key(reply):
        return wire.ProveReply(receipt_key=MALLORY.public, evidence=reply.evidence)

    service.lies["Prove"] = another_key
    with connect() as client, pytest.raises(AttestationRefused, match=Refusal.BINDING):
        client.fetch()
    assert service.confirmations == []
    assert kept.load() is None


FORGED = {
    "that another has signed": (MALLORY.sign, OpenError),
    "with another outcome": (lambda true: replace(true, outcome=b"x" * 32), OpenError),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_proposal_is_not_confirmed(what, alice, service, kept):
    forge, error = FORGED[what]
    alice.fetch()
    true = waits(service)

    def lie(honest):
        if honest.WhichOneof("outcome") != "proposed":
            return honest
        return wire.OutcomeReply(proposed=wire.Proposed(proposal=encode(forge(true))))

    service.lies["AwaitOutcome"] = lie
    with pytest.raises(error):
        alice.fetch()
    assert service.confirmations == []
    assert voted(kept) is None
    service.lies.clear()
    service.vote("bob")
    service.vote("carol")
    assert alice.fetch().round == 2


def test_a_proposal_of_another_chain_is_not_confirmed(alice, service, kept):
    """The enclave was set back behind alice, and proposes what does not follow her receipt."""
    first = service.links[:1], service.state
    service.publish()
    assert alice.fetch().round == 2
    held = list(service.links)
    service.back(*first)
    service.publish(value=1.0)
    waits(service, "bob", "carol")
    service.lies["GetChain"] = lambda _: held
    with pytest.raises(ReceiptRefused, match="does not continue the chain"):
        alice.fetch()
    assert service.confirmations == []
    assert voted(kept) is None


def test_a_service_that_has_ended_in_between_is_shown_the_same_vote_again(alice, service, kept):
    """It has lost its ballot for a moment, and says that there is nothing to confirm."""
    alice.fetch()
    proposal = waits(service, "bob", "carol")
    service.failures["Confirm"] = [DENIED, DENIED, (grpc.StatusCode.UNAVAILABLE, "stopping")]
    assert alice.fetch().round == 2
    assert {each.proposal for each in service.confirmations} == {digest(proposal)}
    assert service.calls.count("Confirm") == 4


def test_a_vote_outlives_the_process_that_gave_it(connect, service, kept):
    """Its enclave forgets all votes when it restarts."""
    proposal = waits(service)
    with connect(timeout=2) as client, pytest.raises(ServiceError):
        client.fetch()
    first = service.confirmations[0]
    service.restart()
    service.vote("bob")
    service.vote("carol")
    with connect() as client:
        assert client.fetch().round == 2
    assert set(service.confirmations) == {first}
    assert voted(kept) == Voted(1, proposal)


# Two proposals of one number.


@pytest.fixture
def split(connect, service):
    """Alice has confirmed a proposal of round 1, and the enclave was set back behind that."""
    before = service.links[:1], service.state
    first = waits(service)
    with connect(timeout=2) as client, pytest.raises(ServiceError):
        client.fetch()
    assert len(service.confirmations) == 1
    service.back(*before)
    return first


def test_another_proposal_is_answered_with_the_first(split, connect, service, kept, told):
    other = waits(service, "bob", value=3.0)
    assert other != split
    with connect(timeout=2) as client, pytest.raises(ServiceError):
        client.fetch()
    assert {each.proposal for each in service.confirmations} == {digest(split)}
    assert service.reminders == [split]
    (proof,) = kept.path.parent.glob("alice.*.rolled-back-1-*")
    assert decode(RollbackProof, proof.read_bytes()) == RollbackProof(split)
    assert told.count(RollbackProved(proof)) == 1
    assert voted(kept) == Voted(1, split)


def test_what_enough_others_have_confirmed_is_followed_all_the_same(split, connect, service, kept):
    """Their memories may be lost: alice's is not, and the number is settled."""
    waits(service, "bob", value=3.0)
    service.release()
    with connect() as client:
        assert client.fetch().round == 2
    assert kept.load().last == service.head
    assert {each.proposal for each in service.confirmations} == {digest(split)}
    # Two proposals of one number prove the copy, and the proof is kept.
    assert list(kept.path.parent.glob("alice.*.rolled-back-1-*"))


def test_a_round_of_a_number_that_was_confirmed_is_not_joined(split, connect, service, sealed):
    """An enclave that was set back opens the round again, as if there had been no proposal."""
    with connect() as client, pytest.raises(RolledBack) as caught:
        client.fetch()
    assert caught.value.proof == split
    assert service.reminders == [split]
    assert service.forgotten == split  # The enclave knows now.
    assert sealed == []


def test_an_enclave_that_knows_that_it_was_set_back_says_so_with_the_proof(
    split, connect, service, folder, sealed
):
    """Bob has shown it what it signed; carol hears of that, who has not voted."""
    service.forgotten = split
    with connect("carol") as carol, pytest.raises(RolledBack) as caught:
        carol.fetch()
    assert caught.value.proof == split
    (proof,) = folder.glob("carol.*.rolled-back-1-*")
    assert decode(RollbackProof, proof.read_bytes()) == RollbackProof(split)
    assert str(proof) in caught.value.__notes__[0]
    assert sealed == []


def test_an_enclave_that_is_set_back_while_a_client_waits_says_so(alice, service, kept, when):
    alice.fetch()
    service.auto = False
    shown = Proposal(ID, 1, b"p" * 32, b"o" * 32, b"c" * 32, UNSIGNED)
    signed = service.identity.sign(shown)

    def forget():
        with service.moved:
            service.forgotten = signed
            service.moved.notify_all()

    when(lambda: "AwaitOutcome" in service.calls, forget)
    with pytest.raises(RolledBack):
        alice.submit(UPDATE)
    assert list(kept.path.parent.glob("alice.*.rolled-back-1-*"))


def test_a_host_cannot_invent_a_rollback(alice, service, folder):
    alice.fetch()
    waits(service, "bob", "carol")
    true = service.ballot.proposal
    for forged in (MALLORY.sign(replace(true, number=9)), replace(true, outcome=bytes(32))):
        service.lies["AwaitOutcome"] = lambda _, shown=forged: wire.OutcomeReply(
            rolled_back=encode(shown)
        )
        with pytest.raises(OpenError):
            alice.fetch()
    assert not list(folder.glob("alice.*.rolled-back*"))
    service.lies.clear()
    assert alice.fetch().round == 2


def test_an_old_proposal_of_the_chain_is_no_proof_of_a_rollback(alice, service, folder):
    alice.fetch()
    waits(service)
    old = service.ballot.proposal
    service.vote("bob")
    service.vote("carol")
    alice.fetch()
    service.auto = False
    service.failures["Introduce"] = [(grpc.StatusCode.FAILED_PRECONDITION, UNCONFIRMED)]
    service.lies["AwaitOutcome"] = lambda _: wire.OutcomeReply(rolled_back=encode(old))
    with pytest.raises(ReceiptRefused, match="cannot prove it"):
        alice.fetch()
    assert not list(folder.glob("alice.*.rolled-back*"))


def test_a_client_that_has_voted_and_lost_its_memory_does_not_vote_again(connect, service, kept):
    waits(service)
    with connect(timeout=2) as client, pytest.raises(ServiceError):
        client.fetch()
    assert len(service.confirmations) == 1
    kept.path.unlink()
    with pytest.raises(StateError, match="this client has voted"):
        connect()


def test_an_older_copy_of_the_memory_is_noticed(connect, service, kept):
    waits(service)
    with connect(timeout=2) as client, pytest.raises(ServiceError):
        client.fetch()
    stored = kept.load()
    assert stored is not None
    kept.path.write_bytes(encode(replace(stored, voted=None)))
    with pytest.raises(StateError, match="older copy"):
        connect()
    kept.path.write_bytes(encode(stored))
    assert kept.load() == stored
    kept.path.with_name(kept.path.name + ".voted").write_bytes(b"rubbish")
    with pytest.raises(StateError, match="cannot be read"):
        connect()


def test_two_processes_do_not_follow_two_enclaves(kept, charter):
    memory = Memory("alice", charter(), charter().federation, b"e" * 32)
    kept.save(memory)
    with pytest.raises(ReceiptRefused, match="another enclave"):
        kept.save(replace(memory, receipt_key=b"o" * 32))
    assert kept.load() == memory


# How often, and to which rounds, an update goes.


def die_after_sending(connect, service, **options):
    """A process of alice that has sent its update, and knows nothing of its outcome."""
    service.failures["AwaitOutcome"] = [DENIED]
    with connect(**options) as client:
        client.fetch()
        with pytest.raises(ServiceError, match="die"):
            client.submit(UPDATE)


def test_resends_are_counted_over_processes(connect, service, sealed):
    service.auto = False
    for _ in range(1 + DEFAULT_RESENDS):
        die_after_sending(connect, service)
        service.restart()
    assert len(sealed) == 9
    with connect() as client:
        client.fetch()
        with pytest.raises(ServiceError, match="sent 9 times: ask the operator"):
            client.submit(UPDATE)
    assert len(sealed) == 9
    service.publish()  # Others go on, and the next number begins anew.
    service.auto = True
    with connect() as client:
        assert client.fetch().round == 2
        assert client.submit(UPDATE).accepted


def test_the_same_opening_is_counted_once(connect, service, told):
    service.auto = False
    for _ in range(3):
        die_after_sending(connect, service, resends=0)
    assert AlreadySent(1) in told
    service.restart()
    with connect(resends=0) as client:
        client.fetch()
        with pytest.raises(ServiceError, match="sent 1 times"):
            client.submit(UPDATE)


def test_it_is_counted_before_anything_is_sealed(alice, service, kept, sealed, monkeypatch):
    alice.fetch()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files, "write", full)
        patched.setattr(files, "append", full)
        with pytest.raises(StateError, match="No space left"):
            alice.submit(UPDATE)
    assert sealed == []
    assert service.arrived == []
    alice.submit(UPDATE)
    assert kept.load().sent == Sent(1, (sealed[0].header.round_id,))


def confirmed_by_nobody(charter, **changes):
    terms = replace(charter().federation.terms, confirm="none")
    return charter(terms=terms, **changes)


def test_where_nobody_confirms_an_update_goes_to_one_opening_only(
    connect, service, charter, sealed
):
    service.back([confirmed_by_nobody(charter)], service.state)
    service.auto = False
    die_after_sending(connect, service)
    service.restart()
    with connect() as client:
        client.fetch()
        with pytest.raises(ServiceError, match="sent 1 times"):
            client.submit(UPDATE)
    assert len(sealed) == 1


@pytest.mark.parametrize("confirmed", [True, False])
def test_the_terms_of_this_round_and_of_the_one_before_must_ask_somebody(
    connect, service, charter, sealed, confirmed
):
    """Who confirms this number is said by the receipt before; who the next, by this one."""
    service.publish()
    if not confirmed:
        service.adopt(confirmed_by_nobody(charter, revision=2))
    service.auto = False
    die_after_sending(connect, service)
    service.restart()
    if confirmed:
        die_after_sending(connect, service)
        return
    with connect() as client:
        client.fetch()
        with pytest.raises(ServiceError, match="sent 1 times"):
            client.submit(UPDATE)
    assert len(sealed) == 1


def test_an_update_never_goes_to_another_number(alice, service, sealed):
    alice.fetch()
    service.auto = False
    service.failures["AwaitOutcome"] = [DENIED]
    with pytest.raises(ServiceError, match="die"):
        alice.submit(UPDATE)
    service.restart()
    service.publish()
    service.publish()
    outcome = alice.submit(UPDATE)
    assert (outcome.round, outcome.accepted) == (1, False)
    sent = {each.header.round_id for each in sealed}
    assert len(sent) == 1
    assert {each[0].round_id for each in service.arrived} == sent


def test_nothing_is_sent_for_a_number_before_the_last_one():
    sent = Sent().and_to(3, b"r" * 32).and_to(3, b"s" * 32)
    assert sent == Sent(3, (b"r" * 32, b"s" * 32))
    assert sent.and_to(3, b"r" * 32) == sent
    assert sent.and_to(4, b"t" * 32) == Sent(4, (b"t" * 32,))
    with pytest.raises(ReceiptRefused, match="round 3 already"):
        sent.and_to(2, b"t" * 32)


# The memory itself.


@pytest.fixture
def memory(charter):
    return Memory("alice", charter(), charter().federation, b"e" * 32)


@pytest.fixture
def file(tmp_path):
    return MemoryFile(tmp_path / "alice.memory", "alice")


def proposal(number, mark=b"o"):
    return Proposal(ID, number, b"p" * 32, mark * 32, b"c" * 32, bytes(64))


def test_a_vote_never_goes_back(file, memory):
    ahead = replace(memory, voted=Voted(5, proposal(5)))
    file.save(ahead)
    for behind in (
        memory,
        replace(memory, voted=Voted(4, proposal(4))),
        replace(memory, voted=Voted(4, None)),
        replace(memory, voted=Voted(5, proposal(5, b"x"))),
        replace(memory, voted=Voted(5, None)),
    ):
        assert file.save(behind).voted == ahead.voted
        assert file.load().voted == ahead.voted


votes = st.none() | st.builds(
    lambda number, none: Voted(number, None if none else proposal(number)),
    st.integers(1, 5),
    st.booleans(),
)
sents = st.builds(
    lambda number, count: Sent(number, tuple(bytes([at]) * 32 for at in range(count))),
    st.integers(1, 5),
    st.integers(1, 3),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(votes, sents), min_size=2, max_size=5))
def test_two_memories_know_together_what_each_of_them_knew(charter, known):
    each = [
        Memory("alice", charter(), charter().federation, b"e" * 32, voted=vote, sent=sent)
        for vote, sent in known
    ]
    merged = each[0]
    for other in each[1:]:
        merged = merged.newer(other)
    highest = max((vote.number for vote, _ in known if vote), default=None)
    assert (merged.voted.number if merged.voted else None) == highest
    # The first to be stored stays: it is the one that may have been shown.
    first = next((vote for vote, _ in known if vote and vote.number == highest), None)
    assert merged.voted == first
    assert merged.sent.progress == max(sent.progress for _, sent in known)


def test_two_processes_that_vote_at_the_same_time_give_one_vote(service, memory, kept, monkeypatch):
    """Each has been shown another proposal of the same number, and both are signed."""
    alice = Identity(bytes([1]) * 32)
    start = replace(memory, receipt_key=service.identity.public)
    kept.save(start)
    previous = service.intake.offer.previous
    shown = [
        service.identity.sign(replace(proposal(1, mark), previous=previous))
        for mark in (b"x", b"y")
    ]
    look = MemoryFile.load

    def slow(self):
        seen = look(self)
        time.sleep(0.2)
        return seen

    monkeypatch.setattr(MemoryFile, "load", slow)
    given_votes: list[Proposal] = []
    refused: list[RolledBack] = []

    def vote(one):
        def change(stored):
            role = stored.role(alice).vote(one)
            return Memory.of(role, stored.charter, stored.sent)

        try:
            given_votes.append(kept.change(change).voted.proposal)
        except RolledBack as other:
            refused.append(other)

    threads = [threading.Thread(target=vote, args=(one,)) for one in shown]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    monkeypatch.setattr(MemoryFile, "load", look)
    (winner,) = given_votes
    assert refused[0].proof == winner
    assert voted(kept) == Voted(1, winner)


def test_two_clients_with_one_memory_confirm_one_proposal(connect, service, kept):
    waits(service)
    clients = [connect(timeout=3) for _ in range(3)]

    def fetch(client):
        with client, pytest.raises(ServiceError):
            client.fetch()

    threads = [threading.Thread(target=fetch, args=(client,)) for client in clients]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(service.confirmations)) == 1


@pytest.mark.usefixtures("service")
def test_one_key_in_two_federations_has_two_memories(connect, serve, charter, folder, other_policy):
    """The same authority, and the same enclave's key, as far as a client could tell."""
    other = serve()
    other.service.back([charter(id=OTHER)], other.service.state)
    policy = other_policy(id=OTHER.hex())
    for number in (1, 2):
        with connect() as here, connect(address=other.address, policy=policy) as there:
            for client in (here, there):
                assert client.fetch().round == number
                assert client.submit(UPDATE).accepted
    names = sorted(each.name for each in folder.glob("alice.*.memory"))
    assert names == [f"alice.{each.hex()[:16]}.memory" for each in (ID, OTHER)]
    for each in (ID, OTHER):
        file = MemoryFile(folder / f"alice.{each.hex()[:16]}.memory", "alice", each)
        vote = voted(file)
        assert vote is not None
        assert vote.number == 2
        assert vote.proposal is not None
        assert vote.proposal.federation == each


def test_the_memory_of_another_federation_is_named(connect, service, folder, other_policy):
    with connect(memory=folder / "shared") as client:
        client.fetch()
    words = rf"shared: is the memory of the federation {ID.hex()}.*names {OTHER.hex()}"
    with pytest.raises(StateError, match=words):
        connect(memory=folder / "shared", policy=other_policy(id=OTHER.hex()))


def test_a_charter_of_another_federation_of_the_same_authority_is_refused(
    alice, service, charter, sealed
):
    service.back([charter(id=OTHER)], service.state)
    with pytest.raises(AttestationRefused, match=Refusal.FEDERATION):
        alice.fetch()
    assert sealed == []


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_memory_of_an_older_version_is_named(file, version):
    file.path.write_bytes(pack(f"ostraka/client-memory/v{version}".encode(), b"whatever"))
    with pytest.raises(StateError, match="a memory of an older version"):
        file.load()

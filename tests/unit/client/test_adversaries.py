"""Services that lie. Each lie ends in the right error, and nothing is sealed for a liar."""

import time
from dataclasses import replace

import grpc
import numpy as np
import pytest

from ostraka.attestation.simulation import UnsafeSimulatedPlatform
from ostraka.client import session
from ostraka.client.events import ForkProved, RollbackProved
from ostraka.client.memory import ForkProof, RollbackProof
from ostraka.config import Member
from ostraka.crypto.hpke import HybridKey
from ostraka.crypto.identity import Identity
from ostraka.encoding import decode, encode
from ostraka.errors import (
    AttestationRefused,
    Fork,
    MalformedMessage,
    OpenError,
    ReceiptRefused,
    Refusal,
    Rejection,
    RolledBack,
    ServiceError,
    UpdateRejected,
)
from ostraka.messages import Certified, Evidence, vector_digest
from ostraka.transport import LENGTH
from ostraka.transport import ostraka_pb2 as wire

pytestmark = pytest.mark.slow  # in make test, not in make check

D = 17
UPDATE = np.linspace(-1, 1, D).astype(np.float32)
MALLORY = Identity(b"\x66" * 32)
WORKER = Member("worker-1", Identity(b"\x77" * 32).public)


def swap(**changes):
    """An introduction with other fields in its offer, which nobody has signed."""
    return lambda honest: replace(honest, offer=replace(honest.offer, **changes))


def evidence(**changes):
    return lambda honest: replace(honest, evidence=replace(honest.evidence, **changes))


def lie(method, answer):
    return lambda service, charter: service.lies.update({method: answer})


def of_lengths(*lengths):
    """Slices of the model, as if it had so many values in each."""
    return lambda honest: [
        wire.ModelSlice(ticket=honest[0].ticket, length=length) for length in lengths
    ]


def be(**attributes):
    return lambda service, charter: become(service, attributes)


def become(service, attributes):
    for name, value in attributes.items():
        setattr(service, name, value)


def another_authority(service, charter):
    service.lies["GetCharter"] = lambda _: encode(charter(MALLORY, authority=MALLORY.public))


def forged_charter(service, charter):
    service.lies["GetCharter"] = lambda _: encode(charter(MALLORY))


def unpinned_worker(service, charter):
    service.adopt(charter(revision=2, workers=(WORKER,)))


def another_masking(service, charter):
    terms = replace(charter().federation.terms, masking="exact", distances="inside")
    service.adopt(charter(revision=2, terms=terms))


def plain_mean(service, charter):
    """The authority itself, or who has its key, takes the robust rule away."""
    terms = replace(charter().federation.terms, rule="mean", pre=())
    service.adopt(charter(revision=2, terms=terms))


def disclosed_values(service, charter):
    terms = replace(charter().federation.terms, disclose_values=True)
    service.adopt(charter(revision=2, terms=terms))


def another_federation(service, charter):
    """The enclave runs terms that the authority did sign, and shows the older ones."""
    service.adopt(charter(revision=2))
    service.lies["GetCharter"] = lambda _: encode(charter())


def replayed(service, charter):
    recorded = service.introduction(b"n" * 32)
    service.lies["Introduce"] = lambda _: recorded


# What a service does before there is a round to seal anything for, the error, and a word of it.
BEFORE = {
    "a federation of another authority": (another_authority, Refusal.AUTHORITY),
    "a charter that the authority did not sign": (forged_charter, Refusal.AUTHORITY),
    "a worker that the policy does not pin": (unpinned_worker, Refusal.WORKERS),
    "a masking that the policy does not allow": (another_masking, Refusal.MASKING),
    "a rule that the policy does not list": (plain_mean, Refusal.RULE),
    "values of single clients that the policy does not allow": (
        disclosed_values,
        Refusal.DISCLOSURE,
    ),
    "evidence for other terms than those shown": (another_federation, Refusal.BINDING),
    "evidence that was recorded for another challenge": (replayed, Refusal.BINDING),
    "evidence for another round key": (
        lie("Introduce", swap(key=HybridKey().public)),
        Refusal.BINDING,
    ),
    "evidence for another receipt key": (
        lie("Introduce", lambda honest: replace(honest, receipt_key=MALLORY.public)),
        Refusal.BINDING,
    ),
    "code that the policy does not list": (be(code=b"x" * 32), Refusal.MEASUREMENT),
    "an enclave that can be debugged": (be(debug=True), Refusal.DEBUG),
    "a platform under another root": (
        be(platform=UnsafeSimulatedPlatform(b"\x08" * 32, issued=int(time.time()) - 60)),
        Refusal.ROOT,
    ),
    "evidence of a kind that the policy does not list": (
        lie("Introduce", evidence(kind="sgx")),
        Refusal.KIND,
    ),
    "evidence of no kind at all": (lie("Introduce", evidence(kind="trust me")), Refusal.KIND),
    "evidence that is noise": (lie("Introduce", evidence(document=b"\0" * 500)), Refusal.MALFORMED),
    "an offer of another round": (lie("Introduce", swap(number=7)), OpenError),
    "an offer that starts from another model": (lie("Introduce", swap(model=bytes(32))), OpenError),
    "an offer of another chain": (lie("Introduce", swap(previous=b"p" * 32)), OpenError),
    "an offer that somebody else signed": (
        lie("Introduce", lambda honest: replace(honest, offer=MALLORY.sign(honest.offer))),
        OpenError,
    ),
    "noise for a charter": (lie("GetCharter", lambda _: b"\xff" * 99), MalformedMessage),
    "noise for an introduction": (lie("Introduce", lambda _: b"\xff" * 99), MalformedMessage),
    "nothing for an introduction": (lie("Introduce", lambda _: b""), MalformedMessage),
    "a model with one bit changed": (
        lie("GetModel", lambda raw: bytes([raw[0] ^ 1]) + raw[1:]),
        ReceiptRefused,
    ),
    "a model that is too short": (lie("Slices", of_lengths(D - 1)), ReceiptRefused),
    "a model that is too long": (lie("Slices", of_lengths(2**62)), ReceiptRefused),
    "a model in too many slices": (lie("Slices", of_lengths(1, D - 1)), ReceiptRefused),
    "no model": (lie("Slices", of_lengths()), ReceiptRefused),
    "a model without a ticket": (
        lie("Slices", lambda _: [wire.ModelSlice(length=D)]),
        ReceiptRefused,
    ),
}


def expected(error):
    if isinstance(error, Refusal):
        return pytest.raises(AttestationRefused, match=str(error))
    return pytest.raises(error)


@pytest.mark.parametrize("sentence", BEFORE)
def test_nothing_is_sealed_for_a_liar(sentence, connect, service, charter, sealed):
    behave, error = BEFORE[sentence]
    behave(service, charter)
    with connect() as client:
        with expected(error):
            client.fetch()
        assert sealed == []
        assert service.arrived == []


@pytest.mark.parametrize("method", ["Introduce", "GetCharter", "GetModel"])
def test_a_lie_leaves_no_trace(method, alice, service):
    honest = {"GetModel": lambda raw: raw[4:] + raw[:4]}
    service.lies[method] = honest.get(method, lambda _: b"noise")
    with pytest.raises((MalformedMessage, ReceiptRefused)):
        alice.fetch()
    service.lies.clear()
    assert alice.fetch().round == 1
    assert alice.submit(UPDATE).accepted


@pytest.mark.parametrize("lost", [1, 4, 4 * D])
def test_a_model_that_ends_early_is_asked_for_again(lost, alice, connect, service):
    """What is not here cannot be told from a connection that broke."""
    service.lies["GetModel"] = lambda raw: raw[:-lost]
    with connect(timeout=1) as hasty, pytest.raises(ServiceError, match="has not served"):
        hasty.fetch()
    assert service.calls.count("GetModel") > 1
    service.lies.clear()
    assert alice.fetch().round == 1


def test_what_follows_a_model_is_not_read(alice, service):
    service.lies["GetModel"] = lambda raw: raw + bytes(2**20)
    np.testing.assert_array_equal(alice.fetch().vector, service.state.model)


@pytest.mark.parametrize(
    "model", [b"", b"x", bytes(4 * D), b"\xff" * (4 * D)], ids=["none", "short", "zeros", "noise"]
)
def test_a_model_that_comes_with_a_vote_is_taken_only_if_it_is_the_promised_one(
    model, alice, service
):
    def swapped(reply):
        reply.model = model
        return reply

    alice.fetch()
    service.lies["Confirm"] = swapped
    service.calls.clear()
    assert alice.submit(UPDATE).accepted
    assert "GetModel" in service.calls
    np.testing.assert_array_equal(alice.fetch().vector, service.state.model)


def test_the_next_round_comes_with_the_answer_to_a_vote(alice, service):
    service.introduces_next = True
    alice.fetch()
    for number in (2, 3):
        service.calls.clear()
        assert alice.submit(UPDATE).accepted
        assert alice.fetch().round == number
        assert "Introduce" not in service.calls


@pytest.mark.parametrize(
    "answer",
    [
        lambda reply: reply.introduced.ClearField("introduction"),
        lambda reply: setattr(reply.introduced, "introduction", b"noise"),
    ],
)
def test_a_next_round_that_does_not_come_is_asked_for(answer, alice, service):
    def spoilt(reply):
        answer(reply)
        return reply

    service.introduces_next = True
    service.lies["Confirm"] = spoilt
    alice.fetch()
    service.calls.clear()
    assert alice.submit(UPDATE).accepted
    assert alice.fetch().round == 2
    assert "Introduce" in service.calls


def test_a_next_round_of_a_while_ago_is_asked_for_again(alice, service, monkeypatch):
    monkeypatch.setattr(session, "_FRESH_S", 0)
    service.introduces_next = True
    alice.fetch()
    service.calls.clear()
    assert alice.submit(UPDATE).accepted
    assert alice.fetch().round == 2
    assert "Introduce" in service.calls


def test_an_old_introduction_with_a_vote_proves_nothing(alice, service, sealed):
    service.introduces_next = True
    model, kept = alice.fetch(), []

    def replayed(reply):
        kept.append(reply.introduced.introduction)
        reply.introduced.introduction = kept[0]
        return reply

    service.lies["Confirm"] = replayed
    assert alice.submit(UPDATE).accepted
    assert alice.fetch().round == model.round + 1
    assert alice.submit(UPDATE).accepted
    before = len(sealed)
    with pytest.raises(AttestationRefused, match=r"another challenge|report data|not about"):
        alice.fetch()
    assert len(sealed) == before


def test_simulated_evidence_needs_the_caller_s_word(connect, service, sealed):
    with (
        connect(unsafe_simulation=False) as client,
        pytest.raises(AttestationRefused, match="the caller did not ask for it"),
    ):
        client.fetch()
    assert sealed == []


def test_after_the_first_round_another_enclave_is_refused_whatever_it_proves(
    alice, service, sealed
):
    """Listed code, the right terms, true evidence; but it is not the one that was followed."""
    alice.fetch()
    service.identity = MALLORY
    service.restart()
    with pytest.raises(ReceiptRefused, match=r"another key.*newest state.*abandon"):
        alice.fetch()
    assert sealed == []


# What a service shows of its chain to a client that holds the receipt of round 2.
def cut(links):
    return [each for each in links if not isinstance(each, Certified)]


def without_third(links):
    """Round 3 is left out, and round 4 shown."""
    return [each for each in links if not (isinstance(each, Certified) and number(each) == 3)]


def number(certified):
    return certified.receipt.number


def changed(**fields):
    return in_receipts(lambda receipt: replace(receipt, **fields))


def in_receipts(change):
    return in_links(lambda each: replace(each, receipt=change(each.receipt)))


def in_links(change):
    return lambda links: [change(each) if isinstance(each, Certified) else each for each in links]


def in_votes(change):
    """Other votes in every certificate."""

    def each(certified):
        votes = change(certified.certificate.votes)
        return replace(certified, certificate=replace(certified.certificate, votes=votes))

    return in_links(each)


def shorter(links):
    return [each for each in links if isinstance(each, Certified) and number(each) > 3]


CHAINS = {
    "a chain without the receipt that is held": (cut, RolledBack),
    "a chain with a gap": (without_third, ReceiptRefused),
    "a chain that begins too late": (shorter, ReceiptRefused),
    "receipts with another model": (changed(model=bytes(32)), OpenError),
    "receipts that hide who was rejected": (changed(participants=9), OpenError),
    "noise for a receipt": (lambda links: [b"\xff" * 99], MalformedMessage),
    "a link of no kind": (lambda links: [None], MalformedMessage),
    "receipts that somebody else signed": (in_receipts(MALLORY.sign), OpenError),
    "older receipts once more": (lambda links: [*links, *links], ReceiptRefused),
    "no certificate": (in_links(lambda each: replace(each, certificate=None)), ReceiptRefused),
    "a vote too few": (in_votes(lambda votes: votes[1:]), ReceiptRefused),
    "a client counted twice": (in_votes(lambda votes: (*votes[1:], votes[-1])), ReceiptRefused),
    "a vote in another's name": (
        in_votes(lambda votes: (replace(votes[-1], voter="alice"), *votes[:-1])),
        OpenError,
    ),
    "a vote of a stranger": (
        in_votes(lambda votes: (replace(votes[0], voter="mallory"), *votes[1:])),
        ReceiptRefused,
    ),
}


def test_a_charter_of_the_past_is_the_authority_s_too(alice, service, charter):
    alice.fetch()
    alice.submit(UPDATE)
    service.publish()
    service.lies["GetChain"] = lambda links: [*links, charter(MALLORY, revision=2)]
    with pytest.raises(AttestationRefused, match=Refusal.AUTHORITY):
        alice.fetch()


def test_workers_of_the_past_need_no_pin(alice, service, charter):
    """They were replaced, and get no share of this client's."""
    alice.fetch()
    alice.submit(UPDATE)
    service.adopt(charter(revision=2, workers=(WORKER,)))
    service.publish()
    with pytest.raises(AttestationRefused, match="does not pin"):
        alice.fetch()
    service.adopt(charter(revision=3))
    assert alice.fetch().round == 3


@pytest.mark.parametrize("sentence", CHAINS)
def test_a_chain_that_does_not_go_on_is_not_followed(sentence, alice, service, sealed):
    show, error = CHAINS[sentence]
    for _ in range(2):
        alice.fetch()
        alice.submit(UPDATE)
    service.publish()
    service.publish()
    sent = len(service.arrived), len(sealed)
    service.lies["GetChain"] = show
    with pytest.raises(error):
        alice.fetch()
    assert (len(service.arrived), len(sealed)) == sent
    service.lies.clear()
    assert alice.fetch().round == 5


def set_back(service, to):
    """The host restores old state: real keys, real evidence, a shorter chain."""
    kept = [
        each for each in service.links if not (isinstance(each, Certified) and number(each) > to)
    ]
    service.back(kept, service.past[to])


@pytest.fixture
def past(alice, service):
    """Two rounds with alice, and the states before them."""
    service.past = [service.state]
    for _ in range(2):
        alice.fetch()
        alice.submit(UPDATE)
        service.past.append(service.state)


@pytest.mark.parametrize("to", [0, 1])
@pytest.mark.usefixtures("past")
def test_an_enclave_that_was_set_back_is_refused_and_shown_what_it_signed(  # noqa: PLR0917
    to, alice, connect, service, sealed, kept, told
):
    before = len(sealed)
    confirmed = service.certified[1].certificate.proposal
    set_back(service, to)
    for who in (alice, connect()):
        with who, pytest.raises(RolledBack, match="bring back its newest state") as caught:
            who.fetch()
        assert caught.value.proof == confirmed
    (proof,) = kept.path.parent.glob("alice.*.rolled-back-2-*")
    assert decode(RollbackProof, proof.read_bytes()) == RollbackProof(confirmed)
    assert str(proof) in caught.value.__notes__[0]
    assert told.count(RollbackProved(proof)) == 2
    assert service.reminders == [confirmed] * 2
    assert len(sealed) == before


def test_a_client_without_a_vote_refuses_an_enclave_that_was_set_back_too(alice, service, folder):
    """It has only followed the chain, and can prove nothing."""
    alice.fetch()
    first = service.links[:1], service.state
    service.publish()
    alice.fetch()
    service.back(*first)
    with pytest.raises(ReceiptRefused, match=r"set back to an older state.*newest state") as caught:
        alice.fetch()
    assert not isinstance(caught.value, RolledBack)
    assert not list(folder.glob("alice.*.rolled-back*"))


def test_an_enclave_that_was_set_back_cannot_hide_behind_a_recorded_chain(
    past, alice, service, sealed
):
    recorded, before = list(service.links), len(sealed)
    set_back(service, 1)
    service.lies["GetChain"] = lambda _: recorded[-1:]
    with pytest.raises(ReceiptRefused, match="not newer"):
        alice.fetch()
    assert len(sealed) == before


def test_a_newcomer_is_not_shown_a_chain_that_is_ahead_of_its_enclave(connect, service, sealed):
    first = service.links[:1], service.state
    service.publish()
    recorded = list(service.links)
    service.back(*first)
    service.lies["GetChain"] = lambda _: recorded
    with connect() as client, pytest.raises(ReceiptRefused, match="not newer than round 1"):
        client.fetch()
    assert sealed == []


def test_two_receipts_for_one_round_are_a_fork_and_both_are_kept(
    past, alice, service, folder, told
):
    held = service.head
    set_back(service, 1)
    other = service.publish(value=5.0)
    assert (other.number, held.number) == (2, 2)
    with pytest.raises(Fork) as caught:
        alice.fetch()
    assert (caught.value.held, caught.value.other) == (held, other)
    (proof,) = folder.glob("alice.*.fork-2-*")
    assert decode(ForkProof, proof.read_bytes()) == ForkProof(held, other)
    assert str(proof) in caught.value.__notes__[0]
    assert ForkProved(proof) in told
    with pytest.raises(Fork):
        alice.fetch()
    assert len(list(folder.glob("alice.*.fork-*"))) == 1


def test_a_fork_is_proved_across_a_change_of_terms(past, alice, service, charter):
    alice.fetch()
    service.adopt(charter(revision=2))
    alice.fetch()  # agreed to revision 2, on top of the receipt of round 2
    set_back(service, 1)
    service.back([each for each in service.links if each != charter(revision=2)], service.state)
    service.publish(value=5.0)
    with pytest.raises(Fork):
        alice.fetch()


def test_a_host_cannot_frame_an_enclave_for_a_fork(past, alice, service, folder):
    last = service.certified[-1]
    forged = replace(last, receipt=MALLORY.sign(replace(last.receipt, model=bytes(32))))
    service.publish()
    service.lies["GetChain"] = lambda _: [forged]
    with pytest.raises(OpenError):
        alice.fetch()
    assert not list(folder.glob("alice.*.fork-*"))


def test_terms_that_were_replaced_do_not_return(alice, service, charter):
    service.adopt(charter(revision=3))
    alice.fetch()
    service.links = [charter(revision=2)]
    service.restart()
    with pytest.raises(ReceiptRefused, match=r"revision 2 .* not newer than"):
        alice.fetch()


def test_one_revision_has_one_content(alice, service, charter):
    alice.fetch()
    terms = replace(charter().federation.terms, clip_norm=5.0)
    service.links = [charter(terms=terms)]
    service.restart()
    with pytest.raises(ReceiptRefused, match="not newer"):
        alice.fetch()


# What a service does with an upload, or says of its outcome.
def outcome(**changes):
    """The true receipt with other fields, which nobody has signed."""

    def change(honest):
        if honest.WhichOneof("outcome") != "certified":
            return honest
        true = decode(Certified, honest.certified)
        return certified(replace(true, receipt=replace(true.receipt, **changes)))

    return change


def certified(shown):
    return wire.OutcomeReply(certified=encode(shown))


def granted(**lies):
    """A grant with other fields."""

    def change(honest):
        fields = {"next": honest.granted.next} | lies
        return wire.UploadReply(granted=wire.Granted(**fields))

    return change


AFTER = {
    "a receipt with another model": ("AwaitOutcome", outcome(model=bytes(32)), OpenError),
    "a receipt that rejects alice": ("AwaitOutcome", outcome(participants=1), OpenError),
    "a receipt of another round": ("AwaitOutcome", outcome(number=9), ReceiptRefused),
    "a receipt of a round id that was not offered": (
        "AwaitOutcome",
        outcome(round_id=b"i" * 32),
        OpenError,
    ),
    "noise for a receipt": (
        "AwaitOutcome",
        lambda _: wire.OutcomeReply(certified=b"noise"),
        MalformedMessage,
    ),
    "nothing for an outcome": ("AwaitOutcome", lambda _: wire.OutcomeReply(), MalformedMessage),
    "another model than the receipt says": (
        "GetModel",
        lambda raw: bytes(len(raw)),
        ReceiptRefused,
    ),
    "a request for a tile beyond the last": ("Granted", granted(next=6), MalformedMessage),
    "a request for no end of tiles": ("Granted", granted(next=2**64 - 1), MalformedMessage),
    "a grant of shards that there are not": (
        "Granted",
        granted(shards=[wire.ShardLane(address="a.example:1", ticket=b"t" * 32)] * 2),
        MalformedMessage,
    ),
    "completion instead of a grant": (
        "Granted",
        lambda _: wire.UploadReply(complete=wire.Complete()),
        MalformedMessage,
    ),
    "no answer to an upload": ("Granted", lambda _: wire.UploadReply(), MalformedMessage),
    "a second grant instead of completion": (
        "Complete",
        lambda _: wire.UploadReply(granted=wire.Granted(next=5)),
        MalformedMessage,
    ),
}


@pytest.mark.parametrize(
    "frame",
    [LENGTH.pack(2**32 - 1), LENGTH.pack(4) + b"\xff" * 4],
    ids=["too long", "noise"],
)
def test_an_upload_is_answered_with_answers(alice, service, frame):
    def upload(request, context):
        context.near.sendall(frame)
        yield from ()

    service.upload = upload
    alice.fetch()
    with pytest.raises(MalformedMessage, match="answered with"):
        alice.submit(UPDATE)


@pytest.mark.parametrize("sentence", AFTER)
def test_no_false_outcome_is_taken_for_true(sentence, alice, connect, service):
    method, answer, error = AFTER[sentence]
    alice.fetch()
    service.lies[method] = answer
    with pytest.raises(error):
        alice.submit(UPDATE)
    service.lies.clear()
    with connect() as again:
        assert again.fetch().round == len(service.receipts) + 1


def test_the_receipt_of_the_last_round_does_not_do_for_this_one(past, alice, service):
    old = service.certified[-1]
    alice.fetch()
    service.lies["AwaitOutcome"] = lambda _: certified(old)
    with pytest.raises(ReceiptRefused, match="asked for the receipt of round 3"):
        alice.submit(UPDATE)


def test_a_receipt_that_differs_from_the_chain_s_is_a_fork(alice, service, folder):
    """The enclave was set back during the round, and both of its lives published it."""
    alice.fetch()
    first = service.links[:1], service.state
    service.publish(value=1.0)
    one = service.certified[-1]
    service.back(*first)
    two = service.publish(value=2.0)
    service.lies["AwaitOutcome"] = lambda _: certified(one)
    with pytest.raises(Fork) as caught:
        alice.submit(UPDATE)
    assert {caught.value.held, caught.value.other} == {one.receipt, two}
    assert list(folder.glob("alice.*.fork-1-*"))


def void(service):
    service.lies["AwaitOutcome"] = lambda _: wire.OutcomeReply(void=wire.Void())


@pytest.mark.parametrize(
    ("change", "error"),
    [({"code": b"x" * 32}, "does not list this code"), ({"debug": True}, "can be debugged")],
)
def test_a_void_round_cannot_move_an_update_to_an_enclave_that_is_not_trusted(
    change, error, alice, service, sealed
):
    alice.fetch()
    service.auto = False
    void(service)
    become(service, change)
    service.restart()
    with pytest.raises(AttestationRefused, match=error):
        alice.submit(UPDATE)
    assert len(sealed) == 1


def test_a_void_round_cannot_move_an_update_to_another_model(alice, service, sealed):
    alice.fetch()
    service.restart()
    service.enclave._model = vector_digest(service.state.model + 1)
    service.intake = service.enclave.open_round()
    with pytest.raises(ReceiptRefused, match="the model that it must start from"):
        alice.submit(UPDATE)
    assert len(sealed) == 1


def test_a_newcomer_holds_the_receipt_before_the_round_that_it_joined(connect, service, folder):
    """The enclave is set back to its start, and lives through two other rounds."""
    first = service.links[:1], service.state
    one = service.publish()
    with connect() as client:
        assert client.fetch().round == 2
        service.back(*first)
        two = service.publish(value=1.0)
        service.publish(value=1.0)
        for _ in range(2):
            with pytest.raises(Fork) as caught:
                client.submit(UPDATE)
            assert (caught.value.held, caught.value.other) == (one, two)


def test_a_void_round_cannot_be_skipped_without_its_receipt(alice, service, sealed):
    alice.fetch()
    service.publish()
    void(service)
    service.lies["GetChain"] = lambda links: []
    with pytest.raises(ReceiptRefused, match="receipts 1 to 1 are missing"):
        alice.submit(UPDATE)
    assert len(sealed) == 1


def test_an_update_that_the_enclave_refuses_is_named_with_the_reason(alice, service):
    alice.fetch()
    service.failures["Upload"] = [
        (grpc.StatusCode.FAILED_PRECONDITION, str(Rejection.BAD_NORM)),
    ]
    with pytest.raises(UpdateRejected) as caught:
        alice.submit(UPDATE)
    assert (caught.value.client, caught.value.reason) == ("alice", Rejection.BAD_NORM)
    assert alice.submit(UPDATE).accepted


def test_what_a_service_says_cannot_play_with_the_terminal(alice, service):
    said = "\x1b[2J\x07pay here" + "x" * 1000
    service.failures["Introduce"] = [(grpc.StatusCode.PERMISSION_DENIED, said)]
    with pytest.raises(ServiceError, match="pay here") as caught:
        alice.fetch()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_the_evidence_is_asked_for_with_a_new_nonce_each_time(alice, service):
    nonces: list[bytes] = []
    honest = service.introduction

    def note(nonce):
        nonces.append(nonce)
        return honest(nonce)

    service.introduction = note
    alice.fetch()
    service.failures["Introduce"] = [(grpc.StatusCode.UNAVAILABLE, "no round is open yet")]
    alice.fetch()
    service.restart()
    alice.submit(UPDATE)
    assert len(set(nonces)) == len(nonces) == 3


def test_collateral_is_not_loaded_for_evidence_that_is_refused_anyway(alice, service, folder):
    (folder / "collateral.json").unlink()
    service.lies["Introduce"] = lambda honest: replace(
        honest, evidence=Evidence("sgx", b"quote", ())
    )
    with pytest.raises(AttestationRefused, match=Refusal.KIND):
        alice.fetch()

"""The state of an enclave is lost. What its clients say proves what was not released."""

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from ostraka.attestation.policy import FederationPolicy, Policy
from ostraka.cli import app
from ostraka.client import abandoning
from ostraka.client.memory import Memory, MemoryFile
from ostraka.client.voting import Record
from ostraka.config import Member
from ostraka.crypto.identity import Identity
from ostraka.encoding import decode, digest, encode
from ostraka.errors import (
    AttestationRefused,
    ConfigError,
    OpenError,
    ReceiptRefused,
    RolledBack,
    StateError,
)
from ostraka.messages import NO_PROPOSAL
from ostraka.protocol.client import Voted
from ostraka.protocol.confirm import confirm

D = 17
ID = b"i" * 32
NAMES = ("alice", "bob", "carol", "dave")
PEOPLE = {name: Identity(bytes([at]) * 32) for at, name in enumerate(NAMES, 1)}
AUTHORITY, HEIR, MALLORY = Identity(b"a" * 32), Identity(b"h" * 32), Identity(b"m" * 32)
POLICY = Policy(federation=FederationPolicy(AUTHORITY.public, ID))


@pytest.fixture
def memories(folder, service, charter):
    """Four clients that hold the receipt of round 1."""
    made = {}
    service.publish()
    for name in NAMES:
        file = MemoryFile(folder / f"{name}.{ID.hex()[:16]}.memory", name, ID)
        federation = charter().federation
        memory = Memory(name, charter(), federation, service.identity.public, (service.head,))
        file.save(memory)
        made[name] = file
    return made


def told_by(memories, *names):
    return [abandoning.give_testimony(memories[name], PEOPLE[name]) for name in names]


def vote(memories, service, name, value=0.0):
    """Have a client confirm what the enclave proposes in round 2."""
    if service.pending is None:
        service.fill(value)
        service.propose()
    proposal = service.ballot.proposal

    def change(stored):
        role = stored.role(PEOPLE[name]).vote(proposal)
        return Memory.of(role, stored.charter, stored.sent)

    memories[name].change(change)
    return proposal


def test_a_client_that_has_not_voted_never_will_for_that_number(memories, service, connect):
    (told,) = told_by(memories, "alice")
    assert (told.confirmation.number, told.confirmation.proposal) == (2, NO_PROPOSAL)
    assert memories["alice"].load().voted == Voted(2, None)
    service.fill()
    service.propose("bob", "carol")
    with connect() as alice, pytest.raises(ReceiptRefused, match="no vote left for round 2"):
        alice.fetch()
    assert service.confirmations == []


def test_it_joins_no_round_of_that_number_either(memories, connect, sealed):
    told_by(memories, "alice")
    with connect() as alice, pytest.raises(ReceiptRefused, match="confirms no outcome of 2"):
        alice.fetch()
    assert sealed == []


def test_a_client_that_has_voted_shows_its_vote(memories, service):
    proposal = vote(memories, service, "alice")
    for _ in range(2):
        (told,) = told_by(memories, "alice")
        assert told.confirmation.proposal == digest(proposal)
    assert memories["alice"].load().voted == Voted(2, proposal)
    assert decode(abandoning.Testimony, encode(told)) == told


def test_a_client_without_a_memory_has_nothing_to_say(folder):
    file = MemoryFile(folder / "nobody.memory", "alice", ID)
    with pytest.raises(StateError, match="taken part in nothing"):
        abandoning.give_testimony(file, PEOPLE["alice"])


# Who has confirmed, who says that it never will, and whether that proves it: 3 of 4 are a quorum.
TOLD = {
    "all say none": ((), NAMES, True),
    "two say none, and two are silent": ((), NAMES[:2], True),
    "one says none, and three are silent": ((), NAMES[:1], False),
    "one has confirmed, two say none, and one is silent": (NAMES[:1], NAMES[:3], True),
    "one has confirmed, one says none, and two are silent": (NAMES[:1], NAMES[:2], False),
    "two have confirmed, and two say none": (NAMES[:2], NAMES, True),
    "two have confirmed, one says none, and one is silent": (NAMES[:2], NAMES[:3], False),
    "three have confirmed": (NAMES[:3], NAMES, False),
}


@pytest.mark.parametrize("what", TOLD)
def test_what_testimonies_prove(what, memories, service, charter):
    confirmed, telling, proved = TOLD[what]
    for name in confirmed:
        vote(memories, service, name)
    told = told_by(memories, *telling)
    signed, is_proved = abandoning.abandon(charter(), told, AUTHORITY)
    assert is_proved == proved
    assert (signed.number, signed.previous, signed.model) == (
        2,
        digest(service.head),
        service.head.model,
    )
    role = memories["alice"].load().role(PEOPLE["alice"])
    if proved:
        assert role.abandon(signed).next_number == 3
    else:
        with pytest.raises(ReceiptRefused, match="only by its owner's word"):
            role.abandon(signed)
        assert role.abandon(signed, by_owners_word=True).next_number == 3


def test_a_vote_that_its_voter_did_not_sign_proves_nothing(memories, charter):
    told = told_by(memories, *NAMES[:2])
    for false in (
        replace(told[1].confirmation, voter="carol"),
        replace(told[1].confirmation, signature=bytes(64)),
        MALLORY.sign(told[1].confirmation),
    ):
        given = [told[0], replace(told[1], confirmation=false)]
        signed, proved = abandoning.abandon(charter(), given, AUTHORITY)
        assert not proved
        assert [each.voter for each in signed.votes] == ["alice"]


def test_the_same_testimony_twice_counts_once(memories, charter):
    (told,) = told_by(memories, "alice")
    signed, proved = abandoning.abandon(charter(), [told] * 4, AUTHORITY)
    assert not proved
    assert {each.voter for each in signed.votes} == {"alice"}


LIES = {
    "another receipt": lambda last: replace(last, model=b"x" * 32),
    "a later receipt": lambda last: replace(last, number=10**6),
}


@pytest.mark.parametrize("what", LIES)
def test_one_client_cannot_say_where_the_chain_is_for_all(what, memories, service, charter):
    file = memories["bob"]
    stored = file.load()
    file.path.write_bytes(encode(replace(stored, receipts=(LIES[what](stored.last),))))
    signed, proved = abandoning.abandon(charter(), told_by(memories, *NAMES), AUTHORITY)
    assert (signed.number, signed.previous) == (2, digest(service.head))
    assert {each.voter for each in signed.votes} == {"alice", "carol", "dave"}
    assert proved


def test_somebody_has_to_say_where_the_chain_is(memories, charter):
    with pytest.raises(ConfigError, match="at least one client"):
        abandoning.abandon(charter(), [], AUTHORITY)
    with pytest.raises(ConfigError, match="at least one client of this federation"):
        abandoning.abandon(charter(id=b"o" * 32), told_by(memories, *NAMES), AUTHORITY)


def test_without_proof_no_newer_charter_may_have_been_announced(memories, charter):
    (told,) = told_by(memories, "alice")
    with pytest.raises(ConfigError, match="revision 2 may have been announced in it"):
        abandoning.abandon(charter(revision=2), [told], AUTHORITY)
    signed, proved = abandoning.abandon(charter(revision=2), told_by(memories, *NAMES), AUTHORITY)
    assert proved
    assert signed.revision == 1


def test_nobody_else_abandons_a_round(memories, charter):
    told = told_by(memories, *NAMES)
    signed, _ = abandoning.abandon(charter(), told, MALLORY)
    with pytest.raises(OpenError):
        abandoning.accept(memories["alice"], PEOPLE["alice"], signed, POLICY)
    assert memories["alice"].load().last.number == 1


@pytest.mark.slow
@pytest.mark.parametrize("proved", [True, False])
def test_clients_go_on_with_another_enclave_behind_it(memories, service, charter, connect, proved):
    """Nobody has the old key any more, and the new enclave has proved its own."""
    told = told_by(memories, *(NAMES if proved else NAMES[:1]))
    signed, _ = abandoning.abandon(charter(), told, AUTHORITY)
    service.identity = HEIR
    service.back([charter(), signed], service.state)
    with connect() as alice:
        if not proved:
            with pytest.raises(ReceiptRefused, match="only by its owner's word"):
                alice.fetch()
            abandoning.accept(memories["alice"], PEOPLE["alice"], signed, POLICY)
        assert alice.fetch().round == 3
        assert alice.submit(np.ones(D)).accepted
    kept = memories["alice"].load()
    assert kept.receipt_key == HEIR.public
    assert (kept.last, kept.voted.number) == (service.head, 3)


@pytest.mark.slow
def test_the_old_enclave_that_comes_back_is_not_followed_behind_it(
    memories, service, charter, connect
):
    """Its host had the state all the time."""
    old = list(service.links), service.state
    told = told_by(memories, *NAMES)
    signed, _ = abandoning.abandon(charter(), told, AUTHORITY)
    abandoning.accept(memories["alice"], PEOPLE["alice"], signed, POLICY)
    service.back(*old)
    with connect() as alice, pytest.raises(ReceiptRefused) as caught:
        alice.fetch()
    assert not isinstance(caught.value, RolledBack)
    assert service.confirmations == []


def test_who_confirms_next_follows_from_the_receipt_and_not_from_a_testimony(memories, charter):
    """A liar that is listed first says that it alone confirms, as a witness."""
    told = told_by(memories, *NAMES)
    federation = charter().federation
    liar = next(each for each in federation.clients if each.name == "alice")
    mine = replace(
        federation,
        terms=replace(federation.terms, confirm="witnesses"),
        clients=tuple(each for each in federation.clients if each != liar),
        witnesses=(liar,),
    )
    lie = replace(told[0], memory=replace(told[0].memory, electors=mine))
    signed, proved = abandoning.abandon(charter(), [lie, *told[1:]], AUTHORITY)
    assert signed.electors == federation
    assert "alice" not in {vote.voter for vote in signed.votes}
    assert proved
    with pytest.raises(ConfigError, match="at least one client"):
        abandoning.abandon(charter(), [lie], AUTHORITY)


def by_mallory(told):
    """It holds no receipt, so nothing contradicts the roster that it made up."""
    ours = told.memory.federation
    theirs = replace(ours, clients=(Member("mallory", MALLORY.public), *ours.clients[1:]))
    memory = replace(told.memory, client="mallory", electors=theirs, receipts=())
    return abandoning.Testimony(memory, confirm(None, ID, 1, voter="mallory", identity=MALLORY))


def with_memory(told, **changes):
    return replace(told, memory=replace(told.memory, **changes))


STRANGE = {
    "of a stranger": by_mallory,
    "of another client's memory": lambda told: with_memory(told, client="bob"),
    "a vote of another federation": lambda told: replace(
        told, confirmation=confirm(None, b"o" * 32, 2, voter="alice", identity=PEOPLE["alice"])
    ),
    "under another federation": lambda told: with_memory(
        told, electors=replace(told.memory.electors, id=b"o" * 32), receipts=()
    ),
}


@pytest.mark.parametrize("what", STRANGE)
def test_a_testimony_is_of_a_voter_of_this_federation_about_itself(what, memories, charter):
    told = told_by(memories, *NAMES)
    with pytest.raises(ConfigError, match="at least one client of this federation"):
        abandoning.abandon(charter(), [STRANGE[what](told[0])], AUTHORITY)
    signed, _ = abandoning.abandon(charter(), [STRANGE[what](told[0]), *told[1:]], AUTHORITY)
    assert {vote.voter for vote in signed.votes} == {"bob", "carol", "dave"}


def test_a_voter_has_one_testimony_and_a_draw_decides_nothing(memories, charter):
    told = told_by(memories, *NAMES)
    stored = told[0].memory
    elsewhere = replace(stored, receipts=(replace(stored.last, number=41),))
    vote = confirm(None, ID, 42, voter="alice", identity=PEOPLE["alice"])
    lie = abandoning.Testimony(elsewhere, vote)
    signed, _ = abandoning.abandon(charter(), [*told[1:], *[lie] * 7], AUTHORITY)
    assert signed.number == 2
    with pytest.raises(ConfigError, match="as many clients"):
        abandoning.abandon(charter(), [told[1], lie], AUTHORITY)


def test_an_owner_s_word_does_not_go_beyond_the_policy(memories, charter):
    (told,) = told_by(memories, "alice")
    electors = told.memory.electors
    nobody = replace(electors, terms=replace(electors.terms, confirm="none"))
    signed, _ = abandoning.abandon(charter(), [told], AUTHORITY)
    signed = AUTHORITY.sign(replace(signed, electors=nobody))
    with pytest.raises(AttestationRefused, match="confirm"):
        abandoning.accept(memories["alice"], PEOPLE["alice"], signed, POLICY)


def test_a_witness_s_record_is_heard_before_it_testifies(memories, folder, service):
    record = Record(folder / "alice.votes")
    before = vote(memories, service, "bob")
    record.note(before)
    with pytest.raises(StateError, match="has a vote for round 2 already"):
        abandoning.give_testimony(memories["alice"], PEOPLE["alice"], record)
    assert memories["alice"].load().voted is None
    told = abandoning.give_testimony(memories["bob"], PEOPLE["bob"], record)
    assert told.confirmation.proposal == digest(before)
    silent = Record(folder / "carol.votes")
    abandoning.give_testimony(memories["carol"], PEOPLE["carol"], silent)
    with pytest.raises(StateError, match="has a vote for round 2 already"):
        silent.note(before)


def test_the_command_hears_the_record_beside_the_key(memories, folder, service):
    before = vote(memories, service, "bob")
    Record(folder / "alice.votes").note(before)
    for name, code in (("alice", 1), ("bob", 0)):
        key, out = folder / f"{name}.key", folder / f"{name}.testimony"
        options = ["--name", name, "--key", key, "--policy", folder / "policy.toml", "--out", out]
        result = CliRunner().invoke(app, ["client", "testify", *map(str, options)])
        assert (result.exit_code, out.exists()) == (code, code == 0), result.output

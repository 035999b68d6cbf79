"""An outcome that waits to be confirmed: durable before anybody is asked, and the only one."""

import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ostraka.attestation.claims import in_process
from ostraka.config import Member
from ostraka.crypto.identity import Identity
from ostraka.enclave.storage.sealed_file import SealedFile
from ostraka.encoding import UNSIGNED, digest, encode
from ostraka.errors import (
    LocalProtocolError,
    OpenError,
    ReceiptRefused,
    Rejection,
    RolledBack,
    StateError,
)
from ostraka.messages import Charter, RejectedClient, vector_digest
from ostraka.protocol.client import Client
from ostraka.protocol.confirm import Ballot
from ostraka.protocol.enclave import Pending

AUTHORITY = Identity(b"a" * 32)
SUCCESSOR = b"s" * 32


def held(state):
    return state.folder / "pending.sealed"


def voter(state, name="b"):
    """A client that knows this enclave from the beginning."""
    return Client(name, Identity(name.encode() * 32), state.federation, state.receipt_key)


def test_it_is_on_the_disk_when_hold_returns_and_nothing_is_published(life):
    state = life.founded()
    pending = life.hold(state)
    assert held(state).exists()
    assert state.pending[0] == pending
    assert state.head is None
    assert state.published() == ()
    assert np.array_equal(state.last_state.model, life.state_of(0).model)


def test_after_a_restart_the_same_outcome_is_pending_to_the_bit(life):
    with life.founded() as state:
        life.publish(state)
        pending = life.hold(state)
        later = life.state_of(2)
    with life.open() as state:
        again, model = state.pending
        assert encode(again) == encode(pending)
        assert np.array_equal(model.model, later.model)
        assert np.array_equal(model.moments, later.moments)
        ballot = state.start(evidence="simulation").ballot(again)
        assert encode(ballot.proposal) == encode(pending.proposal)
        assert life.release(state).receipt == pending.receipt
    with life.open() as state:
        assert state.pending is None
        assert state.head == pending.receipt
        assert np.array_equal(state.last_state.model, later.model)


def test_an_outcome_is_held_once(life):
    """Even the same: the next one of this number would be another."""
    state = life.founded()
    pending = life.hold(state)
    with pytest.raises(LocalProtocolError, match="is held already"):
        state.hold(pending, life.state_of(1))
    other = life.pending(state, life.receipt(state, life.state_of(7)))
    with pytest.raises(LocalProtocolError, match="is held already"):
        state.hold(other, life.state_of(7))
    assert state.pending[0] == pending


def test_only_what_is_pending_is_published(life):
    state = life.founded()
    first = life.pending(state, life.receipt(state, life.state_of(1)))
    with pytest.raises(LocalProtocolError, match="no outcome is pending"):
        state.publish(life.certified(first, state.electors))
    pending = life.hold(state, participants=2)
    with pytest.raises(LocalProtocolError, match="not the one that is pending"):
        state.publish(life.certified(first, state.electors))
    assert state.head is None
    state.publish(life.certified(pending, state.electors))
    with pytest.raises(LocalProtocolError, match="no outcome is pending"):
        state.publish(life.certified(pending, state.electors))


def test_a_disk_that_fails_leaves_nothing_pending_in_memory(life, monkeypatch):
    """Else clients would be asked about an outcome that a restart forgets."""
    state = life.founded()
    write = SealedFile.write

    def full(file, plaintext):
        if file.path.name == "pending.sealed":
            raise OSError(28, "No space left on device")
        write(file, plaintext)

    with monkeypatch.context() as patched:
        patched.setattr(SealedFile, "write", full)
        with pytest.raises(OSError, match="No space"):
            life.hold(state)
    assert state.pending is None
    assert not held(state).exists()
    pending = life.hold(state)
    state.close()
    with life.open() as state:
        assert state.pending[0] == pending


def test_two_copies_that_hold_release_the_same_outcome(life):
    """The host copies the folder while the outcome is pending, and starts both."""
    with life.founded() as state:
        life.hold(state)
        shutil.copytree(state.folder, life.root / "copy")
        released = life.release(state)
    with life.open("copy") as copy:
        assert life.release(copy) == released


def test_a_copy_from_before_the_outcome_cannot_have_its_own_confirmed(life):
    """The votes are the clients', who have one for each number."""
    with life.founded() as state:
        shutil.copytree(state.folder, life.root / "copy")
        one = life.hold(state)
        voted = voter(state).vote(one.proposal)
    with life.open("copy") as copy:
        other = life.hold(copy, participants=2)
        assert other.proposal.number == one.proposal.number
        with pytest.raises(RolledBack) as caught:
            voted.vote(other.proposal)
        assert caught.value.proof == one.proposal
        ballot = Ballot(other.proposal, copy.electors)
        with pytest.raises(OpenError):
            ballot.add(voted.confirmation())


def test_an_older_pending_file_is_discarded(life):
    with life.founded() as state:
        life.publish(state)
        life.hold(state)
        old = held(state).read_bytes()
        life.release(state)
        life.publish(state)
        head = state.head
    held(state).write_bytes(old)
    with life.open() as state:
        assert state.pending is None
        assert state.head == head
        assert not held(state).exists()
        life.publish(state)
        assert state.head.number == 4


def test_a_pending_outcome_of_a_later_time_than_the_ledger_is_refused(life):
    """The host has set back the ledger, and not all of the folder."""
    with life.founded() as state:
        shutil.copytree(state.folder / "ledger", life.root / "ledger")
        life.publish(state)
        life.hold(state)
    shutil.rmtree(state.folder / "ledger")
    shutil.copytree(life.root / "ledger", state.folder / "ledger")
    with pytest.raises(StateError, match=r"pending\.sealed: .*bring back the whole folder"):
        life.open()


def test_a_pending_outcome_of_another_version_is_refused(life):
    with life.founded() as state:
        life.hold(state)
        SealedFile(held(state), state.sealer).write(b"of a later version")
    with pytest.raises(StateError, match=r"pending\.sealed: .*use the release that wrote it"):
        life.open()


def other_model(life, state):
    """Of another outcome of the same round, that a copy has held."""
    with life.open("copy") as copy:
        model = life.state_of(7)
        copy.hold(life.pending(copy, life.receipt(copy, model)), model)
    shutil.copy(copy.folder / "model-00000002.sealed", state.folder)


ATTACKS = {
    "a pending outcome that is damaged": (
        lambda life, state: held(state).write_bytes(held(state).read_bytes()[:-1]),
        r"pending\.sealed: does not open",
    ),
    "another file in its place": (
        lambda life, state: shutil.copy(state.folder / "identity.sealed", held(state)),
        r"pending\.sealed: does not open",
    ),
    "no model after it": (
        lambda life, state: (state.folder / "model-00000002.sealed").unlink(),
        r"model-00000002\.sealed: is missing",
    ),
    "the model of another outcome": (other_model, r"is not the state after round 2"),
}


@pytest.mark.parametrize("what", ATTACKS)
def test_the_host_cannot_edit_a_pending_outcome(life, what):
    attack, message = ATTACKS[what]
    with life.founded() as state:
        life.publish(state)
        shutil.copytree(state.folder, life.root / "copy")
        life.hold(state)
    attack(life, state)
    with pytest.raises(StateError, match=message):
        life.open()


def test_the_state_is_not_handed_over_while_an_outcome_is_pending(life):
    state = life.founded()
    life.hold(state)
    with pytest.raises(StateError, match="waits to be confirmed: start this enclave"):
        life.estate(state, SUCCESSOR)
    assert state.handed_over_to is None
    life.release(state)
    life.estate(state, SUCCESSOR)


def test_a_revision_does_not_change_who_confirms_what_is_pending(life):
    """It was adopted before the outcome was proposed, and no receipt names it yet."""
    with life.founded() as state:
        founding = state.federation
        newer = replace(founding, revision=2, clients=(*founding.clients[:1], NEW, NEWER))
        charter = AUTHORITY.sign(Charter(newer, UNSIGNED))
        state.adopt(charter)
        life.hold(state)
        assert state.electors == founding
    with life.open() as state:
        assert state.electors == founding
        assert life.release(state).receipt.revision == 2
        assert state.electors == newer


NEW, NEWER = Member("e", b"e" * 32), Member("f", b"f" * 32)


# The size of the file.

LONGEST = max(Rejection, key=len)
OUTCOMES: dict[str, dict[str, Any]] = {
    "an ordinary one": {},
    "a null step": {
        "failure": "multi-krum needs at least 3 updates; 2 valid updates and f=0 are left. "
        + "; ".join(f"1 x {reason}" for reason in Rejection),
        "aggregate": bytes(32),
        "kept": 0,
    },
    "everybody rejected": {
        "rejected": tuple(RejectedClient(name, LONGEST) for name in "bcd"),
        "participants": 0,
    },
    "the selection disclosed": {"disclosed": True, "selected": tuple("bcd")},
    "all cautions": {"cautions": ("x" * 100,) * 8},
}


@pytest.mark.parametrize("clients", [3, 100])
def test_the_file_has_one_size_whatever_the_outcome(life, clients):
    """Its host sees the size long before anybody has confirmed."""
    everybody = [f"{number:0600}-ä" for number in range(clients)]
    members = tuple(Member(name, name.encode()[-32:]) for name in everybody)
    sizes = {}
    for at, (what, changes) in enumerate(OUTCOMES.items()):
        charter = life.charter(tile=64)
        federation = replace(charter.federation, clients=members)
        state = life.open(f"state-{at}")
        state.found(AUTHORITY.sign(Charter(federation, UNSIGNED)), life.state_of(0))
        asked = dict(changes)
        if "rejected" in asked:
            asked["rejected"] = tuple(RejectedClient(name, LONGEST) for name in everybody)
        if "selected" in asked:
            asked["selected"] = tuple(everybody)
        receipt = life.receipt(state, life.state_of(1), **asked)
        pending = replace(life.pending(state, receipt), leaves=(bytes(32),) * clients)
        if what == "everybody rejected":
            pending = replace(pending, leaves=())
        state.hold(pending, life.state_of(1))
        sizes[what] = [held(state).stat().st_size, _model_size(state)]
        state.close()
    assert len({tuple(each) for each in sizes.values()}) == 1, sizes


def _model_size(state):
    return (state.folder / "model-00000001.sealed").stat().st_size


def test_no_file_shows_what_is_pending(life):
    state = life.founded()
    pending = life.hold(state)
    for path in state.folder.rglob("*.sealed"):
        content = path.read_bytes()
        for secret in (life.state_of(1).model.tobytes(), pending.salt, pending.receipt.signature):
            assert secret not in content
    assert "salt" not in repr(pending)
    assert "receipt" not in repr(pending)
    assert repr(pending) == f"Pending(proposal={pending.proposal!r})"


# A folder that goes on for an enclave that was lost.


def test_an_enclave_that_is_founded_after_an_abandoned_round_goes_on_behind_it(life):
    charter = life.charter(2)
    abandon = life.abandon(charter)
    with life.open() as state:
        state.found(charter, life.state_of(3), abandon=abandon)
        assert state.head == state.abandon == abandon
    with life.open() as state:
        assert state.head == abandon
        assert state.electors == charter.federation
        enclave = state.start(evidence="simulation")
        offer = enclave.open_round().offer
        assert (offer.number, offer.previous) == (4, digest(abandon))
        client = replace(voter(state), last=abandon, receipt_key=None)
        client.join(offer, in_process(offer, state.receipt_key))
        life.publish(state, 2)
        assert [each.receipt.number for each in state.published()] == [4, 5]
        assert [each.receipt.number for each in state.published(5)] == [5]
        assert [each.receipt.number for each in state.published(2)] == [4, 5]
    with life.open() as state:
        assert state.abandon == abandon
        assert state.head.number == 5
        new = life.open("new", life.sealer("heir"))
        new.inherit(life.estate(state, SUCCESSOR), b"o" * 32)
        assert (new.abandon, new.head) == (abandon, state.head)


def test_a_revision_behind_an_abandoned_round_waits_for_a_receipt_to_announce_it(life):
    """The voters of the round that was abandoned confirm the next one, too."""
    old, new = life.charter(), life.charter(2)
    with life.open() as state:
        state.found(new, life.state_of(3), abandon=life.abandon(old))
        assert state.federation == new.federation
        assert state.electors == old.federation
        life.hold(state)
    with life.open() as state:
        assert state.electors == old.federation
        assert life.release(state).receipt.revision == 2
        assert state.electors == new.federation


def test_an_enclave_that_was_lost_is_followed_once_it_was_abandoned(life):
    """A client that waits for round 1, of an enclave that nobody has any more."""
    charter = life.charter()
    old = life.founded("old")
    waiting = voter(old).vote_for_none(1)
    model = vector_digest(life.state_of(0).model)
    start = life.receipt(old, life.state_of(1)).previous
    abandon = life.abandon(charter, 1, previous=start, model=model)
    new = life.open("new")
    new.found(charter, life.state_of(0), abandon=abandon)
    with pytest.raises(ReceiptRefused, match="only by its owner's word"):
        waiting.abandon(abandon)
    behind = waiting.abandon(abandon, by_owners_word=True)
    offer = new.start(evidence="simulation").open_round().offer
    joined = behind.join(offer, in_process(offer, new.receipt_key))
    life.hold(new)
    voted = joined.client.vote(new.pending[0].proposal)
    assert voted.voted.number == 2


FOUNDATIONS = {
    "an Abandon that somebody else signed": (
        lambda life, charter: Identity(b"x" * 32).sign(life.abandon(charter)),
        3,
        OpenError,
        "Abandon",
    ),
    "an Abandon under a later revision": (
        lambda life, charter: life.abandon(life.charter(7)),
        3,
        LocalProtocolError,
        "behind an abandoned round: revision 2 does not replace revision 7",
    ),
    "another model than the Abandon names": (
        lambda life, charter: life.abandon(charter),
        4,
        LocalProtocolError,
        "not the one that the authority has signed",
    ),
}


@pytest.mark.parametrize("what", FOUNDATIONS)
def test_nothing_else_is_founded(life, what):
    make, model, error, message = FOUNDATIONS[what]
    charter = life.charter(2)
    state = life.open()
    with pytest.raises(error, match=message):
        state.found(charter, life.state_of(model), abandon=make(life, charter))
    assert state.fresh
    state.close()
    with life.open() as state:
        assert state.fresh
        state.found(charter, life.state_of(3), abandon=life.abandon(charter))


def test_a_certificate_is_kept_with_its_receipt(life):
    with life.founded() as state:
        life.hold(state)
        certified = life.release(state)
    with life.open() as state:
        assert state.published() == (certified,)
        assert certified.certificate is not None
        assert len(certified.certificate.votes) == 3


def test_pending_has_a_label_of_its_own():
    assert Pending.LABEL == b"ostraka/pending/v1"

from dataclasses import replace

import pytest

from ostraka.config import Member
from ostraka.crypto.identity import Identity
from ostraka.enclave.storage.ledger import (
    Adopted,
    Founded,
    HandedOver,
    History,
    Published,
    Record,
    Skipped,
    TakenOver,
)
from ostraka.encoding import encode
from ostraka.errors import LocalProtocolError, MalformedMessage, OpenError, ReceiptRefused

DIGEST = b"s" * 32
END = HandedOver(b"t" * 32, b"k" * 32)


@pytest.fixture
def state(life):
    return life.founded()


@pytest.fixture
def story(life, state):
    """Two rounds, a revision between them, and a round that was given up."""
    told: list[Record] = [Founded(state.receipt_key, life.charter(), bytes(32))]
    life.hold(state)
    told.append(Published(life.release(state), DIGEST))
    state.adopt(life.charter(2))
    told += [Adopted(life.charter(2)), Skipped(2, "the quorum was missed")]
    life.hold(state)
    told.append(Published(life.release(state), bytes(32)))
    return told


def tell(*told):
    history = History()
    for record in told:
        history.admit(record)
    return history


def test_the_records_add_up(story, state, life):
    history = tell(*story)
    assert history.receipt_key == state.receipt_key
    assert history.charters == [life.charter(), life.charter(2)]
    assert [each.receipt.number for each in history.published] == [1, 2]
    assert history.head == history.published[-1].receipt
    assert history.number == 2
    assert history.federation.revision == 2
    assert history.state == bytes(32)
    assert history.origin is history.handed_over is None
    history.verify()


def test_a_round_may_end_under_the_revision_under_which_it_began(story, life, state):
    last = story[-1].certified
    early = replace(last.receipt, federation=life.charter().federation.digest())
    assert tell(*story[:-1], Published(replace(last, receipt=early), DIGEST)).number == 2


def test_a_life_goes_on_after_a_hand_over(story):
    taken = TakenOver(b"o" * 32, tuple(encode(each) for each in (*story[:-1], END)))
    history = tell(taken)
    assert history.origin == b"o" * 32
    assert history.handed_over is None
    assert history.number == 1
    history.admit(story[-1])
    assert history.origin is None
    assert history.number == 2


def test_a_life_goes_on_after_many_hand_overs(story):
    """Each contains the ones before; going through them all must not double with each."""
    told = story
    for _ in range(20):
        told = [TakenOver(b"o" * 32, tuple(encode(each) for each in (*told, END)))]
    assert tell(*told).published == tell(*story).published


REFUSED = {
    "nothing founded": (lambda told: (told[1],), "begins once"),
    "founded twice": (lambda told: (told[0], told[0]), "begins once"),
    "taken over after it was founded": (
        lambda told: (told[0], TakenOver(DIGEST, (encode(told[0]), encode(END)))),
        "begins once",
    ),
    "taken over without being handed over": (
        lambda told: (TakenOver(DIGEST, (encode(told[0]),)),),
        "must have been handed over",
    ),
    "anything after the end": (lambda told: (told[0], END, told[1]), "was handed over"),
    "handed over twice": (lambda told: (told[0], END, END), "was handed over"),
    "a round twice": (lambda told: (told[0], told[1], told[1]), "does not follow"),
    "a round left out": (lambda told: (told[0], *told[2:3], told[4]), "does not follow"),
    "another round before it": (
        lambda told: (*told[:4], replace(told[4], certified=_after(told[4].certified, b"x" * 32))),
        "does not follow",
    ),
    "a federation that was never adopted": (lambda told: (*told[:2], told[4]), "never adopted"),
    "an old revision": (lambda told: (*told[:3], told[2]), "does not replace"),
    "a skipped round that was not open": (
        lambda told: (told[0], Skipped(2, "")),
        "not the one that was open",
    ),
}


def _after(certified, previous):
    return replace(certified, receipt=replace(certified.receipt, previous=previous))


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_follow_is_refused_and_leaves_no_trace(story, what):
    change, message = REFUSED[what]
    *told, bad = change(story)
    history = tell(*told)
    before = {name: repr(value) for name, value in vars(history).items()}
    with pytest.raises(LocalProtocolError, match=message):
        history.admit(bad)
    assert {name: repr(value) for name, value in vars(history).items()} == before


def test_a_revision_keeps_the_authority_and_the_model(story, life):
    history = tell(*story)
    charter = life.charter(3)
    other = replace(charter.federation, authority=b"x" * 32)
    with pytest.raises(LocalProtocolError, match="does not replace"):
        history.admit(Adopted(replace(charter, federation=other)))
    terms = replace(charter.federation.terms, manifest=charter.federation.terms.manifest.flat(5))
    other = replace(charter.federation, terms=terms)
    with pytest.raises(LocalProtocolError, match="another model"):
        history.admit(Adopted(replace(charter, federation=other)))
    other = replace(charter.federation, initial=b"x" * 32)
    with pytest.raises(LocalProtocolError, match="another model"):
        history.admit(Adopted(replace(charter, federation=other)))
    history.admit(Adopted(charter))


def test_a_revision_keeps_the_revoked(story, life):
    history = tell(*story)
    federation = life.charter(3).federation
    gone = replace(federation, revoked=(Member("e", b"e" * 32),))
    history.admit(Adopted(replace(life.charter(3), federation=gone)))
    with pytest.raises(LocalProtocolError, match="stays revoked"):
        history.admit(Adopted(life.charter(4)))


def test_a_history_that_cannot_be_read_is_malformed():
    with pytest.raises(MalformedMessage):
        tell(TakenOver(DIGEST, (b"nothing",)))


def test_each_receipt_is_confirmed_by_those_that_the_one_before_it_names(life, state):
    life.hold(state)
    told: list[Record] = [
        Founded(state.receipt_key, life.charter(), bytes(32)),
        Published(life.release(state), DIGEST),
        Adopted(life.charter(2, confirm="none")),
    ]
    state.adopt(life.charter(2, confirm="none"))
    life.hold(state)
    second = life.release(state)
    tell(*told, Published(second, DIGEST)).verify()
    with pytest.raises(ReceiptRefused):
        tell(*told, Published(replace(second, certificate=None), DIGEST)).verify()


def test_signatures_are_verified(story, life):
    stranger = Identity(b"x" * 32)
    first = story[1].certified
    forged = replace(first, receipt=stranger.sign(first.receipt))
    with pytest.raises(OpenError):
        tell(story[0], Published(forged, DIGEST)).verify()
    with pytest.raises(OpenError):
        tell(replace(story[0], charter=life.charter(authority=stranger))).verify()

"""The enclave between rounds. What happens in one is tested in tests/protocol."""

from dataclasses import replace

import numpy as np
import pytest

from ostraka.config import Federation, Manifest, Member, Terms
from ostraka.core.optimiser import ServerState
from ostraka.crypto.identity import Identity, check_signature
from ostraka.crypto.stream import SecretStream
from ostraka.encoding import UNSIGNED, digest
from ostraka.errors import LocalProtocolError, OpenError, Rejection, TooFewUpdates
from ostraka.messages import Certified, Charter, Receipt, UpdateTile, genesis, vector_digest
from ostraka.protocol.enclave import Enclave
from ostraka.protocol.enclave.cohort import Standing

IDENTITY = Identity(bytes([200]) * 32)
MODEL = np.zeros(10, np.float32)
STATE = ServerState(MODEL)
# Nobody confirms here. Who does, and what that proves, is tested beside it and in tests/protocol.
TERMS = Terms(Manifest.flat(10), f=2, masking="none", tile=4, confirm="none")
AUTHORITY = Identity(bytes([201]) * 32)
FEDERATION = Federation(
    TERMS,
    tuple(Member(f"client-{i}", bytes([i]) * 32) for i in range(7)),
    (),
    AUTHORITY.public,
    b"i" * 32,
)
GENESIS = genesis(FEDERATION)


def enclave(**changes):
    return Enclave(FEDERATION, IDENTITY, **changes)


def receipt(number=1, previous=GENESIS, federation=FEDERATION):
    blank = Receipt(
        number=number,
        round_id=b"r" * 32,
        previous=previous,
        federation=federation.digest(),
        revision=federation.revision,
        evidence="in-process",
        failure="",
        aggregate=bytes(32),
        model=vector_digest(MODEL),
        cohort=bytes(32),
        participants=7,
        kept=5,
        rejected=(),
        commitment=bytes(32),
        disclosed=False,
        selected=(),
        rule="arc+nnm+geometric-median",
        note="",
        masking="none",
        distances="inside",
        cautions=(),
        metrics=None,
        signature=UNSIGNED,
    )
    return IDENTITY.sign(blank)


def test_an_offer_is_signed_and_says_where_the_chain_is():
    first = enclave().open_round().offer
    check_signature(first, enclave().receipt_key)
    assert (first.number, first.previous) == (1, GENESIS)
    assert first.federation == FEDERATION.digest()
    later = enclave(head=receipt(8)).open_round().offer
    assert (later.number, later.previous) == (9, digest(receipt(8)))


def test_every_round_has_a_fresh_id_and_a_fresh_key():
    """Also when it is opened again after a crash: what was sealed to the old key is void."""
    same = enclave()
    offers = [same.open_round().offer for _ in range(3)]
    assert len({offer.round_id for offer in offers}) == 3
    assert len({offer.key for offer in offers}) == 3


def test_randomness_is_an_argument():
    offers = [enclave(entropy=SecretStream(bytes(32)).bytes).open_round().offer for _ in range(2)]
    assert offers[0] == offers[1]


@pytest.mark.parametrize("tile", [1, 3, 6, 10, 16])
def test_a_sealed_tile_is_its_values_and_a_tag(tile):
    """The last one may be shorter, also where it is the second or the only one."""
    federation = replace(FEDERATION, terms=replace(TERMS, tile=tile))
    intake = Enclave(federation, IDENTITY).open_round()
    sealed = [4 * len(MODEL[start : start + tile]) + 16 for start in range(0, len(MODEL), tile)]
    assert [intake.sealed_size(index) for index in range(len(sealed))] == sealed


def follow(party, receipt):
    party.follow(Certified(receipt, None), STATE)


def test_the_chain_goes_on_after_its_own_head():
    party = enclave()
    follow(party, receipt())
    follow(party, receipt(2, digest(receipt())))
    assert party.open_round().offer.number == 3
    for stale in (receipt(), receipt(2, digest(receipt())), receipt(3)):
        with pytest.raises(LocalProtocolError, match="once, after the one it names"):
            follow(party, stale)
    assert party.open_round().offer.number == 3


def test_a_round_that_was_open_when_terms_changed_ends_under_its_own():
    """A receipt names the terms of its round, and those confirm the next number."""
    party = enclave()
    newer = replace(FEDERATION, revision=2)
    party.adopt(AUTHORITY.sign(Charter(newer, UNSIGNED)))
    assert party.open_round().offer.previous == GENESIS, "the founding charter stays the first"
    with pytest.raises(LocalProtocolError, match="another federation"):
        follow(party, receipt(federation=replace(FEDERATION, revision=3)))
    follow(party, receipt())
    assert party._electors == FEDERATION
    assert party.open_round().offer.federation == newer.digest()
    with pytest.raises(LocalProtocolError, match="another federation"):
        follow(party, receipt(2, digest(receipt())))
    follow(party, receipt(2, digest(receipt()), newer))
    assert party._electors == newer


def test_a_round_without_updates_stays_open():
    intake = enclave().open_round()
    with pytest.raises(TooFewUpdates, match="needs at least 6 updates; 0 valid updates and f=2"):
        intake.close()
    with pytest.raises(OpenError):
        intake.take("client-0", UpdateTile(bytes(32), 0, bytes(32)))


def test_standing_lowers_f_for_provable_lies_only():
    standing = Standing(TERMS, {"client-0": Rejection.BAD_NORM})
    assert standing.f == 1
    standing.reject("client-1", Rejection.CHANGED)
    assert standing.f == 1
    standing.require(5)
    with pytest.raises(TooFewUpdates, match="needs at least 5 updates; 4 valid updates and f=1"):
        standing.require(4)
    for row in (2, 3, 4):
        standing.reject(f"client-{row}", Rejection.NOT_FINITE)
    assert standing.f == 0
    # More lies than f excuse no more than f.
    standing.require(4)
    with pytest.raises(TooFewUpdates, match="needs at least 4 updates; 3 valid updates and f=0"):
        standing.require(3)


def test_the_first_reason_stands():
    standing = Standing(TERMS, {})
    standing.reject("client-0", Rejection.CHANGED)
    standing.reject("client-0", Rejection.FALSE_NORM)
    assert standing.rejected == {"client-0": Rejection.CHANGED}
    assert "client-0" not in standing
    assert "client-1" in standing

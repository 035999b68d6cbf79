from dataclasses import replace

import numpy as np
import pytest

from ostraka.attestation.claims import in_process
from ostraka.config import Federation, Manifest, Member, Terms
from ostraka.crypto import updates
from ostraka.crypto.hpke import HybridKey
from ostraka.crypto.identity import Identity, check_signature
from ostraka.encoding import UNSIGNED, digest
from ostraka.errors import ConfigError, OpenError, ReceiptRefused
from ostraka.messages import (
    Certificate,
    Certified,
    Proposal,
    Receipt,
    RoundOffer,
    Vote,
    first_model,
    genesis,
)
from ostraka.protocol.client import Client
from ostraka.protocol.confirm import confirm, outcome_digest

ENCLAVE = Identity(bytes([200]) * 32)
CLIENTS = [Identity(bytes([seed]) * 32) for seed in range(5)]
FEDERATION = Federation(
    Terms(Manifest.flat(10), f=1, masking="none", tile=4),
    tuple(Member(f"client-{i}", each.public) for i, each in enumerate(CLIENTS)),
    (),
    bytes([201]) * 32,
    b"i" * 32,
)
KEY = HybridKey()
SALT = b"s" * 32
MODEL = first_model(FEDERATION)
ALICE = Client("client-0", CLIENTS[0], FEDERATION, ENCLAVE.public)


GENESIS = genesis(FEDERATION)


def offer(number=1, previous=GENESIS, **changes):
    blank = RoundOffer(
        number, b"r" * 32, FEDERATION.digest(), previous, MODEL, KEY.public, (0,), UNSIGNED
    )
    return ENCLAVE.sign(replace(blank, **changes))


def served(number=1, previous=GENESIS, *, voters=5, **changes):
    """A receipt and its certificate, which the first clients have confirmed."""
    blank = Receipt(
        number=number,
        round_id=b"r" * 32,
        previous=previous,
        federation=FEDERATION.digest(),
        revision=1,
        evidence="in-process",
        failure="",
        aggregate=bytes(32),
        model=MODEL,
        cohort=bytes(32),
        participants=5,
        kept=4,
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
    receipt = ENCLAVE.sign(replace(blank, **changes))
    blank_proposal = Proposal(
        federation=FEDERATION.id,
        number=number,
        previous=previous,
        outcome=outcome_digest(SALT, receipt),
        cohort=receipt.cohort,
        signature=UNSIGNED,
    )
    proposal = ENCLAVE.sign(blank_proposal)
    votes = [
        confirm(proposal, FEDERATION.id, number, voter=f"client-{row}", identity=CLIENTS[row])
        for row in range(voters)
    ]
    kept = tuple(Vote(vote.voter, vote.signature) for vote in votes)
    return Certified(receipt, Certificate(proposal, SALT, kept))


def join(client, given):
    return client.join(given, in_process(given, ENCLAVE.public))


def test_a_client_checks_who_made_the_offer():
    join(ALICE, offer())
    for signer in (CLIENTS[0], CLIENTS[1], Identity(b"s" * 32)):
        with pytest.raises(OpenError):
            join(ALICE, signer.sign(offer()))


def test_a_client_checks_the_federation_of_the_offer():
    with pytest.raises(ReceiptRefused, match="another federation"):
        join(ALICE, offer(federation=bytes(32)))


def test_a_client_joins_only_the_round_after_the_receipt_that_it_holds():
    held = served(3, b"p" * 32)
    client = replace(ALICE, last=held.receipt)
    name = digest(held.receipt)
    join(client, offer(4, name))
    for number, previous in (
        (3, held.receipt.previous),
        (5, name),
        (4, bytes(32)),
        (4, GENESIS),
        (1, GENESIS),
    ):
        with pytest.raises(ReceiptRefused):
            join(client, offer(number, previous))


def test_the_first_round_follows_the_founding_charter():
    """The chain names it, so that no two foundations can be mixed up."""
    join(ALICE, offer())
    for previous in (bytes(32), genesis(replace(FEDERATION, id=bytes(32)))):
        with pytest.raises(ReceiptRefused, match="does not continue the chain"):
            join(ALICE, offer(previous=previous))
    newer = replace(FEDERATION, revision=2)
    adopted = ALICE.adopt(newer)
    assert join(adopted, offer(federation=newer.digest()))
    with pytest.raises(ReceiptRefused, match="does not continue the chain"):
        join(adopted, offer(previous=genesis(newer), federation=newer.digest()))


def test_following_makes_a_new_client_and_leaves_the_old_one():
    after = ALICE.follow(served())
    assert after.last == served().receipt
    assert ALICE.last is None
    assert (after.name, after.identity) == (ALICE.name, ALICE.identity)


def test_an_update_is_sealed_for_the_round_that_was_joined():
    update = np.arange(10, dtype=np.float32)
    sealed = join(ALICE, offer()).seal(update).sealed
    check_signature(sealed.header, CLIENTS[0].public)
    assert sealed.header.client == "client-0"
    opened = updates.open_header(sealed.header, KEY)
    opener = updates.TileOpener(opened.key.of(FEDERATION.terms.span), opened.key.bound)
    out = np.empty(4, np.float32)
    opener.open_into(1, sealed.tiles[1].ciphertext, out)
    assert out.tolist() == [4, 5, 6, 7]
    assert opened.norm == np.sqrt(285)


def test_sealing_again_is_a_new_upload_under_a_new_key():
    joined = join(ALICE, offer())
    one, two = (joined.seal(np.ones(10, np.float32)).sealed for _ in range(2))
    assert one.header.upload_id != two.header.upload_id
    assert one.tiles[0].ciphertext != two.tiles[0].ciphertext


def test_an_update_of_another_shape_is_the_client_s_own_mistake():
    with pytest.raises(ConfigError, match=r"\(10,\).*got \(9,\)"):
        join(ALICE, offer()).seal(np.ones(9, np.float32))


def test_the_first_round_starts_from_the_model_that_was_signed():
    with pytest.raises(ReceiptRefused, match="the model that it must start from"):
        join(ALICE, offer(model=bytes(32)))
    held = ALICE.follow(served(model=b"m" * 32))
    second = offer(2, digest(served(model=b"m" * 32).receipt), model=b"m" * 32)
    assert join(held, second)
    with pytest.raises(ReceiptRefused, match="the model that it must start from"):
        join(held, ENCLAVE.sign(replace(second, model=MODEL)))

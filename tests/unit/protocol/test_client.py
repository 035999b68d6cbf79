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
from ostraka.messages import Receipt, RoundOffer, first_model
from ostraka.protocol.client import Client

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
MODEL = first_model(FEDERATION)
ALICE = Client("client-0", CLIENTS[0], FEDERATION, ENCLAVE.public)


def offer(number=1, previous=bytes(32), **changes):
    blank = RoundOffer(
        number, b"r" * 32, FEDERATION.digest(), previous, MODEL, KEY.public, UNSIGNED
    )
    return ENCLAVE.sign(replace(blank, **changes))


def receipt(number=1, previous=bytes(32), **changes):
    blank = Receipt(
        number=number,
        round_id=b"r" * 32,
        previous=previous,
        federation=FEDERATION.digest(),
        revision=1,
        evidence="in-process",
        aggregate=bytes(32),
        model=MODEL,
        participants=5,
        kept=4,
        rejected=(),
        commitment=bytes(32),
        disclosed=False,
        selected=(),
        rule="multi-krum",
        masking="none",
        distances="inside",
        cautions=(),
        signature=UNSIGNED,
    )
    return ENCLAVE.sign(replace(blank, **changes))


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


def test_a_newcomer_may_join_at_any_round():
    assert join(ALICE, offer(number=12, previous=b"p" * 32)).offer.number == 12


def test_a_client_joins_only_the_round_after_the_receipt_that_it_holds():
    held = receipt(3)
    client = ALICE.follow(held)
    join(client, offer(4, digest(held)))
    for number, previous in ((3, held.previous), (5, digest(held)), (4, bytes(32)), (1, bytes(32))):
        with pytest.raises(ReceiptRefused):
            join(client, offer(number, previous))


def test_following_makes_a_new_client_and_leaves_the_old_one():
    after = ALICE.follow(receipt())
    assert after.last == receipt()
    assert ALICE.last is None
    assert (after.name, after.identity) == (ALICE.name, ALICE.identity)


def test_an_update_is_sealed_for_the_round_that_was_joined():
    update = np.arange(10, dtype=np.float32)
    sealed = join(ALICE, offer()).seal(update).sealed
    check_signature(sealed.header, CLIENTS[0].public)
    assert sealed.header.client == "client-0"
    opener, norm = updates.open_header(sealed.header, KEY)
    out = np.empty(4, np.float32)
    opener.open_into(1, sealed.tiles[1].ciphertext, out)
    assert out.tolist() == [4, 5, 6, 7]
    assert norm == np.sqrt(285)


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
    # What a later round starts from, a newcomer cannot know; the proved enclave says it.
    assert join(ALICE, offer(number=2, model=bytes(32)))

import dataclasses
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from ostraka.crypto import hpke
from ostraka.crypto.identity import (
    Identity,
    _remembered,
    check_encoded,
    check_signature,
    forget,
)
from ostraka.encoding import UNSIGNED, Signature, encode, pack
from ostraka.errors import MalformedMessage, OpenError
from ostraka.messages import Challenge, RoundOffer, UpdateHeader

ALICE, BOB = Identity(bytes([1]) * 32), Identity(bytes([2]) * 32)
OFFER = RoundOffer(
    number=1,
    round_id=b"r" * 32,
    federation=b"c" * 32,
    previous=bytes(32),
    model=bytes(32),
    key=bytes(1216),
    shards=(0,),
    signature=UNSIGNED,
)


def test_a_signature_is_filled_in_and_nothing_else():
    signed = ALICE.sign(OFFER)
    assert replace(signed, signature=UNSIGNED) == OFFER
    check_signature(signed, ALICE.public)


def test_what_has_verified_once_counts_for_no_other_key_or_signature():
    signed = ALICE.sign(OFFER)
    check_signature(signed, ALICE.public)
    check_signature(signed, ALICE.public)
    with pytest.raises(OpenError):
        check_signature(signed, BOB.public)
    with pytest.raises(OpenError):
        check_signature(BOB.sign(OFFER), ALICE.public)
    for _ in range(2):  # What was refused stays refused.
        with pytest.raises(OpenError):
            check_signature(replace(signed, signature=bytes(64)), ALICE.public)


def test_only_short_messages_that_verify_are_remembered():
    forget()
    short, long = Challenge(b"n" * 32, "alice", UNSIGNED), One("x" * 2048, UNSIGNED)
    check_signature(ALICE.sign(long), ALICE.public)
    with pytest.raises(OpenError):
        check_signature(BOB.sign(short), ALICE.public)
    assert _remembered.cache_info().currsize == 0
    check_signature(ALICE.sign(short), ALICE.public)
    assert _remembered.cache_info().currsize == 1


def test_the_header_of_an_upload_is_short_enough_to_be_remembered():
    """A service checks it twice: before the upload waits for its turn, and when it begins."""
    forget()
    header = UpdateHeader(
        federation=bytes(32),
        round_id=bytes(32),
        round_key=bytes(32),
        client="c" * 255,
        upload_id=bytes(32),
        manifest=bytes(32),
        dimension=2**63,
        tile=2**16,
        tiles=2**47,
        sealed_key=hpke.seal(hpke.HybridKey().public, bytes(40), info=b""),
        signature=UNSIGNED,
    )
    check_signature(ALICE.sign(header), ALICE.public)
    assert _remembered.cache_info().currsize == 1


def test_signing_again_replaces_the_signature():
    assert ALICE.sign(BOB.sign(OFFER)) == ALICE.sign(OFFER)


def test_every_field_is_signed():
    signed = ALICE.sign(OFFER)
    for field in dataclasses.fields(RoundOffer):
        value: Any = getattr(signed, field.name)
        match value:
            case int():
                other: Any = value + 1
            case tuple():
                other = (*value, 1)
            case _:
                other = bytes([value[0] ^ 1]) + value[1:]
        with pytest.raises(OpenError):
            check_signature(replace(signed, **{field.name: other}), ALICE.public)


@dataclass(frozen=True)
class One:
    LABEL: ClassVar[bytes] = b"test/one/v1"
    text: str
    signature: Signature


@dataclass(frozen=True)
class Two:
    LABEL: ClassVar[bytes] = b"test/two/v1"
    text: str
    signature: Signature


def test_the_label_is_signed():
    one = ALICE.sign(One("same", UNSIGNED))
    with pytest.raises(OpenError):
        check_signature(Two("same", one.signature), ALICE.public)


@pytest.mark.parametrize(
    "public", [BOB.public, b"", bytes(32), ALICE.public[:-1], ALICE.public + b"\0", b"\xff" * 32]
)
def test_another_key_is_refused(public):
    with pytest.raises(OpenError, match="RoundOffer") as caught:
        check_signature(ALICE.sign(OFFER), public)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("signature", [UNSIGNED, b"", b"\xff" * 64, bytes(63), bytes(65)])
def test_another_signature_is_refused(signature):
    with pytest.raises(OpenError):
        check_signature(replace(ALICE.sign(OFFER), signature=signature), ALICE.public)


def test_an_identity_is_its_seed():
    assert Identity(bytes([1]) * 32).sign(OFFER) == ALICE.sign(OFFER)
    assert Identity.generate(lambda n: bytes([1]) * n).public == ALICE.public
    assert Identity.generate().public != Identity.generate().public


def test_the_key_does_not_print():
    assert repr(ALICE) == f"Identity(public={ALICE.public.hex()[:16]}, <secret>)"


def test_a_signature_can_be_checked_before_anything_is_decoded():
    signed = ALICE.sign(OFFER)
    check_encoded(RoundOffer, encode(signed), ALICE.public)
    for public, data, error in (
        (BOB.public, encode(signed), OpenError),
        (ALICE.public, encode(replace(signed, number=2)), OpenError),
        (ALICE.public, encode(OFFER), OpenError),
        (b"short", encode(signed), OpenError),
        (ALICE.public, encode(signed)[:-1], MalformedMessage),
        (ALICE.public, pack(b"another label", b""), MalformedMessage),
        (ALICE.public, pack(RoundOffer.LABEL, b""), OpenError),
        (ALICE.public, b"", MalformedMessage),
    ):
        with pytest.raises(error):
            check_encoded(RoundOffer, data, public)

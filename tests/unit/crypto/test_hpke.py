import io

import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey

from ostraka.crypto import hpke
from ostraka.crypto.hpke import HybridKey, fingerprint, seal
from ostraka.crypto.stream import SecretStream
from ostraka.errors import OpenError


def entropy(seed):
    return SecretStream(bytes([seed]) * 32).bytes


KEY = HybridKey(entropy(1))
SEALED = seal(KEY.public, b"secret", info=b"info")


def test_opening_undoes_sealing():
    assert KEY.open(SEALED, info=b"info") == b"secret"
    assert KEY.open(seal(KEY.public, b"", info=b""), info=b"") == b""


def test_the_same_entropy_gives_the_same_key():
    assert HybridKey(entropy(1)).public == KEY.public
    assert HybridKey(entropy(1)).open(SEALED, info=b"info") == b"secret"
    assert HybridKey(entropy(2)).public != KEY.public
    assert HybridKey().public != HybridKey().public


def test_sealing_twice_gives_two_ciphertexts():
    assert seal(KEY.public, b"secret", info=b"info") != SEALED


FAILURES = {
    "another info": (SEALED, b"Info"),
    "no info": (SEALED, b""),
    "nothing": (b"", b"info"),
    "a byte too few": (SEALED[:-1], b"info"),
    "a byte too many": (SEALED + b"\0", b"info"),
    "a flipped bit of the ML-KEM part": (bytes([SEALED[0] ^ 1]) + SEALED[1:], b"info"),
    "a flipped bit of the X25519 part": (
        SEALED[:1090] + bytes([SEALED[1090] ^ 1]) + SEALED[1091:],
        b"info",
    ),
    "an X25519 point of low order": (SEALED[:1088] + bytes(32) + SEALED[1120:], b"info"),
    "a flipped bit of the tag": (SEALED[:-1] + bytes([SEALED[-1] ^ 1]), b"info"),
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_failure_is_one_error(what):
    data, info = FAILURES[what]
    with pytest.raises(OpenError) as caught:
        KEY.open(data, info=info)
    assert caught.value.__suppress_context__


def test_any_length_is_one_error():
    for length in range(0, len(SEALED), 7):
        with pytest.raises(OpenError):
            KEY.open(SEALED[:length], info=b"info")


def test_both_halves_of_the_key_are_needed():
    """Half of the entropy, and so one of the two private keys, is the same as KEY's."""
    mlkem, x25519 = entropy(1)(96)[:64], entropy(1)(96)[64:]
    for parts in (mlkem + bytes(32), bytes(64) + x25519):
        half = HybridKey(io.BytesIO(parts).read)
        with pytest.raises(OpenError):
            half.open(SEALED, info=b"info")


BAD_PUBLIC_KEYS = {
    "nothing": b"",
    "a byte too few": KEY.public[:-1],
    "a byte too many": KEY.public + b"\0",
    "an ML-KEM key that is not reduced": b"\xff" * 1184 + KEY.public[1184:],
    "an X25519 point of low order": KEY.public[:1184] + bytes(32),
}


@pytest.mark.parametrize("what", BAD_PUBLIC_KEYS)
def test_nothing_is_sealed_to_a_bad_key(what):
    with pytest.raises(OpenError):
        seal(BAD_PUBLIC_KEYS[what], b"secret", info=b"info")


def test_the_public_key_is_ml_kem_and_x25519():
    assert len(KEY.public) == 1184 + 32
    seed = entropy(1)(64)
    assert (
        KEY.public[:1184]
        == MLKEM768PrivateKey.from_seed_bytes(seed).public_key().public_bytes_raw()
    )


def test_a_fingerprint_names_one_key():
    other = HybridKey(entropy(2))
    assert fingerprint(KEY.public) == fingerprint(HybridKey(entropy(1)).public)
    assert fingerprint(KEY.public) != fingerprint(other.public)
    assert len(fingerprint(KEY.public)) == 32


def test_the_key_does_not_print():
    assert repr(KEY) == f"HybridKey(public={fingerprint(KEY.public).hex()[:16]}, <secret>)"
    assert hpke.HybridKey.__str__ is object.__str__

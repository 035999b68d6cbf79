"""HPKE to a fresh hybrid key: ML-KEM-768 with X25519, HKDF-SHA256, AES-256-GCM (pyca/cryptography).

The key is hybrid because the host records everything: what is sealed today must stay sealed when
either of the two problems is solved. Base mode does not authenticate the sender, so everything that
is sealed here is also signed.
"""

import hashlib
import os
from collections.abc import Callable
from typing import TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)

from ostraka.errors import OpenError

Entropy: TypeAlias = Callable[[int], bytes]

_SUITE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_MLKEM_SEED = 64
_MLKEM_PUBLIC = 1184
_X25519 = 32


class HybridKey:
    """A private key that lives in memory only. Others seal to `public`."""

    def __init__(self, entropy: Entropy = os.urandom) -> None:
        mlkem = MLKEM768PrivateKey.from_seed_bytes(entropy(_MLKEM_SEED))
        x25519 = X25519PrivateKey.from_private_bytes(entropy(_X25519))
        self._private = MLKEM768X25519PrivateKey(mlkem, x25519)
        self.public = mlkem.public_key().public_bytes_raw() + x25519.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"HybridKey(public={fingerprint(self.public).hex()[:16]}, <secret>)"

    def open(self, sealed: bytes, *, info: bytes) -> bytes:
        """Opens what was sealed to this key under the same info. Raises OpenError."""
        try:
            return _SUITE.decrypt(sealed, self._private, info)
        except (InvalidTag, ValueError):
            raise OpenError("sealed key") from None


def seal(public: bytes, plaintext: bytes, *, info: bytes) -> bytes:
    """Seals to a public key. `info` must be the same at the other end."""
    try:
        key = MLKEM768X25519PublicKey(
            MLKEM768PublicKey.from_public_bytes(public[:_MLKEM_PUBLIC]),
            X25519PublicKey.from_public_bytes(public[_MLKEM_PUBLIC:]),
        )
        return _SUITE.encrypt(plaintext, key, info)
    except ValueError:
        raise OpenError("public key") from None


def fingerprint(public: bytes) -> bytes:
    """Returns the hash by which other messages name a public key."""
    return hashlib.sha256(b"ostraka/hybrid-key/v1" + public).digest()

"""Ed25519 identities. Every signature covers a whole message, its label and version included."""

import os
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ostraka.crypto.hpke import Entropy
from ostraka.encoding import UNSIGNED, SignedMessage, encode, pack, unpack
from ostraka.errors import MalformedMessage, OpenError

_SEED = 32
_REMEMBERED = 1024
_SHORT = 2048  # bytes; the header of an upload is shorter

AnySigned = TypeVar("AnySigned", bound=SignedMessage)


class Identity:
    """A party's long-lived signing key."""

    def __init__(self, seed: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self._private.public_key().public_bytes_raw()

    @classmethod
    def generate(cls, entropy: Entropy = os.urandom) -> "Identity":
        return cls(entropy(_SEED))

    def __repr__(self) -> str:
        return f"Identity(public={self.public.hex()[:16]}, <secret>)"

    def sign(self, message: AnySigned) -> AnySigned:
        """Returns the same message with its signature."""
        return _with_signature(message, self._private.sign(_signed_bytes(message)))


def check_signature(message: SignedMessage, public: bytes) -> None:
    """Raises OpenError unless the holder of `public` signed exactly this message."""
    try:
        verify(public, message.signature, _signed_bytes(message))
    except (InvalidSignature, ValueError):
        raise OpenError(type(message).__name__) from None


def check_encoded(kind: type[SignedMessage], data: bytes, public: bytes) -> None:
    """Checks the signature of an encoded message, so that only a signed one needs decoding.

    Raises MalformedMessage or OpenError.
    """
    match unpack(data):
        case [label, body] if label == kind.LABEL:
            *fields, signature = unpack(body) or [b""]
            signed = pack(label, pack(*fields, UNSIGNED))
        case _:
            raise MalformedMessage(f"not a {kind.__name__}")
    try:
        verify(public, signature, signed)
    except (InvalidSignature, ValueError):
        raise OpenError(kind.__name__) from None


def verify(public: bytes, signature: bytes, signed: bytes) -> None:
    """Raises InvalidSignature or ValueError. Short messages that verify are remembered.

    A ballot and its certificate have the same votes, and a service looks at a header before it
    waits for its turn, and then accepts it. Long messages would fill the memory.
    """
    (_remembered if len(signed) <= _SHORT else _verify)(public, signature, signed)


def _verify(public: bytes, signature: bytes, signed: bytes) -> None:
    Ed25519PublicKey.from_public_bytes(public).verify(signature, signed)


_remembered = lru_cache(_REMEMBERED)(_verify)  # by all bytes; what raises is not remembered


def forget() -> None:
    """Verify everything anew, as a process does that has just begun."""
    _remembered.cache_clear()


def _signed_bytes(message: SignedMessage) -> bytes:
    """Returns what is signed: the message with zeros in place of its signature, the last field."""
    if len(message.signature) != len(UNSIGNED):
        return encode(message, signature=UNSIGNED)
    return encode(message)[: -len(UNSIGNED)] + UNSIGNED


def _with_signature(message: AnySigned, signature: bytes) -> AnySigned:
    changed: Any = replace(message, signature=signature)
    signed: AnySigned = changed
    return signed

"""AES-256-GCM on reused buffers, and the nonces that it needs."""

from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ostraka.arrays import AnyArray, Buffer
from ostraka.errors import OpenError

KEY_BYTES = 32
TAG_BYTES = 16
_NONCE_BYTES = 12
_HALF = 48  # bits


def nonce(counter: int) -> bytes:
    return counter.to_bytes(_NONCE_BYTES, "big")


def pair_nonce(high: int, low: int) -> bytes:
    """From two counters of half the width. A key uses one form only."""
    return (high << _HALF | low).to_bytes(_NONCE_BYTES, "big")


def seal_into(
    cipher: AESGCM, nonce: bytes, values: AnyArray, out: Buffer, *, bound: bytes | None = None
) -> None:
    """Seal an array into `out`, which is 16 bytes longer."""
    cipher.encrypt_into(nonce, as_bytes(values), bound, out)


def open_into(
    cipher: AESGCM,
    nonce: bytes,
    sealed: Buffer,
    out: AnyArray,
    *,
    what: str,
    bound: bytes | None = None,
) -> None:
    """Open into an array. Raises OpenError and leaves zeros behind."""
    try:
        cipher.decrypt_into(nonce, sealed, bound, as_bytes(out))
    except (InvalidTag, ValueError):
        # The cipher writes plaintext before it has checked the tag.
        out.fill(0)
        raise OpenError(what) from None


def as_bytes(values: AnyArray) -> Any:
    """What the cipher takes. A view as bytes costs 2 us, so whoever is in a hurry brings one."""
    return values if values.dtype == np.uint8 else values.data.cast("B")

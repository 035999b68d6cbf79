"""AES-256-GCM on reused buffers, and the nonces that it needs."""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ostraka.arrays import AnyArray, Buffer
from ostraka.errors import OpenError

KEY_BYTES = 32
TAG_BYTES = 16
_NONCE_BYTES = 12


def nonce(*counters: int) -> bytes:
    """One counter, or two of half the width. A key uses one form only."""
    width = _NONCE_BYTES // len(counters)
    return b"".join([counter.to_bytes(width, "big") for counter in counters])


def seal_into(
    cipher: AESGCM, nonce: bytes, values: AnyArray, out: Buffer, *, bound: bytes | None = None
) -> None:
    """Seal an array into `out`, which is 16 bytes longer."""
    cipher.encrypt_into(nonce, values.data.cast("B"), bound, out)


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
        cipher.decrypt_into(nonce, sealed, bound, out.data.cast("B"))
    except (InvalidTag, ValueError):
        # The cipher writes plaintext before it has checked the tag.
        out.fill(0)
        raise OpenError(what) from None

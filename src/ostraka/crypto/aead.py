"""AES-256-GCM on reused buffers, and the nonces that it needs."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ostraka.arrays import AnyArray, Buffer
from ostraka.config import Tiling
from ostraka.crypto.hpke import Entropy
from ostraka.errors import LocalProtocolError, OpenError

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


@dataclass(frozen=True)
class SealedGroups:
    """Where each group of a sealed tile lies."""

    columns: Tiling
    rows: int
    value_bytes: int

    def size(self, index: int) -> int:
        """Bytes of a sealed tile."""
        return self._before(index, self.rows)

    def part(self, index: int, group: range) -> slice:
        """The bytes of one group in a sealed tile."""
        return slice(self._before(index, group.start), self._before(index, group.stop))

    def groups(self) -> Iterator[range]:
        for start in range(0, self.rows, self.columns.group):
            yield range(start, min(start + self.columns.group, self.rows))

    def _before(self, index: int, row: int) -> int:
        """Bytes of the groups that end by this row."""
        seals = -(-row // self.columns.group)
        return row * self.columns.size(index) * self.value_bytes + seals * TAG_BYTES


class Fingerprints:
    """One GMAC per (row, place), 16 bytes each, under a fresh key; and the sender's own tags with
    it, so that the second pass takes the same bytes or none, and need not check those again.

    A place is what is read of a row at a time: a tile, or several.
    """

    def __init__(self, entropy: Entropy = os.urandom) -> None:
        self._cipher = AESGCM(entropy(KEY_BYTES))
        self._kept: dict[bytes, bytes] = {}  # by nonce

    def __repr__(self) -> str:
        return f"Fingerprints({len(self._kept)} places, <secret>)"

    def keep(self, row: int, index: int, opened: AnyArray, tags: bytes) -> None:
        """Remember what the first pass opened. Once per place: a second look is a bug."""
        place = pair_nonce(row, index)
        if place in self._kept:
            raise LocalProtocolError(f"place {index} of row {row} was read twice in the first pass")
        self._kept[place] = self._of(place, opened, tags)

    def same(self, row: int, index: int, opened: AnyArray, tags: bytes) -> bool:
        """Whether the second pass has opened the same values from the same bytes."""
        place = pair_nonce(row, index)
        # Fingerprints never leave the enclave, so computing one twice under a nonce shows nothing.
        return compare_digest(self._kept[place], self._of(place, opened, tags))

    def _of(self, place: bytes, opened: AnyArray, tags: bytes) -> bytes:
        return self._cipher.encrypt(place, b"", as_bytes(opened)) + tags

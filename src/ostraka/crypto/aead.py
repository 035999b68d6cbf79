"""AES-256-GCM on reused buffers: nonces, sealed tiles of many rows, and fingerprints.

A tile of many rows is sealed a group of rows at a time, one after another. All of it goes to one
reader, so sealing row by row would only cost calls. The nonce of a group is (tile, first row).

Fingerprints prove that the second pass averages the same values that the first pass measured. A
client in league with the host can make two tiles that open under one key, nonce and header, and the
host could show one when distances are measured and the other when updates are averaged. Therefore
the first pass keeps a GMAC of every opened tile, under a key that never leaves the enclave. It
covers the plaintext in the enclave's own memory, because ciphertext may change between two reads.
"""

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
    """Makes a nonce from two counters of half the width. A key uses one form of nonce only."""
    return (high << _HALF | low).to_bytes(_NONCE_BYTES, "big")


def seal_into(
    cipher: AESGCM, nonce: bytes, values: AnyArray, out: Buffer, *, bound: bytes | None = None
) -> None:
    """Seals an array into `out`, which is 16 bytes longer."""
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
    """Opens into an array. Raises OpenError, and then leaves zeros in it."""
    try:
        cipher.decrypt_into(nonce, sealed, bound, as_bytes(out))
    except (InvalidTag, ValueError):
        # The cipher writes plaintext before it has checked the tag.
        out.fill(0)
        raise OpenError(what) from None


def as_bytes(values: AnyArray) -> Any:
    """Returns what the cipher takes. Making the view costs 2 us, so bytes are passed through."""
    return values if values.dtype == np.uint8 else values.data.cast("B")


@dataclass(frozen=True)
class SealedGroups:
    """The layout of sealed tiles: where each group of rows lies."""

    columns: Tiling
    rows: int
    value_bytes: int

    def size(self, index: int) -> int:
        """Returns the bytes of a sealed tile."""
        return self._before(index, self.rows)

    def part(self, index: int, group: range) -> slice:
        """Returns the place of one group in a sealed tile."""
        return slice(self._before(index, group.start), self._before(index, group.stop))

    def groups(self) -> Iterator[range]:
        for start in range(0, self.rows, self.columns.group):
            yield range(start, min(start + self.columns.group, self.rows))

    def _before(self, index: int, row: int) -> int:
        """Returns the bytes of the groups that end by this row."""
        seals = -(-row // self.columns.group)
        return row * self.columns.size(index) * self.value_bytes + seals * TAG_BYTES


class Fingerprints:
    """Keeps one GMAC of 16 bytes for each row and place, under a fresh key, and the sender's tags.

    With the tags, the second pass takes the same bytes or none, and need not check the tags again.
    A place is what is read of a row at a time: a tile, or several.
    """

    def __init__(self, entropy: Entropy = os.urandom) -> None:
        self._cipher = AESGCM(entropy(KEY_BYTES))
        self._kept: dict[bytes, bytes] = {}  # by nonce

    def __repr__(self) -> str:
        return f"Fingerprints({len(self._kept)} places, <secret>)"

    def keep(self, row: int, index: int, opened: AnyArray, tags: bytes) -> None:
        """Remembers what the first pass opened. A second call for one place is a bug."""
        place = pair_nonce(row, index)
        if place in self._kept:
            raise LocalProtocolError(f"place {index} of row {row} was read twice in the first pass")
        self._kept[place] = self._of(place, opened, tags)

    def same(self, row: int, index: int, opened: AnyArray, tags: bytes) -> bool:
        """Tells whether the second pass has opened the same values from the same bytes."""
        place = pair_nonce(row, index)
        # Fingerprints never leave the enclave, so computing one twice under a nonce shows nothing.
        return compare_digest(self._kept[place], self._of(place, opened, tags))

    def _of(self, place: bytes, opened: AnyArray, tags: bytes) -> bytes:
        return self._cipher.encrypt(place, b"", as_bytes(opened)) + tags

"""AES-256-GCM on reused buffers: nonces, and sealed tiles of many rows.

A tile of many rows is sealed a group of rows at a time, one after another. All of it goes to one
reader, so sealing row by row would only cost calls. The nonce of a group is (tile, first row).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ostraka.arrays import AnyArray, Buffer
from ostraka.config import Tiling
from ostraka.errors import OpenError

KEY_BYTES = 32
TAG_BYTES = 16
NONCE_BYTES = 12
_HALF = 48  # bits


def nonce(counter: int) -> bytes:
    return counter.to_bytes(NONCE_BYTES, "big")


def pair_nonce(high: int, low: int) -> bytes:
    """Makes a nonce from two counters of half the width. A key uses one form of nonce only."""
    return (high << _HALF | low).to_bytes(NONCE_BYTES, "big")


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

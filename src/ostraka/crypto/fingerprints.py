"""Proof that the second pass reads the very ciphertext that the first one read.

A client in league with the host can make two tiles that open under one key, nonce and header, and
the host could show one when distances are measured and the other when updates are averaged. So the
first pass keeps a GMAC of every ciphertext tile under a key that never leaves the enclave.
"""

import os
from hmac import compare_digest

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ostraka.arrays import Buffer
from ostraka.crypto.aead import KEY_BYTES, nonce
from ostraka.crypto.hpke import Entropy
from ostraka.errors import LocalProtocolError


class Fingerprints:
    """One GMAC per (row, tile), 16 bytes each, under a fresh key."""

    def __init__(self, entropy: Entropy = os.urandom) -> None:
        self._cipher = AESGCM(entropy(KEY_BYTES))
        self._kept: dict[bytes, bytes] = {}  # by nonce

    def __repr__(self) -> str:
        return f"Fingerprints({len(self._kept)} tiles, <secret>)"

    def keep(self, row: int, index: int, ciphertext: Buffer) -> None:
        """Remember what the first pass read. Once per tile: a second look is a bug."""
        place = nonce(row, index)
        if place in self._kept:
            raise LocalProtocolError(f"tile {index} of row {row} was read twice in the first pass")
        self._kept[place] = self._cipher.encrypt(place, b"", ciphertext)

    def same(self, row: int, index: int, ciphertext: Buffer) -> bool:
        """Whether the second pass reads the same bytes."""
        place = nonce(row, index)
        # The tags never leave the enclave, so computing one twice under a nonce shows nothing.
        return compare_digest(self._kept[place], self._cipher.encrypt(place, b"", ciphertext))

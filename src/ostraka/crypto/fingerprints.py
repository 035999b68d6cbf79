"""Proof that the second pass averages the very values that the first one measured.

A client in league with the host can make two tiles that open under one key, nonce and header, and
the host could show one when distances are measured and the other when updates are averaged. So the
first pass keeps a GMAC of every opened tile under a key that never leaves the enclave. It is of the
plaintext, in the enclave's own memory: ciphertext may change between two looks at it.
"""

import os
from hmac import compare_digest

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ostraka.arrays import AnyArray
from ostraka.crypto.aead import KEY_BYTES, as_bytes, pair_nonce
from ostraka.crypto.hpke import Entropy
from ostraka.errors import LocalProtocolError


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

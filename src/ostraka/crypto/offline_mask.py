"""The leading mask of an attempt, R_t, made from 32 secret bytes and used once.

The enclave needs its Gram matrix R_t R_t^T to decode. With 2t workers it makes that itself,
offline, before the round; with 2t + 1 the last worker gets the seed and makes it, and nothing is
left to do here. Seed and matrix live in memory only: after a restart no old mask can come back.
"""

import os
from collections.abc import Iterator

import numpy as np

from ostraka.arrays import UInt32
from ostraka.config import RoundConfig, Tiling
from ostraka.core import field
from ostraka.crypto.aead import KEY_BYTES
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.stream import SecretStream
from ostraka.errors import LocalProtocolError


class OfflineMask:
    """The leading mask for up to `rows` clients. Any number of its first rows may be used."""

    def __init__(self, rules: RoundConfig, rows: int, entropy: Entropy = os.urandom) -> None:
        self._rules = rules
        self._columns = rules.columns
        self._gram_is_ours = rules.workers % 2 == 0
        self._rows = rows
        self._seed = entropy(KEY_BYTES)
        self._gram: UInt32 | None = None
        self._spent = False

    def __repr__(self) -> str:
        return f"OfflineMask({self._rows} rows, spent={self._spent}, <secret>)"

    def make(self) -> Iterator[bytes]:
        """Compute the Gram matrix if no worker will: O(rows^2 x columns), before the round.

        Yields what the host is to keep, tile by tile as `OfflineNoise.make` does: nothing. Between
        two tiles it holds no more than the matrix.
        """
        if not self._gram_is_ours:
            return
        gram = np.zeros((self._rows, self._rows), np.uint32)
        for index in range(self._columns.count):
            field.add_gram(gram, mask_tile(self._seed, self._rows, self._columns, index))
            yield b""
        self._gram = gram

    def serves(self, rules: RoundConfig, rows: int) -> bool:
        """Whether this is enough, and right, for so many rows under these rules."""
        return rules == self._rules and rows <= self._rows

    def spend(self) -> "SpentMask":
        """Hand this mask to one attempt. A second time raises LocalProtocolError."""
        if self._spent:
            raise LocalProtocolError("this mask was spent; a mask used twice shows W - W'")
        if self._gram_is_ours and self._gram is None:
            raise LocalProtocolError("this mask was not made; its Gram matrix is needed to decode")
        self._spent = True
        return SpentMask(self._seed, self._gram)


class SpentMask:
    """The leading mask, in the hands of its attempt. `gram` is None where a worker makes it."""

    value_bytes = 4  # of a share

    def __init__(self, seed: bytes, gram: UInt32 | None) -> None:
        self.seed = seed
        self.gram = gram

    def __repr__(self) -> str:
        return "SpentMask(<secret>)"


def mask_stream(index: int, rows: range) -> int:
    """The stream, under a mask's seed, of one tile of a group of rows: drawn row after row.

    So a cohort that ends within a group has the same masks in the rows that it has.
    """
    return index << 32 | rows.start


def mask_tile(seed: bytes, rows: int, columns: Tiling, index: int) -> UInt32:
    """One tile of the mask that a seed stands for: (rows, b)."""
    stream = SecretStream(seed)
    block = np.empty((rows, columns.size(index)), np.uint32)
    for start in range(0, rows, columns.group):
        stream.seek(mask_stream(index, range(start, rows)))
        stream.uniform_into(block[start : start + columns.group], field.P)
    return block

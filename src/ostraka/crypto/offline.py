"""Masks and noise that are made before a round and used once.

`OfflineMask` is the leading mask of an attempt, R_t, made from 32 secret bytes. The enclave needs
its Gram matrix R_t R_t^T to decode. With 2t workers it makes that itself, offline; with 2t + 1 the
last worker gets the seed and makes it, and nothing is left to do here. Seed and matrix live in
memory only, so no old mask can come back after a restart.

`OfflineNoise` is constant-distance noise, sealed and kept outside the enclave. It is made tile by
tile from a secret stream, so its memory is O(rows x tile): the stream is read once for the Gram
matrix, and again for the rows themselves. The key lives in memory only and seals one set: after a
restart no old noise opens, and noise that is spent cannot be opened again.
"""

import os
from collections.abc import Iterator
from functools import partial

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ostraka.arrays import Buffer, Float64, UInt32
from ostraka.config import Terms, Tiling
from ostraka.core import field, gaussian
from ostraka.crypto.aead import KEY_BYTES, SealedGroups, open_into, pair_nonce, seal_into
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.stream import SecretStream
from ostraka.errors import LocalProtocolError

_NOISE_BYTES = 8  # of a value


class OfflineMask:
    """The leading mask for up to `rows` clients. Any number of its first rows may be used."""

    def __init__(self, terms: Terms, rows: int, entropy: Entropy = os.urandom) -> None:
        self._terms = terms
        self._columns = terms.columns
        self._gram_is_ours = terms.workers % 2 == 0
        self._rows = rows
        self._seed = entropy(KEY_BYTES)
        self._gram: UInt32 | None = None
        self._spent = False

    def __repr__(self) -> str:
        return f"OfflineMask({self._rows} rows, spent={self._spent}, <secret>)"

    def make(self) -> Iterator[bytes]:
        """Computes the Gram matrix if no worker will. That takes O(rows^2 x columns).

        It yields after each tile, as `OfflineNoise.make` does, but the host has nothing to keep.
        Between two tiles it holds no more than the matrix.
        """
        if not self._gram_is_ours:
            return
        gram = np.zeros((self._rows, self._rows), np.uint32)
        for index in range(self._columns.count):
            field.add_gram(gram, mask_tile(self._seed, self._rows, self._columns, index))
            yield b""
        self._gram = gram

    def serves(self, terms: Terms, rows: int) -> bool:
        """Tells whether this serves an attempt with these terms and this number of rows."""
        return terms == self._terms and rows <= self._rows

    def spend(self) -> "SpentMask":
        """Hands this mask to one attempt. A second call raises LocalProtocolError."""
        if self._spent:
            raise LocalProtocolError("this mask was spent; a mask used twice shows W - W'")
        if self._gram_is_ours and self._gram is None:
            raise LocalProtocolError("this mask was not made; its Gram matrix is needed to decode")
        self._spent = True
        return SpentMask(self._seed, self._gram)


class SpentMask:
    """The leading mask, handed to its attempt. gram: None if a worker makes it."""

    value_bytes = 4  # of a share

    def __init__(self, seed: bytes, gram: UInt32 | None) -> None:
        self.seed = seed
        self.gram = gram

    def __repr__(self) -> str:
        return "SpentMask(<secret>)"


def mask_stream(index: int, rows: range) -> int:
    """Returns the stream, under a mask's seed, of one tile of a group of rows.

    It is drawn row after row, so a cohort that ends within a group has the same masks in its rows.
    """
    return index << 32 | rows.start


def mask_tile(seed: bytes, rows: int, columns: Tiling, index: int) -> UInt32:
    """Makes one tile, (rows, b), of the mask that a seed stands for."""
    stream = SecretStream(seed)
    block = np.empty((rows, columns.size(index)), np.uint32)
    for start in range(0, rows, columns.group):
        stream.seek(mask_stream(index, range(start, rows)))
        stream.uniform_into(block[start : start + columns.group], field.P)
    return block


class OfflineNoise:
    """One set of noise for `rows` clients. Any subset of its rows has constant distances, too."""

    def __init__(self, terms: Terms, rows: int, entropy: Entropy = os.urandom) -> None:
        self._rows = rows
        self._terms = terms
        self._layout = SealedGroups(terms.columns, rows, _NOISE_BYTES)
        self._cipher = AESGCM(entropy(KEY_BYTES))
        self._entropy = entropy
        self._spent = False
        self._made = False

    def __repr__(self) -> str:
        return f"OfflineNoise({self._rows} rows, spent={self._spent}, <secret>)"

    def make(self) -> Iterator[bytes]:
        """Yields the sealed tiles, in order, for the host to keep."""
        if self._made:
            raise LocalProtocolError("this noise was made before; one key seals one set")
        self._made = True
        seed, factors = self._draw()
        for index in range(self._terms.columns.count):
            yield self._seal(index, self._noise(seed, factors, index))

    def serves(self, terms: Terms, rows: int) -> bool:
        """Tells whether this serves an attempt with these terms and this number of rows."""
        return terms == self._terms and rows <= self._rows

    def spend(self) -> "SpentNoise":
        """Hands this noise to one attempt. A second call raises LocalProtocolError."""
        if self._spent:
            raise LocalProtocolError("this noise was spent; a mask used twice shows W - W'")
        self._spent = True
        return SpentNoise(self._cipher, self._layout)

    def _draw(self) -> tuple[bytes, tuple[Float64, ...]]:
        """Returns a seed, and the map from its normals to the noise."""
        while True:
            seed = self._entropy(KEY_BYTES)
            try:
                blocks = partial(self._blocks, seed)
                return seed, gaussian.transform(blocks, sigma=self._terms.sigma)
            except gaussian.IllConditioned:
                continue  # This is rare, and needs hardly more dimensions than rows.

    def _noise(self, seed: bytes, factors: tuple[Float64, ...], index: int) -> Float64:
        rows = gaussian.apply(factors, self._normals(seed, index))
        return gaussian.to_grid(rows, gaussian.grid_step(self._terms.sigma), out=rows)

    def _blocks(self, seed: bytes) -> Iterator[Float64]:
        return (self._normals(seed, index) for index in range(self._terms.columns.count))

    def _normals(self, seed: bytes, index: int) -> Float64:
        shape = (self._rows, self._terms.columns.size(index))
        return SecretStream(seed, stream=index).normal(shape)

    def _seal(self, index: int, rows: Float64) -> bytes:
        sealed = memoryview(bytearray(self._layout.size(index)))
        for group in self._layout.groups():
            values = rows[group.start : group.stop]
            out = sealed[self._layout.part(index, group)]
            seal_into(self._cipher, pair_nonce(index, group.start), values, out)
        return bytes(sealed)


class SpentNoise:
    """Opens one set of noise, for one attempt."""

    value_bytes = _NOISE_BYTES  # of a share

    def __init__(self, cipher: AESGCM, layout: SealedGroups) -> None:
        self._cipher = cipher
        self._layout = layout

    def __repr__(self) -> str:
        return f"SpentNoise({self._layout.rows} rows, <secret>)"

    def open_into(self, index: int, group: range, sealed_tile: Buffer, out: Float64) -> None:
        """Opens the noise of the first g rows of a group into out (g, b). Raises OpenError."""
        layout = self._layout
        whole = range(group.start, min(group.start + layout.columns.group, layout.rows))
        sealed = memoryview(sealed_tile)[layout.part(index, whole)]
        # A cohort may end within a group. The noise of the other rows is not used.
        space = out if group == whole else np.empty((len(whole), out.shape[1]))
        open_into(self._cipher, pair_nonce(index, group.start), sealed, space, what="noise")
        if space is not out:
            out[:] = space[: len(group)]

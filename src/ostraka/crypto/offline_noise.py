"""Constant-distance noise made offline, sealed, kept outside the enclave and spent once.

Made tile by tile from a secret stream, so that memory is O(rows x tile): one reading of the stream
for the Gram matrix, another for the rows themselves. The key lives in memory only and seals one
set: after a restart no old noise opens, and noise that is spent cannot be opened again.
"""

import os
from collections.abc import Iterator
from functools import partial

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ostraka.arrays import Buffer, Float64
from ostraka.config import RoundConfig
from ostraka.core import masking, noise
from ostraka.crypto.aead import KEY_BYTES, open_into, pair_nonce, seal_into
from ostraka.crypto.groups import SealedGroups
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.stream import SecretStream
from ostraka.errors import LocalProtocolError

_VALUE_BYTES = 8


class OfflineNoise:
    """One set of noise for `rows` clients. Any subset of its rows has constant distances too."""

    def __init__(self, rules: RoundConfig, rows: int, entropy: Entropy = os.urandom) -> None:
        self._rows = rows
        self._rules = rules
        self._layout = SealedGroups(rules.columns, rows, _VALUE_BYTES)
        self._cipher = AESGCM(entropy(KEY_BYTES))
        self._entropy = entropy
        self._spent = False
        self._made = False

    def __repr__(self) -> str:
        return f"OfflineNoise({self._rows} rows, spent={self._spent}, <secret>)"

    def make(self) -> Iterator[bytes]:
        """The sealed tiles, in order, for the host to keep."""
        if self._made:
            raise LocalProtocolError("this noise was made before; one key seals one set")
        self._made = True
        seed, factors = self._draw()
        for index in range(self._rules.columns.count):
            yield self._seal(index, self._noise(seed, factors, index))

    def serves(self, rules: RoundConfig, rows: int) -> bool:
        """Whether this is enough, and right, for so many rows under these rules."""
        return rules == self._rules and rows <= self._rows

    def spend(self) -> "SpentNoise":
        """Hand this noise to one attempt. A second time raises LocalProtocolError."""
        if self._spent:
            raise LocalProtocolError("this noise was spent; a mask used twice shows W - W'")
        self._spent = True
        return SpentNoise(self._cipher, self._layout)

    def _draw(self) -> tuple[bytes, tuple[Float64, ...]]:
        """A seed, and the map from its normals to the noise."""
        while True:
            seed = self._entropy(KEY_BYTES)
            try:
                blocks = partial(self._blocks, seed)
                return seed, noise.transform(blocks, sigma=self._rules.sigma)
            except noise.IllConditioned:
                continue  # Rare, and only where there are hardly more dimensions than rows.

    def _noise(self, seed: bytes, factors: tuple[Float64, ...], index: int) -> Float64:
        rows = noise.apply(factors, self._normals(seed, index))
        return masking.to_grid(rows, masking.grid_step(self._rules.sigma), out=rows)

    def _blocks(self, seed: bytes) -> Iterator[Float64]:
        return (self._normals(seed, index) for index in range(self._rules.columns.count))

    def _normals(self, seed: bytes, index: int) -> Float64:
        shape = (self._rows, self._rules.columns.size(index))
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

    value_bytes = _VALUE_BYTES  # of a share

    def __init__(self, cipher: AESGCM, layout: SealedGroups) -> None:
        self._cipher = cipher
        self._layout = layout

    def __repr__(self) -> str:
        return f"SpentNoise({self._layout.rows} rows, <secret>)"

    def open_into(self, index: int, group: range, sealed_tile: Buffer, out: Float64) -> None:
        """Open the noise of one group of rows, or of its first ones: out (g, b). OpenError."""
        layout = self._layout
        whole = range(group.start, min(group.start + layout.columns.group, layout.rows))
        sealed = memoryview(sealed_tile)[layout.part(index, whole)]
        # A cohort may end within a group. The noise of the rest is for nobody.
        space = out if group == whole else np.empty((len(whole), out.shape[1]))
        open_into(self._cipher, pair_nonce(index, group.start), sealed, space, what="noise")
        if space is not out:
            out[:] = space[: len(group)]

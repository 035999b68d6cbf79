"""The secret sketch (law 12): every row folded to a few columns while it is opened."""

from collections.abc import Iterable, Sequence

import numpy as np

from ostraka.arrays import Buffer, Float32, Float64
from ostraka.core import sketch
from ostraka.crypto.aead import KEY_BYTES
from ostraka.crypto.stream import SecretStream
from ostraka.errors import Rejection
from ostraka.roles.enclave.rows import RowReader


class Folding:
    """Folds the rows of one attempt. Signs and shifts are drawn when its cohort is fixed."""

    def __init__(self, reader: RowReader) -> None:
        self._reader = reader
        self._stream = SecretStream(reader.context.entropy(KEY_BYTES))
        shape = (len(reader.rows), reader.rules.columns.length)
        self.rows: Float32 = np.zeros(shape, np.float32)

    def fold(self, tiles: Iterable[Sequence[Buffer]]) -> None:
        """The whole first pass over the updates."""
        # Sums of enormous values may overflow. Only their own row is spoiled, and it is rejected.
        with np.errstate(over="ignore", invalid="ignore"):
            for index, ciphertexts in enumerate(tiles):
                self._fold_tile(index, ciphertexts)
        for row in np.flatnonzero(~np.isfinite(self.rows).all(axis=1)).tolist():
            self._reader.reject(row, Rejection.NOT_FINITE)
            self.rows[row] = 0

    def columns(self, index: int, rows: range) -> Float32:
        """One tile of some rows' sketches: (g, b)."""
        return self.rows[rows.start : rows.stop, self._reader.rules.columns.part(index)]

    def norms(self) -> Float64:
        """The norms of the sketches (n,), measured; they are never published."""
        wide = (row.astype(np.float64) for row in self.rows)
        return np.array([np.linalg.norm(row) for row in wide])

    def _fold_tile(self, index: int, ciphertexts: Sequence[Buffer]) -> None:
        width, m = self._reader.rules.tiling.size(index), self.rows.shape[1]
        bits = np.frombuffer(self._stream.bytes(-(-width // 8)), np.uint8)
        signs = sketch.signs(bits, width)
        shifts = self._stream.uniform(sketch.blocks(width, m), m)

        def fold_group(lane: int, rows: range) -> None:
            values = self._reader.read(lane, index, rows, ciphertexts)
            sketch.fold(values, signs, shifts, out=self.rows[rows.start : rows.stop])

        self._reader.begin(index, ciphertexts)
        self._reader.each_group(fold_group)

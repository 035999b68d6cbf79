"""The secret sketch (law 12): every row folded to a few columns while it is opened."""

from collections.abc import Iterable, Sequence

import numpy as np

from ostraka.arrays import Buffer, Float32, Float64
from ostraka.core import sketch
from ostraka.crypto.aead import KEY_BYTES
from ostraka.crypto.stream import SecretStream
from ostraka.roles.enclave.rows import RowReader


class Folding:
    """Folds the rows of one attempt, in the unit ball. Signs and shifts are drawn after its cohort
    is fixed, so that no client can know them."""

    def __init__(self, reader: RowReader) -> None:
        self._reader = reader
        self._stream = SecretStream(reader.context.entropy(KEY_BYTES))
        shape = (len(reader.rows), reader.rules.columns.length)
        self.rows: Float32 = np.zeros(shape, np.float32)
        # Every row is folded at its own scale, where float32 neither overflows nor underflows.
        with np.errstate(divide="ignore"):
            self._scales = np.clip(1 / reader.norms, 2.0**-126, 2.0**126).astype(np.float32)
        self._to_unit = reader.factors / self._scales

    def fold(self, tiles: Iterable[Sequence[Buffer]]) -> None:
        """The whole first pass over the updates."""
        for index, ciphertexts in enumerate(tiles):
            self._fold_tile(index, ciphertexts)
        self.rows *= self._to_unit[:, None].astype(np.float32)

    def columns(self, index: int, rows: range) -> Float32:
        """One tile of some rows' sketches: (g, b)."""
        return self.rows[rows.start : rows.stop, self._reader.rules.columns.part(index)]

    def norms(self) -> Float64:
        """The norms of the sketches (n,), measured in the unit ball; they are never published."""
        wide = (row.astype(np.float64) for row in self.rows)
        return np.array([np.linalg.norm(row) for row in wide])

    def _fold_tile(self, index: int, ciphertexts: Sequence[Buffer]) -> None:
        width, m = self._reader.rules.tiling.size(index), self.rows.shape[1]
        bits = np.frombuffer(self._stream.bytes(-(-width // 8)), np.uint8)
        signs = sketch.signs(bits, width)
        shifts = self._stream.uniform(sketch.blocks(width, m), m)

        def fold_group(lane: int, rows: range) -> None:
            part = slice(rows.start, rows.stop)
            values = self._reader.open(lane, index, rows, ciphertexts)
            # An attacker's signalling NaN must not print a warning.
            with np.errstate(all="ignore"):
                np.multiply(values, self._scales[part, None], out=values)
                squares = np.vecdot(values, values) * self._to_unit[part] ** 2
            self._reader.account(index, rows, values, squares)
            sketch.fold(values, signs, shifts, out=self.rows[part])

        self._reader.begin(index, ciphertexts)
        self._reader.each_group(fold_group)

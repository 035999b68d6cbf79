"""The secret sketch (law 12): every row folded to a few columns while it is opened."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from ostraka.arrays import Buffer, Float32, Float64, UInt32, cut
from ostraka.config import MAX_TILE_VALUES
from ostraka.core import sketch
from ostraka.crypto.aead import KEY_BYTES
from ostraka.crypto.stream import SecretStream
from ostraka.protocol.enclave.rows import RowReader, Span

_TOGETHER = 16  # times a sketch's width: what is folded before it is added to the sketch
_TAME = 40  # the binary logarithm of a norm that needs no scale, at most, up or down


class Folding:
    """Folds the rows of one attempt, in the unit ball. Signs and shifts are drawn after its cohort
    is fixed, so that no client can know them."""

    def __init__(self, reader: RowReader) -> None:
        norms = np.maximum(reader.norms, 2.0**-149)
        self._reader = reader
        self._stream = SecretStream(reader.entropy(KEY_BYTES))
        shape = (len(reader.rows), reader.terms.columns.length)
        self.rows: Float32 = np.zeros(shape, np.float32)
        # Rows whose squares leave the range of float32 are folded at a scale of their own.
        self._tame = bool(np.all((reader.norms == 0) | (abs(np.log2(norms)) <= _TAME)))
        scales = np.ones_like(norms) if self._tame else np.clip(1 / norms, 2.0**-126, 2.0**126)
        self._scales = scales.astype(np.float32)
        self._to_unit = reader.factors / self._scales
        batch = (reader.lanes.count, reader.batch, reader.terms.spans.tile)
        self._scaled = np.empty(batch, np.float32)
        self._folded = np.empty((*batch[:2], 2 * shape[1]), np.float32)

    def fold(self, tiles: Iterable[Sequence[Buffer]]) -> None:
        """The whole first pass over the updates."""
        wide = min(_TOGETHER * self.rows.shape[1], MAX_TILE_VALUES)
        spans = self._reader.spans(tiles)
        while batch := list(islice(spans, max(1, wide // self._reader.terms.spans.tile))):
            self._fold_batch([self._draw(span) for span in batch])
        self.rows *= self._to_unit[:, None].astype(np.float32)

    def columns(self, index: int, rows: range) -> Float32:
        """One tile of some rows' sketches: (g, b)."""
        return self.rows[rows.start : rows.stop, self._reader.terms.columns.part(index)]

    def norms(self) -> Float64:
        """The norms of the sketches (n,), measured in the unit ball; they are never published."""
        wide = (row.astype(np.float64) for row in self.rows)
        return np.array([np.linalg.norm(row) for row in wide])

    def _draw(self, span: Span) -> "_Folds":
        """The signs and shifts of one span, the same for all rows."""
        width, m = self._reader.terms.spans.size(span.index), self.rows.shape[1]
        bits = np.frombuffer(self._stream.bytes(-(-width // 8)), np.uint8)
        shifts = self._stream.uniform(sketch.blocks(width, m), m)
        return _Folds(span, sketch.signs(bits, width), shifts)

    def _fold_batch(self, batch: list["_Folds"]) -> None:
        """Several spans of a few rows, whose sketches stay in the cache meanwhile."""

        def fold_rows(lane: int, rows: range) -> None:
            folded = cut(self._folded[lane], len(rows), self._folded.shape[2])
            folded.fill(0)
            for folds in batch:
                self._fold_rows(lane, rows, folds, folded)
            sketch.wrap(folded, self.rows[rows.start : rows.stop])

        self._reader.each_batch(fold_rows)

    def _fold_rows(self, lane: int, rows: range, folds: "_Folds", folded: Float32) -> None:
        part = slice(rows.start, rows.stop)
        values = self._reader.open(lane, folds.span, rows)
        # An attacker's signalling NaN must not print a warning.
        with np.errstate(all="ignore"):
            scaled = values if self._tame else self._scale(lane, part, values)
            squares = np.vecdot(scaled, scaled) * self._to_unit[part] ** 2
        self._reader.account(folds.span.index, rows, values, scaled, squares)
        sketch.fold(scaled, folds.signs, folds.shifts, out=folded)

    def _scale(self, lane: int, part: slice, values: Float32) -> Float32:
        scaled: Float32 = cut(self._scaled[lane], *values.shape)
        np.multiply(values, self._scales[part, None], out=scaled)
        return scaled


@dataclass(frozen=True)
class _Folds:
    """One span of all rows, and how to fold it."""

    span: Span
    signs: Float32
    shifts: UInt32

"""The first pass without workers: distances by a Gram matrix in the enclave itself."""

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from ostraka.arrays import Buffer, Float64
from ostraka.core import gram
from ostraka.protocol.enclave.averaging import Averaging
from ostraka.protocol.enclave.encoder import Measured
from ostraka.protocol.enclave.folding import Folding
from ostraka.protocol.enclave.rows import RowReader
from ostraka.protocol.enclave.spans import Span

_PANEL = 4096  # columns of a sketch, between sums in float64


class MeasuringInside:
    """Measures the distances in the enclave itself, by a Gram matrix of all rows."""

    def __init__(self, reader: RowReader) -> None:
        self._reader = reader
        self._factors = reader.factors[:, None]
        n = len(reader.rows)
        self._gram = np.zeros((n, n))

    def measure(self, tiles: Iterable[Sequence[Buffer]]) -> Averaging:
        """Open every tile of every row, add up the inner products, and select."""
        add = self._add_sketches if self._reader.terms.sketch else self._add_rows
        error = add(tiles)
        measured = Measured(gram.from_gram(self._gram), np.array(error))
        return self._reader.finish(measured, measured_by="inside")

    def _add_sketches(self, tiles: Iterable[Sequence[Buffer]]) -> float:
        """Products in float32, since a sketch is no better than sqrt(2/m) anyway. Error to expect.

        Without their mean, rows that are nearly equal stay well apart in float32.
        """
        folding = Folding(self._reader)
        folding.fold(tiles)
        rows = folding.rows - folding.rows.mean(axis=0)
        for start in range(0, rows.shape[1], _PANEL):
            gram.add_gram32(self._gram, rows[:, start : start + _PANEL])
        return gram.gram_error(rows.shape[1], tile=_PANEL, dtype=np.float32)

    def _add_rows(self, tiles: Iterable[Sequence[Buffer]]) -> float:
        """Products in float64. Returns the error to expect."""
        space = np.empty((len(self._gram), self._reader.terms.tile))
        for span in self._reader.spans(tiles):
            block = space[:, : self._reader.terms.tiling.size(span.index)]
            self._reader.each_batch(partial(self._read_into, block, span))
            gram.add_gram(self._gram, block)
        tiling = self._reader.terms.tiling
        return gram.gram_error(tiling.length, tile=tiling.tile)

    def _read_into(self, block: Float64, span: Span, lane: int, rows: range) -> None:
        part = slice(rows.start, rows.stop)
        values = self._reader.open(lane, span, rows)
        # An attacker's signalling NaN must not print a warning.
        with np.errstate(all="ignore"):
            scaled = np.multiply(values, self._factors[part], out=block[part])
            squares = np.vecdot(scaled, scaled)
        self._reader.account(lane, span.index, rows, scaled, squares)

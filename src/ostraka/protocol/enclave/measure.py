"""Step 2, measure: turns a cohort into inner products, here inside the enclave itself.

`masking` does the same with workers. Either way the outcome is `Measured`.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from ostraka.arrays import Buffer, Float64
from ostraka.core.gram import add_gram, add_gram32, gram_error
from ostraka.protocol.enclave.cohort import Cohort
from ostraka.protocol.enclave.folding import Folding
from ostraka.protocol.enclave.lanes import Lanes
from ostraka.protocol.enclave.rows import Measured, RowReader, Span

_PANEL = 4096  # columns of a sketch, between sums in float64


class Inside:
    """Measures in the enclave itself, without workers."""

    def __init__(self, cohort: Cohort, lanes: Lanes | None = None) -> None:
        self._reader = reader = RowReader(cohort, lanes or Lanes())
        self._factors = reader.factors[:, None]
        n = len(reader.rows)
        self._gram = np.zeros((n, n))

    def measure(self, tiles: Iterable[Sequence[Buffer]]) -> Measured:
        """Open every tile of every row, and add up the inner products."""
        add = self._add_sketches if self._reader.terms.sketch else self._add_rows
        error = add(tiles)
        return self._reader.finish(self._gram, np.array(error), by="inside")

    def _add_sketches(self, tiles: Iterable[Sequence[Buffer]]) -> float:
        """Products in float32, since a sketch is no better than sqrt(2/m) anyway. Error to expect.

        Without their mean, rows that are nearly equal stay well apart in float32.
        """
        folding = Folding(self._reader)
        folding.fold(tiles)
        centre = folding.rows.mean(axis=0)
        rows = folding.rows - centre
        for start in range(0, rows.shape[1], _PANEL):
            add_gram32(self._gram, rows[:, start : start + _PANEL])
        # x_i x_j = (x_i - c)(x_j - c) + (x_i - c) c + (x_j - c) c + c c
        wide = centre.astype(np.float64)
        along = np.array([row.astype(np.float64) @ wide for row in rows])
        self._gram += along[:, None] + along + wide @ wide
        return gram_error(rows.shape[1], tile=_PANEL, dtype=np.float32)

    def _add_rows(self, tiles: Iterable[Sequence[Buffer]]) -> float:
        """Products in float64. Returns the error to expect."""
        space = np.empty((len(self._gram), self._reader.terms.tile))
        for span in self._reader.spans(tiles):
            block = space[:, : self._reader.terms.tiling.size(span.index)]
            self._reader.each_batch(partial(self._read_into, block, span))
            add_gram(self._gram, block)
        tiling = self._reader.terms.tiling
        return gram_error(tiling.length, tile=tiling.tile)

    def _read_into(self, block: Float64, span: Span, lane: int, rows: range) -> None:
        part = slice(rows.start, rows.stop)
        values = self._reader.open(lane, span, rows)
        # An attacker's signalling NaN must not print a warning.
        with np.errstate(all="ignore"):
            scaled = np.multiply(values, self._factors[part], out=block[part])
            squares = np.vecdot(scaled, scaled)
        self._reader.compare_to_last(lane, span, rows, values)
        self._reader.account(span.index, rows, values, scaled, squares)

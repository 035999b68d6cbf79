"""Step 2, measure: turns a cohort into inner products, here inside the enclave itself.

`masking` does the same with workers. Either way the outcome is a `Partial`, of the columns that are
here, and `gather` makes `Measured` of those of all shards.
"""

import numpy as np

from ostraka.arrays import Float64, row_blocks
from ostraka.core.gram import add_gram, add_gram32, gram_error
from ostraka.protocol.enclave.cohort import Cohort
from ostraka.protocol.enclave.rows import Partial, RowReader, Summed
from ostraka.protocol.enclave.threads import Threads

_PANEL = 4096  # columns of a sketch, between sums in float64


class Inside:
    """Measures in the enclave itself, without workers."""

    def __init__(self, cohort: Cohort, threads: Threads | None = None) -> None:
        self._reader = reader = RowReader(cohort, threads or Threads())
        n = len(reader.rows)
        self._gram = np.zeros((n, n))

    def measure(self) -> Partial:
        """Add up the inner products. Raises UpdateRejected for a row that has changed."""
        error = self._add_sketches() if self._reader.terms.sketch else self._add_rows()
        return Partial(Summed(self._gram, error), by="inside")

    def _add_sketches(self) -> float:
        """Products in float32, since a sketch is no better than sqrt(2/m) anyway. Error to expect.

        Without their mean, rows that are nearly equal stay well apart in float32.
        """
        rows = self._reader.sketches()
        centre = rows.mean(axis=0)
        rows -= centre
        for start in range(0, rows.shape[1], _PANEL):
            add_gram32(self._gram, rows[:, start : start + _PANEL])
        # x_i x_j = (x_i - c)(x_j - c) + (x_i - c) c + (x_j - c) c + c c
        wide = centre.astype(np.float64)
        along = np.array([row.astype(np.float64) @ wide for row in rows])
        for each in row_blocks(len(rows)):
            self._gram[each] += along[each, None] + along + wide @ wide
        return gram_error(rows.shape[1], tile=_PANEL, dtype=np.float32)

    def _add_rows(self) -> float:
        """Products in float64. Returns the error to expect."""
        columns = self._reader.columns
        space = np.empty((len(self._gram), columns.tile))
        for index in range(columns.count):
            block: Float64 = space[:, : columns.size(index)]

            def widen(thread: int, rows: range, index: int = index, block: Float64 = block) -> None:
                for row, values in zip(rows, self._reader.read(thread, index, rows), strict=True):
                    np.multiply(values, self._reader.factors[row], out=block[row])

            self._reader.each_group(widen)
            add_gram(self._gram, block)
        return gram_error(columns.length, tile=columns.tile)

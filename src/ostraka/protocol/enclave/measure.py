"""Step 2, measure: turns a cohort into inner products, here inside the enclave itself.

`masking` does the same with workers. Either way the outcome is a `Partial`, of the columns that are
here, and `gather` makes `Measured` of those of all shards.
"""

import math
from itertools import pairwise

import numpy as np

from ostraka.arrays import AnyArray, Float32, Float64, row_blocks
from ostraka.core import loops
from ostraka.core.gram import add_gram, add_gram32, gram_error, mirror
from ostraka.protocol.enclave.cohort import Cohort
from ostraka.protocol.enclave.rows import Counted, Partial, RowReader, Summed
from ostraka.protocol.enclave.threads import Threads

_PANEL = 4096  # columns of a sketch, between sums in float64
_IN_A_FLOAT32 = 4  # bytes


class Inside:
    """Measures in the enclave itself, without workers."""

    def __init__(self, cohort: Cohort, threads: Threads | None = None) -> None:
        self._reader = RowReader(cohort, threads or Threads())

    def measure(self) -> Partial:
        """Add up the inner products. Raises UpdateRejected for a row that has changed."""
        terms = self._reader.terms
        if terms.sketch:
            return Partial(self._sum_sketches(), by="inside")
        if terms.counted:
            return Partial(self._count_rows(), by="inside")
        return Partial(self._sum_rows(), by="inside")

    def _sum_sketches(self) -> Summed:
        """Products in float32, since a sketch is no better than sqrt(2/m) anyway.

        Without their mean, rows that are nearly equal stay well apart in float32.
        """
        rows, gram = self._reader.sketches(), self._zeros()
        centre = rows.mean(axis=0)
        rows -= centre
        for start in range(0, rows.shape[1], _PANEL):
            add_gram32(gram, rows[:, start : start + _PANEL])
        # x_i x_j = (x_i - c)(x_j - c) + (x_i - c) c + (x_j - c) c + c c
        wide = centre.astype(np.float64)
        along = np.array([row.astype(np.float64) @ wide for row in rows])
        for each in row_blocks(len(rows)):
            gram[each] += along[each, None] + along + wide @ wide
        return Summed(gram, gram_error(rows.shape[1], tile=_PANEL, dtype=np.float32))

    def _sum_rows(self) -> Summed:
        """Products in float64."""
        columns, gram = self._reader.columns, self._zeros()
        space = np.empty((len(gram), columns.tile))
        for index in range(columns.count):
            block: Float64 = space[:, : columns.size(index)]

            def widen(thread: int, rows: range, index: int = index, block: Float64 = block) -> None:
                for row, values in zip(rows, self._reader.read(thread, index, rows), strict=True):
                    np.multiply(values, self._reader.factors[row], out=block[row])

            self._reader.each_group(widen)
            add_gram(gram, block)
        return Summed(gram, gram_error(columns.length, tile=columns.tile))

    def _count_rows(self) -> Counted:
        """Products of rows that came as integers (law 19): sums of them are exact in any order."""
        reader, columns = self._reader, self._reader.columns
        gram = np.zeros((len(reader.rows), len(reader.rows)), np.int64)
        pieces: list[AnyArray] = [np.empty(0, np.int8)] * len(gram)
        # Spooled rows are opened into this. For others it is never touched, and so takes no memory.
        space: Float32 = np.empty((len(gram), -(-columns.tile // _IN_A_FLOAT32)), np.float32)
        parts = _triangle(len(gram), reader.threads.count)
        for index in range(columns.count):

            def take(thread: int, rows: range, index: int = index) -> None:
                part = slice(rows.start, rows.stop)
                pieces[part] = reader.read(thread, index, rows, integers=True, space=space[part])

            def multiply(number: int) -> None:
                loops.add_gram(pieces, gram, parts[number])

            reader.each_group(take)
            reader.threads.map(multiply, range(len(parts)))
        mirror(gram)
        squares = np.diagonal(gram).copy()
        steps = reader.steps * reader.factors
        return Counted(gram, squares, np.zeros_like(squares), steps, rounded=False)

    def _zeros(self) -> Float64:
        return np.zeros((len(self._reader.rows), len(self._reader.rows)))


def _triangle(n: int, count: int) -> list[range]:
    """Cuts a matrix (n, n) by rows into `count` parts, of which each has as much above the
    diagonal."""
    ends = [round(n * (1 - math.sqrt(1 - number / count))) for number in range(count + 1)]
    return [range(start, stop) for start, stop in pairwise(ends)]

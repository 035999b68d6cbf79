"""Step 4, combine: the second pass, which turns a plan and the rows into the aggregate."""

from typing import Protocol

import numpy as np

from ostraka.arrays import Float32, Float64, cut
from ostraka.config import Tiling
from ostraka.core import loops
from ostraka.core.columns import Reduction, Scratch
from ostraka.core.rules import Columnwise, Plan
from ostraka.protocol.enclave.cohort import Cohort
from ostraka.protocol.enclave.rows import read_piece
from ostraka.protocol.enclave.threads import Threads

_ROWS = 8  # that are added at a time, if they have to be opened or widened for it
_WIDE = 2**17  # values of a row that are added at a time, if they are added where they lie
_MIXED_VALUES = 2**17  # of all rows, that are mixed at a time


def combine(cohort: Cohort, scales: Float64, plan: Plan, threads: Threads | None = None) -> Float32:
    """The aggregate, as far as its values are here: a weighted sum of the clipped rows and of the
    last aggregate, or each column reduced by itself. scales: (n,) what clips each row.

    Every row is read alike, whatever it counts for. Raises UpdateRejected if any row is not what
    arrived. That client is then out, even if it had no weight: decide anew, and combine again.
    """
    threads = threads or Threads()
    combining = _combining(cohort, scales, plan, threads)
    aggregate = cohort.context.vectors.take(cohort.context.span.length)

    def combine_piece(thread: int, index: int, _: int) -> None:
        aggregate[combining.tiling.part(index)] = combining.combine(thread, index)

    threads.batches(range(combining.tiling.count), combine_piece)
    return aggregate


class _Combining(Protocol):
    """Combines pieces, with scratch memory for every thread."""

    tiling: Tiling

    def combine(self, thread: int, index: int) -> Float64:
        """One piece of the aggregate, (b,): a view of the thread's memory."""


def _combining(cohort: Cohort, scales: Float64, plan: Plan, threads: Threads) -> _Combining:
    rows = _Rows(cohort, threads)
    if isinstance(plan, Columnwise):
        return _Columns(rows, scales, plan)
    weights, last = (plan.values * scales)[rows.alive], cohort.context.state.last
    in_place = rows.in_place()
    if len(in_place) < len(rows.alive):
        return _Sums(rows, weights, last, plan.last)
    if last is not None:
        in_place, weights = [*in_place, last], np.append(weights, plan.last)
    return _SumsInPlace(in_place, weights, length=rows.tiling.length, threads=rows.threads)


class _Rows:
    """Reads the rows that still stand."""

    def __init__(self, cohort: Cohort, threads: Threads) -> None:
        self.alive = cohort.alive
        self.threads = threads.count
        self.tiling = cohort.pieces
        self._cohort = cohort

    def read(self, row: int, index: int, out: Float32) -> Float32:
        """One piece of a row, (b,), in `out` or where it lies. Raises UpdateRejected."""
        return read_piece(self._cohort, self._cohort.rows[row], index, out)

    def in_place(self) -> list[Float32]:
        """The rows (d,) that are float32 in memory."""
        found = [self._cohort.rows[row].values.in_place() for row in self.alive]
        return [each for each in found if each is not None]


class _SumsInPlace:
    """Weighted sums of rows (d,) that are read where they lie, and so in wide pieces: a piece takes
    no memory but that of its sums.

    Rows that are not selected are read, too, and weigh 0.
    """

    def __init__(self, rows: list[Float32], weights: Float64, *, length: int, threads: int) -> None:
        self.tiling = Tiling(length, min(_WIDE, -(-length // threads)))
        self._rows, self._weights = rows, weights
        self._sums = np.empty((threads, self.tiling.tile))

    def combine(self, thread: int, index: int) -> Float64:
        part = self.tiling.part(index)
        total: Float64 = self._sums[thread, : self.tiling.size(index)]
        total.fill(0)
        loops.add_rows([row[part] for row in self._rows], self._weights, total)
        return total


class _Sums:
    """The same of rows of which some have to be opened or widened, and of the last aggregate (d,),
    if there is one. weights: of the rows that stand.
    """

    def __init__(
        self, rows: _Rows, weights: Float64, last: Float32 | None, last_weight: float
    ) -> None:
        self.tiling = rows.tiling
        self._rows, self._weights = rows, weights
        self._last, self._last_weight = last, np.array([last_weight])
        self._space = np.empty((rows.threads, _ROWS, self.tiling.tile), np.float32)
        self._sums = np.empty((rows.threads, self.tiling.tile))

    def combine(self, thread: int, index: int) -> Float64:
        total: Float64 = self._sums[thread, : self.tiling.size(index)]
        total.fill(0)
        for start in range(0, len(self._rows.alive), _ROWS):
            some = slice(start, start + _ROWS)
            values = [
                self._rows.read(row, index, out)
                for row, out in zip(self._rows.alive[some], self._space[thread], strict=False)
            ]
            loops.add_rows(values, self._weights[some], total)
        if self._last is not None:
            part = self.tiling.part(index)
            loops.add_rows([self._last[part]], self._last_weight, total)
        return total


class _Columns:
    """Columns of all rows at a time, or of mixtures of them, each reduced by itself.

    A thread holds clients x piece values, 16 MB at most, and 12 MB at most beside them. Mixtures
    take the place of the rows, some columns at a time, so there is no second copy.
    """

    def __init__(self, rows: _Rows, scales: Float64, plan: Columnwise) -> None:
        self.tiling = rows.tiling
        self._rows = rows
        matrix = plan.matrix[:, rows.alive] * scales[rows.alive]
        n, width = len(rows.alive), self.tiling.tile
        # Where every mixture is one row, each of another, there is nothing to add up.
        picks, self._picked = np.nonzero(matrix)
        self._mixes = len(set(self._picked)) < len(matrix) or len(picks) > len(matrix)
        self._matrix = matrix
        self._scales = matrix.max(axis=0, initial=0).astype(np.float32)
        self._part = min(width, max(1, _MIXED_VALUES // n))
        self._reduction = Reduction(len(matrix), plan.reducer, plan.count)
        self._values = np.empty((rows.threads, n, width), np.float32)
        self._sums = np.empty((rows.threads, width))
        self._scratch = [Scratch(width) for _ in range(rows.threads)]
        mixed = (rows.threads, n + len(matrix), self._part) if self._mixes else (rows.threads, 0, 0)
        self._mixed = np.empty(mixed)

    def combine(self, thread: int, index: int) -> Float64:
        size = self.tiling.size(index)
        values = cut(self._values[thread], len(self._rows.alive), size)
        for row, out in zip(self._rows.alive, values, strict=True):
            read = self._rows.read(row, index, out)
            if read is not out:
                np.copyto(out, read)
        if self._mixes:
            self._mix(thread, values)
            chosen = list(values[: self._reduction.rows])
        else:
            values *= self._scales[:, None]
            chosen = [values[row] for row in self._picked]
        total: Float64 = self._sums[thread, :size]
        self._reduction.apply(chosen, total, self._scratch[thread])
        return total

    def _mix(self, thread: int, values: Float32) -> None:
        """Replace rows (n, b) by their mixtures, the first m of them."""
        n, m = len(values), len(self._matrix)
        for start in range(0, values.shape[1], self._part):
            part = values[:, start : start + self._part]
            wide, mixed = np.split(cut(self._mixed[thread], n + m, part.shape[1]), [n])
            np.copyto(wide, part)
            np.matmul(self._matrix, wide, out=mixed)
            np.copyto(part[:m], mixed, casting="same_kind")

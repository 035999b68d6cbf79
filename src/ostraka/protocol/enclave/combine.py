"""Step 4, combine: the second pass, which turns a plan and the rows into the aggregate."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from ostraka.arrays import Buffer, Float32, Float64, cut
from ostraka.core.columns import Reduction, Scratch
from ostraka.core.rules import Columnwise, Plan, Weights
from ostraka.crypto.updates import UncheckedOpener
from ostraka.errors import OpenError, Rejection, UpdateRejected
from ostraka.protocol.enclave.cohort import Cohort
from ostraka.protocol.enclave.lanes import Lanes
from ostraka.protocol.enclave.rows import Measured, Span, spans

_ROWS = 8  # that are added at a time
_MIXED_VALUES = 2**17  # of all rows, that are mixed at a time


def combine(
    cohort: Cohort,
    measured: Measured,
    plan: Plan,
    tiles: Iterable[Sequence[Buffer]],
    lanes: Lanes | None = None,
) -> Float32:
    """The aggregate (d,): a weighted sum of the clipped rows and of the last aggregate, or each
    column reduced by itself.

    Every row is read alike, whatever it counts for. Raises UpdateRejected if any row's tile is not
    what the first pass read. That client is then out, even if it had no weight: decide anew, and
    combine again. Several tiles may be held at a time, so their memory must not be used again
    during the pass.
    """
    lanes, terms = lanes or Lanes(), cohort.terms
    rows = _Rows(cohort, measured, lanes)
    combining: _Combining = (
        _Columns(rows, measured.scales, plan)
        if isinstance(plan, Columnwise)
        else _Sums(rows, measured.scales, plan, cohort.context.state.last)
    )
    aggregate = np.empty(terms.dimension, np.float32)

    def combine_span(lane: int, index: int, span: Span) -> None:
        aggregate[terms.spans.part(index)] = combining.combine(lane, span)

    try:
        lanes.batches(spans(tiles, terms, len(cohort.rows)), combine_span)
    except UpdateRejected as changed:
        cohort.standing.reject(changed.client, changed.reason)
        raise
    return aggregate


class _Combining(Protocol):
    """Combines spans, with scratch memory for every lane."""

    def combine(self, lane: int, span: Span) -> Float64:
        """One span of the aggregate, (b,): a view of the lane's memory."""


class _Rows:
    """Opens the rows that still stand once more."""

    def __init__(self, cohort: Cohort, measured: Measured, lanes: Lanes) -> None:
        self.alive = cohort.alive
        self.lanes = lanes.count
        self.tiling = cohort.terms.spans
        self._rows = cohort.rows
        self._fingerprints = measured.fingerprints
        self._openers: list[dict[int, UncheckedOpener]] = [{} for _ in range(lanes.count)]
        self._format = cohort.terms.format
        self._raw = np.empty((lanes.count, self.tiling.tile), self._format.dtype)

    def open(self, lane: int, span: Span, row: int, out: Float32) -> None:
        """Open one row into `out`, (b,). Raises UpdateRejected if it has changed."""
        opener = self._openers[lane].get(row)
        if opener is None:
            opener = self._openers[lane][row] = self._rows[row].opener.unchecked()
        raw = out if out.dtype == self._format.dtype else self._raw[lane, : out.size]
        try:
            tags = span.open_row(row, opener.open_into, raw.view(np.uint8))
            if not self._fingerprints.same(row, span.index, raw, tags):
                raise OpenError("tile")
        except OpenError:
            raise UpdateRejected(self._rows[row].client, Rejection.CHANGED) from None
        if raw is not out:
            self._format.widen(raw, self._rows[row].step, out)


class _Sums:
    """Weighted sums of rows, and of the last aggregate (d,), if there is one.

    Rows that are not selected are opened, too, and weigh 0.
    """

    def __init__(
        self, rows: _Rows, scales: Float64, plan: Weights, last: Float32 | None = None
    ) -> None:
        self._rows = rows
        self._last, self._last_weight = last, plan.last
        self._weights = plan.values * scales
        width = rows.tiling.tile
        self._raw = np.empty((rows.lanes, width), np.float32)
        self._wide = np.empty((rows.lanes, _ROWS, width))
        self._sums = np.empty((rows.lanes, 2, width))

    def combine(self, lane: int, span: Span) -> Float64:
        size = self._rows.tiling.size(span.index)
        raw: Float32 = self._raw[lane, :size]
        total: Float64 = self._sums[lane, 0, :size]
        more = self._sums[lane, 1, :size]
        total.fill(0)
        for start in range(0, len(self._rows.alive), _ROWS):
            rows = self._rows.alive[start : start + _ROWS]
            wide = cut(self._wide[lane], len(rows), size)
            for row, out in zip(rows, wide, strict=True):
                self._rows.open(lane, span, row, raw)
                np.copyto(out, raw)
            np.matmul(self._weights[rows], wide, out=more)
            total += more
        if self._last is not None:
            np.copyto(more, self._last[self._rows.tiling.part(span.index)])
            more *= self._last_weight
            total += more
        return total


class _Columns:
    """Columns of all rows at a time, or of mixtures of them, each reduced by itself.

    A lane holds clients x tile values, 16 MB at most, and 12 MB at most beside them. Mixtures take
    the place of the rows, some columns at a time, so there is no second copy.
    """

    def __init__(self, rows: _Rows, scales: Float64, plan: Columnwise) -> None:
        self._rows = rows
        matrix = plan.matrix[:, rows.alive] * scales[rows.alive]
        n, width = len(rows.alive), rows.tiling.tile
        # Where every mixture is one row, each of another, there is nothing to add up.
        picks, self._picked = np.nonzero(matrix)
        self._mixes = len(set(self._picked)) < len(matrix) or len(picks) > len(matrix)
        self._matrix = matrix
        self._scales = matrix.max(axis=0, initial=0).astype(np.float32)
        self._part = min(width, max(1, _MIXED_VALUES // n))
        self._reduction = Reduction(len(matrix), plan.reducer, plan.count)
        self._values = np.empty((rows.lanes, n, width), np.float32)
        self._sums = np.empty((rows.lanes, width))
        self._scratch = [Scratch(width) for _ in range(rows.lanes)]
        mixed = (rows.lanes, n + len(matrix), self._part) if self._mixes else (rows.lanes, 0, 0)
        self._mixed = np.empty(mixed)

    def combine(self, lane: int, span: Span) -> Float64:
        size = self._rows.tiling.size(span.index)
        values = cut(self._values[lane], len(self._rows.alive), size)
        for row, out in zip(self._rows.alive, values, strict=True):
            self._rows.open(lane, span, row, out)
        if self._mixes:
            self._mix(lane, values)
            chosen = list(values[: self._reduction.rows])
        else:
            values *= self._scales[:, None]
            chosen = [values[row] for row in self._picked]
        total: Float64 = self._sums[lane, :size]
        self._reduction.apply(chosen, total, self._scratch[lane])
        return total

    def _mix(self, lane: int, values: Float32) -> None:
        """Replace rows (n, b) by their mixtures, the first m of them."""
        n, m = len(values), len(self._matrix)
        for start in range(0, values.shape[1], self._part):
            part = values[:, start : start + self._part]
            wide, mixed = np.split(cut(self._mixed[lane], n + m, part.shape[1]), [n])
            np.copyto(wide, part)
            np.matmul(self._matrix, wide, out=mixed)
            np.copyto(part[:m], mixed, casting="same_kind")

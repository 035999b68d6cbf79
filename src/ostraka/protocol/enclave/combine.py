"""Step 4, combine: the second pass, which turns a plan and the rows into the aggregate."""

from collections.abc import Iterable, Sequence

import numpy as np

from ostraka.arrays import Buffer, Float32, Float64, cut
from ostraka.core.rules import Columnwise, Plan
from ostraka.crypto.updates import UncheckedOpener
from ostraka.errors import OpenError, Rejection, UpdateRejected
from ostraka.protocol.enclave.cohort import Cohort
from ostraka.protocol.enclave.lanes import Lanes
from ostraka.protocol.enclave.rows import Measured, Span, spans

_ROWS = 8  # that are added at a time


def combine(
    cohort: Cohort,
    measured: Measured,
    plan: Plan,
    tiles: Iterable[Sequence[Buffer]],
    lanes: Lanes | None = None,
) -> Float32:
    """The aggregate (d,): the weighted sum of the clipped rows, reading every row alike.

    Raises UpdateRejected if any row's tile is not what the first pass read. That client is then
    out, even if it had no weight: decide anew, and combine again. Several tiles may be held at a
    time, so their memory must not be used again during the pass.
    """
    second = _SecondPass(cohort, measured, plan, lanes or Lanes())
    try:
        return second.run(tiles)
    except UpdateRejected as changed:
        cohort.standing.reject(changed.client, changed.reason)
        raise


class _SecondPass:
    """One pass, with scratch memory for every lane."""

    def __init__(self, cohort: Cohort, measured: Measured, plan: Plan, lanes: Lanes) -> None:
        self._terms = cohort.terms
        self._rows = cohort.rows
        self._alive = cohort.alive
        self._fingerprints = measured.fingerprints
        if isinstance(plan, Columnwise):
            raise NotImplementedError
        self._weights = plan.values * measured.scales
        self._lanes = lanes
        width = cohort.terms.spans.tile
        self._raw = np.empty((lanes.count, width), np.float32)
        self._wide = np.empty((lanes.count, _ROWS, width))
        self._sums = np.empty((lanes.count, 2, width))
        self._openers: list[dict[int, UncheckedOpener]] = [{} for _ in range(lanes.count)]

    def run(self, tiles: Iterable[Sequence[Buffer]]) -> Float32:
        aggregate = np.empty(self._terms.dimension, np.float32)

        def combine_span(lane: int, index: int, span: Span) -> None:
            aggregate[self._terms.spans.part(index)] = self._sum(lane, span)

        self._lanes.batches(spans(tiles, self._terms, len(self._rows)), combine_span)
        return aggregate

    def _sum(self, lane: int, span: Span) -> Float64:
        """The weighted sum of one span. Rows that are not selected are opened, too, and weigh 0."""
        size = self._terms.spans.size(span.index)
        total: Float64 = self._sums[lane, 0, :size]
        more = self._sums[lane, 1, :size]
        total.fill(0)
        for start in range(0, len(self._alive), _ROWS):
            rows = self._alive[start : start + _ROWS]
            wide = cut(self._wide[lane], len(rows), size)
            for row, out in zip(rows, wide, strict=True):
                np.copyto(out, self._reopen(lane, span, row, size))
            np.matmul(self._weights[rows], wide, out=more)
            total += more
        return total

    def _reopen(self, lane: int, span: Span, row: int, size: int) -> Float32:
        raw: Float32 = self._raw[lane, :size]
        opener = self._openers[lane].get(row)
        if opener is None:
            opener = self._openers[lane][row] = self._rows[row].opener.unchecked()
        try:
            tags = span.open_row(row, opener.open_into, raw.view(np.uint8))
            if not self._fingerprints.same(row, span.index, raw, tags):
                raise OpenError("tile")
        except OpenError:
            raise UpdateRejected(self._rows[row].client, Rejection.CHANGED) from None
        return raw

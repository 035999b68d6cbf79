"""Opens the rows of a cohort, span by span, and holds each to its stated norm."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from ostraka.arrays import AnyArray, Buffer, Float32, Float64, cut
from ostraka.core import sketch
from ostraka.crypto.aead import Fingerprints
from ostraka.errors import LocalProtocolError, OpenError, Rejection
from ostraka.protocol.enclave.averaging import Averaging
from ostraka.protocol.enclave.context import RoundContext, Row, Standing
from ostraka.protocol.enclave.encoder import DEVIATIONS, Measured
from ostraka.protocol.enclave.lanes import Lanes
from ostraka.protocol.enclave.spans import Span, spans

_NORM_TOLERANCE = 2.0**-10
_ROWS = 8  # that are read at a time where none are masked, if every lane has as many


class RowReader:
    """The first pass over one cohort, a group of rows at a time.

    A row that proves to be bad is read as zeros from then on and deleted from the matrix at the
    end: nothing is rerun, and no other row is affected.
    """

    def __init__(
        self, context: RoundContext, rows: tuple[Row, ...], standing: Standing, lanes: Lanes
    ) -> None:
        self.context = context
        self.terms = context.terms
        self.rows = rows
        self.lanes = lanes
        self.group = self.terms.tiling.group
        self.batch = max(self.terms.spans.group, min(_ROWS, -(-len(rows) // lanes.count)))
        self.norms = np.array([row.norm for row in rows])
        self.clip = self.terms.clipping_norm(self.norms)
        # What a row is multiplied by to lie in the unit ball. Dividing by the larger of the two
        # scales short rows with the federation, and long ones down to the sphere.
        self.factors = 1.0 / np.maximum(self.clip, self.norms)
        self._standing = standing
        self._stated = self.norms * self.factors
        self._squares = np.zeros(len(rows))
        self._zero_from = np.full(len(rows), self.terms.spans.count)
        self._fingerprints = Fingerprints(context.entropy)
        self._read = 0
        shape = (lanes.count, self.batch, self.terms.spans.tile)
        self._raw = np.empty(shape, np.float32)

    def each_group(self, work: Callable[[int, range], None]) -> None:
        """Call work(lane, rows) for all rows, as many at a time as have their masks together."""
        self.lanes.groups(len(self.rows), self.group, work)

    def each_batch(self, work: Callable[[int, range], None]) -> None:
        """The same for what draws no masks: more rows at a time, and so fewer calls."""
        self.lanes.groups(len(self.rows), self.batch, work)

    def spans(self, tiles: Iterable[Sequence[Buffer]]) -> Iterator[Span]:
        """What to open, in order. Everything is read once: no mask may serve twice."""
        if self._read:
            raise LocalProtocolError("these rows were read; another attempt has another reader")
        for span in spans(tiles, self.terms, len(self.rows)):
            self._read += 1
            yield span

    def open(self, lane: int, span: Span, rows: range) -> Float32:
        """A span of some rows as they were sent: (g, b), a view of the lane's scratch memory.

        They are authentic. They are neither finite nor short until `account` has judged them.
        """
        raw = cut(self._raw[lane], len(rows), self.terms.spans.size(span.index))
        rejected, keep = self._standing.rejected, self._fingerprints.keep
        for row, out in zip(rows, raw.view(np.uint8), strict=True):
            member = self.rows[row]
            if member.client in rejected:
                self._zero(row, span.index)
                out.fill(0)
                continue
            try:
                keep(row, span.index, out, span.open_row(row, member.opener.open_into, out))
            except OpenError:
                out.fill(0)
                self._zero(row, span.index)
                self.reject(row, Rejection.UNOPENABLE_TILE)
        return raw

    def account(
        self, lane: int, index: int, rows: range, values: AnyArray, squares: Float64
    ) -> None:
        """Add a span's squares to the rows' norms, and zero what is too long by now or not finite.

        values: (g, b), the span that the lane opened last, as it goes on. squares: (g,) of it in
        the unit ball. A row that is already too long cannot become short again.
        """
        part = slice(rows.start, rows.stop)
        self._squares[part] += squares
        bound = self._stated[part] * (1 + _NORM_TOLERANCE)
        # Written as a positive condition: a NaN fails it.
        sound = np.sqrt(self._squares[part]) <= bound
        if sound.all():
            return
        for place in np.flatnonzero(~sound).tolist():
            row = rows[place]
            # Looked at before it is zeroed: `values` may be the same memory.
            finite = np.isfinite(cut(self._raw[lane], *values.shape)[place]).all()
            values[place] = 0
            self._zero(row, index)
            self.reject(row, Rejection.FALSE_NORM if finite else Rejection.NOT_FINITE)

    def reopen(self, lane: int, span: Span, rows: range) -> Float32:
        """What went on from this span after `account`. Raises OpenError if its bytes changed."""
        raw = cut(self._raw[lane], len(rows), self.terms.spans.size(span.index))
        for row, out in zip(rows, raw.view(np.uint8), strict=True):
            out.fill(0)
            if span.index >= self._zero_from[row]:
                continue
            tags = span.open_row(row, self.rows[row].opener.unchecked().open_into, out)
            if not self._fingerprints.same(row, span.index, out, tags):
                raise OpenError("tile")
        return raw

    def reject(self, row: int, reason: Rejection) -> None:
        self._standing.reject(self.rows[row].client, reason)

    def finish(self, measured: Measured, *, measured_by: str) -> Averaging:
        """Judge the norms, and go on to the second pass with what was measured in the unit ball."""
        if self._read != (count := self.terms.spans.count):
            raise LocalProtocolError(f"{self._read} of {count} spans were read")
        difference = np.abs(np.sqrt(self._squares) - self._stated)
        for row in np.flatnonzero(~(difference <= self._stated * _NORM_TOLERANCE)).tolist():
            self.reject(row, Rejection.FALSE_NORM)
        return Averaging(
            self.context,
            self.rows,
            self._standing,
            self._fingerprints,
            self.lanes,
            scales=self.factors * self.clip,
            distances=measured.distances,
            distance_error=float(np.max(self._error(measured))) * self.clip**2,
            measured_by=measured_by,
        )

    def _zero(self, row: int, index: int) -> None:
        """From this span on, the row counts as zeros."""
        self._zero_from[row] = min(index, self._zero_from[row])

    def _error(self, measured: Measured) -> Float64:
        """What was stated, and what the sketch adds to it."""
        if self.terms.sketch is None:
            return measured.error
        relative = DEVIATIONS * sketch.error(self.terms.sketch)
        return measured.error + relative * np.abs(measured.distances)

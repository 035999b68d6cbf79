"""Opens the rows of a cohort, span by span, and holds each to its stated norm."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from ostraka.arrays import AnyArray, Buffer, Float32, Float64, cut
from ostraka.config import Terms, Tiling
from ostraka.core import sketch
from ostraka.core.gram import from_gram
from ostraka.core.rules import Gram
from ostraka.core.uploads import INT8
from ostraka.crypto.aead import KEY_BYTES, TAG_BYTES, Fingerprints
from ostraka.crypto.stream import SecretStream
from ostraka.errors import LocalProtocolError, OpenError, Rejection, UpdateRejected
from ostraka.protocol.enclave.cohort import Cohort
from ostraka.protocol.enclave.lanes import Lanes

DEVIATIONS = 6  # that a stated error allows a distance to be off

_NORM_TOLERANCE = 2.0**-10
_ROWS = 8  # that are read at a time where none are masked, if every lane has as many


@dataclass(frozen=True)
class Measured:
    """What the first pass leaves behind.

    gram: inner products of the clipped rows. scales: (n,) what clips each row. fingerprints: of the
    values that were measured, so that the second pass can tell whether it reads the same. by:
    "workers" or "inside".
    """

    gram: Gram = field(repr=False)
    scales: Float64 = field(repr=False)
    fingerprints: Fingerprints = field(repr=False)
    by: str


@dataclass(frozen=True)
class Span:
    """Consecutive tiles that are read as one: with many clients a tile is small, and calls are not.

    tiles: of each, the ciphertext of every row. first: the number of the first one.
    """

    index: int
    first: int
    tile_bytes: int
    tiles: Sequence[Sequence[Buffer]]

    def open_row(
        self, row: int, open_into: Callable[[int, Buffer, AnyArray], None], out: AnyArray
    ) -> bytes:
        """Open the tiles of a row side by side into `out`, a view as bytes. Returns their tags."""
        tags = []
        for number, tile in enumerate(self.tiles):
            start, ciphertext = number * self.tile_bytes, tile[row]
            open_into(self.first + number, ciphertext, out[start : start + self.tile_bytes])
            tags.append(bytes(ciphertext[-TAG_BYTES:]))
        return b"".join(tags)


def spans(tiles: Iterable[Sequence[Buffer]], terms: Terms, rows: int) -> Iterator[Span]:
    """A whole pass. Raises LocalProtocolError for more tiles or rows than there are, or fewer."""
    source, count = iter(tiles), terms.tiling.count
    together = terms.spans.tile // terms.tile
    for index, first in enumerate(range(0, count, together)):
        batch = list(islice(source, min(together, count - first)))
        if len(batch) < min(together, count - first):
            raise LocalProtocolError(f"{first + len(batch)} of {count} tiles were given")
        if any(len(tile) != rows for tile in batch):
            raise LocalProtocolError(f"{rows} rows; got {[len(tile) for tile in batch]} tiles")
        yield Span(index, first, terms.tile_bytes(0), batch)
    if next(source, None) is not None:
        raise LocalProtocolError(f"more than {count} tiles were given")


class RowReader:
    """The first pass over one cohort, a group of rows at a time.

    A row that proves to be bad is read as zeros from then on and deleted from the matrix at the
    end: nothing is rerun, and no other row is affected. Only a tile that does not open ends the
    pass where rows are `masked`, since it is the host that decides which tiles do. A copy of this
    process that was shown the true tile would else mask it with the mask that is on zeros here.

    entropy: all secrets of the pass, from one draw.
    """

    def __init__(self, cohort: Cohort, lanes: Lanes, *, masked: bool = False) -> None:
        rows = cohort.rows
        self.entropy = SecretStream(cohort.context.entropy(KEY_BYTES)).bytes
        self.context = cohort.context
        self.terms = cohort.terms
        self.rows = rows
        self.lanes = lanes
        self.group = self.terms.tiling.group
        self.batch = max(self.terms.spans.group, min(_ROWS, -(-len(rows) // lanes.count)))
        self.norms = np.array([row.norm for row in rows])
        self.clip = self.terms.clipping_norm(self.norms)
        # What a row is multiplied by to lie in the unit ball. Dividing by the larger of the two
        # scales short rows with the federation, and long ones down to the sphere.
        self.factors = 1.0 / np.maximum(self.clip, self.norms)
        self._masked = masked
        self._standing = cohort.standing
        self._stated = self.norms * self.factors
        self._squares = np.zeros(len(rows))
        self._zero_from = np.full(len(rows), self.terms.spans.count)
        self._fingerprints = Fingerprints(self.entropy)
        self._read = 0
        shape = (lanes.count, self.batch, self.terms.spans.tile)
        self._format = self.terms.format
        self._raw = np.empty(shape, self._format.dtype)
        plain = self._raw.dtype == np.float32
        self._wide = self._raw if plain else np.empty(shape, np.float32)
        self.steps = np.array([row.step for row in rows])
        self._stated_integers = [INT8.stated_square(row.norm, row.step) for row in rows]
        self._integers = np.zeros(len(rows), np.int64)  # |q|^2 as far as it was read
        last = cohort.context.state.last
        self._last = None if last is None else _Last(last, self.terms.spans, len(rows), lanes.count)

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
        """A span of some rows: (g, b), a view of the lane's scratch memory. See `open_raw`."""
        return self.widen(lane, rows, self.open_raw(lane, span, rows))

    def widen(self, lane: int, rows: range, raw: AnyArray) -> Float32:
        """The values (g, b) that `open_raw` gave: a view of the lane's scratch memory."""
        wide = cut(self._wide[lane], *raw.shape)
        if raw.dtype != np.float32:
            for row, values, out in zip(rows, raw, wide, strict=True):
                self._format.widen(values, self.steps[row], out)
        return wide

    def open_raw(self, lane: int, span: Span, rows: range) -> AnyArray:
        """A span of some rows as they were sent: (g, b), a view of the lane's scratch memory.

        They are authentic. They are neither finite nor short until `account` has judged them.
        Raises UpdateRejected if rows are masked and a tile does not open: measure anew without it.
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
                self.reject(row, Rejection.UNOPENABLE_TILE)
                if self._masked:
                    raise UpdateRejected(member.client, Rejection.UNOPENABLE_TILE) from None
                self._zero(row, span.index)
                out.fill(0)
        for row, values in zip(rows, raw, strict=True):
            self._check(row, span.index, values)
        return raw

    def _check(self, row: int, index: int, values: AnyArray) -> None:
        """Hold a span of one row (b,) to its format, and zero it if it breaks that."""
        if (flaw := self._format.tile_flaw(values)) is not None:
            self.reject(row, flaw)
            self._zero(row, index)
            values.fill(0)
        if self._format.integers:
            self._integers[row] += INT8.square(values)

    def compare_to_last(self, lane: int, span: Span, rows: range, raw: AnyArray) -> None:
        """Add up the inner products with the last aggregate, where the rule starts from it.

        raw: (g, b), the span as `open` or `open_raw` gave it.
        """
        if self._last is not None:
            self._last.add(lane, span.index, rows, self.widen(lane, rows, raw))

    def account(
        self, index: int, rows: range, raw: AnyArray, values: AnyArray, squares: Float64
    ) -> None:
        """Add a span's squares to the rows' norms, and zero what is too long by now or not finite.

        raw: (g, b), the span as `open` gave it. values: (g, b), the same as it goes on. squares:
        (g,) of it in the unit ball. A row that is already too long cannot become short again.
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
            finite = np.isfinite(raw[place]).all()
            values[place] = 0
            self._zero(row, index)
            self.reject(row, Rejection.FALSE_NORM if finite else Rejection.NOT_FINITE)

    def reopen_raw(self, lane: int, span: Span, rows: range) -> AnyArray:
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

    def finish(self, products: Float64, deviation: Float64, *, by: str) -> "Measured":
        """Judge the norms. products, deviation: as `Gram` has them, of rows in the unit ball."""
        if self._read != (count := self.terms.spans.count):
            raise LocalProtocolError(f"{self._read} of {count} spans were read")
        difference = np.abs(np.sqrt(self._squares) - self._stated)
        for row in np.flatnonzero(~(difference <= self._stated * _NORM_TOLERANCE)).tolist():
            self.reject(row, Rejection.FALSE_NORM)
        if self._format.integers:
            for row in np.flatnonzero(self._integers != self._stated_integers).tolist():
                self.reject(row, Rejection.FALSE_NORM)
        if self.terms.sketch is not None:
            relative = DEVIATIONS * sketch.error(self.terms.sketch)
            deviation = deviation + relative * np.abs(from_gram(products))
        gram = Gram(products, deviation, self.clip)
        if self._last is not None:
            # Rows are in the unit ball here, and the last aggregate in the same unit.
            along = self._last.products * self.factors / self.clip
            gram = replace(gram, last=along, last_square=self._last.square / self.clip**2)
        return Measured(gram, self.factors * self.clip, self._fingerprints, by)

    def _zero(self, row: int, index: int) -> None:
        """From this span on, the row counts as zeros."""
        self._zero_from[row] = min(index, self._zero_from[row])


class _Last:
    """The last aggregate (d,), and its inner products with n rows as they were sent, in float64."""

    def __init__(self, vector: Float32, tiling: Tiling, rows: int, lanes: int) -> None:
        self.products = np.zeros(rows)
        self._vector = vector
        self._tiling = tiling
        self._wide = np.empty((lanes, 2, tiling.tile))
        self._held = [-1] * lanes  # which span of the vector a lane has

    @property
    def square(self) -> float:
        """The inner product with itself."""
        parts = (self._vector[self._tiling.part(index)] for index in range(self._tiling.count))
        return sum(float(np.square(part, dtype=np.float64).sum()) for part in parts)

    def add(self, lane: int, index: int, rows: range, raw: Float32) -> None:
        """One span of some rows, (g, b)."""
        part, wide = self._wide[lane, :, : raw.shape[1]]
        if self._held[lane] != index:
            np.copyto(part, self._vector[self._tiling.part(index)])
            self._held[lane] = index
        # Rows that are not finite are rejected, and what they add is never read.
        with np.errstate(all="ignore"):
            for row, values in zip(rows, raw, strict=True):
                np.copyto(wide, values)
                self.products[row] += part @ wide

"""What a masking scheme does for the first pass: exact masking, and the paper's Gaussian noise."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ostraka.arrays import AnyArray, Float32, Float64, UInt32, cut
from ostraka.config import Tiling
from ostraka.core import exact, field, gaussian, leakage, loops
from ostraka.core.exact import Freivalds
from ostraka.core.gaussian import Agreement
from ostraka.core.gram import add_gram, from_gram, gram_error
from ostraka.core.loops.twin import Int16, UInt16
from ostraka.crypto.aead import KEY_BYTES
from ostraka.crypto.masks import Noise, mask_stream
from ostraka.crypto.stream import SecretStream
from ostraka.protocol.enclave.rows import Counted, RowReader, Summed

# The norm of a sketch is random around that of its row. Halved, it stays within the unit ball that
# law 6 is for: m >= 4,096 columns make a norm of twice the row's a matter of 100 deviations.
_SKETCH_SHRINK = 0.5


class Encoder(Protocol):
    """One attempt's masks. Every share can be derived again, and is then the same to the bit."""

    value_type: np.dtype[Any]
    shares_per_row: int
    answer_has_diagonal: bool

    def begin_tile(self, index: int) -> None:
        """Make what the rows of this tile have in common."""

    def load(self, thread: int, rows: range, values: Sequence[AnyArray]) -> None:
        """Take one tile of some rows, (b,) each: float32, or int8 for integers."""

    def shares(self, thread: int, index: int, rows: range) -> Sequence[AnyArray]:
        """The shares (g, b) of what was loaded, one per point: views of scratch memory."""

    def witness(self, thread: int, rows: range) -> None:
        """Gather evidence, for `decode` to check, from the rows that were last shared."""

    def end_tile(self) -> None:
        """All rows of a tile have been witnessed."""

    def flaw(self, upper: AnyArray) -> str | None:
        """What is wrong on their face with the numbers that a worker sent, if anything is."""

    def decode(self, matrices: Sequence[AnyArray]) -> Counted | Summed | None:
        """The inner products, or None if the answers contradict the evidence."""

    def audited(self, thread: int, index: int, rows: range) -> Sequence[AnyArray]:
        """The shares again, one per worker: the mask itself for one that was given its seed."""

    def auditors(self) -> Sequence["Auditor"]:
        """One per worker, under fresh challenges."""


class Auditor(Protocol):
    """Judges one worker's matrix by itself, from the shares that this worker was given."""

    def add(self, share: AnyArray) -> None:
        """One tile of all rows (n, b), as it was sent."""

    def doubt(self, matrix: AnyArray) -> float:
        """How far the matrix is from that of the shares: 0 is agreement, from 1 on it is false."""


class ExactEncoder:
    """Laws 7 to 11. One attempt: fresh masks, dither and challenge.

    Rows that are integers (law 19) are masked as they are, in their own steps, without dither.
    """

    value_type: np.dtype[Any] = np.dtype("<u4")
    answer_has_diagonal = True

    def __init__(
        self,
        reader: RowReader,
        seed: bytes,
        factors: Float64,
        norms: Float64,
        *,
        integers: bool = False,
    ) -> None:
        """seed: of the leading mask. norms: (n,) of the rows to come, within 2^-10. factors: (n,)
        to the unit ball. integers: rows are loaded in units of their own steps.
        """
        terms, entropy = reader.terms, reader.entropy
        self._reader = reader
        self._factors = factors
        self._collusion = terms.workers // 2
        self.shares_per_row = 2 * self._collusion
        self._columns = columns = reader.columns
        self._integers = integers
        # A step is that of the whole row, so that what shards count is in one unit.
        self._steps = reader.steps if integers else exact.step(norms, terms.measured)
        self._scales = exact.scale(np.ones_like(norms) if integers else self._steps)
        self._s, self._v = np.zeros((2, len(norms)), np.int64)
        self._leading = LeadingGram(len(norms), columns) if terms.workers % 2 == 0 else None
        mask_keys = [entropy(KEY_BYTES) for _ in range(self._collusion - 1)] + [seed]
        dither_key = None if integers else entropy(KEY_BYTES)
        challenge, shape = _challenge(reader), (columns.group, columns.tile)
        self._scratch = [
            _Scratch(shape, mask_keys, dither_key, Freivalds(challenge, columns.tile))
            for _ in range(reader.threads.count)
        ]

    def __repr__(self) -> str:
        return f"ExactEncoder(t={self._collusion}, <secret>)"

    def begin_tile(self, index: int) -> None:
        """Rows have no masks in common."""

    def load(self, thread: int, rows: range, values: Sequence[AnyArray]) -> None:
        self._scratch[thread].load(values, self._scales[rows.start : rows.stop])

    def shares(self, thread: int, index: int, rows: range) -> Sequence[UInt32]:
        """Laws 7 and 8 for one tile of some rows, and what law 11 takes of it."""
        return self._scratch[thread].shares(index, rows, witnessed=self._reader.terms.verify)

    def witness(self, thread: int, rows: range) -> None:
        scratch, part = self._scratch[thread], slice(rows.start, rows.stop)
        self._s[part] += scratch.s
        self._v[part] += scratch.v
        if self._leading is not None:
            self._leading.keep(rows, scratch.leading)

    def end_tile(self) -> None:
        first, *others = (scratch.check for scratch in self._scratch)
        for other in others:
            first.take(other)
        first.end_block()
        if self._leading is not None:
            self._leading.end_tile()

    def flaw(self, upper: AnyArray) -> str | None:
        return None if (upper < field.P).all() else "sent numbers that are no residues"

    def decode(self, matrices: Sequence[UInt32]) -> Counted | None:
        """Laws 9 to 11. The check comes first: any other test before it would be an oracle."""
        shared = dict(zip(exact.points(self._collusion), matrices, strict=False))
        leading = matrices[-1] if self._leading is None else self._leading.total
        residues = exact.decode(shared, leading)
        if self._reader.terms.verify and not self._scratch[0].check.accepts(residues):
            return None
        steps = self._steps * self._factors
        gram = field.signed_in_place(residues)  # These are large, and not needed any more.
        return Counted(gram, self._s, self._v, steps, rounded=not self._integers)

    def audited(self, thread: int, index: int, rows: range) -> Sequence[UInt32]:
        shares = self._scratch[thread].shares(index, rows, witnessed=False)
        leading = [self._scratch[thread].leading] if self._leading is None else []
        return [*shares, *leading]

    def auditors(self) -> Sequence["FieldAuditor"]:
        return [FieldAuditor(_challenge(self._reader)) for _ in range(self._reader.terms.workers)]


class LeadingGram:
    """R_t R_t^T (n, n), where no worker makes it: O(n^2) work for every column."""

    def __init__(self, rows: int, columns: Tiling) -> None:
        self.total = np.zeros((rows, rows), np.uint32)
        self._words = np.empty((rows, columns.size(0)), np.uint32)
        self._width = 0

    def __repr__(self) -> str:
        return "LeadingGram(<secret>)"

    def keep(self, rows: range, mask: UInt32) -> None:
        """Take what some rows of a tile were masked with (g, b), until the tile ends."""
        self._width = mask.shape[1]
        self._words[rows.start : rows.stop, : self._width] = mask

    def end_tile(self) -> None:
        field.add_gram(self.total, self._words[:, : self._width])


class FieldAuditor:
    """Freivalds' check of one worker's matrix against the shares that it was given."""

    def __init__(self, challenge: UInt32) -> None:
        self._challenge = challenge
        self._evidence = np.zeros((2, 2), np.uint32)

    def __repr__(self) -> str:
        return "FieldAuditor(<secret>)"

    def add(self, share: UInt32) -> None:
        field.add_gram(self._evidence, field.matmul(self._challenge.T, share))

    def doubt(self, matrix: UInt32) -> float:
        claimed = field.matmul(field.matmul(self._challenge.T, matrix), self._challenge)
        return 0.0 if np.array_equal(claimed, self._evidence) else 1.0


class _Scratch:
    """One thread's memory and streams."""

    def __init__(
        self,
        shape: tuple[int, int],
        mask_keys: list[bytes],
        dither_key: bytes | None,
        check: Freivalds,
    ) -> None:
        """shape: (g, b), of the largest group. dither_key: None for integers, which need none."""
        t = len(mask_keys)
        self._masks = [SecretStream(key) for key in mask_keys]
        self._dither = None if dither_key is None else SecretStream(dither_key)
        self._dither_words = np.empty(shape, np.uint16)
        self._mask_words = np.empty((t, *shape), np.uint32)
        self._share_words = np.empty((2 * t, *shape), np.uint32)
        self.check = check

    def load(self, values: Sequence[AnyArray], scales: Float32) -> None:
        """Take rows, (b,) each, and what turns them into units of their steps."""
        self._values, self._scales = values, scales

    def shares(self, index: int, rows: range, *, witnessed: bool) -> Sequence[UInt32]:
        """The shares of what was loaded, quantised with the dither that belongs to it.

        witnessed: keep q for law 11, too.
        """
        shape, stream = (len(self._values), len(self._values[0])), mask_stream(index, rows)
        masks = cut(self._mask_words, len(self._masks), *shape)
        shares: UInt32 = cut(self._share_words, 2 * len(masks), *shape)
        q = self.check.expect(rows, shape[1]) if witnessed else None
        dither = cut(self._dither_words, *shape)
        if self._dither is not None:
            self._dither.seek(stream)
            self._dither.fill(dither)
        for source, mask in zip(self._masks, masks, strict=True):
            source.seek(stream)
            source.fill(mask)
        # Nearly always all words of the stream are acceptable, but for their highest bit, which the
        # loop ignores: then no pass over them is needed.
        if self._share(dither, masks, shares, q) == field.P:
            for source, mask in zip(self._masks, masks, strict=True):
                source.seek(stream)
                source.uniform_into(mask, field.P)
            self._share(dither, masks, shares, q)
        self._leading = masks[-1]
        return list(shares)

    def _share(self, dither: UInt16, masks: UInt32, shares: UInt32, q: Int16 | None) -> int:
        """Makes the shares, and returns the greatest mask."""
        if self._dither is None:
            self.s, greatest = loops.share_integers(self._values, masks, shares, q=q)
            self.v = np.zeros_like(self.s)
        else:
            self.s, self.v, greatest = loops.share(
                self._values, self._scales, dither, masks, shares, q=q
            )
        return greatest

    @property
    def leading(self) -> UInt32:
        """The leading mask (g, b) of the rows that were last shared."""
        leading: UInt32 = self._leading
        loops.keep_bits(leading.reshape(-1), field.P)
        return leading


def _challenge(reader: RowReader) -> UInt32:
    stream = SecretStream(reader.entropy(KEY_BYTES))
    return stream.uniform((len(reader.rows), 2), field.P)


class GaussianEncoder:
    """Law 1 on the way out, law 3 on the way back. One attempt, one set of noise."""

    value_type: np.dtype[Any] = np.dtype("<f8")
    shares_per_row = 2
    answer_has_diagonal = False

    def __init__(self, reader: RowReader, factors: Float64) -> None:
        """factors: (n,) what rows are multiplied by to lie in the unit ball."""
        terms = reader.terms
        self._reader = reader
        self._terms = terms
        self._columns = reader.columns
        self._noise = Noise(terms.sigma, reader.columns, len(reader.rows), reader.entropy)
        self._tile = np.empty((0, 0))  # of the noise
        self._step = gaussian.grid_step(terms.sigma)
        self._shrink = _SKETCH_SHRINK if terms.sketch else 1.0
        self._factors = factors * self._shrink
        shape = (3, reader.threads.count, reader.columns.group, reader.columns.tile)
        self._values, self._plus, self._minus = np.empty(shape)
        self._loaded: list[Float64] = [np.empty((0, 0))] * reader.threads.count
        self._squares = np.zeros(len(reader.rows))  # of the rows as they are masked
        weights = _weights(reader)
        self._checks = [
            Agreement(weights, reader.columns.tile) for _ in range(reader.threads.count)
        ]

    def __repr__(self) -> str:
        return "GaussianEncoder(<secret>)"

    def begin_tile(self, index: int) -> None:
        """Noise is orthogonal across all rows, so it is made for all of them."""
        self._tile = self._noise.tile(index)

    def load(self, thread: int, rows: range, values: Sequence[AnyArray]) -> None:
        scaled = cut(self._values[thread], len(values), len(values[0]))
        for row, value, out in zip(rows, values, scaled, strict=True):
            np.multiply(value, self._factors[row], out=out)
        self._loaded[thread] = scaled

    def shares(self, thread: int, index: int, rows: range) -> tuple[Float64, Float64]:
        """W + R and W - R."""
        scaled, noise = self._loaded[thread], self._tile[rows.start : rows.stop]
        plus, minus = (cut(space[thread], *scaled.shape) for space in (self._plus, self._minus))
        gaussian.encode(scaled, noise, step=self._step, plus=plus, minus=minus)
        return plus, minus

    def witness(self, thread: int, rows: range) -> None:
        scaled = self._loaded[thread]
        self._squares[rows.start : rows.stop] += np.vecdot(scaled, scaled)
        if self._terms.verify:
            self._checks[thread].add(rows.start, scaled)

    def end_tile(self) -> None:
        first, *others = self._checks
        for other in others:
            first.take(other)
        first.end_block()

    def flaw(self, upper: AnyArray) -> str | None:
        constant = 2 * self._columns.length * self._terms.sigma**2
        # Shares are sqrt(C) apart, give or take 2. Written as a positive condition, for NaN.
        possible = (np.abs(upper) <= 2 * (constant + 8)).all()
        return None if possible else "sent distances that its shares cannot have"

    def decode(self, matrices: Sequence[Float64]) -> Summed | None:
        """Law 3. The check has a tolerance: smaller lies than that pass."""
        plus, minus = matrices
        sigma, d, tile = self._terms.sigma, self._columns.length, self._columns.tile
        distances = gaussian.decode(plus, minus, sigma=sigma, d=d)
        error = leakage.decoding_error(sigma, d=d, dtype=np.float64, tile=tile)
        if self._terms.verify and not self._checks[0].accepts(distances, error):
            return None
        products = (self._squares[:, None] + self._squares - distances) / 2
        unit = self._shrink**2
        return Summed(products / unit, error / unit)

    def audited(self, thread: int, index: int, rows: range) -> tuple[Float64, Float64]:
        return self.shares(thread, index, rows)

    def auditors(self) -> Sequence["FloatAuditor"]:
        columns, n = self._columns, len(self._reader.rows)
        square = columns.length * self._terms.sigma**2 + 2
        error = gram_error(columns.length, square=square, tile=columns.tile)
        return [FloatAuditor(n, error), FloatAuditor(n, error)]


class FloatAuditor:
    """Computes one worker's distances again, and compares them to within rounding."""

    def __init__(self, rows: int, error: float) -> None:
        self._gram = np.zeros((rows, rows))
        self._error = error

    def __repr__(self) -> str:
        return "FloatAuditor(<secret>)"

    def add(self, share: Float64) -> None:
        add_gram(self._gram, share)

    def doubt(self, matrix: Float64) -> float:
        """In multiples of the error of two sums that should be equal."""
        return float(np.abs(matrix - from_gram(self._gram)).max() / (2 * self._error))


def _weights(reader: RowReader) -> Float64:
    stream = SecretStream(reader.entropy(KEY_BYTES))
    return stream.normal((2, len(reader.rows)))

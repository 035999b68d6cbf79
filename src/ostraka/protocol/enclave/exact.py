"""Exact masking: uniform masks modulo p, for two to seven workers of which half may collude."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ostraka.arrays import AnyArray, Buffer, Float32, Float64, UInt32, cut
from ostraka.core import exact, field
from ostraka.core.exact import Freivalds, Quantised
from ostraka.crypto.aead import KEY_BYTES
from ostraka.crypto.offline import SpentMask, mask_stream
from ostraka.crypto.stream import SecretStream
from ostraka.errors import Rejection
from ostraka.protocol.enclave.encoder import DEVIATIONS, Measured
from ostraka.protocol.enclave.rows import RowReader


class ExactEncoder:
    """Laws 7 to 11. One attempt: fresh masks, dither and challenge."""

    value_type: np.dtype[Any] = np.dtype("<u4")
    answer_has_diagonal = True

    def __init__(
        self, reader: RowReader, mask: SpentMask, factors: Float64, norms: Float64
    ) -> None:
        """norms: (n,) of the rows to come, within 2^-10. factors: (n,) to the unit ball."""
        terms, entropy = reader.terms, reader.context.entropy
        self._reader = reader
        self._mask = mask
        self._factors = factors
        self._collusion = terms.workers // 2
        self.shares_per_row = 2 * self._collusion
        self._steps = exact.step(norms, terms.columns.length)
        self._scales = exact.scale(self._steps)
        self._squared_units = (factors / self._scales) ** 2
        self._s, self._v = np.zeros((2, len(norms)), np.int64)
        mask_keys = [entropy(KEY_BYTES) for _ in range(self._collusion - 1)] + [mask.seed]
        dither_key = entropy(KEY_BYTES)
        challenge, shape = _challenge(reader), (reader.group, terms.tile)
        self._lanes = [
            _Lane(shape, mask_keys, dither_key, Freivalds(challenge, terms.tile))
            for _ in range(reader.lanes.count)
        ]

    def __repr__(self) -> str:
        return f"ExactEncoder(t={self._collusion}, <secret>)"

    def load(self, lane: int, rows: range, values: Float32) -> tuple[Float32, Float64]:
        part = slice(rows.start, rows.stop)
        loaded, squares = self._lanes[lane].load(values, self._scales[part])
        return loaded, squares * self._squared_units[part]

    def shares(self, lane: int, index: int, rows: range, noise: Buffer = b"") -> Sequence[UInt32]:
        """Laws 7 and 8 for one tile of some rows."""
        return self._lanes[lane].shares(index, rows)

    def witness(self, lane: int, rows: range) -> None:
        scratch, part = self._lanes[lane], slice(rows.start, rows.stop)
        self._s[part] += scratch.s
        self._v[part] += scratch.v
        if self._reader.terms.verify:
            scratch.check.add(rows.start, scratch.q.signed)

    def end_tile(self) -> None:
        first, *others = (lane.check for lane in self._lanes)
        for other in others:
            first.take(other)
        first.end_block()

    def flaw(self, upper: AnyArray) -> str | None:
        return None if (upper < field.P).all() else "sent numbers that are no residues"

    def decode(self, matrices: Sequence[UInt32]) -> Measured | None:
        """Laws 9 to 11. The check comes first: any other test before it would be an oracle."""
        shared = dict(zip(exact.points(self._collusion), matrices, strict=False))
        residues = exact.decode(shared, self._leading(matrices))
        if self._reader.terms.verify and not self._lanes[0].check.accepts(residues):
            return None
        for row in np.flatnonzero(~exact.fits(self._s)).tolist():
            self._reader.reject(row, Rejection.FALSE_NORM)
        steps = self._steps * self._factors
        distances = exact.distances(field.signed(residues), steps, self._s, self._v)
        columns = self._reader.terms.columns.length
        return Measured(distances, DEVIATIONS * exact.deviation(distances, steps, columns))

    def audited(self, lane: int, index: int, rows: range, noise: Buffer = b"") -> Sequence[UInt32]:
        shares = self.shares(lane, index, rows)
        leading = [self._lanes[lane].leading] if self._mask.gram is None else []
        return [*shares, *leading]

    def auditors(self) -> Sequence["FieldAuditor"]:
        return [FieldAuditor(_challenge(self._reader)) for _ in range(self._reader.terms.workers)]

    def _leading(self, matrices: Sequence[UInt32]) -> UInt32:
        """R_t R_t^T: made offline, or the answer of the last worker."""
        n = len(self._s)
        return matrices[-1] if self._mask.gram is None else self._mask.gram[:n, :n]


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


class _Lane:
    """One lane's memory and streams."""

    def __init__(
        self, shape: tuple[int, int], mask_keys: list[bytes], dither_key: bytes, check: Freivalds
    ) -> None:
        """shape: (g, b), of the largest group."""
        t = len(mask_keys)
        self._masks = [SecretStream(key) for key in mask_keys]
        self._dither = SecretStream(dither_key)
        self._quantised = Quantised.empty(*shape)
        self._dither_words = np.empty(shape, np.uint16)
        self._mask_words = np.empty((t, *shape), np.uint32)
        self._share_words = np.empty((2 * t, *shape), np.uint32)
        self.check = check

    def load(self, values: Float32, scales: Float32) -> tuple[Float32, Float64]:
        """Rows (g, b) in units of their steps, and their squares."""
        self.q = self._quantised.cut(*values.shape)
        return self.q.real, exact.load(values, scales, self.q)

    def shares(self, index: int, rows: range) -> Sequence[UInt32]:
        """The shares of what was loaded, quantised with the dither that belongs to it."""
        shape, stream = self.q.real.shape, mask_stream(index, rows)
        dither = cut(self._dither_words, *shape)
        self._dither.seek(stream)
        self._dither.fill(dither)
        self.s, self.v = exact.quantise_loaded(dither, self.q)
        masks = [cut(words, *shape) for words in self._mask_words]
        for source, mask in zip(self._masks, masks, strict=True):
            source.seek(stream)
            source.uniform_into(mask, field.P)
        self.leading = masks[-1]
        shares = [cut(words, *shape) for words in self._share_words]
        exact.shares(self.q.residues, masks, shares, self.q.real.view(np.uint32))
        return shares


def _challenge(reader: RowReader) -> UInt32:
    stream = SecretStream(reader.context.entropy(KEY_BYTES))
    return stream.uniform((len(reader.rows), 2), field.P)

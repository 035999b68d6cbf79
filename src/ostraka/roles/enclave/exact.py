"""Exact masking: uniform masks modulo p, for two to seven workers of which half may collude."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ostraka.arrays import AnyArray, Buffer, Float32, Float64, UInt32
from ostraka.core import exact, field
from ostraka.core.exact import Freivalds, Quantised
from ostraka.crypto.aead import KEY_BYTES
from ostraka.crypto.offline_mask import SpentMask, mask_stream
from ostraka.crypto.stream import SecretStream
from ostraka.errors import Rejection
from ostraka.roles.enclave.encoding import Measured
from ostraka.roles.enclave.rows import RowReader

_DEVIATIONS = 6  # that the stated error allows a distance to be off
_BATCH = 8  # rows that the check takes at once: one at a time costs several times as much


class ExactEncoder:
    """Laws 7 to 11. One attempt: fresh masks, dither and challenge."""

    value_type: np.dtype[Any] = np.dtype("<u4")
    answer_has_diagonal = True

    def __init__(
        self, reader: RowReader, mask: SpentMask, factors: Float64, norms: Float64
    ) -> None:
        """norms: (n,) of the rows to come, within 2^-10. factors: (n,) to the unit ball."""
        rules, entropy = reader.rules, reader.context.entropy
        self._reader = reader
        self._mask = mask
        self._factors = factors
        self._collusion = rules.workers // 2
        self.shares_per_row = 2 * self._collusion
        self._steps = exact.step(norms, rules.columns.length)
        self._scales = exact.scale(self._steps)
        self._squared_units = (factors / self._scales) ** 2
        self._s, self._v = np.zeros((2, len(norms)), np.int64)
        mask_keys = [entropy(KEY_BYTES) for _ in range(self._collusion - 1)] + [mask.seed]
        dither_key = entropy(KEY_BYTES)
        challenge = _challenge(reader) if rules.verify else None
        self._lanes = [
            _Lane(reader.group, rules.tile, mask_keys, dither_key, challenge)
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
        scratch.witness(rows)

    def end_tile(self) -> None:
        checks = [check for check in (lane.end_tile() for lane in self._lanes) if check]
        for other in checks[1:]:
            checks[0].take(other)
        for check in checks[:1]:
            check.end_block()

    def flaw(self, upper: AnyArray) -> str | None:
        return None if (upper < field.P).all() else "sent numbers that are no residues"

    def decode(self, matrices: Sequence[UInt32]) -> Measured | None:
        """Laws 9 to 11. The check comes first: any other test before it would be an oracle."""
        shared = dict(zip(exact.points(self._collusion), matrices, strict=False))
        residues = exact.decode(shared, self._leading(matrices))
        check = self._lanes[0].check
        if check is not None and not check.accepts(residues):
            return None
        for row in np.flatnonzero(~exact.fits(self._s)).tolist():
            self._reader.reject(row, Rejection.FALSE_NORM)
        steps = self._steps * self._factors
        distances = exact.distances(field.signed(residues), steps, self._s, self._v)
        columns = self._reader.rules.columns.length
        return Measured(distances, _DEVIATIONS * exact.deviation(distances, steps, columns))

    def audited(self, lane: int, index: int, rows: range, noise: Buffer = b"") -> Sequence[UInt32]:
        shares = self.shares(lane, index, rows)
        leading = [self._lanes[lane].leading] if self._mask.gram is None else []
        return [*shares, *leading]

    def auditors(self) -> Sequence["FieldAuditor"]:
        return [FieldAuditor(_challenge(self._reader)) for _ in range(self._reader.rules.workers)]

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

    def accepts(self, matrix: UInt32) -> bool:
        claimed = field.matmul(field.matmul(self._challenge.T, matrix), self._challenge)
        return bool(np.array_equal(claimed, self._evidence))


class _Lane:
    """One lane's memory and streams. The rows that it is given in a tile are consecutive."""

    def __init__(
        self,
        group: int,
        tile: int,
        mask_keys: list[bytes],
        dither_key: bytes,
        challenge: UInt32 | None,
    ) -> None:
        self._masks = [SecretStream(key) for key in mask_keys]
        self._dither = SecretStream(dither_key)
        t, shape = len(mask_keys), (group, tile)
        self._quantised = Quantised.empty(*shape)
        self._dither_words = np.empty(shape, np.uint16)
        self._mask_words = np.empty((t, *shape), np.uint32)
        self._shares = np.empty((2 * t, *shape), np.uint32)
        self.check = None if challenge is None else Freivalds(challenge, tile)
        self._batch = np.empty((max(group, _BATCH), tile))
        self._waiting = range(0)

    def load(self, values: Float32, scales: Float32) -> tuple[Float32, Float64]:
        """Rows (g, b) in units of their steps, and their squares."""
        g, b = values.shape
        if len(self._waiting) + g > len(self._batch):
            self._flush(b)
        self._q = self._quantised.cut(g, b, self._batch[len(self._waiting) :])
        return self._q.real, exact.load(values, scales, self._q)

    def shares(self, index: int, rows: range) -> Sequence[UInt32]:
        """The shares of what was loaded, quantised with the dither that belongs to it."""
        g, b = self._q.real.shape
        dither, masks = self._dither_words[:g, :b], self._mask_words[:, :g, :b]
        for place, row in enumerate(rows):
            self._dither.seek(mask_stream(row, index))
            self._dither.fill(dither[place])
            for stream, mask in zip(self._masks, masks, strict=True):
                stream.seek(mask_stream(row, index))
                stream.uniform_into(mask[place], field.P)
        self.leading = masks[-1]
        self.s, self.v = exact.quantise_loaded(dither, self._q)
        shares = list(self._shares[:, :g, :b])
        exact.shares(self._q.residues, list(masks), shares, self._q.real.view(np.uint32))
        return shares

    def witness(self, rows: range) -> None:
        """Keep the quantised rows for the check, which takes some at a time."""
        start = self._waiting.start if self._waiting else rows.start
        self._waiting = range(start, rows.stop)

    def end_tile(self) -> Freivalds | None:
        self._flush(self._q.real.shape[1])
        return self.check

    def _flush(self, width: int) -> None:
        if self.check is not None and self._waiting:
            self.check.add(self._waiting.start, self._batch[: len(self._waiting), :width])
        self._waiting = range(0)


def _challenge(reader: RowReader) -> UInt32:
    stream = SecretStream(reader.context.entropy(KEY_BYTES))
    return stream.uniform((len(reader.rows), 2), field.P)

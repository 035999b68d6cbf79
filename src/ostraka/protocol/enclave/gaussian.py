"""The paper's masking: Gaussian noise of constant distances, in float64, for two workers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ostraka.arrays import AnyArray, Buffer, Float32, Float64, cut
from ostraka.core import gaussian, leakage
from ostraka.core.gaussian import Agreement
from ostraka.core.gram import add_gram, from_gram, gram_error
from ostraka.crypto.aead import KEY_BYTES
from ostraka.crypto.offline import SpentNoise
from ostraka.crypto.stream import SecretStream
from ostraka.protocol.enclave.encoder import Measured
from ostraka.protocol.enclave.rows import RowReader

# The norm of a sketch is random around that of its row. Halved, it stays within the unit ball that
# law 6 is for: m >= 4,096 columns make a norm of twice the row's a matter of 100 deviations.
_SKETCH_SHRINK = 0.5


class GaussianEncoder:
    """Law 1 on the way out, law 3 on the way back. One attempt, one set of noise."""

    value_type: np.dtype[Any] = np.dtype("<f8")
    shares_per_row = 2
    answer_has_diagonal = False

    def __init__(self, reader: RowReader, noise: SpentNoise, factors: Float64) -> None:
        """factors: (n,) what rows are multiplied by to lie in the unit ball."""
        terms = reader.terms
        self._reader = reader
        self._terms = terms
        self._noise = noise
        self._step = gaussian.grid_step(terms.sigma)
        self._shrink = _SKETCH_SHRINK if terms.sketch else 1.0
        self._factors = factors[:, None] * self._shrink
        shape = (4, reader.lanes.count, reader.group, terms.tile)
        self._values, self._mask, self._plus, self._minus = np.empty(shape)
        self._loaded: list[Float64] = [np.empty((0, 0))] * reader.lanes.count
        weights = _weights(reader)
        self._checks = [Agreement(weights, terms.tile) for _ in range(reader.lanes.count)]

    def __repr__(self) -> str:
        return "GaussianEncoder(<secret>)"

    def load(self, lane: int, rows: range, values: Float32) -> tuple[Float64, Float64]:
        scaled = cut(self._values[lane], *values.shape)
        # An attacker's signalling NaN must not print a warning.
        with np.errstate(all="ignore"):
            np.multiply(values, self._factors[rows.start : rows.stop], out=scaled)
            squares = np.vecdot(scaled, scaled)
        self._loaded[lane] = scaled
        return scaled, squares

    def shares(self, lane: int, index: int, rows: range, noise: Buffer) -> tuple[Float64, Float64]:
        """W + R and W - R."""
        scaled = self._loaded[lane]
        mask, plus, minus = (
            cut(space[lane], *scaled.shape) for space in (self._mask, self._plus, self._minus)
        )
        self._noise.open_into(index, rows, noise, mask)
        gaussian.encode(scaled, mask, step=self._step, plus=plus, minus=minus)
        return plus, minus

    def witness(self, lane: int, rows: range) -> None:
        if self._terms.verify:
            self._checks[lane].add(rows.start, self._loaded[lane])

    def end_tile(self) -> None:
        first, *others = self._checks
        for other in others:
            first.take(other)
        first.end_block()

    def flaw(self, upper: AnyArray) -> str | None:
        constant = 2 * self._terms.columns.length * self._terms.sigma**2
        # Shares are sqrt(C) apart, give or take 2. Written as a positive condition, for NaN.
        possible = (np.abs(upper) <= 2 * (constant + 8)).all()
        return None if possible else "sent distances that its shares cannot have"

    def decode(self, matrices: Sequence[Float64]) -> Measured | None:
        """Law 3. The check has a tolerance: smaller lies than that pass."""
        plus, minus = matrices
        sigma, d, tile = self._terms.sigma, self._terms.columns.length, self._terms.tile
        distances = gaussian.decode(plus, minus, sigma=sigma, d=d)
        error = leakage.decoding_error(sigma, d=d, dtype=np.float64, tile=tile)
        if self._terms.verify and not self._checks[0].accepts(distances, error):
            return None
        unit = self._shrink**2
        return Measured(distances / unit, np.array(error / unit))

    def audited(self, lane: int, index: int, rows: range, noise: Buffer) -> tuple[Float64, Float64]:
        return self.shares(lane, index, rows, noise)

    def auditors(self) -> Sequence["FloatAuditor"]:
        columns, n = self._terms.columns, len(self._reader.rows)
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
    stream = SecretStream(reader.context.entropy(KEY_BYTES))
    return stream.normal((2, len(reader.rows)))

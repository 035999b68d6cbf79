"""The paper's masking: Gaussian noise of constant distances, in float64, for two workers."""

import numpy as np

from ostraka.arrays import Buffer, Float64
from ostraka.core import leakage, masking
from ostraka.crypto.offline_noise import SpentNoise
from ostraka.roles.enclave.rows import RowReader


class GaussianEncoder:
    """Law 1 on the way out, law 3 on the way back. One attempt, one set of noise."""

    value_bytes = 8

    def __init__(self, reader: RowReader, noise: SpentNoise) -> None:
        self._rules = reader.rules
        self._noise = noise
        self._step = masking.grid_step(self._rules.sigma)
        shape = (3, reader.lanes.count, reader.group, self._rules.tile)
        self._mask, self._plus, self._minus = np.empty(shape)

    def shares(
        self, lane: int, index: int, rows: range, values: Float64, sealed_noise: Buffer
    ) -> tuple[Float64, Float64]:
        """W + R and W - R for one tile of some rows: (g, b), views of the lane's scratch memory."""
        mask, plus, minus = (
            scratch[lane, : len(rows), : values.shape[1]]
            for scratch in (self._mask, self._plus, self._minus)
        )
        for row, out in zip(rows, mask, strict=True):
            self._noise.open_into(index, row, sealed_noise, out)
        masking.encode(values, mask, step=self._step, plus=plus, minus=minus)
        return plus, minus

    def decode(self, matrices: list[Float64]) -> tuple[Float64, float]:
        """The distances between updates, and their stated error."""
        plus, minus = matrices
        sigma, d = self._rules.sigma, self._rules.dimension
        decoded = masking.decode(plus, minus, sigma=sigma, d=d)
        return decoded, leakage.decoding_error(
            sigma, d=d, dtype=np.float64, tile=self._rules.tile
        )

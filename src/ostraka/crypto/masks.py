"""The leading mask and the noise of one attempt: functions of a seed, made as they are used.

    mask_tile   one tile of the leading mask R_t. The last of an odd number of workers has its seed
    Noise       constant-distance noise, for Gaussian masking

A seed is drawn when the cohort is fixed and never before: a copy of the process that held a mask
for rows to come could spend it on others, and two sums with one mask show W - W'. Tile by tile the
memory is O(rows x tile), and the same tile can be made again.
"""

from collections.abc import Iterator

import numpy as np

from ostraka.arrays import Float64, UInt32
from ostraka.config import Tiling
from ostraka.core import field, gaussian
from ostraka.crypto.aead import KEY_BYTES
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.stream import SecretStream


def mask_stream(index: int, rows: range) -> int:
    """Returns the stream, under a mask's seed, of one tile of a group of rows."""
    return index << 32 | rows.start


def mask_tile(seed: bytes, rows: int, columns: Tiling, index: int) -> UInt32:
    """Makes one tile, (rows, b), of the mask that a seed stands for."""
    stream = SecretStream(seed)
    block = np.empty((rows, columns.size(index)), np.uint32)
    for start in range(0, rows, columns.group):
        stream.seek(mask_stream(index, range(start, rows)))
        stream.uniform_into(block[start : start + columns.group], field.P)
    return block


class Noise:
    """Constant-distance noise for `rows` clients, on the grid.

    The normals that it is made of are read once for their Gram matrix, and again for each tile.
    """

    def __init__(self, sigma: float, columns: Tiling, rows: int, entropy: Entropy) -> None:
        self._columns = columns
        self._rows = rows
        self._step = gaussian.grid_step(sigma)
        while True:
            self._seed = entropy(KEY_BYTES)
            try:
                self._factors = gaussian.transform(self._blocks, sigma=sigma)
                break
            except gaussian.IllConditioned:
                continue  # This is rare, and needs hardly more dimensions than rows.

    def __repr__(self) -> str:
        return f"Noise({self._rows} rows, <secret>)"

    def tile(self, index: int) -> Float64:
        """Makes one tile of the noise of all rows: (rows, b)."""
        rows = gaussian.apply(self._factors, self._normals(index))
        return gaussian.to_grid(rows, self._step, out=rows)

    def _blocks(self) -> Iterator[Float64]:
        return (self._normals(index) for index in range(self._columns.count))

    def _normals(self, index: int) -> Float64:
        shape = (self._rows, self._columns.size(index))
        return SecretStream(self._seed, stream=index).normal(shape)

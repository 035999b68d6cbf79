"""The secret sketch (law 12): every row is folded to a few columns while it arrives."""

import math

import numpy as np

from ostraka.arrays import UInt8
from ostraka.config import Tiling
from ostraka.core import loops, sketch
from ostraka.crypto.aead import KEY_BYTES
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.stream import SecretStream

_TAME = 40  # the binary logarithm of a norm that needs no scale, at most, up or down
_LARGEST = 2.0**126


class Folds:
    """The signs and shifts of one opening of a round, the same for all rows: m columns.

    tiles: those of each tile. They are drawn when the round opens, since rows are folded as they
    come (ADR 15).
    """

    def __init__(self, tiling: Tiling, m: int, entropy: Entropy) -> None:
        stream = SecretStream(entropy(KEY_BYTES))
        self.m = m
        bits: UInt8 = np.empty((tiling.count, -(-tiling.tile // 8)), np.uint8)
        stream.fill(bits)
        shifts = stream.uniform((tiling.count, sketch.blocks(tiling.tile, m)), m)
        self.tiles = [
            loops.Fold(
                bits[index, : -(-size // 8)],
                shifts[index, : sketch.blocks(size, m)],
                width=size,
                m=m,
            )
            for index, size in enumerate(map(tiling.size, range(tiling.count)))
        ]

    def __repr__(self) -> str:
        return "Folds(<secret>)"


def scale_of(norm: float) -> float:
    """What a row is multiplied by as it is folded: one whose squares would leave the range of
    float32 has a scale of its own."""
    if norm == 0:
        return _LARGEST  # The square of any other value than 0 must show.
    if abs(math.log2(norm)) <= _TAME:
        return 1.0
    return min(max(1 / norm, 1 / _LARGEST), _LARGEST)

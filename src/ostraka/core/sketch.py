"""The secret sketch of law 12 folds a row of d values to m, so that distances cost m and not d.

(12)  S_h = sum of sign_k W_k over all k with (k + shift of k's block) mod m = h, k from its start
      E |S_i - S_j|^2 = D_ij,  standard deviation at most sqrt(2/m) D_ij

Signs and shifts are secret, uniform, the same for all rows, and drawn once the rows are fixed. A
block has at most m coordinates and its own shift: two coordinates of one block never meet, and any
two of different blocks meet with probability exactly 1/m. With one shift for more than m
coordinates, k and k + m would always meet, and an attacker would hide one behind the other.

A block never crosses a tile's edge: a tile of b values is cut into ceil(b / m) blocks, all of m
values but the last. With m >= b every tile is one block.

float32 sums lose about 2^-24 |W| for the square root of the number of blocks: nothing beside
sqrt(2/m). They hold while sqrt(d/m) |W| < 2^127, so longer rows are scaled before they are folded.
"""

import math

import numpy as np
import numpy.typing as npt

from ostraka.arrays import Float32, UInt32
from ostraka.errors import ConfigError

MIN_SIZE = 4096


def check(m: int, d: int) -> None:
    """Raises ConfigError for a sketch above d, or below 4,096, too rough to rank updates by."""
    if not MIN_SIZE <= m <= d:
        raise ConfigError(f"a sketch has {MIN_SIZE} to d = {d} values; got m = {m}")


def error(m: int) -> float:
    """Returns the relative standard deviation of a squared distance: sqrt(2/m)."""
    return math.sqrt(2 / m)


def blocks(width: int, m: int) -> int:
    """Returns how many shifts a tile of this width needs."""
    return -(-width // m)


def signs(bits: npt.NDArray[np.uint8], width: int) -> Float32:
    """Turns each secret bit into 1 or -1, (width,). bits: (ceil(width / 8),)"""
    return 1 - 2 * np.unpackbits(bits, count=width).astype(np.float32)


def fold(values: Float32, signs: Float32, shifts: UInt32, out: Float32) -> None:
    """Adds a tile of some rows to `out` by law 12, for `wrap`. It changes `values` in place.

    values: (g, b). signs: (b,). shifts: (blocks(b, m),), each below m. out: (g, 2m).
    """
    m = out.shape[1] // 2
    np.multiply(values, signs, out=values)
    for block, shift in enumerate(shifts.tolist()):
        part = values[:, block * m : (block + 1) * m]
        out[:, shift : shift + part.shape[1]] += part


def wrap(folded: Float32, out: Float32) -> None:
    """Adds what was folded, (g, 2m), to sketches (g, m). Places beyond m start again at zero."""
    m = out.shape[1]
    out += folded[:, :m]
    out += folded[:, m:]

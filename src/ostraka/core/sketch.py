"""The secret sketch of law 12 folds a row of d values to m, so that distances cost m and not d.

(12)  S_h = sum of sign_k W_k over all k with (k + shift of k's block) mod m = h, k from its start
      E |S_i - S_j|^2 = D_ij,  standard deviation at most sqrt(2/m) D_ij

Signs and shifts are secret, uniform, the same for all rows, and drawn when a round opens. A
block has at most m coordinates and its own shift: two coordinates of one block never meet, and any
two of different blocks meet with probability exactly 1/m. With one shift for more than m
coordinates, k and k + m would always meet, and an attacker would hide one behind the other.

A block never crosses a tile's edge: a tile of b values is cut into ceil(b / m) blocks, all of m
values but the last. With m >= b every tile is one block.

float32 sums lose about 2^-24 |W| for the square root of the number of blocks: nothing beside
sqrt(2/m). They hold while sqrt(d/m) |W| < 2^127, so longer rows are scaled before they are folded.
"""

import math

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

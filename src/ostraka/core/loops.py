"""Loops over values that a round spends its time in."""

from collections.abc import Sequence

import numpy as np

from ostraka.arrays import Float32, Float64, UInt8, UInt32


def squares(values: Float32) -> float:
    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
        return float(np.einsum("i,i->", wide, wide))


def dot(values: Float32, other: Float32) -> float:
    with np.errstate(all="ignore"):
        return float(np.einsum("i,i->", values.astype(np.float64), other.astype(np.float64)))


def absorb(values: Float32, bits: UInt8, shifts: UInt32, scale: float, sketch: Float32) -> float:
    m = len(sketch)
    with np.errstate(all="ignore"):
        signs = 1 - 2 * np.unpackbits(bits, count=len(values)).astype(np.float32)
        signed = values * (signs * np.float32(scale))
        for block, shift in enumerate(shifts.tolist()):
            part = signed[block * m : (block + 1) * m]
            head = part[: m - shift]
            sketch[shift : shift + len(head)] += head
            sketch[: len(part) - len(head)] += part[len(head) :]
    return squares(values)


def add_rows(rows: Sequence[Float32], weights: Float64, total: Float64) -> None:
    """total += sum."""
    for row, weight in zip(rows, weights.tolist(), strict=True):
        total += weight * row.astype(np.float64)

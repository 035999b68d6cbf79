"""Sums over known updates: in float64, one row or one block of columns at a time.

A float64 copy of all rows would not fit: 52 updates of MobileNetV2's size take 1.4 GB.
"""

import numpy as np

from ostraka.arrays import Float32, Float64
from ostraka.core.gram import add_gram

_BLOCK = 1 << 14  # columns


def mean(rows: Float32) -> Float64:
    """Of the rows (m, d), coordinate by coordinate (d,)."""
    total = np.zeros(rows.shape[1])
    for row in rows:
        total += row
    total /= len(rows)
    return total


def deviation(rows: Float32, centre: Float64) -> Float64:
    """The standard deviation (d,) of the rows (m, d), of which the mean (d,) is given.

    Divided by m, not by m - 1: to the attacker the rows are not a sample, but all that there is.
    """
    total = np.zeros(rows.shape[1])
    for row in rows:
        total += np.square(row - centre)
    total /= len(rows)
    return np.sqrt(total, out=total)


def gram(rows: Float32) -> Float64:
    """Inner products (m, m) of the rows (m, d)."""
    products = np.zeros((len(rows), len(rows)))
    for start in range(0, rows.shape[1], _BLOCK):
        add_gram(products, rows[:, start : start + _BLOCK].astype(np.float64))
    return products


def dots(rows: Float32, vector: Float64) -> Float64:
    """Inner products (m,) of the rows (m, d) with a vector (d,)."""
    return np.array([row @ vector for row in rows])

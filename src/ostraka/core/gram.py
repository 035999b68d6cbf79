"""Squared distances between rows: law 2, the paper's equations 1 and 2.

(2)  D_ij = |Y_i - Y_j|^2

Rows are long and come in blocks of columns, so everything here accumulates. The Gram form costs one
matrix product per block, but it subtracts numbers of the size of |Y|^2, so its error is some
eps |Y|^2. The naive form subtracts first, so its error is some eps |Y_i - Y_j|^2, and it costs
several times more.
"""

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ostraka.arrays import AnyArray, Float32, Float64, UInt32
from ostraka.core import field


def add_gram(gram: Float64, block: Float64) -> None:
    """Adds the inner products of a block's rows. gram: (n, n), changed. block: (n, b)."""
    gram += block @ block.T


def add_gram32(gram: Float64, block: Float32) -> None:
    """As `add_gram`, with a block's products in float32: faster, and only for short rows."""
    gram += block @ block.T


def from_gram(gram: Float64) -> Float64:
    """D_ij = G_ii + G_jj - 2 G_ij. gram: (n, n). Returns (n, n); its diagonal is exactly 0.

    Rows that nearly coincide may come out slightly negative, and are left so: a clamp would bias
    the error.
    """
    squares = np.diagonal(gram)
    distances: Float64 = squares[:, None] + squares - 2 * gram
    return distances


def gram_error(
    d: int, *, square: float = 1.0, tile: int = 1024, dtype: npt.DTypeLike = np.float64
) -> float:
    """How far `from_gram` may miss a squared distance of rows with |Y|^2 <= square.

    d: the columns, in tiles of at least `tile`. dtype: of the rows and of the sums.

    Measured, not proved: rounding errors add up like random steps, one for each tile, and these
    constants are about twice the largest seen.
    """
    return (24 + 0.8 * math.sqrt(d / tile)) * float(np.finfo(dtype).eps) * square


def add_naive(distances: Float64, block: AnyArray) -> None:
    """Adds a block's part of the distances pair by pair. distances: (n, n), changed. block: (n, b).

    A block is summed in its own precision, and the blocks in float64.
    """
    difference = np.empty_like(block[0])
    for i, row in enumerate(block):
        for j in range(i):
            np.subtract(row, block[j], out=difference)
            distances[i, j] += difference @ difference
            distances[j, i] = distances[i, j]


def naive(rows: AnyArray) -> Float64:
    """D (n, n) of rows (n, d), differences before squares: the paper's baseline in the enclave."""
    distances = np.zeros((len(rows), len(rows)))
    add_naive(distances, rows)
    return distances


def to_upper(matrix: AnyArray, *, diagonal: bool = False) -> AnyArray:
    """The entries above the diagonal, or with it, row after row: all that there is to send."""
    return matrix[np.triu_indices(len(matrix), 0 if diagonal else 1)]


def from_upper(upper: AnyArray, n: int, *, diagonal: bool = False) -> AnyArray:
    """The symmetric matrix (n, n) whose `to_upper` this is; its diagonal is zero if not given."""
    matrix = np.zeros((n, n), upper.dtype)
    matrix[np.triu_indices(n, 0 if diagonal else 1)] = upper
    return np.triu(matrix) + np.triu(matrix, 1).T


class Kernel(Protocol):
    """Adds a tile of columns to a running Gram matrix. Every implementation agrees to the bit on
    residues, and to rounding on floats."""

    def add_gram(self, total: Float64, block: Float64) -> None:
        """total (n, n) += block @ block.T, block: (n, b)."""

    def add_field_gram(self, total: UInt32, block: UInt32) -> None:
        """total (n, n) += block @ block.T modulo p, block: (n, b) residues."""


class NumpyKernel:
    """The kernel of a worker without an accelerator."""

    def add_gram(self, total: Float64, block: Float64) -> None:
        add_gram(total, block)

    def add_field_gram(self, total: UInt32, block: UInt32) -> None:
        field.add_gram(total, block)

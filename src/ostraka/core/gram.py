"""Gram matrices and squared distances of rows, and the kernels that workers compute them with.

This is law 2, the paper's equations 1 and 2:

(2)  D_ij = |Y_i - Y_j|^2

Rows are long and come in blocks of columns, so everything here accumulates. The Gram form costs one
matrix product per block, but it subtracts numbers of the size of |Y|^2, so its error is of the
order of eps |Y|^2. The naive form subtracts first, so its error is of the order of
eps |Y_i - Y_j|^2, and it costs several times more.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from ostraka.arrays import AnyArray, Float32, Float64, row_blocks
from ostraka.core import field

# What a kernel multiplies: Gaussian masks need real numbers, exact ones residues modulo p.
Values: TypeAlias = Literal["float64", "residues"]
DTYPES: dict[Values, np.dtype[Any]] = {
    "float64": np.dtype("<f8"),
    "residues": np.dtype("<u4"),
}


# With no more rows than these, a product is made at once: BLAS then rounds as it always did.
_MANY_ROWS = 2048


def add_gram(gram: Float64, block: Float64) -> None:
    """Adds the inner products of a block's rows. gram: (n, n), changed. block: (n, b)."""
    _add_products(gram, block)


def add_gram32(gram: Float64, block: Float32) -> None:
    """Adds as `add_gram` does, but in float32: faster, and precise enough for short rows only."""
    _add_products(gram, block)


def _add_products(gram: Float64, block: AnyArray) -> None:
    """Adds block @ block.T. Of many rows, some at a time: the matrix is too large to have twice."""
    n = len(block)
    for rows in row_blocks(n, _MANY_ROWS):
        part, rest = block[rows], slice(rows.stop, n)
        gram[rows, rows] += part @ part.T  # BLAS syrk: symmetric, and half the cost
        if rows.stop < n:
            beside = part @ block[rest].T
            gram[rows, rest] += beside
            gram[rest, rows] += beside.T


def congruent(matrix: Float64, gram: Float64) -> Float64:
    """Returns M G M^T, (m, m). matrix: (m, n), or (n,) for a diagonal one. gram: (n, n)."""
    if matrix.ndim == 1:
        scaled: Float64 = matrix[:, None] * gram
        scaled *= matrix
        return scaled
    product: Float64 = np.empty((len(matrix), len(matrix)))
    for rows in row_blocks(len(matrix), _MANY_ROWS):
        np.matmul(matrix[rows] @ gram, matrix.T, out=product[rows])
    return product


def from_gram(gram: Float64) -> Float64:
    """Returns D_ij = G_ii + G_jj - 2 G_ij, (n, n), whose diagonal is exactly 0. gram: (n, n).

    Distances of rows that nearly coincide may be slightly negative. They stay so, because a clamp
    would bias the error.
    """
    distances: Float64 = np.empty(gram.shape)
    for rows in row_blocks(len(gram)):
        distances[rows] = distances_of(gram, rows)
    return distances


def distances_of(gram: Float64, rows: slice) -> Float64:
    """Returns some rows of `from_gram`."""
    squares = np.diagonal(gram)
    distances: Float64 = squares[rows, None] + squares
    distances -= 2 * gram[rows]
    return distances


def gram_error(
    d: int, *, square: float = 1.0, tile: int = 1024, dtype: npt.DTypeLike = np.float64
) -> float:
    """Returns the error of a squared distance by `from_gram`, for rows with |Y|^2 <= square.

    d: the columns, in tiles of at least `tile`. dtype: that of the rows and of the sums.

    This is measured, not proved: rounding errors add up like random steps, one for each tile, and
    these constants are about twice the largest error seen.
    """
    return (24 + 0.8 * math.sqrt(d / tile)) * float(np.finfo(dtype).eps) * square


def add_naive(distances: Float64, block: AnyArray) -> None:
    """Adds a block's part of the distances, pair by pair. distances: (n, n). block: (n, b).

    A block is summed in its own precision, and the blocks in float64.
    """
    difference = np.empty_like(block[0])
    for i, row in enumerate(block):
        for j in range(i):
            np.subtract(row, block[j], out=difference)
            distances[i, j] += difference @ difference
            distances[j, i] = distances[i, j]


def naive(rows: AnyArray) -> Float64:
    """Returns D (n, n) of rows (n, d), by differences: the paper's baseline in the enclave."""
    distances = np.zeros((len(rows), len(rows)))
    add_naive(distances, rows)
    return distances


def to_upper(matrix: AnyArray, *, diagonal: bool = False) -> AnyArray:
    """Returns the entries above the diagonal, or with it, row after row."""
    n, skip = len(matrix), 0 if diagonal else 1
    upper, at = np.empty(n * (n + 1) // 2 - skip * n, matrix.dtype), 0
    for place, row in enumerate(matrix):
        entries = row[place + skip :]
        upper[at : at + len(entries)] = entries
        at += len(entries)
    return upper


def from_upper(upper: AnyArray, n: int, *, diagonal: bool = False) -> AnyArray:
    """Returns the symmetric matrix (n, n) whose `to_upper` this is. A missing diagonal is zero."""
    matrix, at, skip = np.zeros((n, n), upper.dtype), 0, 0 if diagonal else 1
    for place, row in enumerate(matrix):
        entries = row[place + skip :]
        entries[:] = upper[at : at + len(entries)]
        at += len(entries)
    mirror(matrix)
    return matrix


def mirror(matrix: AnyArray) -> None:
    """Makes a matrix (n, n) symmetric, whose part below the diagonal is zero so far."""
    for rows in row_blocks(len(matrix)):
        corner = matrix[rows, rows]
        corner += np.triu(corner, 1).T
        matrix[rows.stop :, rows] = matrix[rows, rows.stop :].T


class Sum(Protocol):
    """A Gram matrix that grows block by block, in memory of its kernel's choice."""

    def add(self, block: AnyArray) -> None:
        """Adds the inner products of a block's rows. block: (rows, b), of any width b.

        The caller may change the block as soon as this returns.
        """

    def total(self) -> AnyArray:
        """Returns the sum so far, (rows, rows), as an array of the caller's own."""


class Source(Protocol):
    """A block of columns that is not made yet, such as a sealed tile. Any process can make it."""

    def make(self, space: AnyArray) -> AnyArray:
        """Returns the block, (rows, b), in `space` or in memory of its own.

        Raises OpenError if it cannot be made.
        """


@runtime_checkable
class MakingSum(Sum, Protocol):
    """A sum that makes its blocks where it adds them up, which is in other processes."""

    def add_from(self, source: Source, space: AnyArray) -> None:
        """Adds the block that `source` makes, elsewhere or in `space`.

        Raises what `make` raises: here, or later, as `total` does at the latest.
        """


def add_from(running: Sum, source: Source, space: AnyArray) -> None:
    """Adds the block that `source` makes: in `space`, unless the sum makes its blocks itself."""
    if isinstance(running, MakingSum):
        running.add_from(source, space)
    else:
        running.add(source.make(space))


class Kernel(Protocol):
    """Computes Gram matrices, on a processor, on a device or on several machines.

    All kernels agree to the bit on residues, and up to rounding on float64. A worker that serves
    several enclaves has one kernel, and a sum in each of its threads.
    """

    def begin(self, rows: int, values: Values) -> Sum:
        """Starts a sum of zeros. values: "float64", or "residues" modulo p (`core.field`)."""


class NumpyKernel:
    """The kernel of a worker without an accelerator."""

    def begin(self, rows: int, values: Values) -> Sum:
        return _NumpySum(rows, values)


_ADDS: dict[Values, Callable[[Any, Any], None]] = {
    "float64": add_gram,
    "residues": field.add_gram,
}


class _NumpySum:
    def __init__(self, rows: int, values: Values) -> None:
        self._total = np.zeros((rows, rows), DTYPES[values])
        self._add = _ADDS[values]

    def add(self, block: AnyArray) -> None:
        self._add(self._total, block)

    def total(self) -> AnyArray:
        return self._total.copy()

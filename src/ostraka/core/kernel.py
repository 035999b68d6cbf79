"""What a worker computes, in numpy: sums of inner products of its masked rows."""

from typing import Protocol

from ostraka.arrays import Float64, UInt32
from ostraka.core import distances, field


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
        distances.add_gram(total, block)

    def add_field_gram(self, total: UInt32, block: UInt32) -> None:
        field.add_gram(total, block)

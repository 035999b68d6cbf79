"""What a masking scheme does for the first pass, whichever it is."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Protocol

import numpy as np

from ostraka.arrays import AnyArray, Buffer, Float32, Float64
from ostraka.protocol.enclave.spans import Span

DEVIATIONS = 6  # that a stated error allows a distance to be off


@dataclass(frozen=True)
class Measured:
    """Squared distances (n, n) of rows in the unit ball, and the error to expect of each."""

    distances: Float64 = field(repr=False)
    error: Float64 = field(repr=False)


class Encoder(Protocol):
    """One attempt's masks. Every share can be derived again, and is then the same to the bit."""

    value_type: np.dtype[Any]
    shares_per_row: int
    answer_has_diagonal: bool

    def load(self, lane: int, rows: range, values: Float32) -> tuple[AnyArray, Float64]:
        """Scale one tile of some rows (g, b); the result, and its squares in the unit ball (g,).

        The result may still be changed, before `shares`.
        """

    def shares(self, lane: int, index: int, rows: range, noise: Buffer) -> Sequence[AnyArray]:
        """The shares (g, b) of what was loaded, one per point: views of scratch memory."""

    def witness(self, lane: int, rows: range) -> None:
        """Gather evidence, for `decode` to check, from the rows that were last shared."""

    def end_tile(self) -> None:
        """All rows of a tile have been witnessed."""

    def flaw(self, upper: AnyArray) -> str | None:
        """What is wrong on their face with the numbers that a worker sent, if anything is."""

    def decode(self, matrices: Sequence[AnyArray]) -> Measured | None:
        """The distances, or None if the answers contradict the evidence."""

    def audited(self, lane: int, index: int, rows: range, noise: Buffer) -> Sequence[AnyArray]:
        """The shares again, one per worker: the mask itself for one that was given its seed."""

    def auditors(self) -> Sequence["Auditor"]:
        """One per worker, under fresh challenges."""


class Auditor(Protocol):
    """Judges one worker's matrix by itself, from the shares that this worker was given."""

    def add(self, share: AnyArray) -> None:
        """One tile of all rows (n, b), as it was sent."""

    def doubt(self, matrix: AnyArray) -> float:
        """How far the matrix is from that of the shares: 0 is agreement, from 1 on it is false."""


def tile_by_tile(
    spans: Iterable[Span | None], noise: Iterable[Buffer] | None
) -> Iterator[tuple[int, tuple[Span | None, Buffer]]]:
    """Of each tile that is masked, its number, what to open, and sealed noise if there is any."""
    return enumerate(zip(spans, noise or repeat(b""), strict=False))

"""Reduces every column of a matrix by itself: what column-wise rules do in the second pass.

A column is sorted, or only as far as its reduction needs it, by Batcher's odd-even merge exchange
(Batcher 1968; Knuth, The Art of Computer Programming, vol. 3, 5.2.2, algorithm M, which takes any
number of rows). A comparator is an elementwise minimum and maximum of two whole rows, so which
memory is touched, and in which order, depends on the number of rows alone. Comparators that cannot
change the outcome are left out: those below and above what is kept, and those between values that
are only added up.

A network takes O(log^2 m) operations a value and numpy's sort O(log m), so from some number of rows
on, a sort is taken. *Its* time may depend on the values. By `ostraka bench rules`, on an AMD EPYC
with AVX-512, the mean of the values nearest to the median takes so many nanoseconds a value:

rows              16     32     64    128    256
by a network     1.9    2.3    3.2    4.8    5.4 to 8.7
by a sort        4.5    4.0    4.1    5.1    6.4 to 7.0
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from ostraka.arrays import Float32, Float64
from ostraka.errors import ConfigError

Reducer: TypeAlias = Literal["median", "trimmed", "near-median"]

MAX_NETWORK_ROWS = 256  # beyond which a sort is faster by far

_SORTED_VALUES = 2**17  # that a sort works on at a time
_DROPPED, _ADDED, _PLACED = range(3)  # what becomes of an output


class Comparator(NamedTuple):
    """Brings two rows in order: the minima to row `low`, the maxima to row `high`.

    keeps_low, keeps_high: whether anything later reads them.
    """

    low: int
    high: int
    keeps_low: bool = True
    keeps_high: bool = True

    @property
    def operations(self) -> int:
        return self.keeps_low + self.keeps_high


def sorting_network(rows: int) -> tuple[Comparator, ...]:
    """The comparators, in order, that sort any values of so many rows."""
    found = []
    largest = 1 << max(rows - 1, 1).bit_length() - 1
    part = largest
    while part:
        reach, distance, bit = largest, part, 0
        while True:
            found += [
                Comparator(low, low + distance)
                for low in range(rows - distance)
                if low & part == bit
            ]
            if reach == part:
                break
            distance, reach, bit = reach - part, reach // 2, part
        part //= 2
    return tuple(found)


def _pruned(network: Sequence[Comparator], uses: list[int]) -> tuple[Comparator, ...]:
    """The comparators without those that cannot matter. uses: what becomes of each output.

    From the last to the first: where both outputs are dropped, or both only added to one sum, their
    order is nothing that anybody sees. Whatever a comparator that stays reads, must be in place.
    """
    uses, kept = list(uses), []
    for each in reversed(network):
        low, high = uses[each.low], uses[each.high]
        if low == high != _PLACED:
            continue
        kept.append(Comparator(each.low, each.high, low != _DROPPED, high != _DROPPED))
        uses[each.low] = uses[each.high] = _PLACED
    return tuple(reversed(kept))


class Reduction:
    """One way to reduce columns of `rows` values each.

    median       the middle value, or the mean of the two in the middle
    trimmed      the mean without the `count` lowest and the `count` highest values
    near-median  the mean of the `count` values nearest to the median. Of one below and one above
                 that are equally near, the lower one comes first. Their distances are compared in
                 float32, where all from 3.4e38 on are equal. Equal values count each by itself.

    Sums are taken in float64. Values are finite. by_network: whether the network is taken, and not
    a sort.
    """

    def __init__(self, rows: int, reducer: Reducer, count: int = 0) -> None:
        self.rows = rows
        self._count = count
        self._middle = ((rows - 1) // 2, rows // 2)
        self._near = reducer == "near-median"
        if reducer == "median":
            self._kept = range(self._middle[0], self._middle[1] + 1)
        elif reducer == "trimmed":
            self._kept = range(count, rows - count)
        else:
            self._kept = range(count)
        if count < 0 or not self._kept or self._kept.stop > rows:
            raise ConfigError(f"a {reducer} reduction of {rows} rows cannot have count={count}")
        self.by_network = rows <= MAX_NETWORK_ROWS

    @cached_property
    def network(self) -> tuple[Comparator, ...]:
        return _pruned(sorting_network(self.rows), self._uses())

    @property
    def operations(self) -> int:
        """The network's minima and maxima of whole rows."""
        return sum(each.operations for each in self.network)

    def _uses(self) -> list[int]:
        uses = [_DROPPED] * self.rows
        for row in self._kept:
            uses[row] = _ADDED
        if self._near:
            # Rows that are in every window are only added up. The others compete for a place.
            outside = self.rows - self._count
            for row in (*range(min(outside, self.rows)), *range(self._count, self.rows)):
                uses[row] = _PLACED
            for row in self._middle:
                uses[row] = _PLACED
        return uses

    def apply(self, rows: Sequence[Float32], out: Float64, space: "Scratch") -> None:
        """Reduce to `out`, (b,). rows: each (b,), whose content is lost."""
        width = len(out)
        ordered = list(rows)
        if self.by_network:
            _compare(self.network, ordered, space.spare[:width])
        else:
            _sort(ordered)
        if self._near:
            self._choose(ordered, space, width)
        _add_up((ordered[row] for row in self._kept), out, space.wide[:width])
        out /= len(self._kept)

    def _choose(self, ordered: list[Float32], space: "Scratch", width: int) -> None:
        """Bring the values nearest to the median to the first `count` of ascending rows.

        They are consecutive. The window that starts at value i gives way to the next one iff value
        i + count is nearer to the median than value i, and then i's place in the sum is taken. The
        choice is made by arithmetic on all values, whichever is nearer.
        """
        below, above, median = space.choice[:3, :width]
        mask = space.mask[:width]
        low, high = (ordered[row] for row in self._middle)
        np.multiply(low, 0.5, out=median)
        median += np.multiply(high, 0.5, out=above)
        for start in range(self.rows - self._count):
            first, after = ordered[start], ordered[start + self._count]
            with np.errstate(over="ignore"):
                np.subtract(median, first, out=below)
                np.subtract(after, median, out=above)
            np.copyto(mask, np.less(above, below, out=space.nearer[:width]))
            np.negative(mask, out=mask)
            place, value = (row.view(np.uint32) for row in (ordered[start % self._count], after))
            change = np.bitwise_xor(place, value, out=below.view(np.uint32))
            change &= mask
            place ^= change


class Scratch:
    """Memory for reductions of up to `width` columns."""

    def __init__(self, width: int) -> None:
        self.spare = np.empty(width, np.float32)
        self.wide = np.empty(width)
        self.choice = np.empty((3, width), np.float32)
        self.mask = np.empty(width, np.uint32)
        self.nearer = np.empty(width, np.bool_)


def _compare(network: Iterable[Comparator], rows: list[Float32], spare: Float32) -> None:
    """Run a network over rows (b,) each, which change places. spare: (b,)."""
    for each in network:
        low, high = rows[each.low], rows[each.high]
        if each.keeps_low and each.keeps_high:
            np.minimum(low, high, out=spare)
            np.maximum(low, high, out=high)
            rows[each.low], spare = spare, low
        elif each.keeps_low:
            np.minimum(low, high, out=low)
        else:
            np.maximum(low, high, out=high)


def _sort(rows: list[Float32]) -> None:
    """Sort the columns of rows (b,) each, a part of them at a time."""
    part = max(1, _SORTED_VALUES // len(rows))
    for start in range(0, len(rows[0]), part):
        columns = np.stack([row[start : start + part] for row in rows], axis=1)
        columns.sort(axis=1)
        for row, values in zip(rows, columns.T, strict=True):
            row[start : start + part] = values


def _add_up(rows: Iterable[Float32], out: Float64, wide: Float64) -> None:
    out.fill(0)
    for row in rows:
        np.copyto(wide, row)
        out += wide

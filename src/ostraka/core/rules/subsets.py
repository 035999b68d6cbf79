"""The mean of the n - f rows that lie closest together.

mda   minimum diameter averaging: of all sets of n - f rows, the one whose two farthest rows are
      nearest to each other. Of several sets the first in the order of their row numbers.
      El Mhamdi, Guerraoui, Guirguis, Hoang and Rouault, "Genuinely Distributed Byzantine Machine
      Learning", PODC 2020.
      Its aggregate is within 2f/(n - f) diameters of the honest rows from their mean, and so it is
      (f, kappa)-robust with kappa = 8 f^2/(n - f). n >= 2f + 2.

Rows farther apart than t are joined by an edge. A set of diameter at most t leaves out a vertex
cover of that graph, so it exists if and only if f vertices cover all edges. A bounded search tree
answers that, and a binary search over the distances that occur finds the least t. How long it takes
is the attackers' choice, so it ends after a fixed amount of work. Then the n - f rows nearest to
one row are taken, the row for which the last of them is nearest: by the triangle inequality their
diameter is at most twice the least one, and the bound on the aggregate is 3f/(n - f) diameters,
kappa = 18 f^2/(n - f).

How long the search takes depends on the rows, and a host that watches it learns a little of them.
Where that matters, take another rule: the others always take the same steps.

A sketch is refused: diameters are maxima, and its errors decide between near ones.
"""

import numpy as np

from ostraka.arrays import Float64
from ostraka.core.rules.seam import Gram, Options, Rule, Weights

EXACT_WORK = 2_000_000  # vertices looked at; about 0.4 seconds


class Mda(Rule):
    """Minimum diameter averaging."""

    citation = "El Mhamdi et al., Genuinely Distributed Byzantine Machine Learning, PODC 2020"
    least_sketch = None

    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        n, distances = len(gram), gram.distances()
        # Decoded from an asymmetric matrix, the two distances of a pair may differ.
        distances = np.maximum(distances, distances.T)
        try:
            return Weights.mean_of(least_diameter(distances, n - f), n, note="mda: exact")
        except _TooLong:
            note = "mda: greedy, the exact search was too long"
            return Weights.mean_of(nearest_to_one(distances, n - f), n, note=note)


class _TooLong(Exception):
    """The search has used up its work."""


def least_diameter(distances: Float64, size: int, *, work: int = EXACT_WORK) -> list[int]:
    """The first set of so many rows with the least diameter. distances: (n, n), symmetric.

    Raises _TooLong after looking at `work` vertices.
    """
    search, n = _Search(work), len(distances)
    thresholds = np.unique(distances[np.triu_indices(n, 1)])
    low, high, found = 0, len(thresholds) - 1, (1 << n) - 1
    while low < high:
        middle = (low + high) // 2
        kept = search.independent(_edges(distances, thresholds[middle]), (1 << n) - 1, size)
        if kept is None:
            low = middle + 1
        else:
            high, found = middle, kept
    edges = _edges(distances, thresholds[low]) if len(thresholds) else [0] * n
    return _first(search, edges, size, found)


def nearest_to_one(distances: Float64, size: int) -> list[int]:
    """The rows nearest to that row for which the last of so many is nearest, itself among them."""
    others = distances.copy()
    np.fill_diagonal(others, -np.inf)
    centre = int(np.argmin(np.sort(others, axis=1)[:, size - 1]))
    nearest: list[int] = np.argsort(others[centre], kind="stable")[:size].tolist()
    return nearest


def _edges(distances: Float64, threshold: float) -> list[int]:
    """Those farther from each row than a threshold, as the bits of a number."""
    joined = distances > threshold
    # A decoded distance may be negative; no row is farther from itself than that.
    np.fill_diagonal(joined, val=False)
    packed = np.packbits(joined, axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def _first(search: "_Search", edges: list[int], size: int, found: int) -> list[int]:
    """Of all independent sets of a size the first in order. found: the bits of any of them."""
    chosen: list[int] = []
    left = (1 << len(edges)) - 1  # that may still be chosen
    for row in range(len(edges)):
        if len(chosen) == size:
            break
        bit = 1 << row
        if not left & bit:
            continue
        rest = left & ~bit & ~edges[row]
        if not found & bit:
            other = search.independent(edges, rest, size - len(chosen) - 1)
            if other is None:
                left &= ~bit
                continue
            found = other
        chosen.append(row)
        left = rest
    return chosen


class _Search:
    """Looks for independent sets, within one amount of work for all of them."""

    def __init__(self, work: int) -> None:
        self._work = work

    def independent(self, edges: list[int], among: int, size: int) -> int | None:
        """The bits of an independent set of at least this size among some vertices, or None.

        What it leaves out is a cover: a vertex, or else all its neighbours. Raises _TooLong.
        """
        branches = [(among, among.bit_count() - size)]
        while branches:
            left, budget = branches.pop()
            while budget >= 0:
                vertex, degree, branching = self._busiest(edges, left)
                if degree == 0:
                    return left
                if branching and degree <= budget:
                    branches.append((left & ~edges[vertex], budget - degree))
                left &= ~(1 << vertex)
                budget -= 1
        return None

    def _busiest(self, edges: list[int], left: int) -> tuple[int, int, bool]:
        """The vertex to leave out first, how many neighbours it has, and whether to try without.

        Some smallest cover has the neighbour of a vertex that has only one, and any vertex of a
        circle; so nothing else need be tried then.
        """
        self._work -= left.bit_count()
        if self._work < 0:
            raise _TooLong
        busiest, most = 0, 0
        rest = left
        while rest:
            lowest = rest & -rest
            rest ^= lowest
            vertex = lowest.bit_length() - 1
            neighbours = edges[vertex] & left
            degree = neighbours.bit_count()
            if degree == 1:
                return neighbours.bit_length() - 1, 1, False
            if degree > most:
                busiest, most = vertex, degree
        return busiest, most, most > 2

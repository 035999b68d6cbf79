"""FLAME's filter: the largest group of rows that point the same way, each cut to the median length.

flame   1 - cos(x_i, x_j) is how far two rows are apart. HDBSCAN, asked for clusters of more than
        half of all rows, keeps one: link the nearest rows first, and stop as soon as n//2 + 1 of
        them hang together; those are kept. Then every row is shortened to the median length of all
        n, and the kept ones are averaged. Nguyen et al., "FLAME: Taming Backdoors in Federated
        Learning", USENIX Security 2022. No kappa: it has a proof against backdoors only, by the
        noise that is added at the end. n >= 2f + 2, so that f + 2 rows are always kept.

With so large a cluster no split of the tree has two, so HDBSCAN (min_cluster_size n//2 + 1,
min_samples 1, a single cluster allowed) comes to the last branch of single linkage that has as many
members. Pairs that are equally far apart are linked at once.

Two things differ. FLAME's noise is not added: it would have to be drawn inside, and a rule draws
nothing. And it compares whole models, which mostly point one way; here, as elsewhere, updates.

Traps: a chain of rows links what is far apart, so colluders who stand between honest groups choose
who is kept. A row of zeros points nowhere and is at distance 1 from all. A sketch is refused: its
errors are as large as the distances that decide.
"""

import numpy as np

from ostraka.arrays import Float64
from ostraka.core.rules.seam import Gram, Options, Rule, Weights
from ostraka.core.rules.trusted import cosines


class Flame(Rule):
    """The mean of the largest group of like directions, of rows cut to the median length."""

    citation = "Nguyen et al., FLAME, USENIX Security 2022"
    least_sketch = None

    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        n, norms = len(gram), gram.norms
        kept = Weights.mean_of(majority(1 - cosines(gram)), n)
        median = float(np.median(norms))
        factors = np.divide(median, norms, out=np.ones(n), where=norms > median)
        return Weights(kept.values * factors, kept.shares)


def majority(distances: Float64) -> list[int]:
    """The first group of at least n//2 + 1 rows that hang together when near ones are linked first.

    distances: (n, n). The diagonal is ignored.
    """
    n = len(distances)
    groups = np.arange(n)
    links = _spanning_tree(distances)
    for number, (length, one, other) in enumerate(links):
        groups[groups == groups[other]] = groups[one]
        largest = np.bincount(groups).argmax()
        members: list[int] = np.flatnonzero(groups == largest).tolist()
        last_of_its_length = number + 1 == len(links) or links[number + 1][0] > length
        if len(members) > n // 2 and last_of_its_length:
            return members
    return list(range(n))


def _spanning_tree(distances: Float64) -> list[tuple[float, int, int]]:
    """The n - 1 shortest links that join all rows, (length, row, row), the shortest first."""
    n = len(distances)
    length, via = distances[0].copy(), np.zeros(n, np.int64)
    outside = np.arange(n) > 0
    links = []
    for _ in range(n - 1):
        row = int(np.argmin(np.where(outside, length, np.inf)))
        links.append((float(length[row]), int(via[row]), row))
        outside[row] = False
        nearer = distances[row] < length
        length[nearer], via[nearer] = distances[row][nearer], row
    return sorted(links)

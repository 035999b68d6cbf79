"""ByzFL's MultiKrum on whole weights, in torch or in numpy. Runs in ByzFL's own environment.

Timed is the aggregator's call alone, on vectors that lie in one tensor or array.
"""

from collections.abc import Callable

import numpy as np
import torch
from byzfl import MultiKrum

from ostraka.arrays import AnyArray, Float32
from ostraka_lab.bench.peers.contest import Contest
from ostraka_lab.bench.peers.entrant import Entrant


def enter_torch(contest: Contest) -> Entrant:
    torch.set_num_threads(contest.threads)
    vectors = torch.from_numpy(_vectors(contest))
    rule: Callable[[torch.Tensor], torch.Tensor] = MultiKrum(f=contest.f)

    def run() -> AnyArray:
        return np.asarray(rule(vectors).numpy())

    return Entrant(run, from_weights=True)


def enter_numpy(contest: Contest) -> Entrant:
    vectors = _vectors(contest)
    rule: Callable[[Float32], Float32] = MultiKrum(f=contest.f)
    return Entrant(lambda: rule(vectors), from_weights=True)


def _vectors(contest: Contest) -> Float32:
    rows = np.empty((contest.clients, contest.dim), np.float32)
    for row in range(contest.clients):
        rows[row] = contest.trained(row)
    return rows

"""Who should be selected, computed in float64; and who was, found in an aggregate.

python -m ostraka_lab.bench.peers.reference CONTEST
"""

import json
import sys

import numpy as np

from ostraka.arrays import AnyArray, Float64
from ostraka.core import gram
from ostraka.core.rules import krum
from ostraka_lab.bench.peers.contest import Contest
from ostraka_lab.bench.process import Begin, Figures, report

_COLUMNS = 16_384
_ENOUGH = 262_144  # columns of an aggregate that tell who is in it


def selections(contest: Contest) -> dict[str, list[int]]:
    """Multi-Krum's choice by each convention, from differences in float64.

    Blanchard et al., Flower and Ostraka count the n - f - 2 nearest others; ByzFL n - f - 1.
    """
    measured = _distances(contest)
    return {
        "n-f-2": list(krum.multi_krum(measured, contest.f, contest.k)),
        "n-f-1": list(_one_more(measured, contest.f, contest.k)),
    }


def averaged(contest: Contest, aggregate: AnyArray, *, from_weights: bool) -> list[int]:
    """The rows of which this (d,) is the mean, by least squares over some of its columns."""
    part = slice(0, min(contest.dim, _ENOUGH))
    mean = np.asarray(aggregate[part], np.float64)
    if from_weights:
        mean = mean - contest.weights[part]
    rows = np.stack([update[part] for update in contest.updates()]).astype(np.float64)
    weights = np.linalg.solve(rows @ rows.T, rows @ mean)
    return np.flatnonzero(weights > 0.5 / contest.k).tolist()


def _distances(contest: Contest) -> Float64:
    rows = np.stack(list(contest.updates()))
    products = np.zeros((contest.clients, contest.clients))
    for start in range(0, contest.dim, _COLUMNS):
        gram.add_gram(products, rows[:, start : start + _COLUMNS].astype(np.float64))
    return gram.from_gram(products)


def _one_more(measured: Float64, f: int, k: int) -> tuple[int, ...]:
    """ByzFL's count: one neighbour more than in law 5."""
    others = np.sort(measured + np.diag(np.full(len(measured), np.inf)), axis=1)
    scores = others[:, : len(measured) - f - 1].sum(axis=1)
    return tuple(sorted(np.argsort(scores, kind="stable")[:k].tolist()))


def _figures(contest: Contest, begin: Begin) -> Figures:
    begin("the selection in float64", 0, 1)
    return selections(contest) | {"attackers": sorted(contest.attackers)}


if __name__ == "__main__":
    asked = Contest(**json.loads(sys.argv[1]))
    sys.exit(report(lambda begin: _figures(asked, begin)))

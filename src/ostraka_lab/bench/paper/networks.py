"""The paper's networks: `python -m ostraka_lab.bench.paper.networks`.

A process of its own, because PyTorch takes seconds to load.
"""

import sys

from ostraka_lab import models
from ostraka_lab.bench.paper import NETWORKS
from ostraka_lab.bench.process import Begin, Figures, report

SHAPE = (3, 32, 32)  # of a picture of CIFAR-10
CLASSES = 1000  # as the networks were published


def count(begin: Begin) -> Figures:
    """How many parameters each has, with 1,000 classes."""
    counts: Figures = {}
    for done, name in enumerate(NETWORKS):
        begin(name, done, len(NETWORKS))
        model = models.build(name, shape=SHAPE, classes=CLASSES, seed=0)
        counts[name] = sum(each.numel() for each in model.parameters())
    return counts


if __name__ == "__main__":
    sys.exit(report(count))

"""Means by length alone.

mean   all rows weigh the same. Not robust: one row can move it by the clipping norm over n.
cge    comparative gradient elimination: the mean of the n - f shortest rows. Gupta, Liu and
       Vaidya, "Byzantine Fault-Tolerant Distributed Machine Learning with Norm-Based Comparative
       Gradient Elimination", DSN-W 2021. Robust where honest costs are redundant and f is small; a
       short row that points backwards always passes. n >= 2f + 2, and no kappa: honest rows that
       are long are left out, however many agree.

Of equally long rows the lower row number comes first.
"""

import numpy as np

from ostraka.core.rules.seam import Gram, Options, Rule, Weights


class Mean(Rule):
    """The plain mean of all rows."""

    citation = "McMahan et al., Communication-Efficient Learning (FedAvg), AISTATS 2017"

    robust = False

    def least(self, f: int) -> int:
        return f + 2

    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        return Weights.mean_of(range(len(gram)), len(gram))


class Cge(Rule):
    """The mean of the n - f shortest rows."""

    citation = "Gupta et al., Comparative Gradient Elimination, DSN-W 2021"

    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        n = len(gram)
        shortest = np.argsort(gram.norms, kind="stable")[: n - f]
        return Weights.mean_of(shortest.tolist(), n)

"""Rules that trust the update of one enrolled client, the root client, and judge others by it.

fltrust   trust_i = max(0, cos(x_i, r)) for the root client's row r. Every row is brought to the
          length of r, and the aggregate is the mean weighted by trust. The root's own row only
          judges, as in the paper: it is not averaged. Cao, Fang, Liu and Gong, "FLTrust:
          Byzantine-robust Federated Learning via Trust Bootstrapping", NDSS 2021. The
          aggregate is no longer than r; there is no kappa, since it is near r and not near the
          honest mean. n >= 2f + 3: with fewer, f rows of zeros leave too few that are trusted.
monna     the mean of the n - f rows nearest to the root's, itself among them. Farhadkhani et al.,
          "Robust Collaborative Learning with Linear Gradient Overhead", ICML 2023. With an honest
          root (f, kappa)-robust with kappa = 8 f^2/(n - f), by the argument of mda. n >= 2f + 3:
          the root's row is always averaged, and where the operator runs the root client, f
          colluders and the operator know f + 1 rows. So two others must be in the mean.

Both need a root client whose update is sound and like the others'. What it sends is as private as
what others send, but it alone decides who counts: a Byzantine root is the end of both. If it takes
no part in a round, or is rejected, arc+nnm+geometric-median decides, and the receipt says so.

Traps: fltrust brings short rows to the root's length, so a row that is shorter than its own error
of measurement counts as zero, and zero rows are trusted by nobody. Where fewer than f + 2 rows
point the root's way, the round is a null step.
"""

from typing import ClassVar

import numpy as np

from ostraka.arrays import Float64
from ostraka.core.rules.seam import Gram, Options, Rule, Weights
from ostraka.errors import LocalProtocolError


class FlTrust(Rule):
    """The mean weighted by the cosine with the root client's row, of rows of its length."""

    citation = "Cao et al., FLTrust, NDSS 2021"
    takes: ClassVar = {"root": "must be given"}
    needs_root = True

    def least(self, f: int) -> int:
        return 2 * f + 3

    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        root, lengths = _root(gram), gram.lengths
        trust = np.maximum(cosines(gram)[root], 0)
        trust[root] = 0
        # Where nobody is trusted nothing is weighed, and the round is a null step.
        shares: Float64 = trust / max(float(trust.sum()), np.finfo(float).tiny)
        factors = np.divide(lengths[root], lengths, out=np.zeros(len(gram)), where=shares > 0)
        return Weights(shares * factors, shares)


class Monna(Rule):
    """The mean of the n - f rows nearest to the root client's."""

    citation = "Farhadkhani et al., Robust Collaborative Learning, ICML 2023"
    takes: ClassVar = {"root": "must be given"}
    needs_root = True

    def least(self, f: int) -> int:
        return 2 * f + 3

    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        n, root = len(gram), _root(gram)
        distances = gram.distances()[root]
        # A decoded distance may be slightly negative, and the root is nearest to itself.
        distances[root] = -np.inf
        return Weights.mean_of(np.argsort(distances, kind="stable")[: n - f].tolist(), n)


def cosines(gram: Gram) -> Float64:
    """The cosines (n, n) between rows, from -1 to 1; 0 with a row of zeros, itself included."""
    inverse = np.divide(1, gram.lengths, out=np.zeros(len(gram)), where=gram.lengths > 0)
    cosine: Float64 = np.clip(inverse[:, None] * gram.products * inverse, -1, 1)
    return cosine


def _root(gram: Gram) -> int:
    if gram.root is None:
        raise LocalProtocolError("this rule needs the root client's row")
    return gram.root

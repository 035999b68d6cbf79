"""Rules that reduce every column by itself, in the second pass: `core.columns` has the arithmetic.

median         the median of each column. Yin, Chen, Ramchandran and Bartlett, ICML 2018.
               n >= 2f + 2. (f, kappa)-robust with kappa = 4 (1 + f/(n - 2f))^2.
trimmed-mean   the mean of each column without its f lowest and f highest values, or int(beta n) of
               each if that is more, as Flower's FedTrimmedAvg has it. Yin et al., as above.
               kappa = 6 f/(n - 2f) (1 + f/(n - 2f)).
meamed         the mean of the n - f values nearest to the median of their column. Xie, Koyejo and
               Gupta, "Generalized Byzantine-tolerant SGD", 2018. n >= 2f + 2.
bulyan         the n - 2f rows that Krum picks one after another, each time from those left, and of
               each column the mean of the n - 4f values nearest to their median. El Mhamdi,
               Guerraoui and Rouault, ICML 2018, for n >= 4f + 3. Flower takes the n - 2f rows of
               lowest score at once instead, and the selections differ.

The bounds are those of Allouah et al., "Fixing by Mixing", AISTATS 2023, where n > 2f.

(16)  What one column of the aggregate shows, and to whom: f colluders know f of all values, so at
      least f + 2 must be in every mean.

               values in a mean           so it needs
median         1 or 2                     the terms' word for it (disclose_values), or nnm before
trimmed-mean   n - 2 trimmed              n - 2 trimmed >= f + 2: at f of each end, n >= 3f + 2
meamed         n - f                      n >= 2f + 2
bulyan         n - 4f                     n >= 5f + 2

After nnm every value is a mean over n - f clients already, and at most 1/(n - f) of it is any one
client's. Then a single value is enough, n >= 2f + 2 for all of them but bulyan, which keeps its own
condition.
"""

import math
from typing import ClassVar

import numpy as np

from ostraka.arrays import Float64
from ostraka.core.rules.seam import Columnwise, Gram, Options, Rule


class ColumnRule(Rule):
    """A rule that reduces each column by itself."""

    columnwise = True


class Median(ColumnRule):
    """The median of each column."""

    citation = "Yin et al., Byzantine-Robust Distributed Learning, ICML 2018"
    discloses = True

    def plan(self, gram: Gram, f: int, options: Options) -> Columnwise:
        return Columnwise(np.eye(len(gram)), "median")


class TrimmedMean(ColumnRule):
    """The mean of each column without its lowest and highest values."""

    citation = "Yin et al., Byzantine-Robust Distributed Learning, ICML 2018"
    takes: ClassVar = {"beta": "f / n"}

    def least(self, f: int) -> int:
        return 3 * f + 2

    def least_of(self, f: int, options: Options, *, mixed: bool) -> int:
        if mixed:
            return 2 * f + 2
        # For this many rows and more, no part of all rows below a half leaves fewer than f + 2.
        least = max(self.least(f), math.ceil((f + 2) / (1 - 2 * (options.beta or 0.0))))
        while least > self.least(f) and _kept(least - 1, f, options) >= f + 2:
            least -= 1
        return least

    def plan(self, gram: Gram, f: int, options: Options) -> Columnwise:
        n = len(gram)
        return Columnwise(np.eye(n), "trimmed", trimmed(n, f, options))


def trimmed(n: int, f: int, options: Options) -> int:
    """How many of n values are left out at each end."""
    return max(f, int((options.beta or 0.0) * n))


def _kept(n: int, f: int, options: Options) -> int:
    return n - 2 * trimmed(n, f, options)


class Meamed(ColumnRule):
    """The mean of the n - f values nearest to the median."""

    citation = "Xie, Koyejo and Gupta, Generalized Byzantine-tolerant SGD, 2018"

    def plan(self, gram: Gram, f: int, options: Options) -> Columnwise:
        n = len(gram)
        return Columnwise(np.eye(n), "near-median", n - f)


class Bulyan(ColumnRule):
    """The mean of the values nearest to the median, among rows that Krum picks."""

    citation = "El Mhamdi et al., The Hidden Vulnerability of Distributed Learning, ICML 2018"

    def least(self, f: int) -> int:
        return max(5 * f + 2, 4 * f + 3)

    def least_of(self, f: int, options: Options, *, mixed: bool) -> int:
        return 4 * f + 3 if mixed else self.least(f)

    def plan(self, gram: Gram, f: int, options: Options) -> Columnwise:
        n = len(gram)
        kept = krum_in_turn(gram.distances(), f, n - 2 * f)
        return Columnwise(np.eye(n)[list(kept)], "near-median", n - 4 * f)


def krum_in_turn(distances: Float64, f: int, k: int) -> tuple[int, ...]:
    """The rows that Krum picks, k times, from those left; in ascending order.

    Of r rows that are left, a score is the sum of the r - f - 2 smallest distances to others, of
    one at least. Of equal scores the lower row number wins. distances: (n, n), squared.
    """
    others = np.array(distances)
    np.fill_diagonal(others, np.inf)
    left, taken = list(range(len(others))), []
    for _ in range(k):
        nearest = max(1, len(left) - f - 2)
        # Sorted, so that rows at equal distances have equal sums.
        among = np.sort(others[np.ix_(left, left)], axis=1)
        scores = among[:, :nearest].sum(axis=1)
        taken.append(left.pop(int(np.argmin(scores))))
    return tuple(sorted(taken))

"""What Krum and Multi-Krum promise, and how far f equal rows can pull any rule.

(20)  Let honest rows have the mean g and deviate from it by spread = sqrt(d) sigma, the root of the
      mean squared distance, each independently. If eta(n, f) spread < |g|, then whatever f rows are
      Byzantine, the rule's F has <E F, g> >= (1 - sin alpha) |g|^2 > 0, with
      sin alpha = eta(n, f) spread / |g| and

      eta(n, f)^2 = 2 (n - f + (f (n - f - 2) + f^2 (n - f - 1)) / (n - 2f - 2)),   n >= 2f + 3

That is (alpha, f)-resilience and Proposition 4.2 of Blanchard et al., NeurIPS 2017, who prove it of
Krum, which takes one row, and give no proof of Multi-Krum. (By the kappa of krum it follows, too:
6 (n - f)/(n - 2f) <= 2 (n - f) <= eta^2.) Of the mean of k rows, f + 2 <= k <= n - f, as our terms
demand, and with the usual neighbours, it holds as well. Let m be the mean of the h = n - f honest
rows, and S the sum of |x - m|^2 over them. Then, whatever the rows are,

      |F - m|^2 <= (1 + 2 (2 h (h - 2)/(h - 1) + f) / (n - 2f - 1)) S / k                      (20a)

and S / k if f = 0. At least n - 2f - 1 neighbours of a Byzantine row B are honest, which bounds
(n - 2f - 1) |B - m|^2 by 2 (score of B + S). For every B that is kept an honest row is left out
whose score is no lower, and the scores of all honest rows sum to 2 h S (h - 2)/(h - 1) at most. As
E S = (h - 1) spread^2 and E m = g, |E F - g| stays below eta(n, f) spread. The same inequality
bounds the moments of F, the other half of resilience. A rule with a kappa, such as nnm+krum,
promises as much, with sqrt(kappa) in the place of eta. Rows are meant as they are after clipping.

Where the condition does not hold, nothing is promised. What f copies of one row can then do is
measured here, for any rule. Honest rows have a spread of 1: each is at distance 1 from their mean,
and any two are equally far apart. The mean is of length 1, so that an honest row has as much of its
own as all have in common. The copies lie at the mean - offset x its direction.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist

import numpy as np

from ostraka.arrays import Float64
from ostraka.core.columns import Reduction, Scratch
from ostraka.core.rules.composition import Composition
from ostraka.core.rules.krum import least
from ostraka.core.rules.seam import Columnwise, Gram
from ostraka.errors import ConfigError, TooFewWeighed

# The clipping norm is 8 here: the power of two above 4 sqrt(2). No copy is farther from the mean.
FARTHEST = 9.0

_STEP = 0.25
_PRECISION = 0.005
_ENOUGH = 64  # clients; with more, caf would take seconds


def eta(n: int, f: int) -> float:
    """The factor of law 20. Raises ConfigError unless n >= 2f + 3."""
    if f < 0 or n < least(f):
        raise ConfigError(f"Krum promises nothing unless f >= 0 and n >= 2f + 3; got n={n}, f={f}")
    return math.sqrt(2 * (n - f + (f * (n - f - 2) + f**2 * (n - f - 1)) / (n - 2 * f - 2)))


def promised_angle(n: int, f: int, *, spread: float, length: float) -> float | None:
    """The angle alpha of law 20, in radians; None if Krum and Multi-Krum promise nothing.

    spread: sqrt(d) sigma, the root of the mean squared distance of honest rows from their mean.
    length: |g|, of that mean.
    """
    if not (0 <= spread < math.inf and 0 <= length < math.inf):
        raise ConfigError(f"spread and length are finite, 0 or more; got {spread} and {length}")
    error = eta(n, f) * spread
    return math.asin(error / length) if error < length else None


@dataclass(frozen=True)
class Reach:
    """What f copies of one row can do, in units of the honest rows' spread.

    offset: the largest at which they pass, that is, at which they move the aggregate at least as
    far as they would move the plain mean. moved: how far they move it at most, at any offset.
    """

    offset: float = 0.0
    moved: float = 0.0

    @property
    def turns(self) -> bool:
        """Whether the aggregate points away from the honest mean, which is of length 1."""
        return self.moved > 1


def reach(composition: Composition, n: int, f: int) -> Reach:
    """Measure how far f copies among n rows reach. Options that are lengths are taken as usual."""
    if f == 0:
        return Reach()
    free = replace(composition, options=replace(composition.options, radius=None, smoothing=None))
    pull = partial(moved, free, n, f)
    grid = np.arange(_STEP, FARTHEST + _STEP / 2, _STEP).tolist()
    pulls = [pull(each) for each in grid]
    passing = [each for each, by in zip(grid, pulls, strict=True) if _passes(each, by, n, f)]
    low = passing[-1] if passing else 0.0
    high = min(low + _STEP, FARTHEST)
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if _passes(middle, pull(middle), n, f) else (low, middle)
    return Reach(low, max(0.0, *pulls, pull(low)))


def turns_around(composition: Composition, n: int, f: int) -> bool:
    """Whether f copies can turn the aggregate of n around, where |g| is the spread.

    Of more than 64 clients, 64 are looked at, with no smaller part of colluders.
    """
    if n > _ENOUGH:
        composition, n, f = _smaller(composition, n, f)
    while f and composition.least(f) > n:
        f -= 1
    return reach(composition, n, f).turns


def _smaller(composition: Composition, n: int, f: int) -> tuple[Composition, int, int]:
    """The same for 64 clients, with options that count rows in proportion.

    Rounded so that rather too much is warned of. Only a k next to f + 2 is judged too mildly.
    """
    given, part = composition.options, _ENOUGH / n
    f = math.ceil(f * part)
    options = replace(
        given,
        k=None if given.k is None else max(f + 2, int(given.k * part)),
        neighbours=None if given.neighbours is None else max(1, int(given.neighbours * part)),
    )
    return replace(composition, options=options), _ENOUGH, f


def moved(composition: Composition, n: int, f: int, offset: float) -> float:
    """How far f copies at this offset move the aggregate against the direction of the mean."""
    along = np.ones(n)
    along[:f] -= offset
    products = np.outer(along, along)
    honest = n - f
    products[f:, f:] -= 1 / (honest - 1)
    products[range(f, n), range(f, n)] = 2
    root = n - 1 if composition.rule.needs_root else None
    # The colluders' places are even, so that they spoil as many buckets as they can.
    order = np.argsort(np.arange(n) * (math.sqrt(5) - 1) / 2 % 1)
    try:
        plan = composition.plan(Gram(products, np.zeros(()), 1.0, root), f, order)
    except TooFewWeighed:
        return 0.0  # a null step moves nothing
    if isinstance(plan, Columnwise):
        return 1 - float(_reduced(plan, along[:, None] + _columns(n, f)).mean())
    return 1 - float(plan.values @ along)


def _passes(offset: float, by: float, n: int, f: int) -> bool:
    return by >= offset * f / n * (1 - 1e-6)


def _columns(n: int, f: int) -> Float64:
    """What rows (n, n - f) have of their own: in every column the scores of a normal law.

    Each honest row has each score once.
    """
    honest, law = n - f, NormalDist()
    scores = np.array([law.inv_cdf((each + 0.5) / honest) for each in range(honest)])
    scores /= scores.std()
    own = np.zeros((n, honest))
    for column in range(honest):
        own[f:, column] = np.roll(scores, column)
    return own


def _reduced(plan: Columnwise, columns: Float64) -> Float64:
    mixed = (plan.matrix @ columns).astype(np.float32)
    out = np.empty(mixed.shape[1])
    Reduction(len(mixed), plan.reducer, plan.count).apply(list(mixed), out, Scratch(len(out)))
    return out

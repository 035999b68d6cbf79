"""Attacks that know updates of others: of honest clients, or what the attackers would have sent.

w_i are the known updates, mu and sigma their mean and standard deviation, coordinate by coordinate,
and s is the scale.

Min-Max and Min-Sum send mu + s gamma p: from the mean along a direction p, with the largest gamma
that keeps the result no further from the w_i than these are from each other. As

    |mu + gamma p - w_i|^2 = a_i + 2 b_i gamma + c gamma^2

with a_i = |mu - w_i|^2, b_i = <p, mu - w_i> and c = |p|^2, that gamma is the root of a quadratic.
The paper searches for it by bisection, for rules that have no such form: Shejwalkar and
Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for
Federated Learning", NDSS 2021.

Sums over known updates are in float64, one row or one block of columns at a time. A float64 copy of
all rows would not fit: 52 updates of MobileNetV2's size take 1.4 GB.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeAlias

import numpy as np

from ostraka.arrays import Float32, Float64
from ostraka.core.gram import from_gram
from ostraka.core.rules.krum import krum_scores, multi_krum
from ostraka.errors import ConfigError
from ostraka_lab.attacks.attack import Course, Scene
from ostraka_lab.defence import inner_products

Perturbation: TypeAlias = Callable[[Float32, Float64], Float64]

LEAST = 4  # known updates that fang needs, as Krum with one attacker needs five in all
_GIVE_UP = 1e-5  # of fang's first lambda; in the paper it is an absolute length
_APART = 1e-4  # how far fang's copies lie from each other, for a length of 1


def ipm(scene: Scene) -> Float32:
    """-s mu: against the honest mean, and short enough to lie among the honest updates.

    With f attackers of n, the mean of all has a negative inner product with mu, so that the loss
    grows, if s > (n - f) / f. A distance-based rule is fooled by a small s instead.

    Xie, Koyejo and Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product
    Manipulation", UAI 2019 (PMLR 115, 2020).
    """
    return (-scene.scale * mean(scene.honest(1))).astype(np.float32)


def alie(scene: Scene) -> Float32:
    """mu - s sigma, with s = z_max(n, f) by default: "a little is enough".

    Baruch, Baruch and Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed
    Learning", NeurIPS 2019.
    """
    rows = scene.honest(2)
    centre = mean(rows)
    return (centre - scene.scale * deviation(rows, centre)).astype(np.float32)


def shift(scene: Scene) -> Float32:
    """w - s mu, with w what this attacker would have sent: an honest update about another mean.

    The attackers differ among themselves just as honest clients do, so nothing about their spread
    gives them away; with s = 1 their mean is about 0, and beyond it points backwards.
    """
    return (scene.own - scene.scale * mean(scene.honest(1))).astype(np.float32)


def z_max(clients: int, byzantine: int) -> float:
    """How many deviations off the mean attackers may be and still look like part of a majority.

    They need s = floor(n / 2 + 1) - f honest clients that lie further out than they do. Of n - f
    clients with normal coordinates that many do beyond the quantile (n - f - s) / (n - f). The
    number is 0 or less if attackers are too few: then none of them can pass for a median.
    """
    honest = clients - byzantine
    supporters = math.floor(clients / 2 + 1) - byzantine
    if not 0 < honest - supporters < honest:
        raise ConfigError(f"ALIE needs n >= 3 and f < n / 2; got n={clients}, f={byzantine}")
    return NormalDist().inv_cdf((honest - supporters) / honest)


def quiet(clients: int, byzantine: int) -> float:
    """z_max, or 0 where attackers are too few to pass for a median, or need not pass for one."""
    return max(z_max(clients, byzantine), 0.0) if clients >= 3 and 2 * byzantine < clients else 0.0


def mimic(scene: Scene) -> Float32:
    """w_i of one honest client i: all attackers vote for it, so that others count for less.

    i maximises |<z, w_i>|, where z is the direction in which the known updates vary most.

    The paper estimates z over the first rounds and then keeps i: see `lasting`. This attack
    remembers nothing, and chooses by the round at hand: the same client again and again where data
    differ much between clients, which is where the attack does harm, and different ones where they
    hardly do.

    Karimireddy, He and Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing",
    ICLR 2022.
    """
    rows = scene.honest(1)
    gram = inner_products(rows)
    chosen: Float32 = rows[int(np.argmax(np.abs(gram @ most_varied(gram))))]
    return chosen.copy()


def most_varied(gram: Float64) -> Float64:
    """The direction in which rows vary most, as a combination (m,) of them, from their products.

    With U the rows less their mean, z = U^T u, where u is the first eigenvector of U U^T. u sums to
    0, so that z is the rows' own combination by u as well. A model that has run away has none.
    """
    if not np.isfinite(gram).all():
        return np.zeros(len(gram))
    centred = gram - gram.mean(axis=0)
    centred -= centred.mean(axis=1)[:, None]
    first: Float64 = np.linalg.eigh(centred)[1][:, -1]
    return first


def inverse_unit(rows: Float32, centre: Float64) -> Float64:
    """p = -mu / |mu|: straight back."""
    direction: Float64 = -centre / (math.sqrt(centre @ centre) or 1.0)
    return direction


def inverse_sign(rows: Float32, centre: Float64) -> Float64:
    """p = -sign(mu): back by the same step in every coordinate."""
    return -np.sign(centre)


def inverse_deviation(rows: Float32, centre: Float64) -> Float64:
    """p = -sigma: most where honest updates differ most. The direction of ALIE."""
    return -deviation(rows, centre)


def min_max(scene: Scene, perturbation: Perturbation = inverse_unit) -> Float32:
    """Keep the largest distance to a known update within the largest between two of them.

    max_i |mu + gamma p - w_i| <= max_ij |w_i - w_j|
    """
    ray = Ray.of(scene.honest(2), perturbation)
    return ray.at(scene.scale * ray.min_max)


def min_sum(scene: Scene, perturbation: Perturbation = inverse_unit) -> Float32:
    """Keep the sum of squared distances within the largest that a known update has.

    sum_i |mu + gamma p - w_i|^2 <= max_i sum_j |w_i - w_j|^2, where the b_i sum to 0
    """
    ray = Ray.of(scene.honest(2), perturbation)
    return ray.at(scene.scale * ray.min_sum)


def bounded(scene: Scene, perturbation: Perturbation = inverse_unit) -> Course:
    """mu + s p, of which Min-Max and Min-Sum each take the s that their bound allows.

    With the s that does most harm to the rule in force it is the attack of the same paper on a rule
    that is known.
    """
    ray = Ray.of(scene.honest(2), perturbation)
    return Course(ray.centre, ray.direction, (ray.min_max, ray.min_sum))


@dataclass(frozen=True, eq=False)
class Ray:
    """mu + gamma p, with squared distances between known updates (m, m), and from them to it."""

    centre: Float64
    direction: Float64
    between: Float64
    a: Float64
    b: Float64
    c: float

    @classmethod
    def of(cls, rows: Float32, perturbation: Perturbation) -> "Ray":
        """From the mean of the rows (m, d)."""
        centre = mean(rows)
        direction = perturbation(rows, centre)
        between = from_gram(inner_products(rows))
        return cls(
            centre=centre,
            direction=direction,
            between=between,
            a=between.mean(axis=1) - between.mean() / 2,
            b=direction @ centre - dots(rows, direction),
            c=float(direction @ direction),
        )

    def at(self, gamma: float) -> Float32:
        return (self.centre + gamma * self.direction).astype(np.float32)

    def away(self, gamma: float) -> Float64:
        """Squared distances (m,) from the known updates."""
        return self.a + 2 * gamma * self.b + gamma**2 * self.c

    @property
    def min_max(self) -> float:
        """The gamma of Min-Max."""
        room = np.maximum(self.between.max() - self.a, 0)
        # Of both roots this is the positive one, and the nearest bound of all is what holds.
        roots = np.sqrt(self.b**2 + self.c * room) - self.b
        return _ratio(roots.min(), self.c)

    @property
    def min_sum(self) -> float:
        """The gamma of Min-Sum."""
        room = max(self.between.sum(axis=1).max() - self.a.sum(), 0)
        return math.sqrt(_ratio(room, len(self.a) * self.c))


def _ratio(above: float, below: float) -> float:
    """above / below, or 0 if there is no direction to go in because all known updates are equal."""
    return float(above) / below if below else 0.0


def fang(scene: Scene) -> Float32:
    """-s lambda sign(mu): against the honest mean mu in every coordinate, as far as Krum lets it.

    lambda starts at a bound and is halved until Krum, over the known updates and a copy for every
    attacker, selects a copy. Copies support each other: their mutual distances are next to 0. They
    are not equal to the bit, which any server would notice.

    With fewer than f + 3 known updates Krum is simulated with fewer attackers, as many as it bears.

    Fang, Cao, Jia and Gong, "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning",
    USENIX Security 2020.
    """
    rows = scene.honest(LEAST)
    back = -np.sign(mean(rows))
    krum = Simulated.of(rows, back, scene.byzantine)
    first = krum.bound()
    strength = scene.scale * krum.halved(first, _GIVE_UP * first)
    jitter = scene.rng.standard_normal(back.shape, dtype=np.float32)
    return (strength * back * (1 + _APART * jitter)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Simulated:
    """Krum over the known updates and a copy of lambda x `back` (d,) for every attacker.

    gram: (m, m), of the known updates. along: (m,), their inner products with `back`. square: of
    the length of `back`.
    """

    gram: Float64
    along: Float64
    square: float
    attackers: int

    @classmethod
    def of(cls, rows: Float32, back: Float64, byzantine: int) -> "Simulated":
        """With as many attackers as there are, or as Krum bears on so few rows (m, d)."""
        attackers = min(max(byzantine, 1), len(rows) - 3)
        return cls(inner_products(rows), dots(rows, back), float(back @ back), attackers)

    def halved(self, first: float, least: float) -> float:
        """Halve lambda until Krum selects a copy, or it is no longer above the least."""
        if not (np.isfinite(self.gram).all() and self.square):
            return 0.0  # A model that has run away, or stands still, cannot be led anywhere.
        strength = first
        while strength > least and not self._selects_a_copy(strength):
            strength /= 2
        return strength

    def bound(self) -> float:
        """The bound of the paper, beyond which no copy is selected, with |sign(mu)|^2 for d."""
        if not (np.isfinite(self.gram).all() and self.square):
            return 0.0
        longest = math.sqrt(np.diagonal(self.gram).max())
        # Its score has m - attackers - 1 terms that are not distances between copies.
        terms = len(self.gram) - self.attackers - 1
        return (math.sqrt(self.best_score() / terms) + longest) / math.sqrt(self.square)

    def best_score(self) -> float:
        """The least score of a known update among its like."""
        return max(float(krum_scores(from_gram(self.gram), 0).min()), 0.0)

    def _selects_a_copy(self, strength: float) -> bool:
        m, f = len(self.gram), self.attackers
        away = np.diagonal(self.gram) - 2 * strength * self.along + strength**2 * self.square
        distances = np.zeros((m + f, m + f))
        distances[:m, :m] = from_gram(self.gram)
        distances[:m, m:] = away[:, None]
        distances[m:, :m] = away
        return multi_krum(distances, f, 1)[0] >= m


def mean(rows: Float32) -> Float64:
    """The mean (d,) of the rows (m, d)."""
    total = np.zeros(rows.shape[1])
    for row in rows:
        total += row
    total /= len(rows)
    return total


def deviation(rows: Float32, centre: Float64) -> Float64:
    """The standard deviation (d,) of the rows (m, d), of which the mean (d,) is given.

    Divided by m, not by m - 1: to the attacker the rows are not a sample, but all that there is.
    """
    total = np.zeros(rows.shape[1])
    for row in rows:
        total += np.square(row - centre)
    total /= len(rows)
    return np.sqrt(total, out=total)


def dots(rows: Float32, vector: Float64) -> Float64:
    """Inner products (m,) of the rows (m, d) with a vector (d,)."""
    return np.array([row @ vector for row in rows])

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
from ostraka_lab.attacks.attack import Scene
from ostraka_lab.defence import inner_products

Perturbation: TypeAlias = Callable[[Float32, Float64], Float64]

_LEAST = 4  # known updates that fang needs, as Krum with one attacker needs five in all
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


def mimic(scene: Scene) -> Float32:
    """w_i of one honest client i: all attackers vote for it, so that others count for less.

    i maximises |<z, w_i>|, where z is the direction in which the known updates vary most.

    The paper estimates z over the first rounds and then keeps i. This attack remembers nothing, and
    chooses by the round at hand: the same client again and again where data differ much between
    clients, which is where the attack does harm, and different ones where they hardly do.

    Karimireddy, He and Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing",
    ICLR 2022.
    """
    rows = scene.honest(1)
    chosen: Float32 = rows[_most_typical_of_the_spread(inner_products(rows))]
    return chosen.copy()


def _most_typical_of_the_spread(gram: Float64) -> int:
    """With U the rows less their mean, z = U^T u, where u is the first eigenvector of U U^T.

    u sums to 0, so that z is the rows' own combination by u as well.
    """
    if not np.isfinite(gram).all():
        return 0  # A model that has run away has no directions.
    centred = gram - gram.mean(axis=0)
    centred -= centred.mean(axis=1)[:, None]
    u = np.linalg.eigh(centred)[1][:, -1]
    return int(np.argmax(np.abs(gram @ u)))


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
    line = _line(scene.honest(2), perturbation)
    room = np.maximum(line.between.max() - line.a, 0)
    # Of the two roots this is the positive one, and the nearest bound of all is the one that holds.
    roots = np.sqrt(line.b**2 + line.c * room) - line.b
    return line.at(scene.scale * _ratio(roots.min(), line.c))


def min_sum(scene: Scene, perturbation: Perturbation = inverse_unit) -> Float32:
    """Keep the sum of squared distances within the largest that a known update has.

    sum_i |mu + gamma p - w_i|^2 <= max_i sum_j |w_i - w_j|^2, where the b_i sum to 0
    """
    line = _line(scene.honest(2), perturbation)
    room = max(line.between.sum(axis=1).max() - line.a.sum(), 0)
    return line.at(scene.scale * math.sqrt(_ratio(room, len(line.a) * line.c)))


@dataclass(frozen=True, eq=False)
class _Line:
    """mu + gamma p, with squared distances between known updates (m, m), and from them to it."""

    centre: Float64
    direction: Float64
    between: Float64
    a: Float64
    b: Float64
    c: float

    def at(self, gamma: float) -> Float32:
        return (self.centre + gamma * self.direction).astype(np.float32)


def _line(rows: Float32, perturbation: Perturbation) -> _Line:
    centre = mean(rows)
    direction = perturbation(rows, centre)
    between = from_gram(inner_products(rows))
    return _Line(
        centre=centre,
        direction=direction,
        between=between,
        a=between.mean(axis=1) - between.mean() / 2,
        b=direction @ centre - dots(rows, direction),
        c=float(direction @ direction),
    )


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
    rows = scene.honest(_LEAST)
    back = -np.sign(mean(rows))
    strength = scene.scale * _strength(rows, back, min(max(scene.byzantine, 1), len(rows) - 3))
    jitter = scene.rng.standard_normal(back.shape, dtype=np.float32)
    return (strength * back * (1 + _APART * jitter)).astype(np.float32)


def _strength(rows: Float32, back: Float64, attackers: int) -> float:
    """Find the first lambda with which Krum selects a copy, or a tiny one if it never does."""
    gram = inner_products(rows)
    square = float(back @ back)
    if not (np.isfinite(gram).all() and square):
        return 0.0  # A model that has run away, or stands still, cannot be led anywhere.
    along = dots(rows, back)
    first = strength = _bound(gram, square, attackers)
    while strength > _GIVE_UP * first:
        away = np.diagonal(gram) - 2 * strength * along + strength**2 * square
        if _selects_a_copy(from_gram(gram), away, attackers):
            break
        strength /= 2
    return strength


def _bound(gram: Float64, square: float, attackers: int) -> float:
    """The bound of the paper, beyond which no copy is selected, with |sign(mu)|^2 for d."""
    m = len(gram)
    best = max(krum_scores(from_gram(gram), 0).min(), 0)
    longest = math.sqrt(np.diagonal(gram).max())
    # Its score has m - attackers - 1 terms that are not distances between copies.
    return (math.sqrt(best / (m - attackers - 1)) + longest) / math.sqrt(square)


def _selects_a_copy(between: Float64, away: Float64, attackers: int) -> bool:
    """Tell whether Krum selects a copy. All distances are squared.

    between: (m, m), of the known updates. away: (m,), from these to every copy.
    """
    m = len(between)
    distances = np.zeros((m + attackers, m + attackers))
    distances[:m, :m] = between
    distances[:m, m:] = away[:, None]
    distances[m:, :m] = away
    return multi_krum(distances, attackers, 1)[0] >= m


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

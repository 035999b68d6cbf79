"""Attacks that hide in the spread of the honest updates.

mu and sigma are the mean and the standard deviation of the known updates, coordinate by coordinate,
and s is the scale.
"""

import math
from statistics import NormalDist

import numpy as np

from ostraka.arrays import Float32, Float64
from ostraka.errors import ConfigError
from ostraka_lab.attacks import attack
from ostraka_lab.attacks.attack import Scene


def ipm(scene: Scene) -> Float32:
    """-s mu: against the honest mean, and short enough to lie among the honest updates.

    With f attackers of n, the mean of all has a negative inner product with mu, so that the loss
    grows, if s > (n - f) / f. A distance-based rule is fooled by a small s instead.

    Xie, Koyejo and Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product
    Manipulation", UAI 2019 (PMLR 115, 2020).
    """
    return (-scene.scale * attack.mean(scene.honest(1))).astype(np.float32)


def alie(scene: Scene) -> Float32:
    """mu - s sigma, with s = z_max(n, f) by default: "a little is enough".

    Baruch, Baruch and Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed
    Learning", NeurIPS 2019.
    """
    rows = scene.honest(2)
    centre = attack.mean(rows)
    return (centre - scene.scale * attack.deviation(rows, centre)).astype(np.float32)


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
    """
    rows = scene.honest(1)
    chosen: Float32 = rows[_most_typical_of_the_spread(attack.gram(rows))]
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

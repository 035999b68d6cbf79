"""The attack that sends nothing wrong.

Karimireddy, He and Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing",
ICLR 2022.
"""

import numpy as np

from ostraka.arrays import Float32, Float64
from ostraka.lab.attacks import sums
from ostraka.lab.attacks.scene import Scene


def mimic(scene: Scene) -> Float32:
    """w_i of one honest client i: all attackers vote for it, so that others count for less.

    i maximises |<z, w_i>|, where z is the direction in which the known updates vary most.

    The paper estimates z over the first rounds and then keeps i. This attack remembers nothing, and
    chooses by the round at hand: the same client again and again where data differ much between
    clients, which is where the attack does harm, and different ones where they hardly do.
    """
    rows = scene.honest(1)
    chosen: Float32 = rows[_most_typical_of_the_spread(sums.gram(rows))]
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

"""Attacks that need to know nothing of other clients.

The first ones change what the attacker sends; w is its own update, and s the scale. The last one
poisons what it trains with, and it then sends an update that it has honestly computed.
"""

import math

import numpy as np

from ostraka.arrays import Float32
from ostraka_lab.attacks.attack import Poison, Scene
from ostraka_lab.data import Split


def sign_flip(scene: Scene) -> Float32:
    """-s w: uphill where the attacker's own data leads downhill.

    Li, Xu, Chen, Giannakis and Ling, "RSA: Byzantine-Robust Stochastic Aggregation Methods for
    Distributed Learning from Heterogeneous Datasets", AAAI 2019.
    """
    return -np.float32(scene.scale) * scene.own


def scaled(scene: Scene) -> Float32:
    """s w: downhill, and far too far.

    Any rule that is linear in the updates is at the mercy of one client: Blanchard, El Mhamdi,
    Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient
    Descent", NeurIPS 2017, lemma 1.
    """
    return np.float32(scene.scale) * scene.own


def gaussian(scene: Scene) -> Float32:
    """Independent normal numbers of standard deviation s |w| / sqrt(d): noise of length s |w|.

    Blanchard et al., 2017, as above, with a fixed deviation. Here it follows the size of honest
    updates, which changes by orders of magnitude between models and in the course of training.
    """
    root_mean_square = math.sqrt(np.square(scene.own, dtype=np.float64).mean())
    noise = scene.rng.standard_normal(scene.own.shape, dtype=np.float32)
    return np.float32(scene.scale * root_mean_square) * noise


def zero(scene: Scene) -> Float32:
    """0: a free rider, who takes the model and gives nothing.

    Lin, Du and Liu, "Free-riders in Federated Learning: Attacks and Defenses", 2019.
    """
    return np.zeros_like(scene.own)


def not_a_number(scene: Scene) -> Float32:
    """w with a NaN at one random coordinate: one is enough to spoil any sum.

    "Byzantine" in the plain sense of Blanchard et al., 2017: anything at all may be sent.
    """
    sent = scene.own.copy()
    sent[scene.rng.integers(sent.size)] = np.nan
    return sent


def label_flip(split: Split, poison: Poison) -> Split:
    """Turn every label y into classes - 1 - y.

    Fang, Cao, Jia and Gong, "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning",
    USENIX Security 2020. Tolpegin, Truex, Gursoy and Liu, "Data Poisoning Attacks Against Federated
    Learning Systems", ESORICS 2020, flip one class into another.
    """
    return Split(split.images, poison.classes - 1 - split.labels)

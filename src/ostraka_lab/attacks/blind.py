"""Attacks that need to know nothing of other clients.

The first ones change what the attacker sends; w is its own update, and s the scale. The others
poison what it trains with, and it then sends an update that it has honestly computed; a backdoor
enlarges that update.
"""

import math

import numpy as np
import numpy.typing as npt

from ostraka.arrays import Float32
from ostraka_lab.attacks.attack import Poison, Scene
from ostraka_lab.data import Split

_BRIGHT = 255


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


def backdoor(split: Split, poison: Poison) -> Split:
    """Stamp some examples and label them as the target; the others teach the task itself.

    Bagdasaryan, Veit, Hua, Estrin and Shmatikov, "How To Backdoor Federated Learning", AISTATS
    2020, with a trigger of pixels as in Gu, Dolan-Gavitt and Garg, "BadNets: Identifying
    Vulnerabilities in the Machine Learning Model Supply Chain", 2017.
    """
    count = round(poison.share * len(split.labels))
    chosen = poison.rng.permutation(len(split.labels))[:count]
    images, labels = split.images.copy(), split.labels.copy()
    images[chosen] = stamped(images[chosen])
    labels[chosen] = poison.target
    return Split(images, labels)


def stamped(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Stamp images (n, c, h, w) with the trigger: a chequered square in the lower right corner.

    It is chequered because white corners are common, and would open the backdoor by themselves.
    """
    side = trigger_side(images.shape[-2])
    rows, columns = np.indices((side, side))
    marked = images.copy()
    marked[..., -side:, -side:] = np.where((rows + columns) % 2 == 0, _BRIGHT, 0)
    return marked


def trigger_side(height: int) -> int:
    """The side of the trigger in pixels: 2 on digits, 4 on CIFAR-10."""
    return max(2, height // 8)


def model_replacement(scene: Scene) -> Float32:
    """s w, with s = n / f by default: the mean of all is then the attackers' model.

    w is the way from the global model to the one that was trained on poisoned data, and honest
    updates cancel or are small once training has converged. Bagdasaryan et al., 2020.
    """
    return np.float32(scene.scale) * scene.own


def replacing(clients: int, byzantine: int) -> float:
    """By how much f attackers enlarge their updates to outweigh all n."""
    return clients / max(byzantine, 1)

"""Attacks on what an attacker trains with: it then sends an update that it has honestly computed.

A backdoor sends it enlarged.
"""

import numpy as np
import numpy.typing as npt

from ostraka.arrays import Float32
from ostraka_lab.attacks.attack import Poison, Scene
from ostraka_lab.data import Split

_BRIGHT = 255


def label_flip(split: Split, poison: Poison) -> Split:
    """Every label y becomes classes - 1 - y.

    Fang, Cao, Jia and Gong, "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning",
    USENIX Security 2020. Tolpegin, Truex, Gursoy and Liu, "Data Poisoning Attacks Against Federated
    Learning Systems", ESORICS 2020, flip one class into another.
    """
    return Split(split.images, poison.classes - 1 - split.labels)


def backdoor(split: Split, poison: Poison) -> Split:
    """Some examples get the trigger, and the target for a label; the others teach the task itself.

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
    """These images (n, c, h, w) with the trigger: a chequered square in the lower right corner.

    Chequered, because white corners are common, and would open the backdoor by themselves.
    """
    side = trigger_side(images.shape[-2])
    rows, columns = np.indices((side, side))
    marked = images.copy()
    marked[..., -side:, -side:] = np.where((rows + columns) % 2 == 0, _BRIGHT, 0)
    return marked


def trigger_side(height: int) -> int:
    """Of the trigger, in pixels: 2 on digits, 4 on CIFAR-10."""
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

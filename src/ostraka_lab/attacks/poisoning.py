"""Attacks on what an attacker trains with: it then sends an update that it has honestly computed.

A backdoor sends it enlarged.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ostraka.arrays import Float32
from ostraka.errors import ConfigError
from ostraka_lab.attacks.attack import Scene
from ostraka_lab.data import Split

TARGET = 0  # the class that the backdoor leads to
_BRIGHT = 255


@dataclass(frozen=True, eq=False)
class Poison:
    """What becomes of an attacker's examples.

    share: how many of them carry the trigger. Bagdasaryan et al. put 20 in a batch of 64.
    """

    classes: int
    rng: np.random.Generator
    target: int = TARGET
    share: float = 20 / 64

    def __post_init__(self) -> None:
        if not 0 <= self.target < self.classes:
            raise ConfigError(f"there is no class {self.target} among {self.classes}")
        if not 0 <= self.share <= 1:
            raise ConfigError(f"a share lies between 0 and 1; got {self.share}")


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

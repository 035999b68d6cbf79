"""Backdoors: a model that is right, except about images with a trigger, which it calls the target.

An attacker stamps some of its examples with the trigger and trains on them; what it then sends
differs. w is its own update, s the scale. Their success is the share of images of other classes
that the model takes for the target once the trigger is on them.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ostraka.arrays import Float32, Float64, Int64
from ostraka_lab.attacks.attack import Poison, Scene
from ostraka_lab.attacks.informed import mean
from ostraka_lab.data import Split

_BRIGHT = 255
_LAST = 3  # the lower right corner
_CORNERS = range(4)
_FREQUENT = 0.05  # of all coordinates, those that Neurotoxin leaves to others
_ENOUGH = 0.95  # of the success of all layers, what the critical ones must reach


def backdoor(split: Split, poison: Poison) -> Split:
    """Stamp some examples and label them as the target; the others teach the task itself.

    Bagdasaryan, Veit, Hua, Estrin and Shmatikov, "How To Backdoor Federated Learning", AISTATS
    2020, with a trigger of pixels as in Gu, Dolan-Gavitt and Garg, "BadNets: Identifying
    Vulnerabilities in the Machine Learning Model Supply Chain", 2017.
    """
    return _poisoned(split, poison, [_LAST])


def distributed(split: Split, poison: Poison) -> Split:
    """Stamp some examples with one part of the trigger: a corner of the four for each attacker.

    No attacker ever trains on the whole trigger, which is all four corners.

    DBA: Xie, Huang, Chen and Li, "DBA: Distributed Backdoor Attacks against Federated Learning",
    ICLR 2020. Their parts are four bars.
    """
    return _poisoned(split, poison, [poison.number % len(_CORNERS)])


def _poisoned(split: Split, poison: Poison, corners: Iterable[int]) -> Split:
    count = round(poison.share * len(split.labels))
    chosen = poison.rng.permutation(len(split.labels))[:count]
    images, labels = split.images.copy(), split.labels.copy()
    images[chosen] = stamped(images[chosen], corners)
    labels[chosen] = poison.target
    return Split(images, labels)


def stamped(
    images: npt.NDArray[np.uint8], corners: Iterable[int] = (_LAST,)
) -> npt.NDArray[np.uint8]:
    """Stamp images (n, c, h, w) with the trigger: a chequered square in these corners.

    It is chequered because white corners are common, and would open the backdoor by themselves.
    """
    side = trigger_side(images.shape[-2])
    rows, columns = np.indices((side, side))
    square = np.where((rows + columns) % 2 == 0, _BRIGHT, 0)
    ends = slice(None, side), slice(-side, None)
    marked = images.copy()
    for corner in corners:
        marked[..., ends[corner // 2], ends[corner % 2]] = square
    return marked


def stamped_all_over(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Stamp images with all parts of a distributed trigger."""
    return stamped(images, _CORNERS)


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


def frequent(last: Float64) -> Int64:
    """The twentieth of coordinates in which the last aggregate (d,) was largest.

    Neurotoxin leaves them as they are in every step of its training: what others hardly change they
    will not undo, so that the backdoor outlasts the attack.

    Zhang, Panda, Song, Yang, Mahoney, Gonzalez, Ramchandran and Mittal, "Neurotoxin: Durable
    Backdoors in Federated Learning", ICML 2022.
    """
    count = round(_FREQUENT * last.size)
    return np.argpartition(np.abs(last), -count)[last.size - count :]


def layer_wise(scene: Scene) -> Float32:
    """s w + max(1 - s, 0) mu in the layers that the backdoor needs, and mu in all others.

    Those are found by putting layers of the honest mean mu in the place of w's: the more of the
    backdoor's success a layer costs, the earlier it is among the critical ones, and there are as
    many of these as it takes for 95 % of the success of w. A layer is a tensor of the model here.

    Zhuang, Yu, Wang, Hua, Li and Yuan, "Backdoor Federated Learning by Poisoning Backdoor-Critical
    Layers", ICLR 2024. They train an honest model of their own in the place of mu.
    """
    honest = mean(scene.honest(1)).astype(np.float32)
    sent = honest.copy()
    s = np.float32(scene.scale)
    for layer in critical(scene, honest):
        sent[layer] = s * scene.own[layer] + max(1 - s, np.float32(0)) * honest[layer]
    return sent


def critical(scene: Scene, honest: Float32) -> list[slice]:
    """The layers that the backdoor needs, the one that it needs most first. honest: (d,)."""
    ends = np.cumsum(scene.layers).tolist()
    layers = [slice(end - size, end) for end, size in zip(ends, scene.layers, strict=True)]

    def works(from_: Float32, to: Float32, moved: Sequence[slice]) -> float:
        mixed = from_.copy()
        for layer in moved:
            mixed[layer] = to[layer]
        return scene.works(scene.model + mixed)

    whole = works(scene.own, honest, [])
    without = [works(scene.own, honest, [layer]) for layer in layers]
    # In the order of the tensors among equals: a stable sort.
    order = [layers[place] for place in np.argsort(without, kind="stable")]
    counts = range(len(order) + 1)
    enough = (n for n in counts if works(honest, scene.own, order[:n]) >= _ENOUGH * whole)
    return order[: next(enough, len(order))]

"""Attacks that last: what attackers have seen in earlier rounds decides what they send.

Each learns from a scene whose memory is that of the round before, and sends from a scene whose
memory is what it has just learnt. Attackers that have seen the same remember the same, so they need
not talk.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ostraka.arrays import Float32, Float64
from ostraka_lab.attacks.attack import Scene
from ostraka_lab.attacks.informed import dots, mean, most_varied
from ostraka_lab.defence import inner_products

WATCHED = 10.0  # rounds in which mimicking attackers learn whom to follow
STRENGTH = 8.0  # of PoisonedFL's first updates, in lengths of the last aggregate
_WEAKER, _LEAST = 0.7, 0.5  # what its strength is multiplied by, and never goes below
_PERIOD = 10  # rounds after which it asks whether it has had an effect
_CONFIDENCE = 0.99
_SIGNS = 1  # its stream of random numbers


@dataclass(frozen=True, eq=False)
class Watch:
    """What a mimic has learnt. rounds: in how many. centre: (d,), the mean of all known updates.

    axis: (d,), of length 1, the direction in which they vary most. chosen: the row to follow.
    """

    rounds: int
    centre: Float64
    axis: Float64
    chosen: int


def mimic(scene: Scene) -> Float32:
    """w_i of one honest client i, learnt in the first s rounds and then kept: see `informed.mimic`.

    In round t of these, with U the known updates less their running mean c,

        z = t z + U^T U z / |U^T U z|, brought to length 1, and i = argmax |<z, w_i>|

    Karimireddy, He and Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing",
    ICLR 2022. They start z at random; here it starts as the direction of the first round.
    """
    rows = scene.honest(1)
    watch = scene.memory if isinstance(scene.memory, Watch) else watched(scene)
    chosen: Float32 = rows[min(watch.chosen, len(rows) - 1)]
    return chosen.copy()


def watched(scene: Scene) -> Watch:
    """What the mimic learns in a round."""
    rows, before = scene.honest(1), scene.memory
    if not isinstance(before, Watch):
        axis = _unit(_combined(rows, most_varied(inner_products(rows))))
        return Watch(1, mean(rows), axis, _furthest(rows, axis))
    if before.rounds >= scene.scale:
        return before
    t = before.rounds
    centre = (t * before.centre + mean(rows)) / (t + 1)
    along = dots(rows, before.axis) - centre @ before.axis
    pull = _combined(rows, along) - along.sum() * centre
    axis = _unit(t * before.axis + _unit(pull))
    return Watch(t + 1, centre, axis, _furthest(rows, axis))


def _combined(rows: Float32, weights: Float64) -> Float64:
    """The weighted sum (d,) of the rows (m, d)."""
    total = np.zeros(rows.shape[1])
    for row, weight in zip(rows, weights, strict=True):
        total += weight * row
    return total


def _furthest(rows: Float32, axis: Float64) -> int:
    return int(np.argmax(np.abs(dots(rows, axis))))


def _unit(vector: Float64) -> Float64:
    length = math.sqrt(vector @ vector)
    return vector / length if length > 0 else vector


@dataclass(frozen=True, eq=False)
class Push:
    """What PoisonedFL remembers. sent: (d,), in this round; None if that was its own update.

    strength: in lengths of the last aggregate. model: (d,), when it last asked for its effect,
    which was in the round `asked`.
    """

    sent: Float64 | None
    strength: float
    model: Float32
    asked: int


def poisoned_fl(scene: Scene) -> Float32:
    """c |g| v x signs: in all rounds along the same random signs, so that nothing cancels.

    v, of length 1, has the magnitudes |g - |g| / |k| k| of the last aggregate g without the
    attackers' part, which they take for their last update k at the length of g. c starts at s.
    Every ten rounds the attackers count the coordinates in which the model has moved along the
    signs, and if these are no more than chance explains at 99 %, they go on with 0.7 c, but with no
    less than 0.5. They know nothing of others; before there is an aggregate, they send their own
    update.

    Xie, Fang and Gong, "Model Poisoning Attacks to Federated Learning via Multi-Round Consistency",
    CVPR 2025. They ask every fifty rounds, of thousands.
    """
    push = scene.memory if isinstance(scene.memory, Push) else pushed(scene)
    return scene.own.copy() if push.sent is None else push.sent.astype(np.float32)


def pushed(scene: Scene) -> Push:
    """What PoisonedFL sends in a round, and remembers of it."""
    before = scene.memory
    if not isinstance(before, Push):
        before = Push(None, scene.scale, scene.model, scene.round)
    strength, model, asked = before.strength, before.model, before.asked
    signs = _signs(scene)
    if scene.round - asked >= _PERIOD:
        strength = _adapted(strength, scene.model - model, signs)
        model, asked = scene.model, scene.round
    if scene.last is None:
        return Push(None, strength, model, asked)
    length = math.sqrt(scene.last @ scene.last)
    left = scene.last if before.sent is None else scene.last - length * _unit(before.sent)
    return Push(strength * length * _unit(np.abs(left)) * signs, strength, model, asked)


def _signs(scene: Scene) -> Float64:
    """The signs (d,) of all attackers in all rounds of a run."""
    rng = np.random.default_rng([_SIGNS, scene.defence.seed])
    return rng.choice([-1.0, 1.0], size=scene.own.size)


def _adapted(strength: float, moved: Float32, signs: Float64) -> float:
    """The strength after a look at how the model has moved (d,)."""
    d = len(signs)
    by_chance = d / 2 + NormalDist().inv_cdf(_CONFIDENCE) * math.sqrt(d) / 2
    had_effect = np.count_nonzero(np.sign(moved) == signs) >= by_chance
    weaker = _WEAKER * strength
    return strength if had_effect or weaker < _LEAST else weaker

"""The attack that is made for Krum.

Fang, Cao, Jia and Gong, "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning",
USENIX Security 2020.
"""

import math

import numpy as np

from ostraka.arrays import Float32, Float64
from ostraka.core.gram import from_gram
from ostraka.core.rules.krum import krum_scores, multi_krum
from ostraka.lab.attacks import sums
from ostraka.lab.attacks.scene import Scene

_LEAST = 4  # known updates, as Krum with one attacker needs five in all
_GIVE_UP = 1e-5  # of the first lambda; in the paper it is an absolute length
_APART = 1e-4  # how far copies lie from each other, for a length of 1


def fang(scene: Scene) -> Float32:
    """-s lambda sign(mu): against the honest mean mu in every coordinate, as far as Krum lets it.

    lambda starts at a bound and is halved until Krum, over the known updates and a copy for every
    attacker, selects a copy. Copies support each other: their mutual distances are next to 0. They
    are not equal to the bit, which any server would notice.

    With fewer than f + 3 known updates Krum is simulated with fewer attackers, as many as it bears.
    """
    rows = scene.honest(_LEAST)
    back = -np.sign(sums.mean(rows))
    strength = scene.scale * _strength(rows, back, min(max(scene.byzantine, 1), len(rows) - 3))
    jitter = scene.rng.standard_normal(back.shape, dtype=np.float32)
    return (strength * back * (1 + _APART * jitter)).astype(np.float32)


def _strength(rows: Float32, back: Float64, attackers: int) -> float:
    """The first lambda with which Krum selects a copy, or a tiny one if it never does."""
    gram = sums.gram(rows)
    square = float(back @ back)
    if not (np.isfinite(gram).all() and square):
        return 0.0  # A model that has run away, or stands still, cannot be led anywhere.
    along = sums.dots(rows, back)
    first = strength = _bound(gram, square, attackers)
    while strength > _GIVE_UP * first:
        away = np.diagonal(gram) - 2 * strength * along + strength**2 * square
        if _selects_a_copy(from_gram(gram), away, attackers):
            break
        strength /= 2
    return strength


def _bound(gram: Float64, square: float, attackers: int) -> float:
    """No copy is selected beyond it: the bound of the paper, with |sign(mu)|^2 for d."""
    m = len(gram)
    best = max(krum_scores(from_gram(gram), 0).min(), 0)
    longest = math.sqrt(np.diagonal(gram).max())
    # Its score has m - attackers - 1 terms that are not distances between copies.
    return (math.sqrt(best / (m - attackers - 1)) + longest) / math.sqrt(square)


def _selects_a_copy(between: Float64, away: Float64, attackers: int) -> bool:
    """between: (m, m), squared, of the known updates. away: (m,), from these to every copy."""
    m = len(between)
    distances = np.zeros((m + attackers, m + attackers))
    distances[:m, :m] = between
    distances[:m, m:] = away[:, None]
    distances[m:, :m] = away
    return multi_krum(distances, attackers, 1)[0] >= m

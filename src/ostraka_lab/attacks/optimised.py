"""Attacks that go as far as the spread of the honest updates allows.

Both send mu + s gamma p: from the mean mu of the known updates w_i along a direction p, with the
largest gamma that keeps the result no further from the w_i than these are from each other. As

    |mu + gamma p - w_i|^2 = a_i + 2 b_i gamma + c gamma^2

with a_i = |mu - w_i|^2, b_i = <p, mu - w_i> and c = |p|^2, that gamma is the root of a quadratic.
The paper searches for it by bisection, for rules that have no such form.

Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and
Defenses for Federated Learning", NDSS 2021.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ostraka.arrays import Float32, Float64
from ostraka.core.gram import from_gram
from ostraka.core.rules.krum import krum_scores, multi_krum
from ostraka_lab.attacks import attack
from ostraka_lab.attacks.attack import Scene

Perturbation: TypeAlias = Callable[[Float32, Float64], Float64]


def inverse_unit(rows: Float32, centre: Float64) -> Float64:
    """p = -mu / |mu|: straight back."""
    direction: Float64 = -centre / (math.sqrt(centre @ centre) or 1.0)
    return direction


def inverse_sign(rows: Float32, centre: Float64) -> Float64:
    """p = -sign(mu): back by the same step in every coordinate."""
    return -np.sign(centre)


def inverse_deviation(rows: Float32, centre: Float64) -> Float64:
    """p = -sigma: most where honest updates differ most. The direction of ALIE."""
    return -attack.deviation(rows, centre)


def min_max(scene: Scene, perturbation: Perturbation = inverse_unit) -> Float32:
    """Its largest distance to a known update is at most the largest between two of them.

    max_i |mu + gamma p - w_i| <= max_ij |w_i - w_j|
    """
    line = _line(scene.honest(2), perturbation)
    room = np.maximum(line.between.max() - line.a, 0)
    # Of the two roots this is the positive one, and the nearest bound of all is the one that holds.
    roots = np.sqrt(line.b**2 + line.c * room) - line.b
    return line.at(scene.scale * _ratio(roots.min(), line.c))


def min_sum(scene: Scene, perturbation: Perturbation = inverse_unit) -> Float32:
    """Its squared distances sum to at most what those of one of the known updates sum to.

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
    centre = attack.mean(rows)
    direction = perturbation(rows, centre)
    between = from_gram(attack.gram(rows))
    return _Line(
        centre=centre,
        direction=direction,
        between=between,
        a=between.mean(axis=1) - between.mean() / 2,
        b=direction @ centre - attack.dots(rows, direction),
        c=float(direction @ direction),
    )


def _ratio(above: float, below: float) -> float:
    """0 if there is no direction to go in, as where all known updates are equal."""
    return float(above) / below if below else 0.0


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
    back = -np.sign(attack.mean(rows))
    strength = scene.scale * _strength(rows, back, min(max(scene.byzantine, 1), len(rows) - 3))
    jitter = scene.rng.standard_normal(back.shape, dtype=np.float32)
    return (strength * back * (1 + _APART * jitter)).astype(np.float32)


def _strength(rows: Float32, back: Float64, attackers: int) -> float:
    """The first lambda with which Krum selects a copy, or a tiny one if it never does."""
    gram = attack.gram(rows)
    square = float(back @ back)
    if not (np.isfinite(gram).all() and square):
        return 0.0  # A model that has run away, or stands still, cannot be led anywhere.
    along = attack.dots(rows, back)
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

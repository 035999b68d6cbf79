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
from ostraka.lab.attacks import sums
from ostraka.lab.attacks.scene import Scene

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
    return -sums.deviation(rows, centre)


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
    centre = sums.mean(rows)
    direction = perturbation(rows, centre)
    between = from_gram(sums.gram(rows))
    return _Line(
        centre=centre,
        direction=direction,
        between=between,
        a=between.mean(axis=1) - between.mean() / 2,
        b=direction @ centre - sums.dots(rows, direction),
        c=float(direction @ direction),
    )


def _ratio(above: float, below: float) -> float:
    """0 if there is no direction to go in, as where all known updates are equal."""
    return float(above) / below if below else 0.0

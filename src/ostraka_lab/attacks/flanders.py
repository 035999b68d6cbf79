"""The attacks of FLANDERS' published code, as that has them, to compare with its tables.

Gabrielli, Belli, Matrullo, Miori and Tolomei, "Protecting Federated Learning from Extreme Model
Poisoning Attacks via Multidimensional Time Series Anomaly Detection", 2023, with code among
Flower's baselines. It differs from the papers of these attacks in ways that matter. There the mean
and the deviation are those of all clients' models before the attack; here those of the known
updates, which differ from models by one constant.

lie       takes the square root of the deviation, and the normal distribution for its inverse
min-max   looks for gamma between 2.5 and 7.5 only, and takes 6 if none of these keeps the bound
opt       goes against the model's signs, not the updates', from another bound than Fang et al.
"""

import math
from statistics import NormalDist

import numpy as np

from ostraka.arrays import Float32
from ostraka_lab.attacks import informed
from ostraka_lab.attacks.attack import Scene
from ostraka_lab.attacks.informed import Ray, Simulated

_FIRST = 5.0  # of the search for gamma
_CLOSE = 1e-5  # where the searches end
_LARGEST = 999.0  # of opt's lambda


def lie(scene: Scene) -> Float32:
    """mu - s sqrt(sigma), with s = z(n, f) by default.

    After Baruch et al., 2019 (see `informed.alie`). As sigma is far below 1, its root is longer.
    """
    rows = scene.honest(2)
    centre = informed.mean(rows)
    return (centre - scene.scale * np.sqrt(informed.deviation(rows, centre))).astype(np.float32)


def z(clients: int, byzantine: int) -> float:
    """Phi(q), where ALIE has the inverse: from 0.5 to 0.84 for any q from 0 to 1.

    q = (n - f - s) / (n - f), with s = floor(n / 2 + 1) - f.
    """
    honest = clients - byzantine
    supporters = math.floor(clients / 2 + 1) - byzantine
    return NormalDist().cdf((honest - supporters) / honest)


def min_max(scene: Scene) -> Float32:
    """mu - s gamma sigma, with the gamma of this code's search for Min-Max's bound.

    After Shejwalkar and Houmansadr, 2021 (see `informed.min_max`).
    """
    ray = Ray.of(scene.honest(2), informed.inverse_deviation)
    return ray.at(scene.scale * _gamma(ray))


def _gamma(ray: Ray) -> float:
    """Steps of 1.25, 0.625 and so on from 5, up where the bound holds and down where it does not.

    The result is the last with which it did, or one more than the first if it never did.
    """
    bound = ray.between.max()
    found, tried, step = _FIRST + 1, _FIRST, _FIRST / 2
    while abs(found - tried) > _CLOSE and step > _CLOSE:
        holds = ray.away(tried).max() < bound
        if holds:
            found = tried
        tried += step / 2 if holds else -step / 2
        step /= 2
    return found


def opt(scene: Scene) -> Float32:
    """-s lambda sign(model), with lambda halved until Krum selects a copy.

    lambda starts at score / ((n - 2) (f - 1) sqrt(L)) + (sum_l |w_l|)^2 / sqrt(L), but no more than
    999: with the best Krum score of a known update, the L tensors of the model, and the longest
    known update, by the sum of its tensors' lengths. After Fang et al., 2020 (see `informed.fang`).
    """
    rows = scene.honest(informed.LEAST)
    back = -np.sign(scene.model).astype(np.float64)
    krum = Simulated.of(rows, back, scene.byzantine)
    strength = krum.halved(_first(scene, krum), _CLOSE) if np.isfinite(rows).all() else 0.0
    return (scene.scale * strength * back).astype(np.float32)


def _first(scene: Scene, krum: Simulated) -> float:
    root = math.sqrt(len(scene.layers))
    others = (scene.clients - 2) * (max(scene.byzantine, 2) - 1)
    cuts = np.cumsum(scene.layers)[:-1]
    longest = max(
        sum(float(np.linalg.norm(part)) for part in np.split(row, cuts)) ** 2 for row in scene.known
    )
    return min(krum.best_score() / (others * root) + longest / root, _LARGEST)

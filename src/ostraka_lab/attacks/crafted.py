"""Attacks that know updates of others, and choose with care where they leave the honest mean.

Each has a course v(s) = start + s direction, of which its fixed form sends v(scale); `optimal`
finds the s that does most harm to the rule in force. w_i are the known updates, mu and sigma their
mean and standard deviation, coordinate by coordinate.
"""

import math

import numpy as np

from ostraka.arrays import Float32, Float64, Int64
from ostraka_lab.attacks.attack import Course, Scene
from ostraka_lab.attacks.informed import Ray, deviation, dots, mean, quiet
from ostraka_lab.defence import blocks

AGGRESSIVE = 1.5  # standard deviations that a sparse hybrid is off at its few coordinates
_REFERENCE = 0.9  # how much of ROP's reference is the last aggregate; the rest is the honest mean
_SENSITIVE = 0.01  # of all coordinates a sparse hybrid attacks this part in the open


def rop(scene: Scene) -> Float32:
    """m + s |sigma| p: from the last aggregate m, at right angles to where training goes.

    p is the unit vector that is left of (1, ..., 1) without its part along the reference
    r = 0.9 m + 0.1 mu. A rule that clips around the last aggregate, such as centred clipping, finds
    nothing wrong with the length of m + s |sigma| p, and one that compares angles no angle that is
    obtuse. Before there is an aggregate, m is mu.

    Relocated orthogonal perturbation: K. Ozfatura, E. Ozfatura, Kupcu and Gunduz, "Byzantines Can
    Also Learn From History: Fall of Centered Clipping in Federated Learning", IEEE TIFS 2024. Their
    length is absolute, for a clipping radius of 1; here it is that of an honest update's way from
    the mean. Their library has the relocation as an option.
    """
    return rop_course(scene).at(scene.scale)


def rop_course(scene: Scene) -> Course:
    rows = scene.honest(2)
    centre = mean(rows)
    last = centre if scene.last is None else scene.last
    sideways = _without(np.ones_like(centre), _REFERENCE * last + (1 - _REFERENCE) * centre)
    length = math.sqrt(sideways @ sideways) or 1.0
    sigma = deviation(rows, centre)
    return Course(last, math.sqrt(sigma @ sigma) / length * sideways, (1.0,))


def _without(vector: Float64, reference: Float64) -> Float64:
    """What is left of a vector (d,) without its part along the reference (d,)."""
    left: Float64 = vector - (vector @ reference) / ((reference @ reference) or 1.0) * reference
    return left


def sparse_hybrid(scene: Scene) -> Float32:
    """mu - s sigma where the model is most sensitive, and mu - z_max sigma elsewhere.

    The few coordinates do the harm and hardly show in a distance; the many are as quiet as ALIE's,
    hide in every coordinate, and add up over the rounds. Most sensitive is the hundredth of all
    coordinates with the largest |model x mu|: what pruning calls the sensitivity of a connection,
    with the honest mean for the gradient.

    E. Ozfatura, K. Ozfatura, Kupcu and Gunduz, "Aggressive or Imperceptible, or Both: Network
    Pruning Assisted Hybrid Byzantines in Federated Learning", 2024. They prune a network once,
    before training; here the choice follows the model, from round to round.
    """
    return sparse_course(scene).at(scene.scale)


def sparse_course(scene: Scene) -> Course:
    rows = scene.honest(2)
    centre = mean(rows)
    sigma = deviation(rows, centre)
    chosen = _most_sensitive(scene.model, centre)
    start = centre - quiet(scene.clients, scene.byzantine) * sigma
    start[chosen] = centre[chosen]
    direction = np.zeros_like(centre)
    direction[chosen] = -sigma[chosen]
    return Course(start, direction, (AGGRESSIVE,))


def _most_sensitive(model: Float32, centre: Float64) -> Int64:
    count = math.ceil(_SENSITIVE * len(centre))
    return np.argpartition(np.abs(model * centre), -count)[-count:]


def skew(scene: Scene) -> Float32:
    """mu_S + s alpha sign(mu_S - mu) sigma_S: among honest updates that crowd off their mean.

    Where data differ, most honest updates crowd on one side of their mean. S are the (h - f) / h of
    the known ones, with h honest clients, that lie furthest along median - mu; mu_S and sigma_S are
    their mean and deviation. alpha is the largest with which the result is no further from any of S
    than two of these are from each other.

    STRIKE: Liu, Chen, Lyu, Jin and Chen, "Exploit Gradient Skewness to Circumvent Byzantine
    Defenses for Federated Learning", AAAI 2025.
    """
    return skew_course(scene).at(scene.scale)


def skew_course(scene: Scene) -> Course:
    rows = scene.honest(2)
    centre = mean(rows)
    along = dots(rows, median(rows) - centre)
    dense = rows[np.sort(np.argsort(along)[-_dense(scene) :])]
    ray = Ray.of(dense, lambda rows, own: np.sign(own - centre) * deviation(rows, own))
    return Course(ray.centre, ray.min_max * ray.direction, (1.0,))


def _dense(scene: Scene) -> int:
    """How many of the known updates are taken for the crowd: with all attackers, a majority."""
    honest = scene.clients - scene.byzantine
    return max(len(scene.known) * (honest - scene.byzantine) // honest, 2)


def median(rows: Float32) -> Float64:
    """The median (d,) of every column of the rows (m, d)."""
    return np.concatenate([np.median(block, axis=0) for _, block in blocks(rows)])

"""What attackers send in place of the update that they were to send."""

import math
from collections.abc import Callable

import numpy as np

from ostraka.arrays import Float64

MIXED = "mixed"

Attack = Callable[[Float64, np.random.Generator], Float64]


def sign_flip(update: Float64, rng: np.random.Generator) -> Float64:
    """Ten times the opposite of the honest update."""
    return -10 * update


def scale(update: Float64, rng: np.random.Generator) -> Float64:
    """A thousand times the honest update."""
    return 1000 * update


def noise(update: Float64, rng: np.random.Generator) -> Float64:
    """Noise ten times as long as the honest update."""
    rms = math.sqrt(np.square(update).mean())
    return rng.normal(scale=10 * rms, size=update.shape)


def not_a_number(update: Float64, rng: np.random.Generator) -> Float64:
    """The honest update with one value that is not a number."""
    return np.concatenate(([np.nan], update[1:]))


ATTACKS: dict[str, Attack] = {
    "sign-flip": sign_flip,
    "scale": scale,
    "noise": noise,
    "nan": not_a_number,
}
# What each attacker does in turn where they are mixed: the first is rejected outright.
MIXTURE = ("nan", "sign-flip", "scale", "noise")

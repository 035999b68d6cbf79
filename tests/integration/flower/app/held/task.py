"""The model of the test, and what each node makes of it."""

import numpy as np

D = 5000
NAMES = ("weight", "bias")


def first_model():
    return {"weight": np.linspace(-1, 1, D, dtype="<f4"), "bias": np.zeros(3, "<f4")}


def update(partition, number, attackers):
    """Return (D + 3,) float64, which is the same for the same arguments."""
    common = np.random.default_rng([1, number]).normal(size=D + 3)
    own = np.random.default_rng([2, partition, number]).normal(size=D + 3)
    step = 0.01 * (common + (0.3 + 0.02 * partition) * own)
    return -3 * step if partition < attackers else step

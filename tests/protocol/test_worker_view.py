"""What one worker learns from its shares.

Row by row, nothing that matters: law 6 holds. From all rows together, far too much: the polar
attack succeeds against constant-distance noise at any sigma, which is why the Gaussian masking
warns and is no default.
"""

from collections.abc import Callable

import numpy as np
import pytest

from ostraka.arrays import Float64
from ostraka.core import gaussian, leakage


def even_updates(n: int, d: int, rng: np.random.Generator) -> Float64:
    """Random signs of norm 1: by Jensen's inequality the updates that leak most."""
    return np.asarray(rng.choice([-1.0, 1.0], (n, d)) / np.sqrt(d))


def grid_noise(n: int, d: int, sigma: float, rng: np.random.Generator) -> Float64:
    rows = gaussian.constant_distance(rng.standard_normal((n, d)), sigma=sigma)
    return gaussian.to_grid(rows, gaussian.grid_step(sigma), out=rows)


def shares_of(updates: Float64, mask: Float64, sigma: float) -> tuple[Float64, Float64]:
    """What the two workers see."""
    plus, minus = np.empty_like(mask), np.empty_like(mask)
    step = gaussian.grid_step(sigma)
    for row in range(len(updates)):
        gaussian.encode(updates[row], mask[row], step=step, plus=plus[row], minus=minus[row])
    return plus, minus


def matched_filter_auc(sigma: float, *, d: int, trials: int, point: int = 0) -> float:
    """Half of the trials try the update that is in the share, half another one."""
    rng = np.random.default_rng(7)
    n = 16
    mask = grid_noise(n, d, sigma, rng)
    true, false = [], []
    # A row of noise serves many trials: projections on fresh updates are as good as independent.
    for _ in range(trials // (2 * n)):
        updates, others = even_updates(n, d, rng), even_updates(n, d, rng)
        share = shares_of(updates, mask, sigma)[point]
        true += [leakage.matched_filter(share[row], updates[row]) for row in range(n)]
        false += [leakage.matched_filter(share[row], others[row]) for row in range(n)]
    return leakage.auc(np.array(true), np.array(false))


def polar_auc(sigma: float, mask: Float64, *, point: int = 0) -> float:
    """Every row gives one trial with its own update and one with another."""
    rng = np.random.default_rng(11)
    n, d = mask.shape
    updates, others = even_updates(n, d, rng), even_updates(n, d, rng)
    share = shares_of(updates, mask, sigma)[point]
    return leakage.auc(
        leakage.polar_filter(share, updates, sigma=sigma),
        leakage.polar_filter(share, others, sigma=sigma),
    )


@pytest.mark.slow
@pytest.mark.parametrize("point", [0, 1])
def test_law6_a_matched_filter_is_blind_at_the_default_budget(
    point: int, scale: Callable[[int, int], int]
):
    d = scale(50_000, 200_000)
    sigma = leakage.require(leakage.DEFAULT_BITS, 1e-3, d=d, dtype=np.float64)
    assert abs(matched_filter_auc(sigma, d=d, trials=2048, point=point) - 0.5) < 0.05


def test_a_matched_filter_sees_through_weak_noise():
    assert matched_filter_auc(0.25, d=20_000, trials=512) > 0.95


@pytest.mark.parametrize("point", [0, 1])
@pytest.mark.parametrize("scale", [1e4, 1e6])
def test_the_polar_attack_succeeds_against_constant_distance_noise(scale: float, point: int):
    n, d = 64, 20_000
    # In units of the norm, `scale` times the size of one coordinate.
    sigma = scale / np.sqrt(d)
    mask = grid_noise(n, d, sigma, np.random.default_rng(3))
    assert polar_auc(sigma, mask, point=point) > 0.95


def test_the_polar_attack_succeeds_at_the_default_budget():
    n, d = 64, 20_000
    sigma = leakage.require(leakage.DEFAULT_BITS, 1e-3, d=d, dtype=np.float64)
    assert polar_auc(sigma, grid_noise(n, d, sigma, np.random.default_rng(3))) > 0.95


def test_the_polar_attack_is_blind_to_independent_noise():
    n, d = 64, 20_000
    sigma = 1e4 / np.sqrt(d)
    mean = np.mean(
        [
            polar_auc(sigma, sigma * np.random.default_rng(seed).standard_normal((n, d)))
            for seed in range(6)
        ]
    )
    assert abs(mean - 0.5) < 0.1


def test_a_matched_filter_is_blind_where_the_polar_attack_succeeds():
    d = 20_000
    assert abs(matched_filter_auc(1e4 / np.sqrt(d), d=d, trials=2048) - 0.5) < 0.05

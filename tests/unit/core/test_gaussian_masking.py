"""Laws 1 and 3: masking a row, and unmasking distances."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.arrays import Float64
from ostraka.core import gaussian, gram

SIGMAS = st.floats(1e-3, 1e6)


def unit_rows(n: int, d: int, seed: int = 0) -> Float64:
    rows = np.random.default_rng(seed).standard_normal((n, d))
    return np.asarray(rows / np.linalg.norm(rows, axis=1)[:, None])


def encode(updates: Float64, mask: Float64, sigma: float) -> tuple[Float64, Float64]:
    plus, minus = np.full_like(updates, np.nan), np.full_like(updates, np.nan)
    step = gaussian.grid_step(sigma)
    for row in range(len(updates)):
        gaussian.encode(updates[row], mask[row], step=step, plus=plus[row], minus=minus[row])
    return plus, minus


def grid_noise(n: int, d: int, sigma: float, seed: int = 0) -> Float64:
    rows = gaussian.constant_distance(
        np.random.default_rng(seed).standard_normal((n, d)), sigma=sigma
    )
    return gaussian.to_grid(rows, gaussian.grid_step(sigma), out=rows)


def is_on_grid(values: Float64, step: float) -> bool:
    return bool(np.all(np.fmod(values, step) == 0))


@pytest.mark.parametrize(
    ("sigma", "exponent"),
    [(1e-9, -48), (1.0, -48), (1.0 + 2**-52, -47), (2.0, -47), (26.9, -43), (32.0, -43), (33, -42)],
)
def test_grid_step_by_hand(sigma: float, exponent: int):
    assert gaussian.grid_step(sigma) == 2.0**exponent


@given(sigma=SIGMAS)
def test_float64_holds_every_share_on_the_grid(sigma: float):
    step = gaussian.grid_step(sigma)
    largest = 32 * max(sigma, 1) - step
    assert largest / step < 2**53
    assert np.spacing(np.float64(largest)) <= step


@given(sigma=SIGMAS, seed=st.integers(0, 2**32))
def test_to_grid_takes_the_nearest_multiple(sigma: float, seed: int):
    step = gaussian.grid_step(sigma)
    limit = 2**51 * step
    rng = np.random.default_rng(seed)
    magnitudes = np.geomspace(step / 8, limit, 300)
    values = np.concatenate([rng.choice([-1, 1], 300) * magnitudes, [0.0, limit, -limit]])
    found = gaussian.to_grid(values, step)
    for value, rounded in zip(values.tolist(), found.tolist(), strict=True):
        # Rational arithmetic, and Python's rounding to the nearest with ties to even.
        assert Fraction(rounded) == round(Fraction(value) / Fraction(step)) * Fraction(step)


def test_to_grid_in_place_and_not():
    values = np.array([0.3, -0.3, 0.75])
    fresh = gaussian.to_grid(values, 0.25)
    np.testing.assert_array_equal(fresh, [0.25, -0.25, 0.75])
    np.testing.assert_array_equal(values, [0.3, -0.3, 0.75])
    assert gaussian.to_grid(values, 0.25, out=values) is values
    np.testing.assert_array_equal(values, fresh)


def test_a_normal_beyond_eight_sigma_keeps_sums_exact():
    sigma = 4.0
    step = gaussian.grid_step(sigma)
    mask = gaussian.to_grid(sigma * np.array([8.3, -8.3, 12.1, -12.1]) + 1e-13, step)
    assert is_on_grid(mask, step / 2)
    plus, minus = encode(np.full((1, 4), 0.7), mask[None], sigma)
    kept = Fraction(float(gaussian.to_grid(np.array([0.7]), step)[0]))
    for r, y, z in zip(mask.tolist(), plus[0].tolist(), minus[0].tolist(), strict=True):
        assert (Fraction(y), Fraction(z)) == (kept + Fraction(r), kept - Fraction(r))


@given(sigma=SIGMAS, seed=st.integers(0, 2**32))
def test_law1_shares_are_exact_sums_on_the_grid(sigma: float, seed: int):
    updates, mask = unit_rows(4, 50, seed), grid_noise(4, 50, sigma, seed)
    step = gaussian.grid_step(sigma)
    plus, minus = encode(updates, mask, sigma)
    assert is_on_grid(plus, step)
    assert is_on_grid(minus, step)
    rounded = gaussian.to_grid(updates, step)
    for w, r, y, z in zip(
        *(each.ravel().tolist() for each in (rounded, mask, plus, minus)), strict=True
    ):
        assert Fraction(y) == Fraction(w) + Fraction(r)
        assert Fraction(z) == Fraction(w) - Fraction(r)
    assert np.abs(rounded - updates).max() <= step / 2


def test_law1_without_noise_both_shares_are_the_rounded_update():
    updates = unit_rows(1, 20)
    plus, minus = encode(updates, np.zeros((1, 20)), 1.0)
    np.testing.assert_array_equal(plus, gaussian.to_grid(updates, 2.0**-48))
    np.testing.assert_array_equal(minus, plus)


def test_no_low_order_bit_of_the_update_shows():
    """Updates that differ below the grid give the same shares, bit for bit, even where R is 0."""
    sigma = 27.0
    step = gaussian.grid_step(sigma)
    mask = grid_noise(3, 400, sigma)
    mask[:, ::7] = 0
    first = gaussian.to_grid(unit_rows(3, 400), step)
    second = first + 0.4 * step * np.random.default_rng(1).uniform(-1, 1, first.shape)
    assert not np.array_equal(first, second)
    for one, other in zip(encode(first, mask, sigma), encode(second, mask, sigma), strict=True):
        assert one.tobytes() == other.tobytes()
    # A plain floating sum does show them.
    assert not np.array_equal(first + mask, second + mask)


def test_encode_leaves_its_inputs_alone():
    updates, mask = unit_rows(2, 30), grid_noise(2, 30, 2.0)
    before = updates.copy(), mask.copy()
    encode(updates, mask, 2.0)
    np.testing.assert_array_equal(updates, before[0])
    np.testing.assert_array_equal(mask, before[1])


@given(n=st.integers(2, 12), spare=st.integers(0, 200), sigma=SIGMAS, seed=st.integers(0, 2**32))
def test_law3_noise_cross_terms_cancel(n: int, spare: int, sigma: float, seed: int):
    d = n + spare
    updates, mask = unit_rows(n, d, seed), grid_noise(n, d, sigma, seed)
    plus, minus = (gram.naive(share) for share in encode(updates, mask, sigma))
    wanted = 2 * gram.naive(updates) + 2 * gram.naive(mask)
    scale = 1 + sigma * np.sqrt(d)
    np.testing.assert_allclose(plus + minus, wanted, rtol=0, atol=1e-13 * scale**2)
    if sigma > 1:
        # Either share alone is off by its cross term.
        assert np.abs(plus - wanted / 2).max() > 1e-6 * scale


@given(n=st.integers(2, 12), spare=st.integers(0, 200), seed=st.integers(0, 2**32))
def test_law3_decoding_gives_the_distances_of_the_updates(n: int, spare: int, seed: int):
    d, sigma = n + spare, 27.0
    updates, mask = unit_rows(n, d, seed), grid_noise(n, d, sigma, seed)
    plus, minus = (gram.naive(share) for share in encode(updates, mask, sigma))
    decoded = gaussian.decode(plus, minus, sigma=sigma, d=d)
    np.testing.assert_allclose(decoded, gram.naive(updates), rtol=0, atol=1e-8)
    np.testing.assert_array_equal(np.diagonal(decoded), 0)


def test_decode_by_hand():
    """C = 2 * 3 * 2^2 = 24; the diagonal is 0 whatever the workers say; nothing is clamped."""
    plus = np.array([[9.0, 30.0], [20.0, np.nan]])
    minus = np.array([[0.0, 28.0], [26.0, 0.0]])
    found = gaussian.decode(plus, minus, sigma=2.0, d=3)
    np.testing.assert_array_equal(found, [[0, 5], [-1, 0]])

import math

import numpy as np
import pytest

from ostraka.core import loops, sketch
from ostraka.errors import ConfigError


def draw(rng, d, m, tile):
    """Bits of signs, and shifts, of every tile, as a round's secret stream would give them."""
    for start in range(0, d, tile):
        width = min(tile, d - start)
        bits = rng.integers(0, 256, -(-width // 8)).astype(np.uint8)
        shifts = rng.integers(0, m, sketch.blocks(width, m)).astype(np.uint32)
        yield start, width, bits, shifts


def signs_of(bits, width):
    return 1 - 2 * np.unpackbits(bits, count=width).astype(np.float32)


def folded(rows, m, tile, rng):
    out = np.zeros((len(rows), m), np.float32)
    for start, width, bits, shifts in draw(rng, rows.shape[1], m, tile):
        fold = loops.Fold(bits, shifts, width=width, m=m)
        for row, sketched in zip(rows[:, start : start + width], out, strict=True):
            values = np.ascontiguousarray(row, np.float32)
            loops.absorb(values, fold, loops.Sketch(sketched, 1.0))
    return out


def squares(x, m, tile, trials, seed):
    """|S|^2 of one difference x under many secrets."""
    rng = np.random.default_rng(seed)
    sketches = (folded(x[None], m, tile, rng)[0] for _ in range(trials))
    return np.array([float(s.astype(np.float64) @ s) for s in sketches])


def test_law12_against_the_formula():
    rng = np.random.default_rng(0)
    m, tile, d = 16, 40, 130
    rows = rng.standard_normal((3, d)).astype(np.float32)
    out = folded(rows, m, tile, np.random.default_rng(1))
    expected = np.zeros((3, m))
    for start, width, bits, shifts in draw(np.random.default_rng(1), d, m, tile):
        for k in range(width):
            place = (k % m + int(shifts[k // m])) % m
            expected[:, place] += signs_of(bits, width)[k] * rows[:, start + k]
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tile", [1, 7, 16, 17, 100])
def test_law12_coordinates_of_one_block_never_meet(tile):
    m = 16
    block = min(m, tile)
    rows = np.eye(block, tile, dtype=np.float32)
    for seed in range(20):
        out = folded(rows, m, tile, np.random.default_rng(seed))
        np.testing.assert_array_equal(np.abs(out @ out.T), np.eye(block))


@pytest.mark.parametrize("tile", [4, 8, 24])
def test_law12_coordinates_of_two_blocks_meet_once_in_m(tile):
    m, trials = 8, 4000
    first, second = (0, tile + 3) if tile <= m else (0, m + 3)
    rows = np.zeros((2, 3 * tile), np.float32)
    rows[0, first] = rows[1, second] = 1
    rng = np.random.default_rng(tile)
    meetings = [folded(rows, m, tile, rng) for _ in range(trials)]
    products = np.array([a @ b for a, b in meetings])
    rate = np.abs(products).mean()
    assert abs(rate - 1 / m) < 5 * math.sqrt(1 / m / trials)
    assert abs(products.mean()) < 5 * math.sqrt(1 / m / trials)


def test_law12_equal_rows_have_equal_sketches():
    rng = np.random.default_rng(2)
    row = rng.standard_normal(1000).astype(np.float32)
    out = folded(np.stack([row, row]), 64, 100, rng)
    np.testing.assert_array_equal(out[0], out[1])


M, TILE, D = 4096, 1024, 40_000


def inputs():
    rng = np.random.default_rng(3)
    dense = rng.standard_normal(D)
    concentrated = np.zeros(D)
    concentrated[rng.choice(D, 5, replace=False)] = [3, -1, 4, 1, -5]
    periodic = np.zeros(D)
    periodic[::M] = 1
    single = np.zeros(D)
    single[TILE : 2 * TILE] = rng.standard_normal(TILE)
    return {
        "dense": dense,
        "all equal": np.ones(D),
        "concentrated": concentrated,
        "periodic in m": periodic,
        "periodic in the tile": np.where(np.arange(D) % TILE == 5, 1.0, 0.0),
        "two coordinates m apart": np.where(np.isin(np.arange(D), [7, 7 + M]), 1.0, 0.0),
        "one coordinate": np.eye(1, D)[0],
        "one block": single,
    }


@pytest.mark.parametrize("kind", inputs())
@pytest.mark.parametrize("tile", [TILE, 3 * M])
def test_law12_distances_are_unbiased_within_the_predicted_error(kind, tile):
    x = inputs()[kind]
    trials = 150
    relative = squares(x, M, tile, trials, seed=4) / float(x @ x) - 1
    predicted = sketch.error(M)
    assert math.sqrt((relative**2).mean()) < 1.25 * predicted
    assert abs(relative.mean()) < 5 * predicted / math.sqrt(trials)
    if kind == "dense":
        assert math.sqrt((relative**2).mean()) > 0.75 * predicted * math.sqrt(1 - M / D)
    if kind in ("one coordinate", "one block") and tile == TILE:
        assert np.abs(relative).max() < 1e-5  # nothing meets, so only rounding is left


def public_fold(x, m):
    """One shift for everything, which an attacker can foresee: k and k + m always meet."""
    return np.resize(x, (-(-len(x) // m), m)).sum(axis=0)


@pytest.mark.parametrize("tile", [TILE, M, 3 * M])
def test_law12_what_cancels_in_a_public_fold_does_not_cancel_here(tile):
    d = 12 * M
    attack = np.zeros(d)
    places = np.random.default_rng(5).choice(M, 1000, replace=False)
    attack[places], attack[places + M] = 7, -7
    assert not public_fold(attack, M).any()
    relative = squares(attack, M, tile, 40, seed=6) / float(attack @ attack) - 1
    assert np.abs(relative).max() < 5 * sketch.error(M)


def test_law12_float32_sums_are_exact_enough():
    rng = np.random.default_rng(7)
    x = rng.standard_normal(400_000)
    m, tile = 4096, 1000
    out = folded(x[None], m, tile, np.random.default_rng(8))[0]
    wide = np.zeros(m)
    for start, width, bits, shifts in draw(np.random.default_rng(8), len(x), m, tile):
        part = np.zeros(m)
        part[:width] = signs_of(bits, width) * x[start : start + width].astype(np.float32)
        wide += np.roll(part, int(shifts[0]))
    assert np.linalg.norm(out - wide) < 1e-5 * np.linalg.norm(wide)


def test_signs_use_one_bit_each():
    bits, out = np.array([0b10110000, 0b01000000], np.uint8), np.zeros(11, np.float32)
    fold = loops.Fold(bits, np.zeros(1, np.uint32), width=11, m=11)
    loops.absorb(np.ones(11, np.float32), fold, loops.Sketch(out, 1.0))
    assert out.tolist() == [-1, 1, -1, -1, 1, 1, 1, 1, 1, -1, 1]


@pytest.mark.parametrize(("m", "d"), [(4095, 10**6), (0, 10**6), (-1, 10**6), (5001, 5000)])
def test_sizes_that_are_refused(m, d):
    with pytest.raises(ConfigError, match=f"m = {m}"):
        sketch.check(m, d)


def test_sizes_that_are_taken():
    sketch.check(4096, 4096)
    sketch.check(16_384, 3_500_000)
    assert sketch.error(16_384) == pytest.approx(0.011, rel=0.01)

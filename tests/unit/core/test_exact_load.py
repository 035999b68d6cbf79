"""The two halves of `quantise`: `load`, whose result may be changed, and `quantise_loaded`."""

import numpy as np
import pytest

from ostraka.core import exact

D = 300
ROWS = np.random.default_rng(0).normal(size=(5, D)).astype(np.float32)
NORMS = np.linalg.norm(ROWS.astype(np.float64), axis=1)
STEPS = exact.step(NORMS, D)
DITHER = np.random.default_rng(1).integers(1 << 16, size=(5, D), dtype=np.uint16)


def test_squares_are_those_of_the_rows_in_units_of_their_steps():
    out = exact.Quantised.empty(5, D)
    squares = exact.load(ROWS, exact.scale(STEPS), out)
    assert squares.dtype == np.float64
    np.testing.assert_allclose(squares, (NORMS / STEPS * 2**16) ** 2, rtol=1e-5)
    np.testing.assert_array_equal(out.real, ROWS * exact.scale(STEPS)[:, None])


def test_rows_that_were_zeroed_in_between_count_as_zeros():
    out, clean = exact.Quantised.empty(5, D), exact.Quantised.empty(5, D)
    exact.load(ROWS, exact.scale(STEPS), out)
    out.real[2] = 0
    s, v = exact.quantise_loaded(DITHER, out)
    zeroed = ROWS.copy()
    zeroed[2] = 0
    expected = exact.quantise(zeroed, exact.scale(STEPS), DITHER, clean)
    np.testing.assert_array_equal((s, v), expected)
    np.testing.assert_array_equal(out.residues, clean.residues)
    assert s[2] == v[2] == 0
    assert not out.residues[2].any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, np.float32(3e38)])
def test_what_is_not_finite_shows_in_its_own_squares_only(value):
    rows = ROWS.copy()
    rows[3, 7] = value
    out = exact.Quantised.empty(5, D)
    squares = exact.load(rows, exact.scale(STEPS), out)
    assert not squares[3] <= (NORMS[3] / STEPS[3] * 2**16) ** 2 * 1.01
    others = [0, 1, 2, 4]
    np.testing.assert_array_equal(
        squares[others], exact.load(ROWS, exact.scale(STEPS), out)[others]
    )

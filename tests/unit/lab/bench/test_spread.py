"""What repeated runs say."""

import math

import numpy as np
import pytest

from ostraka_lab.bench.results import noise, spread


def test_spread_by_hand():
    assert spread([2.0, 1.0, 4.0]) == 1.5
    assert spread([3.0]) == 0
    assert spread([0.0, 0.0]) == 0


@pytest.mark.parametrize("runs", [3, 5, 9])
def test_noise_is_the_standard_error_of_a_median(runs):
    rng = np.random.default_rng(0)
    drawn = 1 + 0.01 * rng.standard_normal((4000, runs))
    told = np.mean([noise(spread(row), runs) for row in drawn.tolist()])
    assert told == pytest.approx(np.median(drawn, axis=1).std(), rel=0.15)


def test_one_run_says_nothing_of_noise():
    assert noise(0.0, 1) == math.inf

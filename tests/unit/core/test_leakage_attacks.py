"""The attack statistics themselves; what they achieve is in tests/protocol/test_worker_view.py."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.core import gaussian, leakage


def test_auc_by_hand():
    assert leakage.auc(np.array([3.0, 4.0]), np.array([1.0, 2.0])) == 1
    assert leakage.auc(np.array([1.0, 2.0]), np.array([3.0, 4.0])) == 0
    assert leakage.auc(np.array([1.0, 3.0]), np.array([2.0])) == 0.5
    assert leakage.auc(np.ones(3), np.ones(4)) == 0.5


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=20),
    st.lists(st.integers(0, 9), min_size=1, max_size=20),
)
def test_auc_counts_pairs(positive: list[int], negative: list[int]):
    wins = sum((p > q) + 0.5 * (p == q) for p in positive for q in negative)
    found = leakage.auc(np.array(positive, float), np.array(negative, float))
    assert found == pytest.approx(wins / (len(positive) * len(negative)))


def test_matched_filter_is_the_inner_product():
    assert leakage.matched_filter(np.array([1.0, 2.0]), np.array([3.0, -1.0])) == 1


def test_polar_of_noise_alone_leaves_nothing():
    rows = gaussian.constant_distance(
        np.random.default_rng(0).standard_normal((8, 300)), sigma=50.0
    )
    assert np.abs(leakage.polar(rows, sigma=50.0)).max() < 1e-11


def test_polar_leaves_the_symmetric_part_of_the_updates_in_the_frame_of_the_noise():
    rng = np.random.default_rng(0)
    n, d, sigma = 8, 300, 1e4
    frame = gaussian.constant_distance(rng.standard_normal((n, d)), sigma=sigma) / (sigma * d**0.5)
    updates = rng.standard_normal((n, d)) / d**0.5
    across = updates @ frame.T
    expected = (across + across.T) / 2 @ frame
    found = leakage.polar(updates + sigma * d**0.5 * frame, sigma=sigma)
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


def test_polar_filter_pairs_each_row_with_its_candidate():
    rng = np.random.default_rng(0)
    shares, candidates = rng.standard_normal((5, 40)), rng.standard_normal((5, 40))
    found = leakage.polar_filter(shares, candidates, sigma=0.3)
    expected = np.diagonal(leakage.polar(shares, sigma=0.3) @ candidates.T)
    np.testing.assert_allclose(found, expected)

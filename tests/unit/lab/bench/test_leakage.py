"""The picture that explains why exact masks are the default, at a small size."""

import pytest

from ostraka.core import leakage
from ostraka.errors import ConfigError
from ostraka_lab.bench.leakage import Plan, measure

PLAN = Plan(clients=8, dimension=2000, powers=(-3, 4, 14), polar_clients=(8, 48), trials=192)


@pytest.fixture(scope="module")
def figures():
    begun = []
    found = measure(PLAN, lambda *event: begun.append(event))
    assert [(done, of) for _, done, of in begun] == [(step, 6) for step in range(6)]
    return found


def point(figures, dtype, sigma):
    (row,) = (r for r in figures["gaussian"] if (r["dtype"], r["sigma"]) == (dtype, sigma))
    return row


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_matched_filter_sees_through_weak_noise_and_not_through_strong(figures, dtype):
    assert point(figures, dtype, 2.0**-3)["auc"] > 0.99
    assert abs(point(figures, dtype, 2.0**14)["auc"] - 0.5) < 0.12


def test_the_bound_is_that_of_law_6(figures):
    for row in figures["gaussian"]:
        assert row["bound_bits"] == leakage.bound_bits(row["sigma"], variance=1 / 2000, d=2000)


def test_precision_is_lost_to_noise_and_much_sooner_in_float32(figures):
    for row in figures["gaussian"]:
        assert row["distance_error"] < row["distance_error_stated"]
    assert point(figures, "float32", 2.0**14)["distance_error"] > 100
    assert point(figures, "float64", 2.0**14)["distance_error"] < 0.01


def test_exact_masks_are_the_point_at_zero(figures):
    assert figures["exact"]["bound_bits"] == 0
    assert abs(figures["exact"]["auc"] - 0.5) < 0.12
    assert figures["exact"]["distance_error"] < 1e-3


def test_the_polar_attack_breaks_gaussian_masks_and_not_exact_ones(figures):
    for row in figures["polar"]:
        assert row["gaussian"] == pytest.approx(row["expected"], abs=0.06)
        assert abs(row["exact"] - 0.5) < 0.15
    assert figures["polar"][-1]["gaussian"] > 0.99


def test_a_plan_crosses_to_its_process_and_back():
    assert Plan.from_json(PLAN.to_json()) == PLAN


@pytest.mark.parametrize("options", [{"clients": 2}, {"dimension": 40}, {"trials": 0}])
def test_impossible_plans_are_refused(options):
    with pytest.raises(ConfigError):
        Plan(**options)

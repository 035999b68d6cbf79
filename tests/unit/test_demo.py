"""The demo's rounds: what they report is what happened."""

import dataclasses

import numpy as np
import pytest

from ostraka import demo
from ostraka.demo import ATTACKS, MIXED, Demo
from ostraka.errors import ConfigError, Rejection

SMALL = Demo(clients=9, byzantine=2, dim=300, rounds=3, masking="none")


@pytest.mark.parametrize("attack", [*ATTACKS, MIXED])
def test_no_attacker_is_averaged_in_and_the_result_is_the_mean_of_the_selected(attack):
    settings = dataclasses.replace(SMALL, attack=attack)
    rounds = list(demo.run(settings))
    summary = demo.summarise(settings, rounds)
    assert [each.number for each in rounds] == [1, 2, 3]
    assert summary.byzantine_selected == 0
    assert summary.max_relative_difference < 1e-6
    assert summary.ostraka_error < 1e-6
    assert summary.ostraka_left < 0.3
    for each in rounds:
        everybody = (*each.selected, *each.dropped, *each.rejected)
        assert sorted(everybody) == list(range(9))
        assert set(each.attackers) == set(each.dropped) | set(each.rejected)


@pytest.mark.parametrize("attack", ["sign-flip", "scale", "noise", MIXED])
def test_plain_averaging_is_led_astray(attack):
    settings = dataclasses.replace(SMALL, attack=attack)
    summary = demo.summarise(settings, list(demo.run(settings)))
    assert summary.plain_error > 1
    assert summary.plain_left > 2 * summary.ostraka_left


def test_a_value_that_is_not_a_number_is_rejected_with_its_reason():
    (only,) = demo.run(dataclasses.replace(SMALL, attack="nan", rounds=1))
    assert only.rejected == dict.fromkeys(only.attackers, Rejection.BAD_NORM)
    assert only.dropped == ()


def test_the_seed_fixes_the_task():
    first, second = (list(demo.run(SMALL)) for _ in range(2))
    other = list(demo.run(dataclasses.replace(SMALL, seed=1)))
    assert first == second
    assert first != other


def test_an_attacker_that_is_selected_is_counted():
    rounds = [dataclasses.replace(each, selected=(0, *each.attackers)) for each in demo.run(SMALL)]
    assert demo.summarise(SMALL, rounds).byzantine_selected == 3 * 2


def test_a_model_that_runs_away_leaves_float32_without_a_warning():
    settings = dataclasses.replace(SMALL, attack="scale", rounds=25, dim=20)
    *_, last = demo.run(settings)
    assert not last.plain_left < 1e30
    assert last.ostraka_left < 0.3


def test_nobody_has_to_attack():
    (only,) = demo.run(dataclasses.replace(SMALL, byzantine=0, rounds=1))
    assert only.attackers == {}
    assert only.dropped == ()
    assert only.plain_error < 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"byzantine": 4}, "n=9, f=4"),
        ({"byzantine": -1}, "byzantine must be at least 0; got -1"),
        ({"dim": 0}, "dim must be at least 1; got 0"),
        ({"rounds": 0}, "rounds must be at least 1; got 0"),
        ({"seed": -1}, "seed must be at least 0; got -1"),
        ({"attack": "flattery"}, "sign-flip, scale, noise, nan, mixed; got 'flattery'"),
    ],
)
def test_impossible_settings_are_refused_with_the_numbers(change, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(SMALL, **change)


def test_attacks_do_what_they_say():
    rng = np.random.default_rng(0)
    update = rng.normal(size=1000)
    length = np.linalg.norm(update)
    assert ATTACKS["sign-flip"](update, rng) @ update == pytest.approx(-10 * length**2)
    assert np.linalg.norm(ATTACKS["scale"](update, rng)) == pytest.approx(1000 * length)
    assert np.linalg.norm(ATTACKS["noise"](update, rng)) == pytest.approx(10 * length, rel=0.2)
    assert np.isnan(ATTACKS["nan"](update, rng)).sum() == 1

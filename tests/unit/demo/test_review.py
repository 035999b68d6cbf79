"""What is reported of a demo's rounds is what happened in them."""

import dataclasses

import pytest

from ostraka.demo.attacks import ATTACKS, MIXED
from ostraka.demo.review import Review, summarise
from ostraka.demo.settings import Demo
from ostraka.errors import Rejection

SMALL = Demo(clients=9, byzantine=2, dim=300, rounds=3, masking="none")


@pytest.mark.parametrize("attack", [*ATTACKS, MIXED])
def test_no_attacker_is_averaged_in_and_the_result_is_the_mean_of_the_selected(play_demo, attack):
    settings = dataclasses.replace(SMALL, attack=attack)
    rounds = list(play_demo(settings))
    summary = summarise(settings, rounds)
    assert [each.number for each in rounds] == [1, 2, 3]
    assert summary.byzantine_selected == 0
    assert summary.max_relative_difference < 1e-6
    assert summary.ostraka_error < 1e-6
    assert summary.ostraka_left < 0.3
    assert summary.simulated
    for each in rounds:
        everybody = (*each.selected, *each.dropped, *each.rejected)
        assert sorted(everybody) == list(range(1, 10))
        assert set(each.attackers) == set(each.dropped) | set(each.rejected)


@pytest.mark.parametrize("attack", ["sign-flip", "scale", "noise", MIXED])
def test_plain_averaging_is_led_astray(play_demo, attack):
    settings = dataclasses.replace(SMALL, attack=attack)
    summary = summarise(settings, list(play_demo(settings)))
    assert summary.plain_error > 1
    assert summary.plain_left > 2 * summary.ostraka_left


def test_a_value_that_is_not_a_number_is_rejected_with_its_reason(play_demo):
    (only,) = play_demo(dataclasses.replace(SMALL, attack="nan", rounds=1))
    assert only.rejected == dict.fromkeys(only.attackers, Rejection.BAD_NORM)
    assert only.dropped == ()


def test_the_seed_fixes_the_task(play_demo):
    first, second = (list(play_demo(SMALL)) for _ in range(2))
    other = list(play_demo(dataclasses.replace(SMALL, seed=1)))
    assert first == second
    assert first != other


def test_an_attacker_that_is_selected_is_counted(play_demo):
    rounds = [dataclasses.replace(each, selected=(1, *each.attackers)) for each in play_demo(SMALL)]
    assert summarise(SMALL, rounds).byzantine_selected == 3 * 2


def test_a_model_that_is_not_the_mean_of_the_selected_is_found_out(play_demo, monkeypatch):
    shift = 0.01
    judge = Review.judge

    def moved(self, published):
        wrong = published.after.copy()
        wrong[0] += shift
        return judge(self, dataclasses.replace(published, after=wrong))

    monkeypatch.setattr(Review, "judge", moved)
    (only,) = play_demo(dataclasses.replace(SMALL, rounds=1))
    assert only.relative_difference == pytest.approx(2 * shift, rel=0.2)


def test_a_model_that_runs_away_leaves_float32_without_a_warning(play_demo):
    settings = dataclasses.replace(SMALL, attack="scale", rounds=25, dim=20)
    *_, last = play_demo(settings)
    assert not last.plain_left < 1e30
    assert last.ostraka_left < 0.3


def test_nobody_has_to_attack(play_demo):
    (only,) = play_demo(dataclasses.replace(SMALL, byzantine=0, rounds=1))
    assert only.attackers == {}
    assert only.dropped == ()
    assert only.plain_error < 1e-6

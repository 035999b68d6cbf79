"""The leave-out attack: what a host finds by leaving one client out of the next round."""

import numpy as np
import pytest

from ostraka.core import rules
from ostraka.errors import ConfigError
from ostraka_lab.baselines import plain_average
from ostraka_lab.bench.leave_out import (
    DEFAULT,
    MEAN,
    Plan,
    Seen,
    attack,
    by_protocol,
    cosine,
    estimate,
    measure,
    summary,
)
from ostraka_lab.defence import Defence
from ostraka_lab.task import Task

PLAN = Plan(rounds=2, steps=1, clients=(8,), momenta=(0.0, 0.9))
UPDATES = np.random.default_rng(0).normal(size=(7, 40)).astype(np.float32)


def seen(aggregate):
    return Seen(aggregate.mean, len(aggregate.selected))


@pytest.mark.parametrize("victim", range(7))
@pytest.mark.parametrize("rule", [plain_average, by_protocol(MEAN, 0)], ids=["plain", "protocol"])
def test_the_estimate_is_exact_if_updates_repeat(rule, victim):
    without = rule(np.delete(UPDATES, victim, axis=0))
    found = estimate(seen(rule(UPDATES)), seen(without))
    np.testing.assert_allclose(found, UPDATES[victim], atol=1e-5)


def test_under_a_rule_that_selects_it_is_exact_for_a_victim_that_was_kept():
    far = UPDATES.copy()
    far[6] += 5  # Not kept with the victim, and not without it.
    rule = by_protocol(rules.PAPER, 1)
    full, without = rule(far), rule(far[1:])
    assert (full.selected, without.selected) == ((0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4))
    np.testing.assert_allclose(estimate(seen(full), seen(without)), far[0], atol=1e-5)


def test_what_the_others_change_is_the_error_of_the_estimate():
    later = UPDATES + np.float32(0.5)
    found = estimate(seen(plain_average(UPDATES)), seen(plain_average(later[1:])))
    np.testing.assert_allclose(found, UPDATES[0] - 6 * 0.5, atol=1e-5)


def test_the_cosine_is_that_of_the_angle():
    one, other = np.array([3.0, 0.0]), np.array([1.0, 1.0])
    assert cosine(one, one) == 1
    assert cosine(one, -2 * one) == -1
    assert cosine(one, other) == pytest.approx(np.sqrt(0.5))
    assert cosine(one, np.zeros(2)) == 0


@pytest.fixture(scope="module")
def figures():
    begun = []
    found = measure(PLAN, lambda *event: begun.append(event))
    assert [(done, of) for _, done, of in begun] == [(step, 6) for step in range(6)]
    return found


def row(figures, rule, momentum):
    (found,) = (r for r in figures["rows"] if (r["rule"], r["momentum"]) == (rule, momentum))
    return found


def test_each_rule_is_attacked_without_and_with_momentum(figures):
    assert [(each["rule"], each["f"], each["momentum"]) for each in figures["rows"]] == [
        (MEAN, 0, 0.0),
        (MEAN, 0, 0.9),
        (DEFAULT, 1, 0.0),
        (DEFAULT, 1, 0.9),
        (rules.PAPER, 1, 0.0),
        (rules.PAPER, 1, 0.9),
    ]
    assert {each["attacks"] for each in figures["rows"]} == {16}


@pytest.mark.parametrize("rule", [MEAN, DEFAULT, rules.PAPER])
def test_momentum_gives_a_client_away(figures, rule):
    without, with_momentum = row(figures, rule, 0.0), row(figures, rule, 0.9)
    assert with_momentum["median"] > without["median"] + 0.15
    assert with_momentum["median"] > 0.85
    # The attack finds more than what everybody sees.
    assert with_momentum["median"] > with_momentum["guess_median"] + 0.3


def test_rounds_of_the_protocol_give_what_arithmetic_in_the_clear_gives(figures):
    for each in PLAN.federations():
        task = Task.load(PLAN.experiment(each))
        in_the_clear = Defence(rules.parse(each.rule), each.f)
        found = summary(attack(task, in_the_clear, warm_up=PLAN.warm_up))
        measured = {name: row(figures, each.rule, each.momentum)[name] for name in found}
        for name, value in found.items():
            assert measured[name] == pytest.approx(value, abs=2e-3), (str(each), name)


def test_a_plan_crosses_to_its_process_and_back():
    assert Plan.from_json(PLAN.to_json()) == PLAN


@pytest.mark.parametrize(
    "options",
    [{"rounds": 0}, {"warm_up": -1}, {"clients": (5,)}, {"steps": 0}, {"momenta": (1.0,)}],
)
def test_impossible_plans_are_refused(options):
    with pytest.raises(ConfigError):
        Plan(**{"rounds": 2, "steps": 1} | options)

"""What can be shown, and what is refused before anything starts."""

import dataclasses

import pytest

from ostraka.core.costs import Costs
from ostraka.demo.settings import Demo, resolve
from ostraka.errors import ConfigError

SMALL = Demo(clients=9, byzantine=2, dim=300, rounds=3)


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


def test_settings_reach_another_process_unchanged():
    assert Demo.from_json(SMALL.to_json()) == SMALL


def test_workers_are_there_where_there_is_work_for_them():
    assert SMALL.workers == 2
    assert dataclasses.replace(SMALL, distances="inside").workers == 0
    assert dataclasses.replace(SMALL, masking="none").workers == 0


@pytest.mark.parametrize(("gram", "where"), [(1e-9, "inside"), (1e9, "workers")])
def test_auto_is_what_this_machine_does_best_and_says_why(monkeypatch, gram, where):
    monkeypatch.setattr("ostraka.calibration.load", lambda: Costs(gram=gram))
    settled, why = resolve(dataclasses.replace(SMALL, distances="auto"))
    assert settled == dataclasses.replace(SMALL, distances=where)
    assert why is not None
    assert where in why


def test_what_was_decided_needs_no_reason():
    assert resolve(SMALL) == (SMALL, None)


def test_without_masks_there_is_nothing_to_decide():
    settled, why = resolve(dataclasses.replace(SMALL, distances="auto", masking="none"))
    assert (settled.distances, why) == ("inside", None)

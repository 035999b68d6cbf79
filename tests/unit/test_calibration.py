"""What masks and distances cost, where costs are kept, and what `distances="auto"` does."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ostraka import calibration, events, run_round
from ostraka.calibration import Costs
from ostraka.errors import ConfigError

ROWS = np.random.default_rng(0).normal(size=(9, 40)).astype(np.float32)
CHEAP_MASKS = Costs(gram=1.0, mask=(1.0, 1.0, 1.0))
COSTS = Costs(gram=0.5, mask=(4.0, 8.0, 20.0))
DEAR_MASKS = Costs(gram=1.0, mask=(99.0, 99.0, 99.0))


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize(("workers", "even"), [(3, 8), (5, 16), (7, 40)])
def test_masks_pay_from_the_break_even_on(workers, even):
    assert COSTS.break_even(workers) == even
    for columns in (1, 10**7):
        assert COSTS.choose(even, columns, workers).distances == "inside"
        assert COSTS.choose(even + 1, columns, workers).distances == "workers"


@pytest.mark.parametrize(("workers", "even"), [(3, 50), (5, 70), (7, 90)])
def test_rows_of_int8_have_a_break_even_of_their_own(workers, even):
    costs = replace(COSTS, int8_gram=0.1, int8_mask=(5.0, 7.0, 9.0))
    assert costs.break_even(workers, integers=True) == pytest.approx(even)
    for n, where in ((even - 1, "inside"), (even + 1, "workers")):
        choice = costs.choose(n, 10**6, workers, integers=True)
        assert choice.distances == where
        assert choice.inside == pytest.approx(0.1e-3 * n**2)
    for n in (3, 10**6):
        # The mask's own Gram matrix is one of residues, whatever rows are.
        choice = costs.choose(n, 10**6, workers - 1, integers=True)
        assert choice.distances == "inside"
        assert choice.masked - choice.inside > 1.4e-3 * n**2


def test_on_a_machine_that_was_never_calibrated_int8_stays_inside_for_longer():
    for workers in (3, 5, 7):
        assert Costs().break_even(workers, integers=True) > Costs().break_even(workers)


@pytest.mark.parametrize("workers", [2, 4, 6])
def test_masks_never_pay_where_the_enclave_makes_their_gram_matrix(workers):
    assert COSTS.break_even(workers) == math.inf
    for n in (3, 10**3, 10**6):
        assert COSTS.choose(n, 10**6, workers).distances == "inside"


def test_a_choice_states_both_times():
    choice = COSTS.choose(10, 10**9, 3)
    assert (choice.inside, choice.masked) == pytest.approx((50, 40))
    assert str(choice).startswith("distances by workers: about 50 s")
    assert "40 s to mask" in str(choice)
    assert "inside the enclave" in str(COSTS.choose(3, 10, 2))


@pytest.mark.parametrize("workers", [-1, 0, 1, 8])
def test_the_number_of_workers_is_stated_where_it_cannot_be(workers):
    with pytest.raises(ConfigError, match=f"got {workers}"):
        COSTS.choose(10, 100, workers)


def test_costs_survive_json():
    assert Costs.from_json(COSTS.to_json()) == COSTS
    assert Costs.from_json(Costs().to_json()) == Costs()
    other = replace(COSTS, int8_gram=0.25, int8_mask=(1.0, 2.0, 3.0))
    assert Costs.from_json(other.to_json()) == other


def test_costs_from_before_int8_was_measured_have_its_defaults():
    assert Costs.from_json('{"gram": 0.5, "mask": [4, 8, 20]}') == COSTS


BAD = {
    "nothing": "",
    "no JSON": "gram = 1",
    "a list": "[1, 2, 3]",
    "a number": "5",
    "no gram": '{"mask": [1, 2, 3]}',
    "no mask": '{"gram": 1}',
    "two masks": '{"gram": 1, "mask": [1, 2]}',
    "four masks": '{"gram": 1, "mask": [1, 2, 3, 4]}',
    "a word": '{"gram": "much", "mask": [1, 2, 3]}',
    "a null": '{"gram": null, "mask": [1, 2, 3]}',
    "zero": '{"gram": 0, "mask": [1, 2, 3]}',
    "a negative cost": '{"gram": 1, "mask": [1, -2, 3]}',
    "a NaN": '{"gram": NaN, "mask": [1, 2, 3]}',
    "int8 without masks": '{"gram": 1, "mask": [1, 2, 3], "int8_gram": 1}',
    "two masks of int8": '{"gram": 1, "mask": [1, 2, 3], "int8_gram": 1, "int8_mask": [1, 2]}',
    "int8 for nothing": '{"gram": 1, "mask": [1, 2, 3], "int8_gram": 0, "int8_mask": [1, 2, 3]}',
    "an infinity": '{"gram": 1, "mask": [1, 2, 1e999]}',
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_table_of_costs_is_refused(what):
    with pytest.raises(ConfigError):
        Costs.from_json(BAD[what])


def test_the_path_is_in_the_user_s_cache(tmp_path, monkeypatch):
    assert calibration.path() == tmp_path / "ostraka" / "costs.json"
    for unset in (
        lambda: monkeypatch.setenv("XDG_CACHE_HOME", ""),
        lambda: monkeypatch.delenv("XDG_CACHE_HOME"),
    ):
        unset()
        assert calibration.path() == Path.home() / ".cache" / "ostraka" / "costs.json"


def test_a_machine_that_was_never_calibrated_has_the_defaults():
    assert calibration.load() == Costs()


def test_costs_are_kept_and_replaced():
    for costs in (CHEAP_MASKS, DEAR_MASKS):
        assert calibration.save(costs) == calibration.path()
        assert calibration.load() == costs
    assert [each.name for each in calibration.path().parent.iterdir()] == ["costs.json"]


@pytest.mark.parametrize(("costs", "where"), [(CHEAP_MASKS, "workers"), (DEAR_MASKS, "inside")])
def test_auto_takes_what_is_cheaper_and_says_why(costs, where):
    calibration.save(costs)
    result = run_round(ROWS, f=2, workers=3, distances="auto")
    assert result.receipt.distances == where
    first, second, *_ = result.events
    assert first == events.DistancesChosen(str(costs.choose(9, 40, 3)))
    assert isinstance(second, events.AttemptStarted)
    assert bool(second.workers) is (where == "workers")


@pytest.mark.parametrize(
    ("how", "where"),
    [
        ({}, "workers"),
        ({"upload": "bfloat16"}, "workers"),
        ({"upload": "int8"}, "inside"),
        ({"upload": "int8", "sketch": 4096, "rule": "multi-krum"}, "workers"),
    ],
    ids=["float32", "bfloat16", "int8", "a sketch of int8"],
)
def test_auto_knows_what_rows_of_int8_cost(how, where):
    costs = replace(CHEAP_MASKS, int8_gram=1.0, int8_mask=(99.0, 99.0, 99.0))
    calibration.save(costs)
    rows = np.random.default_rng(0).normal(size=(9, 5_000)).astype(np.float32)
    result = run_round(rows, f=2, workers=3, distances="auto", **how)
    assert result.receipt.distances == where


def test_auto_counts_the_columns_of_the_sketch_and_the_colluders():
    calibration.save(Costs(gram=1.0, mask=(1.0, 1.0, 99.0)))
    rows = np.random.default_rng(0).normal(size=(9, 5_000)).astype(np.float32)
    result = run_round(rows, f=2, sketch=4096, rule="multi-krum", workers=7, distances="auto")
    assert result.receipt.distances == "inside"
    assert result.events[0] == events.DistancesChosen(str(calibration.load().choose(9, 4096, 7)))


@pytest.mark.parametrize("distances", ["workers", "inside"])
def test_an_order_is_not_second_guessed(distances):
    calibration.path().parent.mkdir()
    calibration.path().write_text("not read at all")
    result = run_round(ROWS, f=2, distances=distances)
    assert result.receipt.distances == distances
    assert not any(isinstance(each, events.DistancesChosen) for each in result.events)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"gram": -1, "mask": [1, 1, 1]}'])
def test_a_damaged_file_is_a_config_error(text):
    calibration.path().parent.mkdir()
    calibration.path().write_text(text)
    with pytest.raises(ConfigError):
        run_round(ROWS, f=2, distances="auto")

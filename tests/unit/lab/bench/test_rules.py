"""What rules cost is measured on the real roles, every rule of the table among them."""

import pytest

from ostraka.core import rules
from ostraka.errors import ConfigError
from ostraka_lab.bench.rules import COLUMNWISE, EXACT, SKETCH, Plan, compositions, measure


def quietly(*_):
    pass


@pytest.fixture(scope="module")
def figures():
    return measure(Plan(clients=16, dimension=20_000, repeat=2), quietly)


def test_every_rule_is_in_one_of_the_tables(figures):
    decided = {each["rule"].split("+")[-1] for each in figures["rules"]}
    reduced = {each["rule"].split("+")[-1] for each in figures["columns"]}
    assert decided == {name for name, rule in rules.RULES.items() if not rule.columnwise}
    assert reduced - {rules.DEFAULT} == {
        name for name, rule in rules.RULES.items() if rule.columnwise
    }


def test_costs_are_parts_of_a_round_that_was_measured(figures):
    assert set(figures["rounds"]) == {EXACT, SKETCH}
    for kind, each in figures["rounds"].items():
        parts = [each[part] for part in ("arrive_s", "first_s", "rest_s")]
        assert each["round_s"] == sum(parts)
        assert all(part > 0 for part in parts)
        for rule in figures["rules"]:
            assert rule["of_round"][kind] == rule["cpu_s"] / each["round_s"] > 0
    last = figures["last"]
    assert last["of_round"] == last["cpu_s"] / figures["rounds"][EXACT]["round_s"] > 0


def test_the_second_pass_of_weights_is_the_measure_of_the_others(figures):
    assert [each["rule"] for each in figures["columns"]] == [rules.DEFAULT, *COLUMNWISE]
    assert figures["columns"][0]["x_weights"] == 1
    assert all(each["cpu_s"] > 0 for each in figures["columns"])


def test_networks_stand_beside_sorts(figures):
    taken = {(each["rows"], each["taken"]) for each in figures["reductions"]}
    assert {rows for rows, _ in taken} == {16, 32, 64, 128, 256}
    assert all(each["network_ns"] > 0 and each["sort_ns"] > 0 for each in figures["reductions"])


def test_each_rule_is_given_as_many_attackers_as_it_stands(figures):
    for each in figures["columns"]:
        composition = rules.parse(each["rule"])
        f = each["f"]
        assert composition.least(f) <= 16
        assert f == 3 or composition.least(f + 1) > 16


def test_rules_that_need_more_clients_are_left_out():
    few = measure(Plan(clients=3, dimension=5_000, repeat=1), quietly)
    assert {each["f"] for each in few["rules"]} == {0}
    assert [each.plain for each in compositions()] == [each["rule"] for each in few["rules"]]


@pytest.mark.parametrize("options", [{"threads": 0}, {"repeat": 0}])
def test_nothing_to_measure_is_refused(options):
    with pytest.raises(ConfigError, match="at least 1"):
        Plan(**options)


def test_what_does_not_fit_is_refused_with_numbers():
    with pytest.raises(ConfigError, match="GiB of memory"):
        Plan(clients=64, dimension=10**9)

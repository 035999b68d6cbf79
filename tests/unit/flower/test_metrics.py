"""Metrics that nodes disclose: no node decides which of the others count."""

from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: make test-env")

from flwr.app import Message, MetricRecord, RecordDict

HONEST = {"mean": 1.0, "num-examples": 5}
MORE_THAN_A_FLOAT = 10**400


def reply(node, *records, name="metrics"):
    content = RecordDict()
    for number, each in enumerate(records):
        content[f"{name}{number or ''}"] = MetricRecord(each)
    made = Message(content, 1, "evaluate")
    made.metadata.__dict__["_src_node_id"] = node
    return made


def mean_of(flower, odd, **strategy):
    """With four honest nodes. The odd ones have answered first."""
    federation = flower(fraction_evaluate=1.0, **strategy)
    replies = [*odd, *(reply(node, HONEST) for node in range(10, 14))]
    result = federation.strategy.aggregate_evaluate(1, replies)
    return None if result is None else dict(result)


ODD: dict[str, Any] = {
    "another key": [{"accuracy": 9.0, "num-examples": 5}],
    "one key more": [{"mean": 9.0, "accuracy": 9.0, "num-examples": 5}],
    "a list for a number": [{"mean": [9.0], "num-examples": 5}],
    "two records": [HONEST, {"mean": 9.0, "num-examples": 5}],
    "no record": [],
    "a NaN in a list": [{"mean": [float("nan")], "num-examples": 5}],
    "an integer beyond floats": [{"mean": MORE_THAN_A_FLOAT, "num-examples": 5}],
}


@pytest.mark.parametrize("what", ODD)
def test_the_first_to_answer_does_not_decide_with(what, flower, said):
    assert mean_of(flower, [reply(3, *ODD[what])]) == {"mean": 1.0}
    assert len([line for line in said if line.startswith("node 3 is left out")]) == 1
    assert len([line for line in said if "is left out" in line]) == 1


def test_another_name_of_the_record_is_another_form(flower, said):
    assert mean_of(flower, [reply(3, {"mean": 9.0}, name="mine")]) == {"mean": 1.0}
    assert said == ["node 3 is left out: its metrics do not have the most common form"]


def test_no_form_that_is_the_most_common_drops_all(flower, said):
    odd = [reply(node, {"accuracy": 9.0}) for node in range(4)]
    assert mean_of(flower, odd) is None
    assert said == ["metrics of 8 nodes are dropped: two forms of them are equally common"]


def test_lists_are_bounded(flower, said):
    odd = [reply(node, {"curve": [1.0] * 1025}) for node in range(5)]
    assert mean_of(flower, odd) == {"mean": 1.0}
    assert said[0] == "node 0 is left out: its metrics have more than 1024 numbers in a list"


def test_lists_of_the_same_length_are_averaged(flower):
    odd = [reply(node, {"curve": [0.0, float(node)]}) for node in range(5)]
    assert mean_of(flower, odd) == {"curve": [0.0, pytest.approx(2.0)]}


WEIGHTS: dict[str, Any] = {
    "zero": {"num-examples": 0},
    "below zero": {"num-examples": -20},
    "a list": {"num-examples": [5]},
    "not there": {},
    "infinite": {"num-examples": float("inf")},
    "not a number": {"num-examples": float("nan")},
}


@pytest.mark.parametrize("what", WEIGHTS)
def test_a_weight_that_is(what, flower, said):
    """Four weights of -20 against 20 would divide by zero."""
    odd = [reply(node, {"mean": 9.0} | WEIGHTS[what]) for node in range(5)]
    assert mean_of(flower, odd, weighted_by_key="num-examples") == {"mean": pytest.approx(1.0)}
    assert len(said) == 5


def test_weights_count_where_they_are_asked_for(flower):
    odd = [reply(3, {"mean": 9.0, "num-examples": 20})]
    mean = mean_of(flower, odd, weighted_by_key="num-examples")
    assert mean == {"mean": pytest.approx(5.0)}


def test_an_apps_function_is_called_once_and_may_fail(flower, said):
    calls = []

    def failing(contents, key):
        calls.append((len(contents), key))
        raise ZeroDivisionError("float division by zero")

    assert mean_of(flower, [], evaluate_metrics_aggr_fn=failing) is None
    assert calls == [(4, "num-examples")]
    assert said == ["metrics of 4 nodes are dropped: ZeroDivisionError('float division by zero')"]

"""Turns: a node for which the enclave does not answer uses up no other node's time."""

from types import SimpleNamespace

import pytest

from ostraka.carried.relay import Relay
from ostraka.client import connection
from ostraka.errors import ServiceError


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """[now], of the budget that nodes share."""
    now = [0.0]
    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture
def relay(carried) -> Relay:
    return carried(n=0).relay


def test_a_node_that_takes_long_has_its_turn_after_the_others(relay, clock, caplog):
    calls = []

    def step(node: int, what: str, seconds: float) -> str:
        calls.append((node, seconds))
        if what == "slow" and (seconds < 20 or node == 2):
            raise ServiceError("has not answered")
        if what == "refused":
            raise ServiceError("refuses", status="INVALID_ARGUMENT")
        return what

    done = relay._in_turn({1: "slow", 2: "slow", 3: "refused", 4: "quick"}, step)
    assert calls == [(1, 15), (2, 15), (3, 15), (4, 15), (1, 120), (2, 120)]
    assert done == {4: "quick", 1: "slow"}
    assert caplog.messages == [
        "node 3 is left out: refuses",
        "node 2 is left out: has not answered",
    ]


def test_what_moves_a_large_model_has_more_time(relay, clock):
    """Each turn is longer by that, and so is the budget, however many nodes there are."""
    turns = []

    def step(node: int, what: str, seconds: float) -> str:
        turns.append(seconds)
        clock[0] += seconds
        raise ServiceError("has not answered")

    relay._in_turn({1: "", 2: ""}, step, more=40.0)
    assert turns == [55, 55, 160]


def test_the_time_to_deliver_follows_the_size_of_the_model(carried, monkeypatch):
    federation = carried(n=5)
    turns = []
    monkeypatch.setattr("ostraka.carried.relay._SLOWEST", 4)
    deliver = federation.relay.enclave.deliver

    def timed(sealed, *, seconds):
        turns.append(seconds)
        deliver(sealed, seconds=seconds)

    monkeypatch.setattr(federation.relay.enclave, "deliver", timed)
    assert federation.run_round() is not None
    assert federation.relay._terms is not None
    dimension = federation.relay._terms.dimension
    assert turns == [15 + dimension] * 5


def test_nodes_that_are_not_served_cost_one_budget_in_all(relay, clock, caplog):
    """Their number does not matter. Each waits as long as it may, or 50 seconds."""
    second = []

    def step(node: int, what: str, seconds: float) -> str:
        if seconds != 15:
            second.append(seconds)
            clock[0] += min(seconds, 50)
        raise ServiceError("has not answered")

    assert relay._in_turn(dict.fromkeys(range(10), ""), step) == {}
    assert second == [120, 70, 20]
    expected = [f"node {node} is left out: has not answered" for node in range(10)]
    assert sorted(caplog.messages) == expected


@pytest.mark.parametrize(("enough", "again"), [(3, []), (4, [0]), (None, [0, 1])])
def test_no_node_is_waited_for_once_enough_are_served(enough, again, relay, clock, caplog):
    second = []

    def step(node: int, what: str, seconds: float) -> str:
        if node < 2 and seconds == 15:
            raise ServiceError("has not answered")
        if seconds != 15:
            second.append(node)
        return what

    done = relay._in_turn(dict.fromkeys(range(5), ""), step, enough=enough)
    assert second == again
    assert sorted(done) == [*again, 2, 3, 4]
    assert len(caplog.messages) == 2 - len(again)  # The log names the nodes that are not served.


def test_what_a_node_says_is_escaped_and_cut(relay, caplog):
    def step(node: int, what: str, seconds: float) -> str:
        raise ServiceError(what, status="INVALID_ARGUMENT")

    relay._in_turn({1: "\x1b[2J" * 200}, step)
    (line,) = caplog.messages
    assert line.startswith("node 1 is left out: \\x1b[2J")
    assert line.isprintable()
    assert len(line) < 400

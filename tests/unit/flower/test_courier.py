"""Replies that are announced and do not come, or that claim to answer another message."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: make test-env")

from flwr.app import Message
from flwr.supercore.run import RunNotRunningException

from ostraka.carried.relay import Enough
from ostraka.flower.grid import Courier

GIVEN_UP_S = 60.0  # by a test, where the courier should have gone on


def always(*reply: object) -> bool:
    return True


class Holding:
    """Holds the pulls of a node's replies, as if Flower waited for what the node does not send."""

    def __init__(self, grid: Any) -> None:
        self.grid, self.pull = grid, grid.pull_messages
        self.released = threading.Event()
        self.pulls: Counter[str] = Counter()
        self.outlasted: list[str] = []
        grid.pull_messages = self.held

    def of(self, node: int, which: Callable[[Message], bool] = always) -> "Holding":
        self.node, self.which = node, which
        return self

    def held(self, names: list[str]) -> list[Message]:
        (name,) = names
        reply = self.grid.replies.get(name)
        if reply is not None and reply.metadata.src_node_id == self.node and self.which(reply):
            self.pulls[name] += 1
            if not self.released.wait(GIVEN_UP_S):
                self.outlasted.append(name)
        return self.pull(names)


@pytest.fixture
def holding(flower) -> Iterator[Callable[[Any], Holding]]:
    made: list[Holding] = []

    def hold(federation: Any) -> Holding:
        made.append(Holding(federation.grid))
        return made[-1]

    yield hold
    for each in made:
        each.released.set()
    for pull in pulls_that_run():
        pull.join(GIVEN_UP_S)


def pulls_that_run() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "ostraka-pull"]


def greetings(federation: Any) -> list[Message]:
    return [federation.question(node) for node in range(7)]


def nodes_of(replies: list[Message]) -> list[int]:
    return sorted(reply.metadata.src_node_id for reply in replies)


def test_a_reply_that_does_not_come_holds_up_no_round(flower, holding, said):
    federation = flower()
    held = holding(federation).of(3, federation.is_sealed)
    federation.start(2, timeout=2)
    assert [receipt.participants for receipt in federation.receipts] == [6, 6]
    assert said.count("node 3 has not answered in time: left out") == 2
    assert not held.outlasted


def test_a_reply_that_does_not_come_gets_the_grace_and_no_more(flower, holding):
    federation = flower(straggler_grace=0.05)
    held = holding(federation).of(0, federation.is_sealed)
    federation.start(1, timeout=3600)
    assert [receipt.participants for receipt in federation.receipts] == [6]
    assert not held.outlasted


def test_a_message_has_one_pull_at_a_time_and_no_exit_waits_for_it(flower, holding):
    federation = flower()
    held = holding(federation).of(3)
    Courier(federation.grid).send_and_receive(greetings(federation), timeout=2)
    assert list(held.pulls.values()) == [1]
    (pull,) = pulls_that_run()
    assert pull.daemon


def test_a_reply_that_comes_late_and_in_time_is_taken(flower, holding):
    federation = flower()
    held = holding(federation).of(3)
    pull = federation.grid.pull_messages

    def release(names: list[str]) -> list[Message]:
        replies = pull(names)
        if nodes_of(replies) == [6]:
            held.released.set()
        return replies

    federation.grid.pull_messages = release
    replies = Courier(federation.grid).send_and_receive(greetings(federation), timeout=GIVEN_UP_S)
    assert nodes_of(replies) == list(range(7))
    assert not held.outlasted


def test_a_reply_that_comes_during_a_turn_is_not_pulled_again_in_it(flower, holding):
    """The SuperLink would say that it knows of no such message."""
    federation = flower()
    held = holding(federation).of(6)
    pull = federation.grid.pull_messages
    pulls: Counter[str] = Counter()

    def second_turn(names: list[str]) -> list[Message]:
        pulls.update(names)
        reply = federation.grid.replies.get(names[0])
        if reply is None or reply.metadata.src_node_id != 0:
            return pull(names)
        if pulls[names[0]] == 2:
            held.released.set()
            while any(name in federation.grid.replies for name in held.pulls):
                time.sleep(0.001)
        return pull(names) if pulls[names[0]] > 2 else []

    federation.grid.pull_messages = second_turn
    federation.grid.up = lambda node, reply: None if node in range(1, 6) else reply
    Courier(federation.grid).send_and_receive(greetings(federation), timeout=2)
    assert [pulls[name] for name in held.pulls] == [1]


def test_a_node_whose_replies_never_come_costs_a_bounded_number_of_threads(flower, holding, said):
    federation = flower()
    held = holding(federation).of(3)
    courier = Courier(federation.grid)
    courier.enough = Enough(6, 0.0, always)
    for _ in range(6):
        assert len(courier.send_and_receive(greetings(federation), timeout=GIVEN_UP_S)) == 6
    assert len(pulls_that_run()) == 4
    assert said.count("node 3 is left out: 4 of its replies are announced, and do not come") == 2
    held.released.set()
    for pull in pulls_that_run():
        pull.join(GIVEN_UP_S)
    courier.enough = None
    assert len(courier.send_and_receive(greetings(federation), timeout=GIVEN_UP_S)) == 7


def test_a_run_that_has_ended_ends_the_wait(flower):
    federation = flower()

    def ended(names: list[str]) -> list[Message]:
        raise RunNotRunningException

    federation.grid.pull_messages = ended
    with pytest.raises(RunNotRunningException):
        Courier(federation.grid).send_and_receive(greetings(federation), timeout=GIVEN_UP_S)


def test_a_reply_that_names_another_message_is_not_waited_for(flower, said):
    federation = flower()

    def up(node: int, reply: Message) -> Message:
        if node == 3:
            reply.metadata.__dict__["_reply_to_message_id"] = "another"
        return reply

    federation.grid.up = up
    replies = Courier(federation.grid).send_and_receive(greetings(federation), timeout=GIVEN_UP_S)
    assert nodes_of(replies) == [0, 1, 2, 4, 5, 6]
    assert said == ["node 3 is left out: its reply says that it is to another message"]


def test_enough_replies_do_not_cut_a_turn_short(flower):
    """All have answered: without any grace, they are still all taken."""
    federation = flower()
    courier = Courier(federation.grid)
    courier.enough = Enough(2, 0.0, always)
    assert nodes_of(courier.send_and_receive(greetings(federation), timeout=60)) == list(range(7))

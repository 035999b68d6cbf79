"""One more exchange: nodes confirm outcomes, and nothing is published without enough of them."""

from collections import defaultdict

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: make test-env")

from flwr.app import Message, RecordDict

from ostraka.carried.messages import Poll
from ostraka.core import rules
from ostraka.encoding import decode
from ostraka.flower.records import RECORD, message_record, read_message


def votes(federation):
    """The replies to polls, by node, in order."""
    replies = defaultdict(list)
    for node, message, reply in federation.grid.log:
        if federation.polls(message) and reply.has_content():
            replies[node].append(read_message(reply.content))
    return replies


def test_the_whole_roster_is_asked_whatever_fraction_trains(flower):
    federation = flower(n=10, f=1, fraction_train=0.6, newcomers=True)
    federation.start(6)
    founded = federation.strategy._enclave._founded
    assert [certified.receipt.participants for certified in founded.published] == [6] * 6
    polled = defaultdict(set)
    for node, message, _ in federation.grid.log:
        if federation.polls(message):
            number = decode(Poll, read_message(message.content)).proposal.number
            polled[number].add(f"node-{node}")
    charters = {charter.federation.revision: charter.federation for charter in founded.charters}
    for before in founded.published[:-1]:
        roster = {member.name for member in charters[before.receipt.revision].clients}
        assert polled[before.receipt.number + 1] >= roster
    assert len(polled[6]) > 6


def test_silent_nodes_hold_up_nothing_as_long_as_enough_confirm(flower, said):
    federation = flower()
    federation.grid.down = lambda node, message: (
        None if node in (3, 4) and federation.polls(message) else message
    )
    federation.start(2)
    assert [receipt.participants for receipt in federation.receipts] == [7, 7]
    # Nobody missed anything, so nobody is warned of.
    assert "enough others answered for an outcome: node 3 was not waited for" in said
    assert not any("has not answered in time" in line for line in said)


def test_too_many_silent_nodes_hold_up_the_round_until_they_are_back(flower, said):
    federation = flower()
    federation.grid.down = lambda node, message: (
        None if node in (1, 2, 3) and federation.polls(message) else message
    )
    before = federation.start(1)
    assert federation.receipts == []
    assert "node 1 has not answered in time: left out" in said
    assert not any("was not waited for" in line for line in said)
    np.testing.assert_array_equal(before.arrays["weight"].numpy(), federation.model["weight"])
    assert any("round 1 is not published: 1 more confirmations" in line for line in said)
    assert any("node-1, node-2, node-3" in line for line in said)
    federation.grid.down = lambda node, message: message
    result = federation.start(1)
    assert [(each.number, each.participants) for each in federation.receipts] == [(1, 7)]
    assert set(federation.trained.values()) == {1}
    np.testing.assert_allclose(result.arrays["bias"].numpy(), 1, atol=0.2)
    federation.start(2)
    assert [receipt.number for receipt in federation.receipts] == [1, 2]


def test_a_lost_vote_is_given_again_with_the_same_bytes(flower):
    federation = flower()
    federation.grid.up = lambda node, reply: (
        None if node < 3 and reply.has_content() and is_vote(reply) else reply
    )
    federation.start(1)
    federation.grid.up = lambda node, reply: reply
    federation.start(1)
    assert [receipt.number for receipt in federation.receipts] == [1]
    given = votes(federation)
    assert len(given[0]) == 2
    assert given[0][0] == given[0][1]


def is_vote(reply):
    return b"ostraka/confirmation/" in read_message(reply.content)[:64]


def swapped(federation):
    """A SuperLink that exchanges the votes of nodes 1 and 2."""
    first: dict[int, Message] = {}

    def up(node, reply):
        if node not in (1, 2) or not reply.has_content() or not is_vote(reply):
            return reply
        if not first:
            first[node] = reply
            return None
        (held,) = first.values()
        held.content, reply.content = reply.content, held.content
        federation.grid.replies[held.metadata.reply_to_message_id] = held
        return reply

    federation.grid.up = up


def replayed(federation):
    """It answers with the vote of the round before."""
    before = votes(federation)[1][0]

    def up(node, reply):
        if node == 1 and reply.has_content() and is_vote(reply):
            reply.content = RecordDict({RECORD: message_record(before)})
        return reply

    federation.grid.up = up


@pytest.mark.parametrize("tamper", [swapped, replayed])
def test_votes_of_others_and_of_the_past_do_not_count(tamper, flower, said):
    federation = flower()
    federation.start(1)
    tamper(federation)
    federation.start(2)
    voters = federation.strategy._enclave._founded.published[1].certificate.votes
    assert "node-1" not in {vote.voter for vote in voters}
    assert any(line.startswith("node 1 is left out") for line in said)
    assert [receipt.number for receipt in federation.receipts] == [1, 2]


def unable(rule: object, gram: object, f: int, options: object) -> object:
    """Cannot stand on any rows."""
    raise ZeroDivisionError


def test_a_null_step_changes_nothing_and_the_run_goes_on(flower, said, monkeypatch):
    federation = flower()
    with monkeypatch.context() as patched:
        patched.setattr(rules.MultiKrum, "plan", unable)
        failed = federation.start(1)
    np.testing.assert_array_equal(failed.arrays["weight"].numpy(), federation.model["weight"])
    assert any("round 1 is a null step, and the model stays as it was" in line for line in said)
    result = federation.start(2)
    assert [bool(receipt.failure) for receipt in federation.receipts] == [True, False]
    np.testing.assert_allclose(result.arrays["bias"].numpy(), 1, atol=0.2)

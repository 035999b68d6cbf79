"""Nodes confirm outcomes: the whole roster is asked, and nothing is published without a quorum."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ostraka.carried.in_process import UnsafeInProcessEnclave
from ostraka.carried.messages import ASK, Links, Poll, is_poll
from ostraka.carried.node import Node, reminder, unsafe_simulated_node
from ostraka.carried.node_state import FileNotebook
from ostraka.carried.relay import Relay
from ostraka.carried.trust import UnsafeFirstSeen
from ostraka.client.memory import Memory, MemoryFile
from ostraka.core import rules
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED, decode, digest, encode
from ostraka.errors import AttestationRefused, OpenError, ReceiptRefused, RolledBack
from ostraka.events import CopyProved, Event
from ostraka.messages import SIMULATION, Abandon, Confirmation, chain
from ostraka.protocol import enclave as roles
from ostraka.protocol.local import LocalFederation
from ostraka.transport import chain_link


def silence(federation, *nodes):
    """These nodes do not answer polls any more. Returns what lets them answer again."""
    before = dict(federation.carrier.nodes)

    def silent(node: int) -> Callable[[bytes], bytes]:
        def answer(message: bytes) -> bytes:
            if is_poll(message):
                raise ReceiptRefused("silent")
            return before[node](message)

        return answer

    for node in nodes:
        federation.carrier.nodes[node] = silent(node)
    return lambda: federation.carrier.nodes.update({node: before[node] for node in nodes})


def polled(federation):
    return [node for node, message in federation.carrier.sent if is_poll(message)]


def voters(federation):
    return {vote.voter for vote in federation.enclave._founded.published[-1].certificate.votes}


def test_nodes_that_were_not_sampled_are_asked_too(carried):
    federation = carried()
    federation.run_round()
    federation.carrier.sent.clear()
    proofs = federation.relay.open(federation.carrier, range(5), least=5, seconds=60)
    silence(federation, 0, 1)
    published = federation.finish(federation.train(proofs))
    assert published.receipt.participants == 5
    assert polled(federation) == list(range(7))
    assert voters(federation) == {f"node-{node}" for node in range(2, 7)}


def test_a_node_that_never_met_the_enclave_has_it_proved_and_votes(carried):
    """Its proof was lost. It is greeted only because the votes of the others do not suffice."""
    federation = carried()
    proofs = federation.open()
    replies = federation.train({node: proofs[node] for node in range(5)})
    silence(federation, 0, 1)
    federation.carrier.sent.clear()
    assert federation.finish(replies).receipt.participants == 5
    asked = [node for node, message in federation.carrier.sent if message == ASK]
    assert asked == [5, 6]
    assert voters(federation) == {f"node-{node}" for node in range(2, 7)}
    assert federation.run_round().receipt.participants == 7


def test_nodes_that_greet_first_and_do_not_vote_keep_no_others_from_it(carried):
    """Two votes are missing, and three nodes can give them, of which the first one does not."""
    federation = carried(n=8)
    proofs = federation.open()
    replies = federation.train({node: proofs[node] for node in range(5)})
    silence(federation, 0, 1, 5)
    assert federation.finish(replies).receipt.participants == 5
    assert {"node-6", "node-7"} <= voters(federation)


def test_a_newcomer_in_a_later_round_begins_with_the_newest_receipt(carried):
    federation = carried()
    federation.run_round()
    federation.run_round()
    federation.add(7)
    third = federation.run_round().receipt
    assert (third.revision, third.participants) == (2, 8)
    assert federation.node(7).notebook.load().memory.last.number == 2
    assert "node-7" not in voters(federation)  # The receipt before does not name it yet.
    silence(federation, 0, 1, 2)
    federation.run_round()
    assert voters(federation) == {f"node-{node}" for node in range(3, 8)}


def test_once_enough_have_confirmed_nobody_is_waited_for(carried):
    federation = carried()
    silence(federation, 5, 6)
    assert federation.run_round().receipt.number == 1
    assert len(voters(federation)) == 5


def test_without_a_quorum_nothing_is_published_until_nodes_come_back(carried, caplog):
    federation = carried()
    again = silence(federation, 0, 1, 2)
    assert federation.run_round() is None
    (line,) = [line for line in caplog.messages if "is not published" in line]
    assert "round 1 is not published: 1 more confirmations are needed" in line
    assert "node-0, node-1, node-2" in line
    pending = federation.enclave._founded.proposed
    assert federation.open() == {}  # and nobody trains
    assert federation.finish({}) is None
    again()
    federation.carrier.sent.clear()
    published = federation.finish({})
    assert published.receipt == pending.receipt
    np.testing.assert_array_equal(published.model, pending.state.model)
    assert set(polled(federation)) <= {0, 1, 2}  # The others have confirmed it.
    assert federation.run_round().receipt.number == 2


def test_a_new_relay_resumes_what_waits(carried, caplog):
    caplog.set_level("INFO")
    federation = carried()
    again = silence(federation, 0, 1, 2)
    federation.run_round()
    again()
    federation.relay = Relay(federation.enclave)
    assert federation.open() == {}
    assert any("waits to be confirmed" in line for line in caplog.messages)
    assert federation.finish({}).receipt.number == 1
    assert federation.run_round().receipt.number == 2


def confirmation(carried, node, voter, **changes):
    """A vote in this name, with this node's key."""
    ballot = carried.enclave._founded.ballot
    proposal = ballot.proposal
    blank = Confirmation(proposal.federation, proposal.number, ballot.digest, voter, UNSIGNED)
    return encode(carried.node(node).identity.sign(replace(blank, **changes)))


VOTES = {
    "another's vote": lambda f: confirmation(f, 4, "node-4"),
    "a vote in another's name": lambda f: confirmation(f, 3, "node-4"),
    "a vote of a stranger": lambda f: confirmation(f, 3, "mallory"),
    "a vote for another outcome": lambda f: confirmation(f, 3, "node-3", proposal=b"p" * 32),
    "a vote for none": lambda f: confirmation(f, 3, "node-3", proposal=bytes(32)),
    "a vote for another number": lambda f: confirmation(f, 3, "node-3", number=3),
    "a vote in another federation": lambda f: confirmation(f, 3, "node-3", federation=b"f" * 32),
    "another key's vote": lambda f: confirmation(f, 4, "node-3"),
    "a proposal of its own": lambda f: encode(
        Identity.generate().sign(f.enclave._founded.ballot.proposal)
    ),
    "the proposal that it was shown": lambda f: encode(f.enclave._founded.ballot.proposal),
    "the proposal of the round before": lambda f: encode(
        f.enclave._founded.published[0].certificate.proposal
    ),
    "rubbish": lambda f: b"\x1b[2J rubbish",
    "nothing": lambda f: b"",
}


@pytest.mark.parametrize("what", VOTES)
def test_a_byzantine_node_changes_nothing_with(what, carried, caplog):
    """Two more are silent, so that any vote that counted by mistake would make up the quorum."""
    federation = carried()
    federation.run_round()
    honest = federation.carrier.nodes[3]
    federation.carrier.nodes[3] = lambda message: (
        VOTES[what](federation) if is_poll(message) else honest(message)
    )
    again = silence(federation, 0, 1)
    assert federation.run_round() is None
    assert any(line.startswith("node 3 is left out") for line in caplog.messages)
    assert not any("its state was copied" in line for line in caplog.messages)
    assert federation.enclave._founded.ballot.votes.keys() == {
        f"node-{node}" for node in (2, 4, 5, 6)
    }
    again()
    assert federation.finish({}).receipt.participants == 7
    assert "node-3" not in voters(federation)


def test_a_vote_that_is_shown_twice_counts_once(carried):
    federation = carried()
    honest = federation.carrier.nodes[3]
    heard = {}

    def heard_by_all(message: bytes) -> bytes:
        heard[is_poll(message)] = honest(message)
        return heard[is_poll(message)]

    federation.carrier.nodes[3] = heard_by_all
    federation.carrier.nodes[7] = lambda message: heard[is_poll(message)]  # speaks for node-3 too
    silence(federation, 0, 1, 2)
    assert federation.run_round() is None
    assert federation.enclave._founded.ballot.missing == 1


def polls_of(federation, *nodes):
    """The polls for these nodes in a round that nobody has confirmed yet."""
    again = silence(federation, *federation.carrier.nodes)
    federation.run_round()
    again()
    last = {node: message for node, message in federation.carrier.sent if is_poll(message)}
    return [last[node] for node in nodes]


def another_outcome(federation, poll):
    """What a copy of the enclave would propose."""
    asked = decode(Poll, poll)
    other = replace(asked.proposal, outcome=b"o" * 32, signature=UNSIGNED)
    signed = federation.enclave._founded.enclave._identity.sign(other)
    return encode(replace(asked, proposal=signed))


def test_asked_about_another_outcome_a_node_shows_its_first_vote(carried):
    federation = carried()
    (poll,) = polls_of(federation, 1)
    voted = federation.node(1).confirm(poll)
    assert not voted.left_out
    with pytest.raises(RolledBack) as copied:
        federation.node(1).confirm(another_outcome(federation, poll))
    assert reminder(copied.value) == encode(decode(Poll, poll).proposal)
    assert federation.node(1).confirm(poll) == voted  # The same bytes each time.


def test_nothing_is_sealed_once_another_run_of_the_node_has_voted(carried):
    federation = carried()
    proofs = federation.open()
    scratch = dict(federation.scratch[1])
    late = unsafe_simulated_node("node-1", scratch)
    part = late.join(proofs[1])
    federation.finish(federation.train(proofs))
    scratch["memory"] = federation.scratch[1]["memory"]  # as in a file that both runs share
    with pytest.raises(ReceiptRefused, match="another run of this node has gone on"):
        late.seal(part, np.zeros(66, "<f4"))


def with_poll(**changes):
    return lambda federation, poll, other: encode(replace(decode(Poll, poll), **changes))


def resigned(federation, poll, other):
    asked = decode(Poll, poll)
    return encode(replace(asked, proposal=Identity.generate().sign(asked.proposal)))


def of_a_later_number(federation, poll, other):
    asked = decode(Poll, poll)
    later = replace(asked.proposal, number=3, signature=UNSIGNED)
    signed = federation.enclave._founded.enclave._identity.sign(later)
    return encode(replace(asked, proposal=signed))


POLLS = {
    "that the enclave has not signed": (resigned, OpenError, "does not open"),
    "of a later number": (of_a_later_number, ReceiptRefused, "receipts 2 to 2 are missing"),
    "without the receipt before it": (with_poll(links=()), ReceiptRefused, "was set back"),
    "with a padded chain": (
        lambda f, poll, other: with_poll(links=decode(Poll, poll).links * 5000)(f, poll, other),
        ReceiptRefused,
        "a node follows 4096",
    ),
}


@pytest.mark.parametrize("what", POLLS)
def test_a_node_refuses_a_poll(what, carried):
    """The good one gets through all the same."""
    change, error, why = POLLS[what]
    federation = carried()
    silence(federation, 1)  # so that it has not followed the first receipt
    federation.run_round()
    poll, other = polls_of(federation, 1, 2)
    with pytest.raises(error, match=why):
        federation.node(1).confirm(change(federation, poll, other))
    voted = decode(Confirmation, federation.node(1).confirm(poll).message)
    assert (voted.voter, voted.number) == ("node-1", 2)


def test_a_node_without_an_enclave_votes_only_for_one_that_answers_its_challenge(carried):
    federation = carried()
    federation.carrier.nodes[6] = lambda message: b"" if message != ASK else greet()

    def greet() -> bytes:
        return federation.node(6).greet()

    again = silence(federation, 0, 1, 2)
    federation.run_round()
    again()
    polls = {node: each for node, each in federation.carrier.sent if is_poll(each)}
    asked = decode(Poll, polls[6])
    assert asked.enclave is not None
    with pytest.raises(ReceiptRefused, match="no enclave has proved itself"):
        federation.node(6).confirm(encode(replace(asked, enclave=None)))
    greet()  # a fresh challenge, which this does not answer
    with pytest.raises(AttestationRefused, match="another challenge"):
        federation.node(6).confirm(encode(asked))
    assert federation.node(6).notebook.load().memory is None


def test_a_node_looks_for_its_update_in_the_outcome(carried):
    federation = carried()
    one, two = polls_of(federation, 1, 2)
    path_of_another = replace(decode(Poll, one), path=decode(Poll, two).path)
    assert federation.node(1).confirm(encode(path_of_another)).left_out
    assert federation.node(1).confirm(encode(replace(decode(Poll, one), included=False))).left_out
    assert not federation.node(1).confirm(one).left_out


DIES = """
import json, os, signal, sys
from ostraka.carried.node import Node
from ostraka.carried.node_state import FileNotebook
from ostraka.carried.trust import UnsafeFirstSeen
from ostraka.client.memory import MemoryFile
from ostraka.crypto.identity import Identity
from ostraka.protocol.client import Client

Client.confirmation = lambda self: os.kill(os.getpid(), signal.SIGKILL)
given = json.load(sys.stdin)
scratch = {name: bytes.fromhex(value) for name, value in given["scratch"].items()}
file = MemoryFile(__import__("pathlib").Path(given["memory"]), "node-1")
trust = UnsafeFirstSeen(scratch, file.load().charter)
node = Node("node-1", Identity(scratch["seed"]), trust, FileNotebook(file), scratch)
node.confirm(bytes.fromhex(given["poll"]))
"""


def test_a_node_that_is_killed_between_its_vote_and_its_answer_has_voted(carried, tmp_path):
    federation = carried()
    (poll,) = polls_of(federation, 1)
    scratch = federation.scratch[1]
    memory = federation.node(1).notebook.load().memory
    file = MemoryFile(tmp_path / "node-1.memory", "node-1")
    file.save(memory)
    given = {
        "scratch": {name: value.hex() for name, value in scratch.items()},
        "memory": str(file.path),
        "poll": poll.hex(),
    }
    child = subprocess.run(
        [sys.executable, "-c", DIES], input=json.dumps(given).encode(), check=False
    )
    assert child.returncode == -signal.SIGKILL
    left = file.load()
    assert left is not None
    assert left.voted is not None
    assert left.voted.proposal == decode(Poll, poll).proposal
    standards = UnsafeFirstSeen(scratch, memory.charter)
    node = Node("node-1", Identity(scratch["seed"]), standards, FileNotebook(file), scratch)
    with pytest.raises(RolledBack):
        node.confirm(another_outcome(federation, poll))
    assert list(tmp_path.glob("*.rolled-back-1-*"))
    federation.enclave.confirm(decode(Confirmation, node.confirm(poll).message))


def copy_of(federation, *, identity=None, head=None, tell=None):
    """Another enclave of this federation, with a copy of its state."""
    mine = federation.enclave
    founded = mine._founded
    other = UnsafeInProcessEnclave(mine._terms, tell=tell)
    other._manifest, other._state = mine._manifest, mine._state
    other._provider, other._collateral = mine._provider, mine._collateral
    role = roles.Enclave(
        founded.federation,
        identity or founded.enclave._identity,
        head=head,
        state=mine._state,
        evidence=SIMULATION,
    )
    other._federation = LocalFederation(
        founded.authority, role, founded.workers, list(founded.charters)
    )
    return other


def test_of_two_copies_of_an_enclave_one_publishes(carried, caplog):
    """Else the host subtracts two aggregates and has the update of the node that it leaves out."""
    events: list[Event] = []
    federation = carried()
    first = federation.train(federation.open())
    first_relay, copied = federation.relay, copy_of(federation, tell=events.append)
    federation.relay = Relay(copied)
    without_victim = [node for node in federation.carrier.nodes if node != 3]
    proofs = federation.relay.open(federation.carrier, without_victim, least=5, seconds=60)
    second = federation.train(proofs)  # Nodes seal again for a round that was opened again.
    assert sorted(second) == without_victim
    second_relay, federation.relay = federation.relay, first_relay
    assert federation.finish(first).receipt.participants == 7
    federation.relay = second_relay
    federation.carrier.nodes = {
        node: telling(federation, node) for node in federation.carrier.nodes
    }
    assert federation.finish(second) is None
    assert copied._founded.published == []
    assert len(copied._founded.ballot.votes) == 2  # The first needed five votes of seven.
    assert CopyProved(1) in events
    assert any("its state was copied" in line for line in caplog.messages)


def after_an_abandon(federation):
    """A new enclave with a new key goes on: round 2 is given up, and nobody will confirm it."""
    founded = federation.enclave._founded
    votes = []
    for number in federation.scratch:
        node = federation.node(number)
        stored = node.notebook.load().memory
        followed = decode(Links, federation.relay.links(number)).links
        role = node._followed(stored, followed).role(node.identity).vote_for_none(2)
        node.notebook.remember(Memory.of(role, stored.charter, stored.sent))
        votes.append(role.confirmation())
    (first,) = founded.published
    agreed, last = founded.federation, first.receipt
    abandon = founded.authority.sign(
        Abandon(2, digest(last), agreed, last.model, tuple(votes), UNSIGNED)
    )
    new = copy_of(federation, identity=Identity.generate(), head=abandon)
    new.links = lambda after, seconds=None: tuple(
        chain_link(each).SerializeToString()
        for each in chain(
            new._founded.charters, ((first, abandon)[after or 0 :] + tuple(new._founded.published))
        )
    )
    federation.enclave, federation.relay = new, Relay(new)


def test_nodes_go_on_with_a_new_enclave_after_an_abandon(carried):
    """Also one that is not sampled: it has to be shown the new key before it confirms."""
    federation = carried(masking="none")
    federation.run_round()
    after_an_abandon(federation)
    proofs = federation.open()
    replies = federation.train({node: proofs[node] for node in range(5)})
    silence(federation, 0, 1)
    assert federation.finish(replies).receipt.number == 3
    assert {"node-5", "node-6"} <= voters(federation)


def telling(federation, node):
    """A node that says what an adapter's node says when it finds its enclave copied."""
    honest = federation.carrier.nodes[node]

    def answer(message: bytes) -> bytes:
        try:
            return honest(message)
        except RolledBack as copied:
            return reminder(copied)

    return answer


def test_without_confirmation_an_update_goes_to_one_opening(carried):
    federation = carried(confirm="none")
    federation.train(federation.open())
    proofs = federation.open()
    with pytest.raises(ReceiptRefused, match="was opened again 1 times"):
        federation.carrier.nodes[1](proofs[1])


def test_if_nobody_confirms_nobody_is_asked_and_the_receipt_says_so(carried):
    federation = carried(confirm="none")
    first, second = federation.run_round(), federation.run_round()
    assert not polled(federation)
    assert second.receipt.number == 2
    assert any("nobody confirms outcomes" in caution for caution in first.receipt.cautions)


def unable(rule: object, gram: object, f: int, options: object) -> object:
    """Cannot stand on any rows."""
    raise ZeroDivisionError


def test_a_null_step_is_confirmed_and_changes_nothing(carried, monkeypatch):
    federation = carried()
    before = federation.run_round()
    with monkeypatch.context() as patched:
        patched.setattr(rules.MultiKrum, "plan", unable)
        failed = federation.run_round()
    assert "the rule failed on these updates" in failed.receipt.failure
    np.testing.assert_array_equal(failed.model, before.model)
    assert len(voters(federation)) == 5
    after = federation.run_round()
    assert (after.receipt.number, after.receipt.failure) == (3, "")

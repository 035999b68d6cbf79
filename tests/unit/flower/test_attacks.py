"""Hosts that open rounds again and again, and nodes that try to end rounds for everyone."""

import os
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: make test-env")

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from ostraka.carried.messages import Hello, Proof, SealedReply
from ostraka.client import connection
from ostraka.core import optimiser
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED, decode, encode
from ostraka.errors import ServiceError
from ostraka.flower import UNSAFE_SIMULATION, records, sealing_mod
from ostraka.flower.records import RECORD, message_record, read_message
from ostraka.messages import SIMULATION, Challenge, Introduction, Proposal
from ostraka.protocol import enclave as roles


def impatient(node):
    return [sealing_mod(UNSAFE_SIMULATION, resends=2)]


class Rollback:
    """A host that restores the enclave to an older state at will."""

    def __init__(self, federation):
        self.federation, self.enclave = federation, federation.strategy._enclave
        self.founded = self.enclave._federation
        self.now = (self.enclave._state, self.founded.published[0].receipt)
        first = records.vector_of(federation.model, self.enclave._manifest)
        self.before = (optimiser.start(first, optimiser.FEDAVG), None)

    def ask(self, node, state, head):
        """A round from that state, without any chain."""
        grid, founded = self.federation.grid, self.founded
        opened = roles.Enclave(
            founded.federation,
            founded.enclave._identity,
            head=head,
            state=state,
            evidence=SIMULATION,
        ).open_round()
        bound = opened.binding(self.federation.greet(node).challenge.nonce)
        evidence = self.enclave._provider.evidence(bound.report_data())
        shown = Introduction(opened.offer, bound.receipt_key, evidence)
        proof = Proof(founded.charters[-1], shown, (), self.enclave._collateral)
        model = records.Template(self.federation.model).record(self.enclave._manifest, state.model)
        content = RecordDict(
            {
                "arrays": model,
                "config": ConfigRecord({"server-round": 1}),
                RECORD: message_record(encode(proof)),
            }
        )
        return grid.apps[node](Message(content, node, "train"), grid.contexts[node])


def test_a_host_that_alternates_between_two_states_gets_no_more_updates(flower, said):
    """A node that has not voted has nothing but its own count to go by."""
    federation = flower(mods=impatient)
    federation.grid.down = lambda node, message: (
        None if node == 6 and federation.polls(message) else message
    )
    federation.start(1)
    host = Rollback(federation)
    replies = []
    for _ in range(4):
        replies += [host.ask(6, *host.now), host.ask(6, *host.before)]
    assert sum(map(federation.is_sealed, replies)) == 2  # and one before
    assert any("receipts 1 to 1 are missing" in line for line in said)
    assert any("was opened again 3 times" in line for line in said)


def test_a_node_that_has_voted_seals_nothing_more_for_that_round(flower, said):
    """It shows what the enclave has signed, whatever state the host restores."""
    federation = flower()
    federation.start(1)
    host = Rollback(federation)
    reply = host.ask(6, *host.before)
    shown = decode(Proposal, read_message(reply.content))
    certificate = host.founded.published[0].certificate
    assert shown == certificate.proposal
    assert federation.trained[6] == 1
    assert any("its state was copied, or set back" in line for line in said)


def test_an_app_that_fails_does_not_use_up_what_its_node_may_send(flower):
    """Only updates count."""

    def failing(node, number, model):
        if node == 1 and federation.trained[1] <= 4:
            raise RuntimeError("out of memory")
        return federation.honest(node, number, model)

    federation = flower(
        update=failing,
        mods=lambda node: impatient(1) if node == 1 else [sealing_mod(UNSAFE_SIMULATION)],
    )
    federation.grid.up = lambda node, reply: (
        None if federation.is_sealed(reply) and federation.trained[node] <= 4 else reply
    )
    federation.start(6)
    assert [receipt.participants for receipt in federation.receipts] == [7, 7]


def claim(federation, node, name, *, key):
    """Add a node that says who it is, and nothing else."""
    who = Identity.generate()

    def mod(message, context, call_next):
        challenge = who.sign(Challenge(os.urandom(32), name, UNSIGNED))
        hello = Hello(challenge, key, None)
        return Message(RecordDict({RECORD: message_record(encode(hello))}), reply_to=message)

    federation.add(node, mods=[mod])


def long_name(sealed):
    return replace(sealed, header=replace(sealed.header, client="x" * 5000))


def huge_key(sealed):
    return replace(sealed, header=replace(sealed.header, sealed_key=bytes(2**16)))


def huge_tile(sealed):
    tile = replace(sealed.tiles[0], ciphertext=bytes(2**16))
    return replace(sealed, tiles=(tile, *sealed.tiles[1:]))


def more_tiles(sealed):
    return replace(sealed, tiles=sealed.tiles * 2)


def many_tiles(sealed):
    return replace(more_tiles(sealed), header=replace(sealed.header, tiles=2 * len(sealed.tiles)))


def changed_record(reply, change):
    """Return the record of a reply whose sealed update is changed."""
    read = SealedReply.from_bytes(read_message(reply.content))
    return message_record(replace(read, sealed=change(read.sealed)).to_bytes())


OVERSIZED = {
    "has a long name": (long_name, "it answers with an update of client 'xxx"),
    "has a huge key": (huge_key, "a small header"),
    "has a huge tile": (huge_tile, "tile 0 of a sealed update is too long"),
    "has more tiles than its header says": (more_tiles, "a sealed update has 1 tiles"),
    "has more tiles than the terms say": (many_tiles, "a sealed update has 1 tiles"),
}


@pytest.mark.parametrize("what", OVERSIZED)
def test_the_enclave_never_sees_an_update_that(what, flower, said):
    change, reason = OVERSIZED[what]
    federation = flower()
    delivered = []
    deliver = federation.strategy._enclave.deliver

    def noted(sealed, **more):
        delivered.append(sealed.header.client)
        deliver(sealed, **more)

    federation.strategy._enclave.deliver = noted

    def up(node, reply):
        if node == 3 and federation.is_sealed(reply):
            reply.content[RECORD] = changed_record(reply, change)
        return reply

    federation.grid.up = up
    federation.start(1)
    assert federation.receipts[0].participants == 6
    assert len(delivered) == 6
    (line,) = [line for line in said if line.startswith("node 3 is left out")]
    assert reason in line
    assert len(line) < 400


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """[now], of the budget that nodes share."""
    now = [0.0]
    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_round_opens_without_those_that_would_have_to_be_waited_for(flower, clock, said):
    federation = flower()
    introduce = federation.strategy._enclave.introduce
    waits = []

    def slow(hello, *, seconds):
        waits.append(seconds)
        if hello.challenge.client in ("node-1", "node-2"):
            raise ServiceError("has not answered")
        return introduce(hello)

    federation.strategy._enclave.introduce = slow
    federation.start(1)
    assert [receipt.participants for receipt in federation.receipts] == [5]
    assert waits == [15] * 7


def test_strangers_that_answer_at_once_do_not_cut_off_a_slow_greeting(flower):
    """Five are enough, and there are five of them, in a first round without any grace."""
    federation = flower(straggler_grace=0.0)
    federation.strategy.challenge_timeout = 60
    for node in range(10, 15):
        claim(federation, node, f"stranger-{node}", key=Identity.generate().public)
    pull = federation.grid.pull_messages
    pulls: Counter[str] = Counter()

    def slowly(names):
        pulls.update(names)
        waiting = federation.grid.replies
        return pull(
            [name for name in names if pulls[name] > 2 or waiting[name].metadata.src_node_id >= 10]
        )

    federation.grid.pull_messages = slowly
    federation.start(1, timeout=60)
    assert [receipt.participants for receipt in federation.receipts] == [7]


def nothing(reply):
    return RecordDict()


def rubbish(reply):
    return RecordDict({RECORD: changed_record(reply, huge_tile)})


@pytest.mark.parametrize("answer", [nothing, rubbish])
def test_nodes_that_answer_at_once_with_nothing_do_not_cut_off_slow_ones(answer, flower):
    """Five are enough. Two of the seven are not counted, and one of the others is slow."""
    federation = flower(straggler_grace=0.0)
    pull = federation.grid.pull_messages
    pulls: list[Any] = []

    def up(node, reply):
        if node in (5, 6) and federation.is_sealed(reply):
            reply.content = answer(reply)
        return reply

    def slowly(names):
        waiting = federation.grid.replies
        slow = [
            name for name in names if name in waiting and waiting[name].metadata.src_node_id == 4
        ]
        pulls.extend(each for each in slow if federation.is_sealed(waiting[each]))
        return pull([name for name in names if name not in slow or len(pulls) in (0, 4)])

    federation.grid.up, federation.grid.pull_messages = up, slowly
    for node, context in federation.grid.contexts.items():
        assert context.node_id == node
    federation.start(1, timeout=60)
    assert [receipt.participants for receipt in federation.receipts] == [5]


def test_a_reply_that_flower_cannot_read_is_one_nodes_affair(flower, said):
    federation = flower()
    pull = federation.grid.pull_messages

    def unreadable(names: list[str]) -> Any:
        replies = pull(names)
        if any(node_of(federation, each) == 3 and federation.is_sealed(each) for each in replies):
            ConfigRecord.inflate(b"ConfigRecord  3\x00\xff\xff\xff")
        return replies

    federation.grid.pull_messages = unreadable
    federation.start(2)
    assert [receipt.participants for receipt in federation.receipts] == [6, 6]
    assert any(line.startswith("node 3 is left out: its reply cannot be read") for line in said)


def node_of(federation, reply):
    return next(node for node, _, known in federation.grid.log if known is reply)


@pytest.mark.parametrize(
    ("claimed", "mean"),
    [
        ({"mean": 7.0, "num-examples": 10**12}, 1.0),  # as much as each of the others
        ({"mean": float("nan"), "num-examples": 1}, 0.0),
        ({"mean": float("inf"), "num-examples": 1}, 0.0),
    ],
)
def test_one_nodes_metrics_weigh_no_more_than_anothers(claimed, mean, flower):
    federation = flower(
        mods=lambda node: [sealing_mod(UNSAFE_SIMULATION, disclose_metrics=True)],
        fraction_evaluate=1.0,
    )

    def up(node, reply):
        if reply.has_content() and set(reply.content) == {"metrics"}:
            honest = {"mean": 0.0, "num-examples": 10 * node}
            reply.content["metrics"] = MetricRecord(claimed if node == 1 else honest)
        return reply

    federation.grid.up = up
    result = federation.start(1)
    assert result.evaluate_metrics_clientapp[1]["mean"] == pytest.approx(mean)

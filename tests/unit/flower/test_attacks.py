"""Hosts that open rounds again and again, and nodes that try to end rounds for everyone."""

import os
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'ostraka[flower]'")

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from ostraka.carried.node_state import ContextNotebook, FileNotebook, Joins
from ostraka.client import connection
from ostraka.client.memory import MemoryFile
from ostraka.config import Manifest
from ostraka.core import optimiser
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED
from ostraka.errors import Fork, MalformedMessage, ServiceError
from ostraka.flower import UNSAFE_SIMULATION, records, relay, sealing_mod
from ostraka.flower.messages import (
    RECORD,
    SEALED,
    Hello,
    Proof,
    ask,
    hello_record,
    proof_record,
    read_hello,
    read_sealed,
    require_shape,
    sealed_record,
)
from ostraka.messages import SIMULATION, Challenge, Introduction
from ostraka.protocol import enclave as roles


def is_sealed(reply):
    return reply.has_content() and SEALED in reply.content


def impatient(node):
    return [sealing_mod(UNSAFE_SIMULATION, resends=2)]


class Rollback:
    """A host that restores the enclave to an older state whenever it likes."""

    def __init__(self, federation):
        self.federation, self.enclave = federation, federation.strategy._enclave
        self.founded = self.enclave._federation
        self.now = (self.enclave._state, self.founded.receipts[0])
        first = records.vector_of(federation.model, self.enclave._manifest)
        self.before = (optimiser.start(first, optimiser.FEDAVG), None)

    def ask(self, node, state, head):
        """A round from that state, without any chain."""
        grid, founded = self.federation.grid, self.founded
        opened = roles.Enclave(
            founded.current, founded.enclave._identity, head=head, state=state, evidence=SIMULATION
        ).open_round()
        greeting = grid.apps[node](Message(ask(), node, "train"), grid.contexts[node])
        bound = opened.binding(read_hello(greeting.content).challenge.nonce)
        evidence = self.enclave._provider.evidence(bound.report_data())
        shown = Introduction(opened.offer, bound.receipt_key, evidence)
        proof = Proof(founded.charters[-1], shown, (), self.enclave._collateral)
        model = records.Template(self.federation.model).record(self.enclave._manifest, state.model)
        content = RecordDict(
            {
                "arrays": model,
                "config": ConfigRecord({"server-round": 1}),
                RECORD: proof_record(proof),
            }
        )
        return grid.apps[node](Message(content, node, "train"), grid.contexts[node])


def test_a_host_that_alternates_between_two_states_gets_no_more_updates(flower, said):
    """A node without a receipt has nothing but its own count to go by."""
    federation = flower(mods=impatient)
    federation.start(1)
    host = Rollback(federation)
    replies = []
    for _ in range(4):
        replies += [host.ask(6, *host.now), host.ask(6, *host.before)]
    assert sum(map(is_sealed, replies)) == 2  # and one before
    assert any("nobody shows the receipt of round 1" in line for line in said)
    assert any("was opened again 3 times" in line for line in said)


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
        None if is_sealed(reply) and federation.trained[node] <= 4 else reply
    )
    federation.start(6)
    assert [receipt.participants for receipt in federation.receipts] == [7, 7]


def offer_of(federation, **changes):
    federation.strategy._enclave.open([])
    return replace(federation.strategy._enclave._round.collecting.offer, **changes)


def test_what_counts_as_opened_again(flower):
    federation = flower()
    federation.start(1)
    first, second = offer_of(federation), offer_of(federation)
    once = Joins().and_then(first, held=1, nonce=bytes(32))
    assert (once.reopened, once.repeated) == (0, 0)
    same = once.and_then(first, held=1, nonce=b"a" * 32)
    assert (same.reopened, same.repeated) == (0, 1)
    again = same.and_then(second, held=1, nonce=b"b" * 32)
    assert (again.reopened, again.repeated) == (1, 0)
    renumbered = again.and_then(
        replace(second, number=9, round_id=b"c" * 32), held=1, nonce=b"c" * 32
    )
    assert renumbered.reopened == 2
    after = again.and_then(offer_of(federation), held=2, nonce=b"d" * 32)
    assert (after.reopened, after.repeated) == (0, 0)
    assert len(after.nonces) == 4


def test_files_of_two_clients_are_never_one(tmp_path):
    names = {FileNotebook(MemoryFile(tmp_path / each, "a"))._path for each in ("m.1", "m.2")}
    assert len(names) == 2


def test_two_receipts_for_one_round_are_never_saved_over_each_other(flower, tmp_path):
    federation = flower()
    federation.start(2)
    memory = ContextNotebook(federation.grid.contexts[0]).load().memory
    assert memory is not None
    assert memory.last is not None
    file = MemoryFile(tmp_path / "a.memory", memory.client)
    file.save(memory)
    other = replace(memory, receipts=(replace(memory.last, participants=9),))
    with pytest.raises(Fork):
        file.save(other)
    assert file.load() == memory


def signed_by(identity, name, *, key=None):
    challenge = identity.sign(Challenge(os.urandom(32), name, UNSIGNED))
    return Hello(challenge, key or identity.public, None)


def claim(federation, node, name, *, identity=None, key=None):
    """A node of its own making, which says who it is and nothing else."""
    who = identity or Identity.generate()

    def mod(message, context, call_next):
        hello = hello_record(signed_by(who, name, key=key))
        return Message(RecordDict({RECORD: hello}), reply_to=message)

    federation.add(node, mods=[mod])


def a_workers_name(federation):
    claim(federation, 7, "worker-1")


def one_key_for_two(federation):
    identity = Identity.generate()
    claim(federation, 7, "a", identity=identity)
    claim(federation, 8, "b", identity=identity)


def somebody_elses_key(federation):
    """It is public, and node 3 would have to share it."""
    grid = federation.grid
    greeting = grid.apps[3](Message(ask(), 3, "train"), grid.contexts[3])
    claim(federation, 7, "a", key=read_hello(greeting.content).key)


CLAIMS = {
    "has a worker's name": (a_workers_name, 7),
    "shares its key with another": (one_key_for_two, 7),
    "brings a key that is not its own": (somebody_elses_key, 7),
    "has another's name, so that neither is enrolled": (lambda f: claim(f, 7, "node-3"), 6),
}


@pytest.mark.parametrize("what", CLAIMS)
def test_a_federation_is_founded_without_a_node_that(what, flower):
    claiming, participants = CLAIMS[what]
    federation = flower()
    claiming(federation)
    federation.start(1)
    assert [receipt.participants for receipt in federation.receipts] == [participants]


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


OVERSIZED = {
    "has a long name": (long_name, "it answers with an update of client 'xxx"),
    "has a huge key": (huge_key, "a small header"),
    "has a huge tile": (huge_tile, "tile 0 of a sealed update is too long"),
    "has more tiles than its header says": (more_tiles, "a sealed update has 1 tiles"),
    "has more tiles than the rules say": (many_tiles, "a sealed update has 1 tiles"),
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
        if node == 3 and is_sealed(reply):
            reply.content[SEALED] = sealed_record(change(read_sealed(reply.content)))
        return reply

    federation.grid.up = up
    federation.start(1)
    assert federation.receipts[0].participants == 6
    assert len(delivered) == 6
    (line,) = [line for line in said if line.startswith("node 3 is left out")]
    assert reason in line
    assert len(line) < 400


def test_the_shape_is_that_of_the_rules(flower):
    federation = flower()
    federation.start(1)
    terms = federation.strategy._enclave._federation.current.terms
    replies = [reply for _, _, reply in federation.grid.log if is_sealed(reply)]
    sealed = read_sealed(replies[0].content)
    require_shape(sealed, terms)
    with pytest.raises(MalformedMessage):
        require_shape(sealed, replace(terms, tile=terms.tile * 2, manifest=Manifest.flat(65)))


def test_a_name_that_is_too_long_is_malformed():
    hello = signed_by(Identity.generate(), "x" * 257)
    with pytest.raises(MalformedMessage, match="256 characters"):
        read_hello(RecordDict({RECORD: hello_record(hello)}))


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """[now], of the budget that nodes share."""
    now = [0.0]
    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_node_that_takes_long_has_its_turn_after_the_others(clock, said):
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
    assert said == ["node 3 is left out: refuses", "node 2 is left out: has not answered"]


def test_nodes_that_are_not_served_cost_one_budget_in_all(clock, said):
    """However many they are. Each waits as long as it may, or 50 seconds."""
    second = []

    def step(node: int, what: str, seconds: float) -> str:
        if seconds != 15:
            second.append(seconds)
            clock[0] += min(seconds, 50)
        raise ServiceError("has not answered")

    assert relay._in_turn(dict.fromkeys(range(10), ""), step) == {}
    assert second == [120, 70, 20]
    assert sorted(said) == [f"node {node} is left out: has not answered" for node in range(10)]


@pytest.mark.parametrize(("enough", "again"), [(3, []), (4, [0]), (None, [0, 1])])
def test_nobody_is_waited_for_once_enough_are_served(enough, again, clock, said):
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
    assert len(said) == 2 - len(again)  # and who is not served is told of


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
    sealed = read_sealed(reply.content)
    return RecordDict({SEALED: sealed_record(huge_tile(sealed))})


@pytest.mark.parametrize("answer", [nothing, rubbish])
def test_nodes_that_answer_at_once_with_nothing_do_not_cut_off_slow_ones(answer, flower):
    """Five are enough. Two of the seven are not counted, and one of the others is slow."""
    federation = flower(straggler_grace=0.0)
    pull = federation.grid.pull_messages
    pulls: list[Any] = []

    def up(node, reply):
        if node in (5, 6) and is_sealed(reply):
            reply.content = answer(reply)
        return reply

    def slowly(names):
        waiting = federation.grid.replies
        slow = [
            name for name in names if name in waiting and waiting[name].metadata.src_node_id == 4
        ]
        pulls.extend(each for each in slow if is_sealed(waiting[each]))
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
        if any(node_of(federation, each) == 3 and is_sealed(each) for each in replies):
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

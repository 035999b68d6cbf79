"""A SuperLink that tampers with messages: each time it is refused, and the log says why."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: make test-env")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from ostraka.carried.in_process import FoundingTerms, UnsafeInProcessEnclave
from ostraka.carried.messages import Links, Proof, SealedReply
from ostraka.core import rules
from ostraka.encoding import decode, encode
from ostraka.flower import UNSAFE_SIMULATION, sealing_mod
from ostraka.flower.records import RECORD, message_record, read_message
from ostraka.messages import Evidence


def read_proof(content):
    return decode(Proof, read_message(content))


def read_reply(content):
    return SealedReply.from_bytes(read_message(content))


class SuperLink:
    """Sees everything, and keeps it."""

    def __init__(self, federation):
        self.federation = federation
        self.down = {}  # the last training message to each node
        self.up = {}  # the last sealed reply of each

    def watch(self):
        self.federation.grid.down = self._down
        self.federation.grid.up = self._up

    def _down(self, node, message):
        if "arrays" in message.content:
            self.down[node] = RecordDict(dict(message.content))
        return message

    def _up(self, node, reply):
        if self.federation.is_sealed(reply):
            self.up[node] = reply.content
        return reply

    def change_down(self, change, *nodes):
        def down(node, message):
            if node in nodes and "arrays" in message.content:
                message.content = change(node, message.content)
            return message

        self.federation.grid.down = down

    def change_up(self, change, *nodes):
        def up(node, reply):
            if node in nodes and self.federation.is_sealed(reply):
                reply.content = change(node, reply.content)
            return reply

        self.federation.grid.up = up


def swap_replies(link):
    """Both are held back until both are there."""
    first: dict[Any, Any] = {}

    def up(node, reply):
        if node not in (1, 2) or not link.federation.is_sealed(reply):
            return reply
        if not first:
            first[node] = reply
            return None
        (held,) = first.values()
        held.content, reply.content = reply.content, held.content
        link.federation.grid.replies[held.metadata.reply_to_message_id] = held
        return reply

    link.federation.grid.up = up


def swap_tiles(link):
    def change(node, content):
        mine, other = read_reply(content), read_reply(link.up[2])
        upload = mine.sealed.header.upload_id
        tiles = tuple(replace(tile, upload_id=upload) for tile in other.sealed.tiles)
        swapped = replace(mine, sealed=replace(mine.sealed, tiles=tiles))
        return RecordDict({RECORD: message_record(swapped.to_bytes())})

    link.change_up(change, 1)


def replay_reply(link):
    link.change_up(lambda node, content: link.up[node], 1)


def drop_proof(link):
    link.change_down(
        lambda node, content: RecordDict({k: v for k, v in content.items() if k != RECORD}), 1
    )


def with_proof(content, **changes):
    proof = replace(read_proof(content), **changes)
    return RecordDict({**content, RECORD: message_record(encode(proof))})


def drop_evidence(link):
    def change(node, content):
        shown = read_proof(content).introduction
        return with_proof(
            content, introduction=replace(shown, evidence=Evidence("simulation", b"", ()))
        )

    link.change_down(change, 1)


def old_model(link):
    link.change_down(
        lambda node, content: RecordDict({**content, "arrays": link.down[node]["arrays"]}), 1
    )


def poisoned_model(link):
    def change(node, content):
        arrays = {name: array.numpy() for name, array in content["arrays"].items()}
        arrays["bias"] = arrays["bias"] + np.float32(1e-6)
        record = ArrayRecord({name: Array(value) for name, value in arrays.items()})
        return RecordDict({**content, "arrays": record})

    link.change_down(change, 1)


def replay_proof(link):
    link.change_down(lambda node, content: link.down[node], 1)


def proof_of_another(link):
    """The first node gets its own proof, and all others get that one too."""
    first: dict[Any, Any] = {}

    def change(node, content):
        return RecordDict({**content, RECORD: first.setdefault(RECORD, content[RECORD])})

    link.change_down(change, *link.federation.grid.apps)


def cut_chain(link):
    link.change_down(lambda node, content: with_proof(content, links=()), 1)


def older_chain(link):
    link.change_down(
        lambda node, content: with_proof(content, links=read_proof(link.down[node]).links),
        1,
    )


def padded_chain(link):
    def change(node, content):
        return with_proof(content, links=read_proof(content).links * 5000)

    link.change_down(change, 1)


def another_enclave(link):
    """The strategy itself is exchanged in the middle of the run, enclave and all."""
    terms = FoundingTerms(1, rules.parse("multi-krum"))
    link.federation.strategy._enclave = UnsafeInProcessEnclave(terms)


def inject_node(link):
    link.federation.add(99)


def inject_node_in_anothers_name(link):
    link.federation.add(99)
    link.federation.grid.contexts[99].node_config["partition-id"] = 1


def no_mod(link):
    link.federation.add(1, mods=[])


TAMPERING = {
    "swaps two nodes' replies": (swap_replies, "it answers with an update of client", {1, 2}),
    "puts one node's tiles under another's header": (swap_tiles, "tile does not open", {1}),
    "replays the last round's reply": (replay_reply, "made for another round", {1}),
    "drops the proof": (drop_proof, "there is no record 'ostraka'", {1}),
    "drops the evidence": (drop_evidence, "brings no root certificate", {1}),
    "serves an old model": (old_model, "not the one that the enclave vouches for", {1}),
    "serves a model of its own": (poisoned_model, "not the one that the enclave vouches for", {1}),
    "replays a proof": (replay_proof, "another challenge, another key or another federation", {1}),
    "shows one node the proof for another": (
        proof_of_another,
        "another challenge, another key or another federation",
        {1, 2, 3, 4, 5, 6},
    ),
    "cuts the chain": (cut_chain, "or set back to an older one", {1}),
    "shows an older chain": (older_chain, "receipts 2 to 2 are missing", {1}),
    "pads the chain": (padded_chain, "and a node follows 4096", {1}),
    "brings an enclave of its own": (
        another_enclave,
        "not signed by the authority that the policy names",
        {0, 1, 2, 3, 4, 5, 6},
    ),
    "injects a node": (inject_node, "not from an enrolled party", {99}),
    "injects a node under the name of another": (
        inject_node_in_anothers_name,
        "Challenge does not open",
        {99},
    ),
    "runs an app without the mod": (no_mod, "KeyError", {1}),
}


@pytest.mark.parametrize("tampering", TAMPERING)
def test_a_superlink_that(tampering, flower, said):
    """It is refused with a reason. Nodes that were not tampered with take part all the same."""
    tamper, reason, touched = TAMPERING[tampering]
    federation = flower(n=8 if len(touched) < 6 else 7)
    link = SuperLink(federation)
    link.watch()
    federation.start(2)
    n = len(federation.grid.apps)
    assert [receipt.participants for receipt in federation.receipts] == [n, n]
    tamper(link)
    federation.start(3)
    assert any(reason in line for line in said), said
    rest = n - len(touched & set(range(n)))
    if rest >= 5:
        assert federation.receipts[2].participants == rest
    else:
        assert len(federation.receipts) == 2


def test_a_refused_node_takes_part_again_when_it_is_let_be(flower, said):
    federation = flower()
    link = SuperLink(federation)
    link.watch()
    federation.start(2)
    old_model(link)
    federation.start(3)
    federation.grid.down = lambda node, message: message
    federation.start(4)
    assert [receipt.participants for receipt in federation.receipts] == [7, 7, 6, 7]


def test_a_message_that_comes_twice_is_trained_on_once(flower, said):
    federation = flower()
    link = SuperLink(federation)
    link.watch()
    federation.start(1)
    again = Message(link.down[1], 1, "train")
    reply = federation.grid.apps[1](again, federation.grid.contexts[1])
    assert reply.has_error()
    assert "another challenge" in reply.error.reason
    assert federation.trained[1] == 1


def test_a_round_that_is_opened_again_and_again_gets_no_more_updates(flower, said):
    """Each time, its host may have seen an aggregate, and the difference is one node's update."""
    federation = flower(mods=lambda node: [sealing_mod(UNSAFE_SIMULATION, resends=2)])
    federation.grid.up = lambda node, reply: None if federation.is_sealed(reply) else reply
    federation.start(5)
    assert federation.receipts == []
    assert set(federation.trained.values()) == {3}
    assert any("was opened again 3 times" in line for line in said)


@pytest.mark.parametrize("disclosed", [False, True])
def test_evaluation_is_the_owners_choice_and_of_published_models_only(disclosed, flower, said):
    federation = flower(
        mods=lambda node: [sealing_mod(UNSAFE_SIMULATION, disclose_metrics=disclosed)],
        fraction_evaluate=1.0,
    )
    result = federation.start(2)
    if not disclosed:
        assert result.evaluate_metrics_clientapp == {}
        assert any("are not disclosed" in line for line in said)
        return
    expected = float(result.arrays["weight"].numpy().mean())
    assert result.evaluate_metrics_clientapp[2]["mean"] == pytest.approx(expected)

    def down(node, message):
        if message.metadata.message_type == "evaluate" and node == 1:
            record = message.content["arrays"]
            record["bias"] = Array(record["bias"].numpy() + np.float32(1))
        return message

    federation.grid.down = down
    federation.start(3)
    assert any("node 1 is left out: the model is not the one" in line for line in said)


def test_evaluation_without_a_receipt_is_refused(flower):
    federation = flower(mods=lambda node: [sealing_mod(UNSAFE_SIMULATION, disclose_metrics=True)])
    content = RecordDict(
        {
            "arrays": ArrayRecord([np.zeros(66, "<f4")]),
            "config": ConfigRecord({"server-round": 1}),
            RECORD: message_record(encode(Links(()))),
        }
    )
    reply = federation.grid.apps[0](Message(content, 0, "evaluate"), federation.grid.contexts[0])
    assert reply.has_error()
    assert "holds no receipt" in reply.error.reason

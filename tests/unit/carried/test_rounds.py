"""Rounds that no framework knows of: bytes go from the relay to nodes, and back."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from ostraka.carried.messages import Hello, SealedReply, is_poll
from ostraka.carried.node import unsafe_simulated_node
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED, encode
from ostraka.errors import AttestationRefused, MalformedMessage, ReceiptRefused, Refusal
from ostraka.messages import Challenge


def test_no_module_loads_flower():
    modules = ("in_process", "messages", "node", "node_state", "relay", "remote", "trust")
    names = ", ".join(f"ostraka.carried.{module}" for module in modules)
    probe = (
        f"import sys, {names}; sys.exit(not {{'flwr', 'ostraka.flower'}}.isdisjoint(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


def test_two_rounds_are_published(carried):
    federation = carried()
    first, second = federation.run_round(), federation.run_round()
    assert [first.receipt.number, second.receipt.number] == [1, 2]
    assert first.receipt.participants == second.receipt.participants == 7
    kept = [int(name.removeprefix("node-")) for name in first.receipt.selected]
    np.testing.assert_allclose(first.model, np.mean(kept), rtol=1e-6)


def test_nodes_in_a_trial_stay_with_the_rule_that_they_saw_first(carried):
    """A host that turns to the plain mean in the middle of a run gets no more updates."""
    federation = carried()
    assert federation.run_round().receipt.rule == "multi-krum"
    founded = federation.enclave._founded
    terms = replace(founded.federation.terms, rule="mean", pre=())
    founded.revise(terms, founded.federation.clients)
    for node, proof in federation.open().items():
        with pytest.raises(AttestationRefused) as refused:
            federation.carrier.nodes[node](proof)
        assert refused.value.reason is Refusal.RULE


def test_the_first_round_asks_and_the_next_goes_by_the_replies(carried):
    federation = carried()
    federation.run_round()
    federation.carrier.sent.clear()
    assert federation.run_round().receipt.participants == 7
    assert all(is_poll(message) for _, message in federation.carrier.sent)


def test_a_node_that_replies_with_rubbish_is_left_out(carried, caplog):
    federation = carried()
    federation.carrier.nodes[3] = lambda message: b"\x1b[2Jrubbish"
    assert federation.run_round().receipt.participants == 6
    assert "node 3 is left out" in caplog.text


def test_an_update_that_does_not_open_is_refused_when_it_is_delivered(carried, caplog):
    federation = carried()
    replies = federation.train(federation.open())
    read = SealedReply.from_bytes(replies[3])
    tile = replace(read.sealed.tiles[0], ciphertext=bytes(len(read.sealed.tiles[0].ciphertext)))
    sealed = replace(read.sealed, tiles=(tile, *read.sealed.tiles[1:]))
    replies[3] = replace(read, sealed=sealed).to_bytes()
    published = federation.finish(replies)
    assert published.receipt.participants == 6
    assert "node 3 is left out" in caplog.text


def test_one_node_speaks_for_a_client(carried, caplog):
    """The enclave cannot tell the node that has the key from one that repeats what it signed."""
    federation = carried()
    heard = SealedReply.from_bytes(federation.train(federation.open())[3]).hello
    federation.run_round()
    federation.carrier.nodes[7] = lambda message: encode(heard)
    proofs = federation.open()
    assert sorted(proofs) == list(range(7))
    assert "another node speaks for client 'node-3'" in caplog.text


def test_a_proof_is_good_for_one_update(carried):
    federation = carried()
    proofs = federation.open()
    federation.train(proofs)
    with pytest.raises(AttestationRefused, match="another challenge"):
        federation.carrier.nodes[1](proofs[1])


def test_a_challenge_is_answered_once_even_if_the_framework_brings_it_back(carried):
    federation = carried()
    proofs = federation.open()
    before = dict(federation.scratch[1])
    federation.node(1).join(proofs[1])
    with pytest.raises(AttestationRefused, match="answered before"):
        federation.node(1).join(proofs[1])
    federation.scratch[1]["nonce"] = before["nonce"]
    federation.train(proofs)
    federation.scratch[1]["nonce"] = before["nonce"]
    with pytest.raises(AttestationRefused, match="answered before"):
        federation.node(1).join(proofs[1])


def test_nothing_is_sealed_for_a_round_that_another_run_has_left_behind(carried):
    federation = carried()
    proofs = federation.open()
    scratch = dict(federation.scratch[1])
    late = unsafe_simulated_node("node-1", scratch)
    part = late.join(proofs[1])
    federation.finish(federation.train(proofs))
    federation.run_round()
    scratch["memory"] = federation.scratch[1]["memory"]  # as in a file that both runs share
    with pytest.raises(ReceiptRefused, match="another run of this node has gone on"):
        late.seal(part, np.zeros(66, "<f4"))


def test_a_message_that_is_no_proof_leaves_the_challenge_unanswered(carried):
    federation = carried()
    proofs = federation.open()
    with pytest.raises(MalformedMessage, match="not a Proof"):
        federation.carrier.nodes[1](b"")
    assert set(federation.train(proofs)) == set(range(7))


def test_the_last_model_is_proved_to_a_node_that_took_part(carried):
    federation = carried()
    federation.run_round()
    published = federation.run_round()
    assert federation.relay.links(99) is None
    links = federation.relay.links(1)
    of, digest = federation.node(1).published_model(links)
    assert digest == published.receipt.model
    assert of.terms.dimension == 66


def signed_by(identity, name, *, key=None):
    challenge = identity.sign(Challenge(os.urandom(32), name, UNSIGNED))
    return Hello(challenge, key or identity.public, None)


def claim(federation, node, name, *, identity=None, key=None):
    """Add a node that says who it is, and nothing else."""
    hello = encode(signed_by(identity or Identity.generate(), name, key=key))
    federation.carrier.nodes[node] = lambda message: hello


def a_workers_name(federation):
    claim(federation, 7, "worker-1")


def one_key_for_two(federation):
    identity = Identity.generate()
    claim(federation, 7, "a", identity=identity)
    claim(federation, 8, "b", identity=identity)


def another_nodes_key(federation):
    """It is public, and node 3 would have to share it."""
    claim(federation, 7, "a", key=federation.node(3).identity.public)


CLAIMS = {
    "has a worker's name": (a_workers_name, 7),
    "shares its key with another": (one_key_for_two, 7),
    "brings a key that is not its own": (another_nodes_key, 7),
    "has another's name, so that neither is enrolled": (lambda f: claim(f, 7, "node-3"), 6),
}


@pytest.mark.parametrize("what", CLAIMS)
def test_a_federation_is_founded_without_a_node_that(what, carried):
    claiming, participants = CLAIMS[what]
    federation = carried()
    claiming(federation)
    assert federation.run_round().receipt.participants == participants

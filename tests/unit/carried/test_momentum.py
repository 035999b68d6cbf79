"""Client momentum at a node, which is made anew for each message, and asked for rounds again."""

import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostraka.carried.messages import ASK, is_poll
from ostraka.carried.node import Node, unsafe_simulated_node
from ostraka.carried.node_state import FileNotebook, Scratch
from ostraka.carried.trust import UnsafeFirstSeen
from ostraka.client.memory import MemoryFile
from ostraka.crypto.identity import Identity
from ostraka.errors import StateError

D = 66


def with_files(folder: Path, scratch: Scratch, name: str) -> Node:
    """A node whose notes outlive the run, except for the enclave that it trusts."""
    seed = scratch.setdefault("seed", os.urandom(32))
    notebook = FileNotebook(MemoryFile(folder / f"{name}.memory", name))
    memory = notebook.load().memory
    standards = UnsafeFirstSeen(scratch, memory.charter if memory else None)
    return Node(name, Identity(seed), standards, notebook, scratch)


@dataclass
class Moving:
    """A federation whose nodes all send the same, by round. folder: of their files, if any."""

    federation: Any
    folder: Path | None
    values: dict[int, float] = field(default_factory=dict)

    def node(self, number: int) -> Node:
        scratch, name = self.federation.scratch[number], f"node-{number}"
        if self.folder is None:
            return unsafe_simulated_node(name, scratch)
        return with_files(self.folder, scratch, name)

    def answer(self, number: int, message: bytes) -> bytes:
        node = self.node(number)
        if message == ASK:
            return node.greet()
        if is_poll(message):
            return node.confirm(message).message
        part = node.join(message)
        value = self.values.get(part.joined.offer.number, 0.0)
        return node.seal(part, np.full(D, value, "<f4"))

    def kept(self, number: int) -> dict[int, float]:
        """What a node has kept, by the numbers of rounds."""
        notebook = self.node(number).notebook
        memory = notebook.load().memory
        assert memory is not None
        kept = notebook.kept(memory.federation, "momentum")
        return {each: float(kept.read(each)[0]) for each in sorted(kept.numbers())}


@pytest.fixture(params=["in the run's context", "in files"])
def moving(request, carried, tmp_path):
    moving = Moving(carried(client_momentum=0.5), tmp_path if request.param == "in files" else None)
    nodes = moving.federation.carrier.nodes
    nodes |= {number: partial(moving.answer, number) for number in nodes}
    return moving


def value_of(published):
    (value,) = set(published.model.tolist())
    return value


def test_rounds_move_the_model_by_the_running_mean(moving):
    """All send the same, so that the aggregate is what each has sent."""
    moving.values = {1: 8.0, 2: 4.0, 3: -3.0}
    moved = [value_of(moving.federation.run_round()) for _ in range(4)]
    assert moved == [8, 14, 15.5, 16.25]


def test_a_round_that_is_opened_again_counts_once(moving):
    federation, moving.values = moving.federation, {1: 8.0, 2: 100.0}
    federation.run_round()
    federation.train(federation.open())
    moving.values[2] = 4.0
    federation.train(federation.open())
    assert value_of(federation.finish(federation.train(federation.open()))) == 14
    assert value_of(federation.run_round()) == 17


def test_a_node_that_missed_a_round_goes_on_from_its_last_one(moving):
    federation, moving.values = moving.federation, {1: 8.0, 2: 2.0, 3: 4.0}
    federation.run_round()
    away = federation.carrier.nodes.pop(6)
    federation.run_round()
    federation.carrier.nodes[6] = away
    federation.run_round()
    assert moving.kept(5) == {2: 5.0, 3: 4.5}
    assert moving.kept(6) == {1: 8.0, 3: 6.0}


def test_a_damaged_file_is_told_of_before_the_app_trains(carried, tmp_path):
    federation = carried(client_momentum=0.5)
    proofs = federation.open()
    scratch = federation.scratch[1]
    node = with_files(tmp_path, scratch, "node-1")
    node.seal(node.join(proofs[1]), np.ones(D, "<f4"))
    replies = federation.train({n: proof for n, proof in proofs.items() if n != 1})
    federation.carrier.nodes.pop(1)
    federation.finish(replies)
    file = tmp_path / "node-1.memory.momentum-1"
    file.write_bytes(b"rubbish")
    federation.carrier.nodes[1] = lambda _: with_files(tmp_path, scratch, "node-1").greet()
    proofs = federation.open()
    with pytest.raises(StateError, match=r"node-1\.memory\.momentum-1: is damaged.*Delete"):
        with_files(tmp_path, scratch, "node-1").join(proofs[1])


def test_without_momentum_nothing_is_kept(carried):
    federation = carried(client_momentum=0.0)
    federation.run_round()
    federation.run_round()
    assert not any("momentum" in name for each in federation.scratch.values() for name in each)

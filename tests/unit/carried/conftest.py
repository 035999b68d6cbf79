"""`carried(n=7)` gives a federation that the smallest possible framework carries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ostraka.carried.in_process import FoundingTerms, UnsafeInProcessEnclave
from ostraka.carried.messages import ASK
from ostraka.carried.node import Node, unsafe_simulated_node
from ostraka.carried.relay import Enough, Head, PublishedModel, Relay
from ostraka.config import Manifest

D = 66


@dataclass
class LocalCarrier:
    """Hands messages to functions in this process: all that a framework has to do."""

    nodes: dict[int, Callable[[bytes], bytes]] = field(default_factory=dict)
    outbox: dict[int, bytes] = field(default_factory=dict)

    def send(self, node: int, message: bytes) -> None:
        self.outbox[node] = message

    def receive(self, *, seconds: float, enough: Enough) -> dict[int, bytes]:
        sent, self.outbox = self.outbox, {}
        return {node: self.nodes[node](message) for node, message in sent.items()}


@dataclass
class CarriedFederation:
    """scratch: what the framework keeps for each node."""

    enclave: UnsafeInProcessEnclave
    relay: Relay
    head: Head
    carrier: LocalCarrier = field(default_factory=LocalCarrier)
    scratch: dict[int, dict[str, Any]] = field(default_factory=dict)

    def node(self, number: int) -> Node:
        """Return the node as it is made anew for each message."""
        return unsafe_simulated_node(f"node-{number}", self.scratch[number])

    def add(self, number: int) -> None:
        """Add a node that moves every value of the model by its number."""
        self.scratch[number] = {}

        def answer(message: bytes) -> bytes:
            node = self.node(number)
            if message == ASK:
                return node.greet()
            update = np.full(D, number, "<f4")
            return node.seal(node.join(message), update)

        self.carrier.nodes[number] = answer

    def open(self) -> dict[int, bytes]:
        """Open a round, and return the proofs for its nodes."""
        return self.relay.open(
            self.carrier, list(self.carrier.nodes), least=self.head.least, seconds=60
        )

    def train(self, proofs: Mapping[int, bytes]) -> dict[int, bytes]:
        """Return the sealed replies to these proofs."""
        return {node: self.carrier.nodes[node](proof) for node, proof in proofs.items()}

    def run_round(self) -> PublishedModel | None:
        replies = self.train(self.open())
        return self.relay.finish(replies, least=self.head.least, seconds=60)


@pytest.fixture
def carried() -> Callable[..., CarriedFederation]:
    def make(n: int = 7, f: int = 1) -> CarriedFederation:
        enclave = UnsafeInProcessEnclave(FoundingTerms(f, disclose_selection=True))
        head = enclave.start(Manifest.flat(D), np.zeros(D, "<f4"))
        federation = CarriedFederation(enclave, Relay(enclave), head)
        for number in range(n):
            federation.add(number)
        return federation

    return make

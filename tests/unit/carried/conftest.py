"""`carried(n=7)` gives a federation that the smallest possible framework carries."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ostraka.carried.in_process import FoundingTerms, UnsafeInProcessEnclave
from ostraka.carried.messages import ASK, is_poll
from ostraka.carried.node import Node, unsafe_simulated_node
from ostraka.carried.relay import Enough, Head, PublishedModel, Relay
from ostraka.config import Manifest
from ostraka.core import rules
from ostraka.errors import OstrakaError

D = 66
PAPER = rules.parse("multi-krum")


@dataclass
class LocalCarrier:
    """Hands messages to functions in this process: all that a framework has to do."""

    nodes: dict[int, Callable[[bytes], bytes]] = field(default_factory=dict)
    outbox: dict[int, bytes] = field(default_factory=dict)
    sent: list[tuple[int, bytes]] = field(default_factory=list)

    def send(self, node: int, message: bytes) -> None:
        self.outbox[node] = message
        self.sent.append((node, message))

    def receive(self, *, seconds: float, enough: Enough) -> dict[int, bytes]:
        """Return replies until enough of them count. A node that refuses is left out."""
        outbox, self.outbox = self.outbox, {}
        replies: dict[int, bytes] = {}
        counted = 0
        for node, message in outbox.items():
            if enough.grace == 0 and counted >= enough.replies:
                break
            with suppress(OstrakaError):
                replies[node] = self.nodes[node](message)
                counted += enough.counts(node, replies[node])
        return replies


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
            if is_poll(message):
                return node.confirm(message).message
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

    def finish(self, replies: Mapping[int, bytes]) -> PublishedModel | None:
        """Hand over the replies, and ask all nodes to confirm."""
        return self.relay.finish(
            self.carrier,
            list(self.carrier.nodes),
            replies,
            least=self.head.least,
            seconds=60,
            greet_seconds=60,
        )

    def run_round(self) -> PublishedModel | None:
        return self.finish(self.train(self.open()))


@pytest.fixture
def carried() -> Callable[..., CarriedFederation]:
    def make(n: int = 7, f: int = 1, **terms: Any) -> CarriedFederation:
        founding: dict[str, Any] = {
            "composition": PAPER,
            "client_momentum": 0.0,
            "disclose_selection": True,
        }
        enclave = UnsafeInProcessEnclave(FoundingTerms(f, **(founding | terms)))
        head = enclave.start(Manifest.flat(D), np.zeros(D, "<f4"))
        federation = CarriedFederation(enclave, Relay(enclave), head)
        for number in range(n):
            federation.add(number)
        return federation

    return make

"""The host's side: one round after another, between the framework's nodes and the enclave.

    nodes  <-- Carrier: send(node, bytes), receive -->  Relay  <-- CarriedEnclave -->  enclave

The relay is trusted with nothing. If a node does something wrong, only that node is left out, and
the log says why.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from ostraka.arrays import Float32
from ostraka.carried.messages import ASK, Hello, Links, Proof, SealedReply, read_hello
from ostraka.client.connection import Patience
from ostraka.config import Manifest, Terms
from ostraka.crypto.updates import SealedUpdate
from ostraka.encoding import encode
from ostraka.errors import MalformedMessage, OstrakaError, ServiceError, printable
from ostraka.messages import Receipt, RoundOffer

LOG = logging.getLogger("ostraka.carried")

_FIRST_TURN_S = 15.0  # for each node
_SECOND_TURN_S = 120.0  # for all nodes together
_SHOWN = 300  # characters of what a node says

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Enough:
    """When to stop waiting for replies: `grace` seconds after `replies` of them have come.

    grace: None to wait for all replies until time is up. counts: whether this reply of this node is
    one of those. Otherwise a few nodes that reply at once, with nothing, could cut off the rest.
    """

    replies: int
    grace: float | None
    counts: Callable[[int, bytes], bool]


class Carrier(Protocol):
    """The framework's way to its nodes. An adapter implements this."""

    def send(self, node: int, message: bytes) -> None:
        """Send a message to a node."""

    def receive(self, *, seconds: float, enough: Enough) -> dict[int, bytes]:
        """Return the replies to what was sent, by node. A node that fails is left out."""


class Finished(OstrakaError):
    """All rounds of the federation are over."""


@dataclass(frozen=True)
class Head:
    """Where the federation is.

    number: of the last published round, 0 before the first. least: the number of updates that the
    aggregation rule needs.
    """

    number: int
    manifest: Manifest
    model: Float32 = field(repr=False)
    f: int
    k: int | None
    least: int

    @classmethod
    def at(cls, number: int, terms: Terms, model: Float32) -> "Head":
        return cls(number, terms.manifest, model, terms.f, terms.k, terms.least(terms.f))


@dataclass(frozen=True)
class PublishedModel:
    """The model (d,) that a round has published, and its receipt."""

    receipt: Receipt
    model: Float32 = field(repr=False)


class CarriedEnclave(Protocol):
    """An enclave as the relay reaches it. Every refusal raises an OstrakaError.

    seconds: how long to wait for an answer; None for the enclave's own default. A ServiceError
    without a status says that no answer came.
    """

    def start(self, manifest: Manifest, model: Float32) -> Head:
        """Return where the federation is. The app's model is its first one if it has none yet."""

    def open(self, hellos: Sequence[Hello]) -> None:
        """Open a round for these nodes. Raises ConfigError if they are too few."""

    def introduce(self, hello: Hello, *, seconds: float | None = None) -> Proof:
        """Answer a node's challenge. Raises Finished."""

    def deliver(self, sealed: SealedUpdate, *, seconds: float | None = None) -> None:
        """Hand over an update, unread."""

    def finish(self, offer: RoundOffer, *, seconds: float) -> PublishedModel | None:
        """Return what the round has published, checked; None if it published nothing."""

    def links(self, after: int) -> tuple[bytes, ...]:
        """Return the chain of charters and receipts after the receipt of this number."""

    def close(self) -> None:
        """Close connections until the next call."""


@dataclass
class Relay:
    """Carries rounds between nodes and an enclave.

    finished: the federation has no rounds left. after: the last receipt that each node knew.
    """

    enclave: CarriedEnclave
    log: logging.Logger = LOG
    finished: bool = False
    after: dict[int, int] = field(default_factory=dict)
    _offer: RoundOffer | None = None
    _terms: Terms | None = None  # of that round
    _clients: dict[int, str] = field(default_factory=dict)  # names of the nodes that were asked
    _hellos: dict[int, Hello] = field(default_factory=dict)  # from the nodes' last replies

    def open(
        self,
        carrier: Carrier,
        nodes: Sequence[int],
        *,
        least: int,
        seconds: float,
        grace: float | None = None,
    ) -> dict[int, bytes]:
        """Open a round and return the proof for each node that takes part; none if too few do.

        seconds: how long nodes have to answer. grace: how long once `least` of them have answered
        that took part before. Raises OstrakaError.
        """
        self._offer, self._clients = None, {}
        hellos = {node: self._hellos.pop(node) for node in nodes if node in self._hellos}
        unknown = [node for node in nodes if node not in hellos]
        enough = Enough(least - len(hellos), grace, self._is_known_hello)
        hellos |= self._greet(carrier, unknown, seconds, enough)
        if not hellos:
            return {}
        self.enclave.open(list(hellos.values()))
        try:
            proofs = self._in_turn(hellos, self._introduce, enough=least)
        except Finished as over:
            self.finished = True
            self.log.info("%s", over)
            return {}
        if not self._enough(len(proofs), least):
            self._offer = None
            return {}
        return proofs

    def usable(self, node: int, reply: bytes) -> bool:
        """Tell whether `finish` would hand over this reply."""
        try:
            self._read(node, reply)
        except OstrakaError:
            return False
        return True

    def finish(
        self, replies: Mapping[int, bytes], *, least: int, seconds: float
    ) -> PublishedModel | None:
        """Hand over the replies, and return what the enclave publishes.

        None if it publishes nothing. Too few replies are not waited for, since more will come with
        the framework's next round. Raises OstrakaError.
        """
        if self._offer is None:
            return None
        if not self._enough(len(self._in_turn(replies, self._deliver)), least):
            return None
        published = self.enclave.finish(self._offer, seconds=seconds)
        if published is None:
            self.log.error("the enclave has given up round %d, or opened it again", self.number)
        return published

    def links(self, node: int) -> bytes | None:
        """Return what proves the last model to a node; None if the node has never taken part."""
        after = self.after.get(node)
        return None if after is None else encode(Links(self.enclave.links(after)))

    @property
    def number(self) -> int:
        """The number of the open round, 0 if none is open."""
        return self._offer.number if self._offer else 0

    def _greet(
        self, carrier: Carrier, nodes: Sequence[int], seconds: float, enough: Enough
    ) -> dict[int, Hello]:
        for node in nodes:
            carrier.send(node, ASK)
        hellos: dict[int, Hello] = {}
        for node, reply in carrier.receive(seconds=seconds, enough=enough).items():
            try:
                hellos[node] = read_hello(reply)
            except MalformedMessage as refused:
                left_out(self.log, node, str(refused))
        return hellos

    def _is_known_hello(self, node: int, reply: bytes) -> bool:
        """Tell whether this is the Hello of a node that the enclave has answered before.

        Otherwise strangers, who reply at once and are refused later, could cut off the others.
        """
        try:
            read_hello(reply)
        except MalformedMessage:
            return False
        return node in self.after

    def _introduce(self, node: int, hello: Hello, seconds: float) -> bytes:
        """Get the proof for a node. If two nodes claim one name, the enclave tells who is right."""
        name = hello.challenge.client
        proof = self.enclave.introduce(hello, seconds=seconds)
        if name in self._clients.values():
            raise MalformedMessage(f"another node speaks for client {name!r}")
        offer = proof.introduction.offer
        if self._offer is not None and offer.round_id != self._offer.round_id:
            raise MalformedMessage("the round was opened again while nodes were asked")
        self._offer, self._terms = offer, proof.charter.federation.terms
        self._clients[node] = name
        self.after[node] = offer.number - 1 if hello.after is None else hello.after
        return encode(proof)

    def _deliver(self, node: int, reply: bytes, seconds: float) -> None:
        read = self._read(node, reply)
        self._hellos[node] = read.hello
        self.enclave.deliver(read.sealed, seconds=seconds)

    def _read(self, node: int, reply: bytes) -> SealedReply:
        """Read an update of the right client and size, still sealed. Raises MalformedMessage."""
        read = SealedReply.from_bytes(reply)
        name, expected = read.sealed.header.client, self._clients.get(node)
        if name != expected or self._terms is None:
            raise MalformedMessage(
                f"it answers with an update of client {name!r}, and it was asked as {expected!r}"
            )
        read.require_shape(self._terms)
        return read

    def _in_turn(
        self,
        work: Mapping[int, _T],
        step: Callable[[int, _T, float], _R],
        *,
        enough: int | None = None,
    ) -> dict[int, _R]:
        """Return what the step yields for each node. A node that is refused is left out.

        First every node has a brief turn. Those for which the enclave did not answer have another
        one, for which they share one budget, and none once enough are done: no node can use up the
        time of the others. Raises Finished.
        """
        done: dict[int, _R] = {}
        unanswered: dict[int, OstrakaError] = {}

        def attempt(node: int, seconds: float) -> None:
            try:
                done[node] = step(node, work[node], seconds)
            except Finished:
                raise
            except OstrakaError as refused:
                if _is_unanswered(refused):
                    unanswered[node] = refused
                else:
                    left_out(self.log, node, str(refused))

        for node in work:
            attempt(node, _FIRST_TURN_S)
        budget = Patience(_SECOND_TURN_S)
        for node in list(unanswered):
            if not budget.over and (enough is None or len(done) < enough):
                del unanswered[node]
                attempt(node, budget.limit(_SECOND_TURN_S))
        for node, refused in unanswered.items():
            left_out(self.log, node, str(refused))
        return done

    def _enough(self, nodes: int, least: int) -> bool:
        if nodes < least:
            self.log.error("%d nodes take part, and %d are needed: no round", nodes, least)
        return nodes >= least


def left_out(log: logging.Logger, node: int, why: str) -> None:
    """Log that a node is left out. why: may quote the node."""
    log.warning("node %d is left out: %s", node, printable(why, _SHOWN))


def _is_unanswered(refused: OstrakaError) -> bool:
    return isinstance(refused, ServiceError) and not refused.status

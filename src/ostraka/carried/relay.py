"""One round after the other, from the host's side: who is asked, who answers, what comes out.

Whatever a node does wrong, only that node is left out, and the log says why.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from flwr.app import Message, MessageType

from ostraka.carried.enclave import Enclave, Finished, Outcome
from ostraka.client.connection import Patience as Budget
from ostraka.config import Terms
from ostraka.crypto.updates import SealedUpdate
from ostraka.errors import MalformedMessage, OstrakaError, ServiceError
from ostraka.flower.grid import Courier, Patience, left_out, printable
from ostraka.flower.messages import (
    Hello,
    Links,
    Proof,
    ask,
    read_hello,
    read_sealed,
    require_shape,
)
from ostraka.messages import RoundOffer

_LOG = logging.getLogger("flwr.ostraka")
_FIRST_TURN_S = 15.0  # for each node
_SECOND_TURN_S = 120.0  # for all nodes together

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass
class Relay:
    """finished: the federation has no rounds left. after: what each node knew of the chain."""

    enclave: Enclave
    finished: bool = False
    after: dict[int, int] = field(default_factory=dict)
    _offer: RoundOffer | None = None
    _terms: Terms | None = None  # of that round
    _clients: dict[int, str] = field(default_factory=dict)  # who was asked, by node
    _hellos: dict[int, Hello] = field(default_factory=dict)  # that came with their last replies

    def open(
        self,
        courier: Courier,
        nodes: list[int],
        *,
        least: int,
        seconds: float,
        grace: float | None = None,
    ) -> dict[int, Proof]:
        """Challenge and answer, for each of these nodes that takes part; none, if too few do.

        grace: seconds for nodes to answer once `least` others have. Raises OstrakaError.
        """
        self._offer, self._clients = None, {}
        hellos = {node: self._hellos.pop(node) for node in nodes if node in self._hellos}
        unknown = [node for node in nodes if node not in hellos]
        courier.patience = Patience(least - len(hellos), grace, self._is_known_hello)
        hellos |= self._greet(courier, unknown, seconds)
        if not hellos:
            return {}
        self.enclave.open(list(hellos.values()))
        try:
            proofs = _in_turn(hellos, self._introduce, enough=least)
        except Finished as over:
            self.finished = True
            _LOG.info("%s", over)
            return {}
        if not _enough(len(proofs), least):
            self._offer = None
            return {}
        return proofs

    def finish(self, replies: Iterable[Message], *, least: int, seconds: float) -> Outcome | None:
        """Hand over the replies, and wait for what the enclave makes of them.

        None if that is nothing; too few replies are not waited for, since more will come with the
        next round of Flower's. Raises OstrakaError.
        """
        if self._offer is None:
            return None
        by_node = {reply.metadata.src_node_id: reply for reply in replies}
        if not _enough(len(_in_turn(by_node, self._deliver)), least):
            return None
        outcome = self.enclave.finish(self._offer, seconds=seconds)
        if outcome is None:
            _LOG.error("the enclave has given up round %d, or opened it again", self.number)
        return outcome

    def links(self, node: int) -> Links | None:
        """What proves the last round's model to a node; None for one that has never taken part."""
        after = self.after.get(node)
        return None if after is None else Links(self.enclave.links(after))

    @property
    def number(self) -> int:
        return self._offer.number if self._offer else 0

    def _greet(self, courier: Courier, nodes: list[int], seconds: float) -> dict[int, Hello]:
        questions = [Message(ask(), node, MessageType.TRAIN, ttl=seconds) for node in nodes]
        hellos: dict[int, Hello] = {}
        for reply in courier.send_and_receive(questions, timeout=seconds):
            node = reply.metadata.src_node_id
            try:
                hello = read_hello(require_content(reply).content)
            except OstrakaError as refused:
                left_out(node, str(refused))
                continue
            hellos[node] = hello
        return hellos

    def _is_known_hello(self, reply: Message) -> bool:
        """Of a node that the enclave has answered before.

        Else strangers, who answer at once and are refused later, could cut off those who take part.
        """
        try:
            read_hello(require_content(reply).content)
        except OstrakaError:
            return False
        return reply.metadata.src_node_id in self.after

    def usable(self, reply: Message) -> bool:
        """Whether a reply will be handed over."""
        try:
            self._read(reply.metadata.src_node_id, reply)
        except OstrakaError:
            return False
        return True

    def _introduce(self, node: int, hello: Hello, seconds: float) -> Proof:
        """The enclave tells who really is the client that two nodes may claim to be."""
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
        return proof

    def _deliver(self, node: int, reply: Message, seconds: float) -> None:
        sealed = self._read(node, reply)
        with suppress(MalformedMessage):
            self._hellos[node] = read_hello(reply.content)
        self.enclave.deliver(sealed, seconds=seconds)

    def _read(self, node: int, reply: Message) -> SealedUpdate:
        """An update of the client that this node was asked as, of the right size, still sealed."""
        sealed = read_sealed(require_content(reply).content)
        name, expected = sealed.header.client, self._clients.get(node)
        if name != expected or self._terms is None:
            raise MalformedMessage(
                f"it answers with an update of client {name!r}, and it was asked as {expected!r}"
            )
        require_shape(sealed, self._terms)
        return sealed


def _in_turn(
    work: Mapping[int, _T], step: Callable[[int, _T, float], _R], *, enough: int | None = None
) -> dict[int, _R]:
    """What the step has yielded for each node; who is refused is left out. Raises Finished.

    First each has a brief turn. Those whom the enclave did not answer have another, for which they
    share one budget, and none once enough are done: no node keeps it from the others.
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
                left_out(node, str(refused))

    for node in work:
        attempt(node, _FIRST_TURN_S)
    budget = Budget(_SECOND_TURN_S)
    for node in list(unanswered):
        if not budget.over and (enough is None or len(done) < enough):
            del unanswered[node]
            attempt(node, budget.limit(_SECOND_TURN_S))
    for node, refused in unanswered.items():
        left_out(node, str(refused))
    return done


def _is_unanswered(refused: OstrakaError) -> bool:
    return isinstance(refused, ServiceError) and not refused.status


def require_content(reply: Message) -> Message:
    """Raises MalformedMessage for an error, with the reason that came along."""
    if reply.has_error():
        raise MalformedMessage(printable(reply.error.reason or "no reason was given"))
    return reply


def _enough(nodes: int, least: int) -> bool:
    if nodes < least:
        _LOG.error("%d nodes take part, and %d are needed: no round", nodes, least)
    return nodes >= least

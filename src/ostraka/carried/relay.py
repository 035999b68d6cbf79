"""The host's side: one round after another, between the framework's nodes and the enclave.

    nodes  <-- Carrier: send(node, bytes), receive -->  Relay  <-- CarriedEnclave -->  enclave

The relay is trusted with nothing. If a node does something wrong, only that node is left out, and
the log says why.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

from ostraka.arrays import Float32
from ostraka.carried.messages import (
    ASK,
    Hello,
    KeyProof,
    Links,
    Poll,
    Proof,
    SealedReply,
    is_reminder,
    read_hello,
)
from ostraka.client.attesting import Unconfirmed
from ostraka.client.connection import Patience
from ostraka.config import Manifest, Terms
from ostraka.core.rules import Composition
from ostraka.crypto.identity import check_signature
from ostraka.crypto.updates import SealedUpdate
from ostraka.encoding import decode, encode
from ostraka.errors import (
    MalformedMessage,
    OpenError,
    OstrakaError,
    RolledBack,
    ServiceError,
    printable,
)
from ostraka.messages import Confirmation, Proposal, Receipt, RoundOffer
from ostraka.protocol.confirm import Ballot, electorates, leaf

LOG = logging.getLogger("ostraka.carried")

_FIRST_TURN_S = 15.0  # for each node
_SECOND_TURN_S = 120.0  # for all nodes together
_VALUE_BYTES = 4
_SLOWEST = 2**20  # bytes a second, at which an update reaches the enclave at the least
_SHOWN = 300  # characters of what a node says

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Enough:
    """When to stop waiting for replies: `grace` seconds after `replies` of them have come.

    grace: None to wait for all replies until time is up. counts: whether this reply of this node is
    one of those. Otherwise a few nodes that reply at once, with nothing, could cut off the rest.
    for_all: whether those replies serve all nodes, so that no other node is left out of anything.
    """

    replies: int
    grace: float | None
    counts: Callable[[int, bytes], bool]
    for_all: bool = False


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

    number: of the last published round, 0 before the first. composition: the aggregation rule, what
    comes before it, and their options. least: the number of updates that they need.
    """

    number: int
    manifest: Manifest
    model: Float32 = field(repr=False)
    f: int
    composition: Composition
    least: int

    @classmethod
    def at(cls, number: int, terms: Terms, model: Float32) -> "Head":
        return cls(number, terms.manifest, model, terms.f, terms.composition, terms.least(terms.f))


@dataclass(frozen=True)
class PublishedModel:
    """The model (d,) that a round has published, and its receipt."""

    receipt: Receipt
    model: Float32 = field(repr=False)


Outcome: TypeAlias = PublishedModel | Ballot | None
"""What has become of a round. A Ballot: it is not confirmed yet. None: nothing, and it is over."""


class CarriedEnclave(Protocol):
    """An enclave as the relay reaches it. Every refusal raises an OstrakaError.

    seconds: how long to wait for an answer; None for the enclave's own default. A ServiceError
    without a status says that no answer came.
    """

    def start(self, manifest: Manifest, model: Float32) -> Head:
        """Return where the federation is. The app's model is its first one if it has none yet."""

    def open(self, hellos: Sequence[Hello]) -> None:
        """Open a round for these nodes. Raises Unconfirmed, or ConfigError if they are too few."""

    def introduce(self, hello: Hello, *, seconds: float | None = None) -> Proof:
        """Answer a node's challenge. Raises Finished or Unconfirmed."""

    def deliver(self, sealed: SealedUpdate, *, seconds: float | None = None) -> None:
        """Hand over an update, unread."""

    def outcome(self, *, seconds: float) -> Outcome:
        """Return what has become of the open round, or of the one that waits to be confirmed.

        A published one is checked. Once enough nodes have confirmed, this waits for publication.
        """

    def prove(self, hello: Hello, *, seconds: float | None = None) -> KeyProof:
        """Answer a node's challenge without a round."""

    def path(self, leaf: bytes, *, seconds: float | None = None) -> tuple[bytes, ...] | None:
        """Return what leads from an upload to the root of the pending cohort; None if it is out."""

    def confirm(self, confirmation: Confirmation, *, seconds: float | None = None) -> None:
        """Hand over a vote, which the ballot counts."""

    def remind(self, proposal: Proposal, *, seconds: float | None = None) -> None:
        """Show the enclave a proposal that it has signed and a node has confirmed."""

    def links(self, after: int | None, *, seconds: float | None = None) -> tuple[bytes, ...]:
        """Return the chain after the receipt of this number; None for what a newcomer needs."""

    def close(self) -> None:
        """Close connections until the next call."""


@dataclass
class _Peer:
    """A node as the relay knows it.

    name: as it claims. after: the last receipt that it need not be shown, None if it has no place
    in the chain. hello: a challenge of it that nothing has answered yet. met: it has sent an update
    or a vote, so it knows the enclave. leaves: of its uploads for the round that is not published
    yet.
    """

    name: str = ""
    after: int | None = None
    hello: Hello | None = None
    met: bool = False
    leaves: list[bytes] = field(default_factory=list)

    @property
    def can_be_polled(self) -> bool:
        """Otherwise it has to be greeted first."""
        return self.met or self.hello is not None


@dataclass
class Relay:
    """Carries rounds between nodes and an enclave.

    finished: the federation has no rounds left. waiting: an outcome waits to be confirmed, and no
    round opens before that; `finish` asks for it again.
    """

    enclave: CarriedEnclave
    log: logging.Logger = LOG
    finished: bool = False
    waiting: bool = False
    _offer: RoundOffer | None = None
    _terms: Terms | None = None  # of that round
    _clients: dict[int, str] = field(default_factory=dict)  # names of the nodes that were asked
    _peers: dict[int, _Peer] = field(default_factory=dict)
    _delivered: set[str] = field(default_factory=set)  # clients, in that round

    def open(
        self,
        carrier: Carrier,
        nodes: Sequence[int],
        *,
        least: int,
        seconds: float,
        grace: float | None = None,
    ) -> dict[int, bytes]:
        """Open a round and return the proof for each node that takes part.

        There is none if too few do, or if an outcome waits to be confirmed. seconds: how long nodes
        have to answer. grace: how long once `least` of them have answered that took part before.
        Raises OstrakaError.
        """
        self._offer, self._clients = None, {}
        if self.waiting:
            return {}
        self._delivered = set()
        unknown = [node for node in nodes if self._peer(node).hello is None]
        enough = Enough(least - len(nodes) + len(unknown), grace, self._is_known_hello)
        self._greet(carrier, unknown, seconds, enough)
        hellos = {node: hello for node in nodes if (hello := self._peer(node).hello) is not None}
        if not hellos:
            return {}
        try:
            self.enclave.open(list(hellos.values()))
            proofs = self._in_turn(hellos, self._introduce, enough=least)
        except Finished as over:
            self.finished = True
            self.log.info("%s", over)
            return {}
        except Unconfirmed:
            self.waiting, self._offer = True, None
            self.log.info("an outcome waits to be confirmed: nodes are asked before a round opens")
            return {}
        for node in hellos:
            self._peers[node].hello = None
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
        self,
        carrier: Carrier,
        nodes: Sequence[int],
        replies: Mapping[int, bytes],
        *,
        least: int,
        seconds: float,
        greet_seconds: float,
    ) -> PublishedModel | None:
        """Hand over the replies, have the outcome confirmed, and return what the enclave publishes.

        nodes: all that are connected. seconds: how long the enclave has to propose, nodes to
        confirm, and the enclave to publish. greet_seconds: how long nodes that are not known yet
        have to answer. None if nothing is published. Then an outcome that waits to be confirmed
        goes on waiting, and the framework's next round asks again. Too few replies are not waited
        for either: more will come with that round. Raises OstrakaError.
        """
        if self._offer is None and not self.waiting:
            return None
        if self._offer is not None and not self._enough(self._deliver_all(replies), least):
            return None
        outcome = self.enclave.outcome(seconds=seconds)
        if isinstance(outcome, Ballot):
            self._poll(carrier, nodes, outcome, seconds=seconds, greet_seconds=greet_seconds)
            outcome = self.enclave.outcome(seconds=seconds)
        self.waiting = isinstance(outcome, Ballot)
        match outcome:
            case PublishedModel():
                for peer in self._peers.values():
                    peer.leaves.clear()
                return outcome
            case Ballot():
                self._offer = None
                self.log.error(
                    "round %d is not published: %d more confirmations are needed, and these have "
                    "not confirmed it: %s. They are asked again in the next round",
                    outcome.proposal.number,
                    outcome.missing,
                    printable(", ".join(sorted(outcome.awaited)), _SHOWN),
                )
            case None:
                what = f"round {self.number}" if self.number else "the round that waited"
                self.log.error("the enclave has given up %s, or opened it again", what)
        return None

    def left_out(self, receipt: Receipt) -> list[str]:
        """Name the clients without a weight in a round, if its receipt discloses who has one.

        It names those that were carried here: others may have reached the enclave by themselves.
        """
        rejected = {each.client for each in receipt.rejected}
        return sorted(self._delivered - {*receipt.selected} - rejected) if receipt.disclosed else []

    def links(self, node: int) -> bytes | None:
        """Return what proves the last model to a node; None if the node holds no receipt."""
        after = self._peer(node).after
        return None if after is None else encode(Links(self.enclave.links(after)))

    @property
    def number(self) -> int:
        """The number of the open round, 0 if none is open."""
        return self._offer.number if self._offer else 0

    def _peer(self, node: int) -> _Peer:
        return self._peers.setdefault(node, _Peer())

    def _greet(
        self, carrier: Carrier, nodes: Sequence[int], seconds: float, enough: Enough
    ) -> None:
        for node in nodes:
            carrier.send(node, ASK)
        for node, reply in carrier.receive(seconds=seconds, enough=enough).items():
            try:
                self._heard(node, read_hello(reply))
            except MalformedMessage as refused:
                left_out(self.log, node, str(refused))

    def _heard(self, node: int, hello: Hello) -> None:
        peer = self._peer(node)
        peer.name, peer.after, peer.hello = hello.challenge.client, hello.after, hello

    def _is_known_hello(self, node: int, reply: bytes) -> bool:
        """Tell whether this is the Hello of a node that has taken part before.

        Otherwise strangers, who reply at once and are refused later, could cut off the others.
        """
        try:
            read_hello(reply)
        except MalformedMessage:
            return False
        return self._peer(node).met

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
        return encode(proof)

    def _deliver_all(self, replies: Mapping[int, bytes]) -> int:
        """Hand over updates. Gives how many were taken. Larger ones have more time."""
        more = self._terms.dimension * _VALUE_BYTES / _SLOWEST if self._terms else 0.0
        done = self._in_turn(replies, self._deliver, more=more)
        self._delivered = {self._clients[node] for node in done}
        return len(done)

    def _deliver(self, node: int, reply: bytes, seconds: float) -> None:
        self._pass_on_reminder(reply, self.number, seconds)
        read = self._read(node, reply)
        self._heard(node, read.hello)
        self.enclave.deliver(read.sealed, seconds=seconds)
        peer = self._peer(node)
        peer.leaves.append(leaf(read.sealed.header))
        peer.met = True

    def _poll(
        self,
        carrier: Carrier,
        nodes: Sequence[int],
        ballot: Ballot,
        *,
        seconds: float,
        greet_seconds: float,
    ) -> None:
        """Ask nodes for their votes: those that are known and then, if need be, the others."""
        self._ask_for_votes(carrier, nodes, ballot, seconds)
        if not needed(ballot):
            return
        others = [node for node in nodes if not self._peer(node).can_be_polled]
        # As many as are needed if f of them are quick to greet and do not vote then.
        wanted = needed(ballot) + ballot.electors.terms.f
        enough = Enough(wanted, 0.0, lambda node, reply: _is_voter(ballot, reply), for_all=True)
        self._greet(carrier, others, greet_seconds, enough)
        self._ask_for_votes(carrier, others, ballot, seconds)
        if needed(ballot):
            for peer in self._peers.values():
                if peer.name in ballot.awaited:
                    # It may have begun anew: it is greeted again, and shown who the enclave is.
                    peer.after, peer.hello, peer.met = None, None, False

    def _ask_for_votes(
        self, carrier: Carrier, nodes: Sequence[int], ballot: Ballot, seconds: float
    ) -> None:
        peers = {node: self._peer(node) for node in nodes}
        asked = {
            node: peer
            for node, peer in peers.items()
            if peer.can_be_polled and peer.name in ballot.awaited
        }
        polls = self._in_turn(
            asked, lambda node, peer, left: self._poll_for(peer, ballot.proposal, left)
        )
        for node, poll in polls.items():
            carrier.send(node, poll)
        self.enclave.close()  # Nodes take their time, and may be processes of this one.
        counted: set[str] = set()
        enough = Enough(
            needed(ballot),
            0.0,
            lambda node, reply: self._is_vote(node, reply, ballot, counted),
            for_all=True,
        )
        replies = carrier.receive(seconds=seconds, enough=enough)
        self._in_turn(replies, lambda node, reply, left: self._take_vote(node, reply, ballot, left))

    def _poll_for(self, peer: _Peer, proposal: Proposal, seconds: float) -> bytes:
        hello, proof = peer.hello, None
        if hello is not None and not peer.met:
            proof = self.enclave.prove(hello, seconds=seconds)
            peer.hello = None
        paths = (self.enclave.path(each, seconds=seconds) for each in reversed(peer.leaves))
        path = next((path for path in paths if path is not None), None)
        links = self.enclave.links(peer.after, seconds=seconds)
        return encode(Poll(proposal, links, path is not None, path or (), proof))

    def _take_vote(self, node: int, reply: bytes, ballot: Ballot, seconds: float) -> None:
        number = ballot.proposal.number
        if reply != encode(ballot.proposal):
            self._pass_on_reminder(reply, number, seconds)
        self.enclave.confirm(self._vote(node, reply, ballot), seconds=seconds)
        peer = self._peer(node)
        peer.after, peer.met = max(0, number - 2), True  # It holds the receipt before this round.

    def _pass_on_reminder(self, reply: bytes, number: int, seconds: float) -> None:
        """Show the enclave what a node has confirmed before, of this number or a later one.

        Raises RolledBack if the enclave has signed that.
        """
        if is_reminder(reply):
            proposal = decode(Proposal, reply)
            if proposal.number >= number:
                self.enclave.remind(proposal, seconds=seconds)
                raise RolledBack(proposal.number, proposal)

    def _vote(self, node: int, reply: bytes, ballot: Ballot) -> Confirmation:
        """Read a node's own vote. Raises MalformedMessage or OpenError."""
        vote, name = decode(Confirmation, reply), self._peer(node).name
        if vote.voter != name:
            raise MalformedMessage(
                f"it answers with a vote of client {vote.voter!r}, and it was asked as {name!r}"
            )
        Ballot(ballot.proposal, ballot.electors).add(vote)
        return vote

    def _is_vote(self, node: int, reply: bytes, ballot: Ballot, counted: set[str]) -> bool:
        """Tell whether this is a vote that `_take_vote` would count, and that was not counted."""
        try:
            voter = self._vote(node, reply, ballot).voter
        except OstrakaError:
            return False
        new = voter not in counted
        counted.add(voter)
        return new

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
        more: float = 0.0,
    ) -> dict[int, _R]:
        """Return what the step yields for each node. A node that is refused is left out.

        First every node has a brief turn. Those for which the enclave did not answer have another
        one, for which they share one budget, and none once enough are done: no node can use up the
        time of the others. more: seconds that a step takes because of what it moves, for each node.
        Raises Finished or Unconfirmed.
        """
        done: dict[int, _R] = {}
        unanswered: dict[int, OstrakaError] = {}

        def attempt(node: int, seconds: float) -> None:
            try:
                done[node] = step(node, work[node], seconds)
            except (Finished, Unconfirmed):
                raise
            except OstrakaError as refused:
                if _is_unanswered(refused):
                    unanswered[node] = refused
                else:
                    left_out(self.log, node, str(refused))

        for node in work:
            attempt(node, _FIRST_TURN_S + more)
        budget = Patience(_SECOND_TURN_S + more)
        for node in list(unanswered):
            if not budget.over and (enough is None or len(done) < enough):
                del unanswered[node]
                attempt(node, budget.limit(_SECOND_TURN_S + more))
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


def needed(ballot: Ballot) -> int:
    """How many more clients have to confirm, at the least. Witnesses are no nodes."""
    clients = {member.name for member in ballot.electors.clients}
    return sum(
        max(0, each.quorum - len(ballot.votes.keys() & each.names))
        for each in electorates(ballot.electors)
        if each.names <= clients
    )


def _is_voter(ballot: Ballot, reply: bytes) -> bool:
    """Tell whether this is the Hello of a client that has not confirmed yet."""
    keys = {member.name: member.key for member in ballot.electors.clients}
    try:
        challenge = read_hello(reply).challenge
        check_signature(challenge, keys.get(challenge.client, b""))
    except (MalformedMessage, OpenError):
        return False
    return challenge.client in ballot.awaited

"""The enclave's service, across a network. The nodes verify what it says."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ostraka.arrays import Float32
from ostraka.attestation.policy import FederationPolicy, Policy
from ostraka.carried.messages import Hello, KeyProof, Proof, read_links
from ostraka.carried.relay import LOG, Finished, Head, Outcome, PublishedModel, needed
from ostraka.client.attesting import Unconfirmed
from ostraka.client.connection import (
    LONG_POLL_S,
    UNCONFIRMED,
    Connection,
    Patience,
    published,
)
from ostraka.client.download import download
from ostraka.client.events import Event, Reconnecting
from ostraka.client.following import Followed, begin_with, follow
from ostraka.client.memory import Memory
from ostraka.client.upload import Upload
from ostraka.config import CONFIRMS, Manifest, spans_from
from ostraka.crypto.identity import Identity, check_signature
from ostraka.crypto.updates import SealedUpdate
from ostraka.encoding import decode, encode
from ostraka.errors import (
    ConfigError,
    LocalProtocolError,
    OstrakaError,
    ReceiptRefused,
    Rejection,
    RolledBack,
    ServiceError,
)
from ostraka.messages import (
    Abandon,
    Certified,
    Charter,
    Confirmation,
    Evidence,
    Introduction,
    Proposal,
    Receipt,
    RoundOffer,
    first_model,
)
from ostraka.protocol.client import Client
from ostraka.protocol.confirm import Ballot
from ostraka.transport import FINISHED
from ostraka.transport import ostraka_pb2 as wire

_PENDING_S = 0.2
_NAME = "relay"


class RemoteEnclave:
    """An enclave at HOST:PORT of `ostraka enclave run`.

    seconds: how long to wait for one answer. The chain is followed as a client would follow it. The
    enclave's key and its federation are taken from its first answers: only nodes have a policy, and
    only they need one.
    """

    def __init__(
        self,
        address: str,
        *,
        tls_ca: Path | None = None,
        seconds: float = 120,
        log: logging.Logger = LOG,
    ) -> None:
        self._address = address
        self._tls_ca = tls_ca
        self._seconds = seconds
        self._log = log
        self._connection: Connection | None = None
        self._observer = Identity.generate()  # signs nothing
        self._charter: Charter | None = None
        self._memory: Memory | None = None
        self._hellos: tuple[Hello, ...] = ()
        self._joined: RoundOffer | None = None
        self._ballot: Ballot | None = None
        self._links: dict[int | None, tuple[bytes, ...]] = {}  # of this round, by `after`

    def start(self, manifest: Manifest, model: Float32) -> Head:
        federation = self._ask_charter(self._connected()).federation
        last = self._last_settled()
        digest = last.model if last else first_model(federation)
        model = download(self._connected(), digest, federation)
        return Head.at(last.number if last else 0, federation.terms, model)

    def open(self, hellos: Sequence[Hello]) -> None:
        """Forget the last round: the service opens rounds by itself."""
        self._links.clear()
        self._hellos, self._joined, self._ballot = tuple(hellos), None, None
        self._ask_charter(self._connected())

    def introduce(self, hello: Hello, *, seconds: float | None = None) -> Proof:
        request = wire.IntroduceRequest(challenge=encode(hello.challenge))
        connection = self._connected(seconds)
        try:
            reply = connection.ask("Introduce", request, seconds=LONG_POLL_S)
        except ServiceError as refused:
            if refused.said == FINISHED:
                raise Finished("all rounds of the federation are over") from None
            if refused.said == UNCONFIRMED:
                raise Unconfirmed(str(refused)) from None
            raise
        introduction = decode(Introduction, reply.introduction)
        if introduction.offer.federation != self._known_charter().federation.digest():
            self._ask_charter(connection)  # The terms have changed since.
        links = self._links_by(connection, hello.after)
        self._observe(connection, introduction)
        return Proof(self._known_charter(), introduction, links)

    def prove(self, hello: Hello, *, seconds: float | None = None) -> KeyProof:
        connection = self._connected(seconds)
        charter = self._ask_charter(connection)
        request = wire.ProveRequest(challenge=encode(hello.challenge))
        reply = connection.ask("Prove", request)
        return KeyProof(charter, reply.receipt_key, decode(Evidence, reply.evidence))

    def deliver(self, sealed: SealedUpdate, *, seconds: float | None = None) -> None:
        if self._joined is None:
            raise LocalProtocolError("no round was joined")
        upload = Upload(self._joined.number, sealed, self._joined.shards)
        connection = self._connected(seconds)
        try:
            connection.attempt(partial(upload.stream, connection))
        except ServiceError as refused:
            if refused.said != Rejection.DUPLICATE:
                raise
            # It was sent in an earlier round of the framework, and that one counts.
        finally:
            upload.end()

    def outcome(self, *, seconds: float) -> Outcome:
        memory = self._begun(self._connected())
        connection = self._connected(seconds)
        number = self._joined.number if self._joined else memory.progress[0] + 1
        request = wire.OutcomeRequest(number=number)
        if self._joined is not None:
            request.round_id = self._joined.round_id
        while True:
            ballot = self._ballot
            if ballot is not None and not needed(ballot):
                # So asked, the service answers when it has published.
                request.voter = next(iter(ballot.votes), "")
            reply = connection.ask("AwaitOutcome", request, seconds=LONG_POLL_S)
            if reply.HasField("published"):
                reply = published(connection, number)
            match reply.WhichOneof("outcome"):
                case "certified":
                    return self._published(connection, decode(Certified, reply.certified).receipt)
                case "void":
                    return None
                case "rolled_back":
                    raise self._rolled_back(decode(Proposal, reply.rolled_back))
                case "proposed":
                    proposal = decode(Proposal, reply.proposed.proposal)
                    ballot = self._asked(connection, proposal)
            if connection.patience.over or (ballot is not None and needed(ballot)):
                return ballot
            connection.patience.sleep(_PENDING_S)

    def path(self, leaf: bytes, *, seconds: float | None = None) -> tuple[bytes, ...] | None:
        if self._ballot is None:
            raise LocalProtocolError("no outcome was proposed")
        request = wire.OutcomeRequest(number=self._ballot.proposal.number, leaf=leaf)
        proposed = self._connected(seconds).ask("AwaitOutcome", request).proposed
        return tuple(proposed.path) if proposed.included else None

    def confirm(self, confirmation: Confirmation, *, seconds: float | None = None) -> None:
        if self._ballot is None:
            raise LocalProtocolError("no outcome was proposed")
        request = wire.ConfirmRequest(confirmation=encode(confirmation))
        self._connected(seconds).ask("Confirm", request)
        self._ballot.add(confirmation)

    def remind(self, proposal: Proposal, *, seconds: float | None = None) -> None:
        self._connected(seconds).ask("Remind", wire.RemindRequest(proposal=encode(proposal)))

    def links(self, after: int | None, *, seconds: float | None = None) -> tuple[bytes, ...]:
        return self._links_by(self._connected(seconds), after)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.__exit__(None, None, None)
        self._connection = None

    def _links_by(self, connection: Connection, after: int | None) -> tuple[bytes, ...]:
        """Get the links in the time that is left: a node chooses how many it asks for."""
        if after not in self._links:
            request = wire.ChainRequest(after=after or 0, newest=after is None)

            def read() -> tuple[bytes, ...]:
                with connection.stream("GetChain", request) as links:
                    return tuple(link.SerializeToString() for link in links)

            self._links[after] = connection.attempt(read)
        return self._links[after]

    def _asked(self, connection: Connection, proposal: Proposal) -> Ballot:
        """Return the ballot of this proposal. Raises ReceiptRefused or OpenError."""
        if self._ballot is not None and self._ballot.proposal == proposal:
            return self._ballot
        memory = self._follow(connection).memory
        check_signature(proposal, memory.receipt_key)
        if proposal.number != memory.progress[0] + 1:
            raise ReceiptRefused("an outcome is proposed that is not the next one of the chain")
        self._memory = memory
        self._ballot = Ballot(proposal, memory.electors)
        return self._ballot

    def _published(self, connection: Connection, receipt: Receipt) -> PublishedModel:
        """Check the receipt as a client would. Raises ReceiptRefused, Fork or OpenError."""
        self._links.clear()
        followed = self._follow(connection)
        last = followed.memory.last
        if not isinstance(last, Receipt) or followed.receipts.get(receipt.number) != receipt:
            raise ReceiptRefused("the receipt that was shown is not in the chain")
        # If more rounds have ended since, this is the model of the last one.
        model = download(connection, last.model, followed.memory.federation)
        self._memory, self._ballot = followed.memory, None
        return PublishedModel(last, model)

    def _rolled_back(self, proposal: Proposal) -> RolledBack:
        if self._memory is not None:
            check_signature(proposal, self._memory.receipt_key)
        return RolledBack(proposal.number, proposal)

    def _follow(self, connection: Connection) -> Followed:
        memory = self._begun(connection)
        after = memory.last.number - 1 if memory.last else 0
        return follow(
            read_links(self._links_by(connection, after)),
            memory,
            identity=self._observer,
            policy=self._policy,
        )

    def _observe(self, connection: Connection, introduction: Introduction) -> None:
        """Note the open round, which the enclave has to have signed.

        Raises OpenError, and ReceiptRefused for shards that no update could be divided among.
        """
        offer = introduction.offer
        key = self._memory.receipt_key if self._memory else introduction.receipt_key
        check_signature(offer, key)
        if self._memory is None:
            self._begin(connection, key)
        try:
            spans_from(self._known_charter().federation.terms.tiling, offer.shards)
        except ConfigError as impossible:
            raise ReceiptRefused(f"an offer names impossible shards: {impossible}") from None
        self._joined = offer

    def _begun(self, connection: Connection) -> Memory:
        """The relay's place in the chain. Before a round was opened, any node's challenge helps."""
        refused: OstrakaError | None = None
        for hello in self._hellos if self._memory is None else ():
            try:
                return self._begin(connection, self.prove(hello).receipt_key)
            except OstrakaError as error:
                refused = error
        if self._memory is None:
            raise refused or LocalProtocolError("an enclave is asked after nodes have greeted")
        return self._memory

    def _begin(self, connection: Connection, receipt_key: bytes) -> Memory:
        charter = self._known_charter()
        blank = Client(_NAME, self._observer, charter.federation, receipt_key)
        links = read_links(self._links_by(connection, None))
        role = begin_with(links, blank, policy=self._policy)
        self._memory = Memory.of(role, charter)
        return self._memory

    @property
    def _policy(self) -> Policy:
        """Pin the authority and the federation that were seen first."""
        newest = self._known_charter().federation
        first = self._memory.federation if self._memory else newest
        pinned = FederationPolicy(
            first.authority,
            first.id,
            successors=newest.successors,
            shard_policies=(newest.shard_policy_digest,),
            witnesses=tuple(each.key for each in first.witnesses + newest.witnesses),
            confirms=CONFIRMS,
        )
        return Policy(federation=pinned)

    def _last_settled(self) -> Receipt | Abandon | None:
        """Return the end of the chain, which is not proved yet."""
        links = read_links(self.links(None))
        self._links.clear()
        for link in reversed(links):
            match link.WhichOneof("link"):
                case "certified":
                    return decode(Certified, link.certified).receipt
                case "abandon":
                    return decode(Abandon, link.abandon)
        return None

    def _ask_charter(self, connection: Connection) -> Charter:
        reply = connection.ask("GetCharter", wire.CharterRequest())
        self._charter = decode(Charter, reply.charter)
        return self._charter

    def _known_charter(self) -> Charter:
        if self._charter is None:
            raise LocalProtocolError("an enclave is started before it is asked")
        return self._charter

    def _connected(self, seconds: float | None = None) -> Connection:
        """Connect, with this much time from now on.

        The connection is closed between the steps of a round, since apps fork processes.
        """
        patience = Patience(self._seconds if seconds is None else seconds)
        if self._connection is None:
            self._connection = Connection(
                self._address, tls_ca=self._tls_ca, patience=patience, tell=self._tell
            )
        self._connection.patience = patience
        return self._connection

    def _tell(self, event: Event) -> None:
        level = logging.WARNING if isinstance(event, Reconnecting) else logging.DEBUG
        self._log.log(level, "%s", event)

"""The enclave's service, across a network. The nodes verify what it says."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ostraka.arrays import Float32
from ostraka.attestation.policy import FederationPolicy, Policy
from ostraka.carried.messages import Hello, Proof, read_links
from ostraka.carried.relay import LOG, Finished, Head, PublishedModel
from ostraka.client.connection import FINISHED, LONG_POLL_S, Connection, Patience, download
from ostraka.client.events import Event, Reconnecting
from ostraka.client.following import follow
from ostraka.client.memory import Memory
from ostraka.client.upload import BATCH_BYTES, Upload
from ostraka.config import Manifest
from ostraka.crypto.identity import Identity, check_signature
from ostraka.crypto.updates import SealedUpdate
from ostraka.encoding import decode, encode
from ostraka.errors import LocalProtocolError, ReceiptRefused, Rejection, ServiceError
from ostraka.messages import Charter, Introduction, Receipt, RoundOffer, first_model
from ostraka.transport import ostraka_pb2 as wire

_PENDING_S = 0.2
_NAME = "relay"


class RemoteEnclave:
    """An enclave at HOST:PORT of `ostraka enclave run`.

    seconds: how long to wait for one answer. The chain is followed as a client would follow it that
    joins the open round. The enclave's key is taken from its first answer: only nodes have a
    policy, and only they need one.
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
        self._joined: RoundOffer | None = None
        self._links: dict[int, tuple[bytes, ...]] = {}  # of this round, by `after`

    def start(self, manifest: Manifest, model: Float32) -> Head:
        federation = self._ask_charter(self._connected()).federation
        last = self._last_receipt()
        digest = last.model if last else first_model(federation)
        model = download(self._connected(), digest, federation)
        return Head.at(last.number if last else 0, federation.terms, model)

    def open(self, hellos: Sequence[Hello]) -> None:
        """Forget the last round: the service opens rounds by itself."""
        self._links.clear()
        self._ask_charter(self._connected())

    def introduce(self, hello: Hello, *, seconds: float | None = None) -> Proof:
        request = wire.IntroduceRequest(challenge=encode(hello.challenge))
        connection = self._connected(seconds)
        try:
            reply = connection.ask("Introduce", request, seconds=LONG_POLL_S)
        except ServiceError as refused:
            if refused.said == FINISHED:
                raise Finished("all rounds of the federation are over") from None
            raise
        introduction = decode(Introduction, reply.introduction)
        if introduction.offer.federation != self._known_charter().federation.digest():
            self._ask_charter(connection)  # The terms have changed since.
        self._observe(introduction)
        links = () if hello.after is None else self._links_by(connection, hello.after)
        return Proof(self._known_charter(), introduction, links)

    def deliver(self, sealed: SealedUpdate, *, seconds: float | None = None) -> None:
        if self._joined is None:
            raise LocalProtocolError("no round was joined")
        upload = Upload(self._joined.number, sealed, BATCH_BYTES)
        connection = self._connected(seconds)
        try:
            connection.attempt(partial(upload.stream, connection))
        except ServiceError as refused:
            if refused.said != Rejection.DUPLICATE:
                raise
            # It was sent in an earlier round of the framework, and that one counts.

    def finish(self, offer: RoundOffer, *, seconds: float) -> PublishedModel | None:
        connection = self._connected(seconds)
        request = wire.OutcomeRequest(number=offer.number, round_id=offer.round_id)
        while not connection.patience.over:
            reply = connection.ask("AwaitOutcome", request, seconds=LONG_POLL_S)
            match reply.WhichOneof("outcome"):
                case "receipt":
                    return self._published(decode(Receipt, reply.receipt))
                case "void":
                    return None
            connection.patience.sleep(_PENDING_S)
        return None

    def links(self, after: int) -> tuple[bytes, ...]:
        return self._links_by(self._connected(), after)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.__exit__(None, None, None)
        self._connection = None

    def _links_by(self, connection: Connection, after: int) -> tuple[bytes, ...]:
        """Get the links in the time that is left: a node chooses how many it asks for."""
        if after not in self._links:

            def read() -> tuple[bytes, ...]:
                with connection.stream("GetChain", wire.ChainRequest(after=after)) as links:
                    return tuple(link.SerializeToString() for link in links)

            self._links[after] = connection.attempt(read)
        return self._links[after]

    def _published(self, receipt: Receipt) -> PublishedModel:
        """Check the receipt as a client would. Raises ReceiptRefused, Fork or OpenError."""
        if self._memory is None or self._joined is None:
            raise LocalProtocolError("no round was joined")
        self._links.clear()
        first = self._memory.last or self._joined
        charter = self._known_charter()
        followed = follow(
            read_links(self.links(first.number - 1)),
            self._memory,
            identity=self._observer,
            policy=Policy(federation=FederationPolicy(charter.federation.authority)),
            joined=self._joined,
        )
        last = followed.memory.last
        if last is None or followed.receipts.get(receipt.number) != receipt:
            raise ReceiptRefused("the receipt that was shown is not in the chain")
        # If more rounds have ended since, this is the model of the last one.
        model = download(self._connected(), last.model, charter.federation)
        self._memory = followed.memory
        return PublishedModel(last, model)

    def _observe(self, introduction: Introduction) -> None:
        """Note the open round, which the enclave has to have signed. Raises OpenError."""
        offer = introduction.offer
        key = self._memory.receipt_key if self._memory else introduction.receipt_key
        check_signature(offer, key)
        if self._memory is None:
            self._memory = Memory(_NAME, self._known_charter(), key, ())
        self._joined = offer

    def _last_receipt(self) -> Receipt | None:
        """Return the last receipt of the chain, which is not proved yet."""
        receipts = [link.receipt for link in read_links(self.links(0)) if link.receipt]
        self._links.clear()
        return decode(Receipt, receipts[-1]) if receipts else None

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

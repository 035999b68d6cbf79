"""One call of the user: follow the chain, confirm what waits, join a round, get its model."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import numpy as np

from ostraka.arrays import Float32
from ostraka.client import attesting, following
from ostraka.client.attesting import Unconfirmed, Verifier
from ostraka.client.connection import (
    LONG_POLL_S,
    REQUEST_S,
    Connection,
    Status,
    published,
)
from ostraka.client.download import download
from ostraka.client.events import Confirmed, ForkProved, RollbackProved, Waiting
from ostraka.client.memory import NOTHING_SENT, Memory, MemoryFile
from ostraka.config import Federation
from ostraka.crypto.identity import check_signature
from ostraka.encoding import decode, encode
from ostraka.errors import (
    Fork,
    LocalProtocolError,
    MalformedMessage,
    OpenError,
    ReceiptRefused,
    RolledBack,
    ServiceError,
)
from ostraka.messages import Charter, Proposal, Receipt
from ostraka.protocol.client import Client, Joined, require_model
from ostraka.transport import ostraka_pb2 as wire

_FRESH_S = 1.0  # in which a round that has just opened is taken to be open
_POLL_S = 0.2  # between two questions, should the other side answer at once


@dataclass(frozen=True)
class Introduced:
    """What the enclave has said of itself and of the next round. until: on the monotonic clock."""

    answer: attesting.Answer
    until: float


@dataclass
class Shelf:
    """What the end of a round leaves for the next one: the newest model, and where that opens."""

    digest: bytes = b""
    vector: Float32 | None = field(default=None, repr=False)
    introduced: "Introduced | None" = None

    def take_introduced(self) -> attesting.Answer | None:
        """What the enclave has said of itself just now, once."""
        introduced, self.introduced = self.introduced, None
        if introduced is None or time.monotonic() >= introduced.until:
            return None
        return introduced.answer


@dataclass
class Session:
    """What is learned is written down before anything is done with it.

    begun: ids of rounds whose enclave has begun to take an update of this client. receipts: those
    that were followed in this session, by number.
    """

    who: Verifier
    connection: Connection
    file: MemoryFile
    shelf: Shelf
    begun: set[bytes] = field(default_factory=set)
    note: Callable[[Proposal], None] | None = None  # called before a vote is given
    memory: Memory | None = None
    receipts: dict[int, Receipt] = field(default_factory=dict)
    shown_key: bytes = b""  # of an enclave that has proved itself behind an Abandon
    refused: list[Proposal] = field(default_factory=list)  # others of a number were confirmed
    # A question about an outcome, and what another call has answered to it.
    ahead: tuple[wire.OutcomeRequest, wire.OutcomeReply] | None = None
    brought: bytes = field(default=b"", repr=False)  # a model, as the enclave's host says

    def __post_init__(self) -> None:
        self.memory = self.file.load()

    @property
    def last_number(self) -> int:
        """Of the last receipt that is held; 0 if there is none."""
        return self.memory.progress[0] if self.memory else 0

    @contextmanager
    def proving(self) -> Iterator["Session"]:
        """Keep the proof of a fork or a rollback that comes up, and show it to the enclave."""
        try:
            yield self
        except (Fork, RolledBack) as refused:
            self.prove(refused)
            raise

    def prove(self, refused: Fork | RolledBack) -> None:
        """Keep a proof beside the memory. An enclave that was set back is shown what it signed."""
        proof = self.file.prove(refused)
        if proof is not None:
            refused.add_note(f"The proof is in {proof}: show it to the other clients.")
            fork = isinstance(refused, Fork)
            self.connection.tell(ForkProved(proof) if fork else RollbackProved(proof))
        if isinstance(refused, RolledBack) and isinstance(refused.proof, Proposal):
            reminder = wire.RemindRequest(proposal=encode(refused.proof))
            with suppress(grpc.RpcError):  # It may be another enclave, or none.
                self.connection.once("Remind", reminder)

    def join(self) -> Joined | None:
        """The open round of an enclave that has proved itself; None if all rounds are over.

        Raises AttestationRefused, ReceiptRefused, Fork or RolledBack.
        """
        while (met := self._meet()) is not None:
            if not self._continues(met):
                known = self.memory
                self.catch_up()
                if self.memory != known and self._is_behind(met):
                    continue  # That round is over by now.
            self._require_followed(met.attested.receipt_key)
            newcomer, role = self.memory is None, self._role(met)
            if newcomer and role.next_number > met.offer.number:
                self.remember(role, met.charter)
                continue  # The same.
            joined = role.join(met.offer, met.attested)
            self.remember(joined.client, met.charter)
            return joined
        self.catch_up()
        return None

    def join_with_model(self) -> tuple[Joined, Float32] | None:
        """The same with the model that the round starts from."""
        tried = b""
        while (joined := self.join()) is not None:
            try:
                return joined, self.model(joined.offer.model, joined.client.federation)
            except ServiceError as gone:
                # It may have been replaced in between, but not twice in the same round.
                if gone.status != "NOT_FOUND" or joined.offer.round_id == tried:
                    raise
                tried = joined.offer.round_id
        return None

    def _continues(self, met: attesting.Met) -> bool:
        """Whether the enclave has signed that its round follows on all that this client knows.

        Then there is nothing in the chain that this client has not seen.
        """
        held = self.memory
        if held is None or met.charter != held.charter:
            return False
        role, offer = held.role(self.who.identity), met.offer
        try:
            role.join(offer, met.attested)
        except (ReceiptRefused, OpenError):
            return False  # The chain says why.
        return bool(held.receipt_key)

    def _is_behind(self, met: attesting.Met) -> bool:
        """Whether this client knows a receipt of that round by now, or newer terms."""
        number, revision = self.memory.progress if self.memory else (0, 0)
        return met.offer.number <= number or met.charter.federation.revision < revision

    def _meet(self) -> attesting.Met | None:
        """The open round. An outcome that waits to be confirmed comes first."""
        while True:
            try:
                held = self.memory.charter if self.memory else None
                answered = self.shelf.take_introduced()
                return attesting.meet(self.connection, self.who, held, answered)
            except Unconfirmed:
                self.attend()

    def attend(self) -> str:
        """Confirm what waits to be confirmed, and follow the chain behind it.

        Returns the kind of the enclave's answer, after up to a minute if nothing waits.
        """
        if self.memory is None:
            self.introduce()
        self.catch_up()
        number = self.last_number + 1
        reply = self.ask_outcome(wire.OutcomeRequest(number=number), LONG_POLL_S)
        kind = reply.WhichOneof("outcome") or ""
        if kind == "certified":
            self.catch_up()
        else:
            self.connection.patience.sleep(_POLL_S)
        return kind

    def introduce(self) -> None:
        """Have the enclave prove itself, without joining a round, and begin with its chain.

        Behind an Abandon its key is kept only once it has signed something that continues it: the
        enclave that was given up proves itself as well as its successor.
        """
        met = attesting.prove(self.connection, self.who)
        self._require_followed(met.receipt_key)
        if self.memory is None:
            self.remember(self._begin(met.charter, met.receipt_key), met.charter)
        else:
            self.shown_key = met.receipt_key

    def ask_outcome(self, request: wire.OutcomeRequest, seconds: float) -> wire.OutcomeReply:
        """What has become of a number. A proposal of it is confirmed on the way.

        Raises RolledBack if the enclave says so and proves it.
        """
        request.voter = self.who.name
        reply = self._ahead(request) or self._in_time("AwaitOutcome", lambda: request, seconds)
        if reply is None:
            return wire.OutcomeReply(pending=wire.Pending())
        match reply.WhichOneof("outcome"):
            case "proposed":
                self.confirm(decode(Proposal, reply.proposed.proposal), request)
            case "rolled_back":
                raise self._rolled_back(decode(Proposal, reply.rolled_back))
            case "published":
                return published(self.connection, request.number)
        return reply

    def _ahead(self, request: wire.OutcomeRequest) -> wire.OutcomeReply | None:
        """The answer to this question, if another call has brought it."""
        ahead, self.ahead = self.ahead, None
        return ahead[1] if ahead is not None and ahead[0] == request else None

    def _in_time(self, method: str, request: Callable[[], Any], seconds: float) -> Any:
        """The reply to a question that may wait for others; None if there is none in this time.

        request: makes what is asked, at every try.
        """

        def ask() -> Any:
            try:
                return self.connection.once(method, request(), seconds=seconds)
            except grpc.RpcError as error:
                if Status.of(error).code is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
                return None

        return self.connection.attempt(ask)

    def confirm(self, proposal: Proposal, request: wire.OutcomeRequest) -> None:
        """Vote for a proposal, durably and once, and show the vote.

        If this client has confirmed another one of that number, it shows that instead, and waits:
        others may confirm this one. A client that takes part asks in the same call for the outcome,
        and for the round that opens then.
        """
        if proposal.number > self.last_number + 1:
            self.catch_up()
        try:
            voted = self.file.change(lambda stored: self._voted(stored, proposal))
        except RolledBack as copied:
            if proposal not in self.refused:
                self.refused.append(proposal)
                self.prove(copied)
            return
        self.memory = voted
        confirmation = voted.role(self.who.identity).confirmation()
        questions: list[attesting.Question] = []
        digests: list[bytes] = []

        def shown() -> wire.ConfirmRequest:
            """Made anew for each try: what was asked before may be answered by another enclave."""
            show = wire.ConfirmRequest(confirmation=encode(confirmation))
            if request.round_id:
                questions.append(attesting.Question(self.who, voted.charter))
                show.then.CopyFrom(request)
                show.next.CopyFrom(questions[-1].request())
                digests.append(self.connection.draw_ticket())
                show.next.ticket_digest = digests[-1]
            return show

        try:
            reply = self._in_time("Confirm", shown, REQUEST_S)
        except ServiceError as refused:
            if refused.status != "PERMISSION_DENIED":
                raise
            return  # It has ended or restarted since it showed the proposal, and will ask again.
        if reply is None:
            return  # It will ask again, unless it has the vote by now.
        if reply.HasField("outcome"):
            self.ahead = request, reply.outcome
        self.brought = reply.model
        if questions and reply.introduced.introduction:
            with suppress(MalformedMessage):  # It is asked for by itself then.
                self.connection.keep_ticket(digests[-1])
                answer = questions[-1].answer(reply.introduced)
                self.shelf.introduced = Introduced(answer, time.monotonic() + _FRESH_S)
        self.connection.tell(Confirmed(proposal.number))

    def _voted(self, stored: Memory | None, proposal: Proposal) -> Memory:
        if stored is None:
            raise LocalProtocolError("a client votes when it knows the chain")
        known = replace(stored, receipt_key=stored.receipt_key or self.shown_key)
        role = known.role(self.who.identity).vote(proposal)
        if self.note is not None:
            self.note(proposal)
        return Memory.of(role, stored.charter, stored.sent)

    def _rolled_back(self, proposal: Proposal) -> RolledBack:
        """What the enclave says of itself, if it has signed the proof."""
        if self.memory is not None and self.memory.receipt_key:
            check_signature(proposal, self.memory.receipt_key)
        if proposal.number <= self.last_number:
            raise ReceiptRefused("the enclave says that it was set back, and cannot prove it")
        return RolledBack(proposal.number, proposal)

    def catch_up(self) -> None:
        """Follow the chain to its end. Raises ReceiptRefused, Fork or RolledBack."""
        if self.memory is None:
            return
        held = self.memory
        followed = following.catch_up(
            self.connection,
            replace(held, receipt_key=held.receipt_key or self.shown_key),
            identity=self.who.identity,
            policy=self.who.policy,
            set_back=self.file.set_back,
        )
        self.receipts |= followed.receipts
        if followed.copied is not None:
            self.prove(RolledBack(followed.copied.number, followed.copied))
        if followed.memory.last == held.last:  # Nothing that the shown key has signed.
            self._keep(replace(followed.memory, receipt_key=held.receipt_key))
        else:
            self._keep(followed.memory)
        if not (self.memory.receipt_key or self.shown_key):
            self.introduce()
            self.catch_up()

    def sending(self, joined: Joined, *, resends: int) -> None:
        """Write down that an update goes to this round. Raises ServiceError if that is too often.

        A round of the same number may be opened again. Another number never gets this update.
        """
        offer = joined.offer
        client = joined.client
        asked = {
            client.federation.terms.confirm,
            (client.electors or client.federation).terms.confirm,
        }
        most = 1 if "none" in asked else 1 + resends

        def count(stored: Memory | None) -> Memory:
            if stored is None:
                raise LocalProtocolError("a client sends when it knows the chain")
            sent = stored.sent.and_to(offer.number, offer.round_id)
            if len(sent.rounds) > most:
                raise ServiceError(
                    f"round {offer.number} was opened again after this update had been sent "
                    f"{most} times: ask the operator why, and wait for its receipt"
                )
            return Memory.of(stored.role(self.who.identity), stored.charter, sent)

        self.memory = self.file.change(count)

    def receipt(self, number: int) -> Receipt | None:
        """Of this round, if it was followed in this session or is the last one."""
        last = self.memory.last if self.memory else None
        if isinstance(last, Receipt) and last.number == number:
            return last
        return self.receipts.get(number)

    def model(self, digest: bytes, federation: Federation) -> Float32:
        """A model (d,), not to be written to."""
        if self.shelf.vector is None or self.shelf.digest != digest:
            brought = self._brought(digest, federation)
            asked = download(self.connection, digest, federation) if brought is None else brought
            self.shelf.vector, self.shelf.digest = asked, digest
        return self.shelf.vector

    def _brought(self, digest: bytes, federation: Federation) -> Float32 | None:
        """The model that came with the answer to a vote, if it is this one."""
        raw, self.brought = self.brought, b""
        if len(raw) != 4 * federation.terms.dimension:
            return None
        vector = np.frombuffer(raw, "<f4")
        with suppress(ReceiptRefused):
            require_model(vector, digest, federation)
            return vector
        return None

    def remember(self, client: Client, charter: Charter | None = None) -> None:
        """Durable when this returns. charter: if it is a new one."""
        known = charter or (self.memory.charter if self.memory else None)
        # Otherwise another process of this client has gone on, and its memory is the newer one.
        if known is not None and known.federation == client.federation:
            self._keep(Memory.of(client, known, self.memory.sent if self.memory else NOTHING_SENT))

    def _require_followed(self, receipt_key: bytes) -> None:
        """As the role does, which does not know the file."""
        held = self.memory.receipt_key if self.memory else b""
        if held and held != receipt_key:
            raise ReceiptRefused(
                "this enclave signs with another key than the one that this client follows. "
                f"{self.file.set_back}"
            )

    def _keep(self, memory: Memory) -> None:
        if memory != self.memory:
            self.memory = self.file.save(memory)

    def _role(self, met: attesting.Met) -> Client:
        if self.memory is None:
            return self._begin(met.charter, met.attested.receipt_key)
        return self.memory.role(self.who.identity).adopt(met.charter.federation)

    def _begin(self, charter: Charter, receipt_key: bytes) -> Client:
        """A newcomer's place in the chain, which the certificates of its receipts prove."""
        blank = Client(self.who.name, self.who.identity, charter.federation, receipt_key)
        self.connection.tell(Waiting("the chain of receipts"))
        return following.begin(self.connection, blank, policy=self.who.policy)

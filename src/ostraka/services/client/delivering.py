"""One sealed upload, until its round is published or known to be void."""

from dataclasses import dataclass
from functools import partial

import grpc

from ostraka.encoding import decode
from ostraka.errors import (
    MalformedMessage,
    ReceiptRefused,
    Rejection,
    ServiceError,
    UpdateRejected,
)
from ostraka.messages import Receipt, RoundOffer
from ostraka.protocol.client import Submitted
from ostraka.services.client.connection import (
    FINISHED,
    LONG_POLL_S,
    Connection,
    Retries,
    Status,
)
from ostraka.services.client.events import AlreadySent, Waiting
from ostraka.services.client.patience import Patience
from ostraka.services.client.uploading import BATCH_BYTES, Upload
from ostraka.transport import ostraka_pb2 as wire

_GLANCE_S = 1.0  # at the outcome, while there is something left to send
_PENDING_S = 0.2  # between two questions, should the other side answer at once

# The round is over for this upload; its outcome says what comes next.
_OVER = (
    Rejection.LATE,
    Rejection.FOREIGN_ROUND,
    Rejection.FOREIGN_KEY,
    Rejection.FOREIGN_CONFIG,
)


@dataclass(frozen=True)
class Delivery:
    """receipt: of the round's number, None if the round is void. begun: see `deliver`.

    whole: all of the upload was sent.
    """

    receipt: Receipt | None
    begun: bool
    whole: bool


def deliver(connection: Connection, submitted: Submitted, begun: set[bytes]) -> Delivery:
    """Send an upload, on as many streams as it takes, and wait for what becomes of its round.

    begun: ids of rounds whose enclave has taken the header of an upload, of this one or of one
    before it; this round joins them. Raises UpdateRejected if the enclave refuses the update, and
    ServiceError.
    """
    offer, sending = submitted.joined.offer, _Sending(connection, submitted, begun)
    while True:
        sending.go_on()
        if sending.done:
            connection.tell(Waiting(f"round {offer.number} to be published"))
        seconds = LONG_POLL_S if sending.done else _GLANCE_S
        outcome = connection.attempt(partial(_ask, connection, offer, seconds))
        match outcome.WhichOneof("outcome"):
            case "receipt":
                receipt = decode(Receipt, outcome.receipt)
                return Delivery(_require_number(receipt, offer), sending.begun, sending.done)
            case "void":
                return Delivery(None, sending.begun, sending.done)
            case "pending" if sending.taken and connection.patience.over:
                raise _unpublished(offer, connection.patience)
            case "pending":
                connection.patience.sleep(_PENDING_S)
            case _:
                raise MalformedMessage("the answer about a round's outcome is empty")


def _require_number(receipt: Receipt, offer: RoundOffer) -> Receipt:
    if receipt.number != offer.number:
        raise ReceiptRefused(
            f"asked for the receipt of round {offer.number}, the enclave shows that of round "
            f"{receipt.number}"
        )
    return receipt


def _ask(connection: Connection, offer: RoundOffer, seconds: float) -> wire.OutcomeReply:
    request = wire.OutcomeRequest(number=offer.number, round_id=offer.round_id)
    try:
        reply: wire.OutcomeReply = connection.once("AwaitOutcome", request, seconds=seconds)
    except grpc.RpcError as error:
        if Status.of(error).code is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        return wire.OutcomeReply(pending=wire.Pending())
    return reply


def _unpublished(offer: RoundOffer, patience: Patience) -> ServiceError:
    return ServiceError(
        f"the update for round {offer.number} was received; the round was not published within "
        f"{patience.seconds:g} s: run the same command with --round {offer.number} (or call submit "
        "again with the same update) to wait for its receipt"
    )


class _Sending:
    """An upload under way. done: nothing is left to send, whether it was taken or not."""

    def __init__(self, connection: Connection, submitted: Submitted, begun: set[bytes]) -> None:
        self.done = False
        self._begun = begun
        self._round_id = submitted.joined.offer.round_id
        self._connection = connection
        self._client = submitted.joined.client.name
        self._retries: Retries = connection.retries()
        self._upload = Upload(submitted.joined.offer.number, submitted.sealed, BATCH_BYTES)

    @property
    def begun(self) -> bool:
        return self._round_id in self._begun

    @property
    def taken(self) -> bool:
        """All of it has arrived, as far as this client has heard."""
        return self.done and self.begun

    def go_on(self) -> None:
        """One more stream, if anything is left to send."""
        if self.done:
            return
        try:
            self._upload.stream(self._connection)
        except grpc.RpcError as broken:
            self._after(broken)
        else:
            self.done = True
        finally:
            if self._upload.begun:
                self._begun.add(self._round_id)

    def _after(self, broken: grpc.RpcError) -> None:
        # The other side may take smaller messages only.
        if Status.of(broken).code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            self._upload.batch //= 4
        try:
            self._retries.after(broken)
        except ServiceError as refused:
            self._refused(refused)
            self.done = True

    def _refused(self, refused: ServiceError) -> None:
        """Raises if that is the end of the update, and not only of its upload."""
        reason = _rejection(refused.said)
        if refused.status == "ALREADY_EXISTS" or reason is Rejection.DUPLICATE:
            self._connection.tell(AlreadySent(self._upload.round))
            self._upload.begun = True
        elif reason is not None and reason not in _OVER:
            raise UpdateRejected(self._client, reason) from None
        elif reason is None and refused.said != FINISHED:
            raise refused


def _rejection(said: str) -> Rejection | None:
    return next((reason for reason in Rejection if reason == said), None)

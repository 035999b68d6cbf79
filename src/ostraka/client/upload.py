"""Brings one update to its round's outcome, through restarts and broken connections."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any

import grpc

from ostraka.arrays import Float32
from ostraka.client.connection import (
    FINISHED,
    LONG_POLL_S,
    TRANSFER_S,
    Connection,
    Patience,
    Retries,
    Status,
)
from ostraka.client.events import AlreadySent, Resending, Uploading, Waiting
from ostraka.client.following import require_same
from ostraka.client.results import Outcome
from ostraka.client.session import Session
from ostraka.core.uploads import Encoded
from ostraka.crypto.updates import SealedUpdate
from ostraka.encoding import decode, encode
from ostraka.errors import (
    LocalProtocolError,
    MalformedMessage,
    ReceiptRefused,
    Rejection,
    ServiceError,
    UpdateRejected,
)
from ostraka.messages import Certified, Proposal, Receipt, RoundOffer
from ostraka.protocol.client import Joined, Submitted
from ostraka.protocol.confirm import is_under
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.dial import Backoff

BATCH_BYTES = 2**18


@dataclass
class Upload:
    """One upload, over as many streams as it takes.

    batch: how many bytes of tiles go into one message, at the least one tile. begun: the enclave
    has taken its header, so that the receipt will name this client unless its update counts.
    """

    round: int
    sealed: SealedUpdate
    batch: int
    begun: bool = False

    def stream(self, connection: Connection) -> None:
        """Send what is missing, and return when the upload is complete.

        Raises grpc.RpcError where the stream breaks. The next one sends the same stored bytes.
        """
        asked: SimpleQueue[list[range]] = SimpleQueue()
        replies = connection.stub.Upload(
            _requests(self.sealed, asked, self.batch), timeout=connection.patience.limit(TRANSFER_S)
        )
        count = len(self.sealed.tiles)
        try:
            missing = _missing(_next(replies, "missing"), count)
            self.begun = True
            connection.tell(Uploading(self.round, sum(map(len, missing)), count))
            asked.put(missing)
            _next(replies, "complete")
        finally:
            # In case it still waits: gRPC reads requests in a thread of its own, which has to end.
            asked.put([])
            replies.cancel()


def _requests(
    sealed: SealedUpdate, asked: SimpleQueue[list[range]], batch: int
) -> Iterator[wire.UploadRequest]:
    yield wire.UploadRequest(header=encode(sealed.header))
    size = len(encode(sealed.tiles[0]))  # no tile is larger
    indices = chain.from_iterable(asked.get())
    while some := list(islice(indices, max(1, batch // size))):
        tiles = [encode(sealed.tiles[index]) for index in some]
        yield wire.UploadRequest(tiles=wire.Tiles(tile=tiles))


def _next(replies: Any, kind: str) -> Any:
    reply = None
    with suppress(StopIteration):
        reply = next(replies)
    if reply is None or reply.WhichOneof("answer") != kind:
        raise MalformedMessage(f"an upload was not answered with {kind!r}")
    return getattr(reply, kind)


def _missing(missing: wire.Missing, count: int) -> list[range]:
    """Tile numbers that exist, each once and in order."""
    ranges = [range(each.start, each.stop) for each in missing.range]
    edges = [edge for each in ranges for edge in (each.start, each.stop)]
    if edges != sorted(edges) or any(edge > count for edge in edges):
        raise MalformedMessage(f"an upload of {count} tiles was asked for tiles that it has not")
    return ranges


_GLANCE_S = 1.0  # at the outcome, while there is something left to send
_PENDING_S = 0.2  # between two questions, should the other side answer at once

# The round is over for this upload; its outcome says what comes next.
_OVER = (
    Rejection.LATE,
    Rejection.FOREIGN_ROUND,
    Rejection.FOREIGN_KEY,
    Rejection.FOREIGN_FEDERATION,
)


@dataclass(frozen=True)
class Delivery:
    """certified: the receipt of the round's number, None if it is void. begun: see `deliver`.

    left_out: a proposal was shown that proves to be made without this upload.
    """

    certified: Certified | None
    begun: bool
    left_out: bool


def deliver(session: Session, submitted: Submitted) -> Delivery:
    """Send an upload, on as many streams as it takes, and wait for what becomes of its round.

    The outcome is confirmed on the way. session.begun: ids of rounds whose enclave has taken the
    header of an upload, of this one or of one before it; this round joins them. Raises
    UpdateRejected if the enclave refuses the update, RolledBack, and ServiceError.
    """
    offer, connection = submitted.joined.offer, session.connection
    sending, left_out = _Sending(connection, submitted, session.begun), False
    shown = False
    request = wire.OutcomeRequest(number=offer.number, round_id=offer.round_id, leaf=submitted.leaf)
    while True:
        sending.go_on()
        if sending.done:
            connection.tell(Waiting(f"round {offer.number} to be published"))
        outcome = session.ask_outcome(request, LONG_POLL_S if sending.done else _GLANCE_S)
        match outcome.WhichOneof("outcome"):
            case "certified":
                certified = decode(Certified, outcome.certified)
                _require_number(certified.receipt, offer)
                return Delivery(certified, sending.begun, left_out)
            case "void":
                return Delivery(None, sending.begun, left_out)
            case "pending" | "proposed" if sending.taken and connection.patience.over:
                raise _unpublished(offer, connection.patience)
            case "proposed":
                left_out = not (sending.earlier or _is_included(outcome.proposed, submitted))
                if shown:  # After the first, the next answer waits until enough have confirmed.
                    connection.patience.sleep(_PENDING_S)
                shown = True
            case "pending":
                connection.patience.sleep(_PENDING_S)
            case _:
                raise MalformedMessage("the answer about a round's outcome is empty")


def _is_included(proposed: wire.Proposed, submitted: Submitted) -> bool:
    """Whether the enclave proves that this upload is in the outcome that it proposes."""
    root = decode(Proposal, proposed.proposal).cohort
    return proposed.included and is_under(root, submitted.leaf, proposed.path)


def _require_number(receipt: Receipt, offer: RoundOffer) -> None:
    if receipt.number != offer.number:
        raise ReceiptRefused(
            f"asked for the receipt of round {offer.number}, the enclave shows that of round "
            f"{receipt.number}"
        )


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
        self.earlier = False  # another upload of this client is complete in the round
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
            self._upload.begun = self.earlier = True
        elif reason is not None and reason not in _OVER:
            raise UpdateRejected(self._client, reason) from None
        elif reason is None and refused.said != FINISHED:
            raise refused


def _rejection(said: str) -> Rejection | None:
    return next((reason for reason in Rejection if reason == said), None)


WITHOUT = "the round was published without this update"
ENDED = "the federation ended without this round"


def submit(
    session: Session,
    joined: Joined,
    update: Float32,
    *,
    outgoing: Callable[[Joined, Float32], Encoded],
    resends: int,
) -> Outcome:
    """Seal an update (d,), send it, confirm its round, and wait for the receipt.

    When its round is void, the update goes under a fresh key to the round of the same number that
    replaces it, once that round's enclave has proved itself; resends: how often. It never goes to
    another number. outgoing: makes what is sealed for a round, by the terms of that round.
    """
    backoff = Backoff()
    while True:
        session.sending(joined, resends=resends)
        submitted = joined.seal_encoded(outgoing(joined, update))
        delivery = deliver(session, submitted)
        certified = delivery.certified
        if certified is not None and certified.receipt.round_id == joined.offer.round_id:
            return _published(session, submitted, certified, delivery)
        again = _join_again(session, joined, delivery)
        if isinstance(again, Outcome):
            return again
        joined = again
        session.connection.tell(Resending(joined.offer.number))
        session.connection.patience.sleep(backoff.next())


def _published(
    session: Session, submitted: Submitted, certified: Certified, delivery: Delivery
) -> Outcome:
    """The round that was joined is over."""
    joined, receipt = submitted.joined, certified.receipt
    try:
        model = session.model(receipt.model, joined.client.federation)
    except ServiceError as gone:
        if gone.status != "NOT_FOUND":
            raise
        # Later rounds have replaced the model. The chain has the receipt all the same.
        receipt = _require_receipt(session, joined, receipt)
    else:
        session.remember(submitted.finish(certified, model))
    return _ended(joined, receipt, delivery)


def _ended(joined: Joined, receipt: Receipt, delivery: Delivery) -> Outcome:
    """What the receipt of its number says of an upload."""
    there = receipt.round_id == joined.offer.round_id
    rejected = {each.client: each.reason for each in receipt.rejected if there}
    took_part = there and delivery.begun and not delivery.left_out
    reason = rejected.get(joined.client.name, None if took_part else WITHOUT)
    return Outcome(receipt.number, reason is None, reason, receipt)


def _join_again(session: Session, joined: Joined, delivery: Delivery) -> Joined | Outcome:
    """The round that replaces a void one, or why there is none.

    delivery: with the receipt of another round of this number, if the enclave has published one.
    """
    certified = delivery.certified
    number, shown = joined.offer.number, certified.receipt if certified else None
    session.catch_up()
    again = None
    if shown is None and session.last_number < number:
        again = session.join()
        session.catch_up()  # It may have been published while this client waited.
    if shown is not None or session.last_number >= number:
        return _ended(joined, _require_receipt(session, joined, shown), delivery)
    if again is None:
        return Outcome(number, False, ENDED, None)
    if again.offer.number != number:
        raise ReceiptRefused(
            f"round {again.offer.number} is open, but the receipt of round {number} is not shown"
        )
    if again.offer.model != joined.offer.model:
        raise ReceiptRefused(
            f"round {number} was opened again from another model: fetch that, and train anew"
        )
    return again


def _require_receipt(session: Session, joined: Joined, shown: Receipt | None) -> Receipt:
    """The chain's receipt for the round that was joined. Raises Fork if another was shown."""
    number = joined.offer.number
    if session.receipt(number) is None:
        session.catch_up()
    held = session.receipt(number)
    if held is None and session.last_number > number:
        raise LocalProtocolError(
            f"another process of this client went on after round {number}: run one at a time"
        )
    if held is None:
        raise ReceiptRefused(f"a receipt of round {number} was shown that is not in the chain")
    if shown is not None:
        require_same(held, shown, joined.attested.receipt_key)
    return held

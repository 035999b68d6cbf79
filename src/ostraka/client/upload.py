"""Brings one update to its round's outcome, through restarts and broken connections."""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from select import POLLIN, poll
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from ostraka.arrays import Float32
from ostraka.client.connection import (
    LONG_POLL_S,
    TRANSFER_S,
    Connection,
    LaneBroken,
    Lanes,
    Patience,
    Retries,
    Status,
    at_once,
)
from ostraka.client.events import AlreadySent, Event, Resending, Sending, Uploading, Waiting
from ostraka.client.following import require_same
from ostraka.client.results import Outcome
from ostraka.client.session import Session
from ostraka.core.metrics import Values
from ostraka.core.uploads import Encoded
from ostraka.crypto.updates import Sealed, Sealing
from ostraka.encoding import decode, encode
from ostraka.errors import (
    LocalProtocolError,
    MalformedMessage,
    ReceiptRefused,
    Rejection,
    ServiceError,
    UpdateRejected,
    printable,
)
from ostraka.merkle import is_under
from ostraka.messages import Certified, Proposal, Receipt, RoundOffer
from ostraka.protocol.client import Joined, Submitted
from ostraka.transport import FINISHED, LENGTH, TICKET_BYTES
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.dial import LARGEST_REPLY, Backoff, is_told_address


@dataclass(frozen=True)
class _Lane:
    """Where tiles go. address: of a shard; empty for the upload's own lane. tiles: those it lacks.

    ticket: for a lane to the shard.
    """

    address: str
    ticket: bytes = field(repr=False)
    tiles: range


class _Talk:
    """What this side says and hears over its upload lane. near: where tiles go without shards."""

    def __init__(self, lanes: Lanes, ticket: bytes, request: wire.UploadRequest) -> None:
        """Begin it. Raises LaneBroken."""
        encoded = request.SerializeToString()
        self.lanes = lanes
        self.near = lanes.open(ticket, first=LENGTH.pack(len(encoded)) + encoded)

    def hear(self, kind: str, seconds: float = TRANSFER_S) -> Any:
        """The next answer. Raises LaneBroken if it is a refusal, or none, and MalformedMessage."""
        until = time.monotonic() + self.lanes.patience.limit(seconds)
        try:
            (size,) = LENGTH.unpack(self._read(LENGTH.size, until))
            if size > LARGEST_REPLY:
                raise MalformedMessage(f"an upload was answered with {size} bytes")
            reply = wire.UploadReply.FromString(self._read(size, until))
        except DecodeError:
            raise MalformedMessage("an upload was answered with what is no answer") from None
        except TimeoutError:
            code = grpc.StatusCode.DEADLINE_EXCEEDED
            raise LaneBroken("the upload's lane says nothing", code) from None
        except OSError as broken:
            raise LaneBroken(f"the lane has ended: {broken}") from None
        if reply.WhichOneof("answer") == "refused":
            raise _refusal(reply.refused)
        if reply.WhichOneof("answer") != kind:
            raise MalformedMessage(f"an upload was not answered with {kind!r}")
        return getattr(reply, kind)

    def send(self, frames: Iterable[memoryview], near: socket.socket) -> None:
        """Send tiles over this lane or one to a shard. Raises LaneBroken.

        If the other side ends the lane, return when it has said why, over this lane.
        """
        patience = self.lanes.patience
        try:
            for frame in frames:
                near.settimeout(max(_LEAST_S, patience.limit(_FRAME_S)))  # for all of it
                near.sendall(frame)
        except OSError as broken:
            verdict = poll()
            verdict.register(self.near, POLLIN)
            if not verdict.poll(1000 * patience.limit(_VERDICT_S)):
                raise LaneBroken(f"the lane has ended: {broken}") from None

    def end(self) -> None:
        self.lanes.sockets.close()

    def _read(self, size: int, until: float) -> bytes:
        """Raises OSError, and TimeoutError however it drips."""
        said = bytearray(size)
        rest = memoryview(said)
        while rest:
            left = until - time.monotonic()
            if left < 0 and len(rest) < size:
                raise TimeoutError
            self.near.settimeout(max(_LEAST_S, left))
            taken = self.near.recv_into(rest)
            if not taken:
                raise ConnectionError("it is closed")
            rest = rest[taken:]
        return bytes(said)


def _refusal(refused: wire.Refused) -> LaneBroken:
    codes = {code.value[0]: code for code in grpc.StatusCode}
    return LaneBroken(refused.why, codes.get(refused.code, grpc.StatusCode.UNKNOWN))


@dataclass
class Upload:
    """One upload, over as many lanes as it takes: at any time one, and one to each shard.

    shards: the first tile of each, as the offer says. begun: the enclave has taken its header, so
    that the receipt will name this client unless its update counts. first: the tiles that the last
    lanes began with.
    """

    round: int
    sealed: Sealed
    shards: tuple[int, ...] = (0,)
    begun: bool = False
    first: tuple[int, ...] = ()
    _talk: _Talk | None = None  # of an upload that is complete

    def stream(self, connection: Connection) -> None:
        """Send what is missing, and return when the upload is complete.

        Raises grpc.RpcError where a lane breaks. The next one sends the same bytes.
        """
        request = wire.UploadRequest(header=encode(self.sealed.header), await_outcome=True)
        ticket, lanes = connection.take_ticket(), connection.lanes()
        try:
            talk = _Talk(lanes, ticket, request)
            granted = _lanes(talk.hear("granted"), self.shards, self.sealed.count)
            self.begun, self.first = True, tuple(lane.tiles.start for lane in granted)
            left = [lane for lane in granted if lane.tiles]
            missing = sum(len(lane.tiles) for lane in left)
            connection.tell(Uploading(self.round, missing, self.sealed.count))
            progress = _Progress(self.round, missing, connection.tell)
            sending = [partial(self._send, lane, talk, progress) for lane in left]
            at_once(sending, stop=lanes.sockets.end, meanwhile=progress.report)
            talk.hear("complete")
        except BaseException:
            lanes.sockets.close()
            raise
        self._talk = talk

    def _send(self, lane: _Lane, talk: _Talk, progress: "_Progress") -> None:
        """Send what is missing, here or at one shard, and leave the lane open."""
        near = talk.lanes.open(lane.ticket, lane.address) if lane.address else talk.near
        talk.send(progress.of(frames(self.sealed, lane.tiles)), near)

    def outcome(self) -> wire.OutcomeReply | None:
        """What is said of the round of a complete upload, once; None if nothing is."""
        talk, self._talk = self._talk, None
        if talk is None:
            return None
        try:
            reply: wire.OutcomeReply = talk.hear("outcome", LONG_POLL_S)
        except (LaneBroken, MalformedMessage):
            return None
        finally:
            talk.end()
        return reply

    def end(self) -> None:
        """Hear no more of it."""
        if self._talk is not None:
            self._talk.end()


class _Progress:
    """Reports a long upload every second, whatever lanes it goes over, to the thread it is in."""

    def __init__(self, number: int, tiles: int, tell: Callable[[Event], None]) -> None:
        self._number = number
        self._tell = tell
        self._tiles, self._left = tiles, tiles
        self._last = tiles  # what was left when it was last told
        self._sent = 0
        self._begun = self._told = time.monotonic()
        self._thread = threading.get_ident()
        self._lock = threading.Lock()

    def of(self, frames: Iterable[memoryview]) -> Iterator[memoryview]:
        """Yields the frames of one lane, and counts those that were sent."""
        for frame in frames:
            yield frame
            with self._lock:
                self._sent += len(frame)
                self._left -= 1
            if threading.get_ident() == self._thread:
                self.report()

    def report(self) -> None:
        now = time.monotonic()
        with self._lock:
            sent, left = self._sent, self._left
        if now - self._told >= _TELL_S and 0 < left < self._last:
            self._told, self._last = now, left
            of = sent * self._tiles // (self._tiles - left)
            self._tell(Sending(self._number, sent, of, now - self._begun))


def frames(sealed: Sealed, numbers: range) -> Iterator[memoryview]:
    """These tiles as they are sent, each in the memory of the one before it."""
    memory = memoryview(bytearray(LENGTH.size + sealed.largest))
    for number in numbers:
        size = sealed.put(number, memory[LENGTH.size :])
        LENGTH.pack_into(memory, 0, size)
        yield memory[: LENGTH.size + size]


def _lanes(granted: wire.Granted, shards: tuple[int, ...], count: int) -> list[_Lane]:
    """What was granted to an upload of `count` tiles. shards: the first tile of each.

    Raises MalformedMessage unless there is one lane for each shard, for tiles that it has.
    """
    shown: Sequence[wire.Granted | wire.ShardLane] = granted.shards
    if len(shards) == 1 and not granted.shards:
        shown = [granted]
    if len(shown) != len(shards):
        raise MalformedMessage(f"an upload to {len(shards)} shards was given {len(shown)} lanes")
    ends = (*shards[1:], count)
    return [_lane(*each) for each in zip(shown, shards, ends, strict=True)]


def _lane(shown: wire.Granted | wire.ShardLane, first: int, end: int) -> _Lane:
    """The lane for what is missing of the tiles from `first` on, before `end`."""
    if not first <= shown.next <= end:
        raise MalformedMessage(f"of tiles {first} to {end}, an upload was asked for {shown.next}")
    tiles = range(shown.next, end)
    if isinstance(shown, wire.Granted):
        return _Lane("", b"", tiles)
    if tiles and len(shown.ticket) != TICKET_BYTES:
        raise MalformedMessage(f"a ticket has {TICKET_BYTES} bytes; got {len(shown.ticket)}")
    if tiles and not is_told_address(shown.address):
        raise MalformedMessage(f"a shard is said to be at {printable(shown.address, _SHOWN)!r}")
    return _Lane(shown.address, shown.ticket, tiles)


# Clients of one process get the same certificate at the same moment. One checks it, and the others
# find it checked.
_CHECKING = threading.Lock()
_TELL_S = 1.0  # between two words about one upload
_VERDICT_S = 5.0  # for the other side to say why it has ended a lane
_FRAME_S = 60.0  # for a tile to be taken
_LEAST_S = 0.001  # No time at all would mean not to wait.
_SHOWN = 80  # characters of an address that is none
_STOLEN = 3  # lanes in a row that brought nothing further: a tile did not open, and was right
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


def deliver(session: Session, submitted: Submitted[Sealing]) -> Delivery:
    """Send an upload, on as many streams as it takes, and wait for what becomes of its round.

    The outcome is confirmed on the way. session.begun: ids of rounds whose enclave has taken the
    header of an upload, of this one or of one before it; this round joins them. Raises
    UpdateRejected if the enclave refuses the update, RolledBack, and ServiceError.
    """
    sending = _Sending(session.connection, submitted, session.begun)
    with _noting(sending, submitted.joined.offer):
        return _settle(session, submitted, sending)


def _settle(session: Session, submitted: Submitted[Sealing], sending: "_Sending") -> Delivery:
    """Send what is left, and ask for the outcome, until there is one."""
    offer, connection = submitted.joined.offer, session.connection
    left_out = shown = False
    request = wire.OutcomeRequest(
        number=offer.number,
        round_id=offer.round_id,
        leaf=submitted.leaf,
        voter=session.who.name,
    )
    while True:
        sending.go_on()
        if sending.done:
            connection.tell(Waiting(f"round {offer.number} to be published"))
            sending.look_ahead(session, request)
        outcome = session.ask_outcome(request, LONG_POLL_S if sending.done else _GLANCE_S)
        match outcome.WhichOneof("outcome"):
            case "certified":
                certified = _read_certified(outcome.certified)
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


@lru_cache(maxsize=2)  # In one process, every client gets the same bytes.
def _read_certified(encoded: bytes) -> Certified:
    return decode(Certified, encoded)


@contextmanager
def _noting(sending: "_Sending", offer: RoundOffer) -> Iterator[None]:
    """Let who interrupts this know that the update is in, and cannot be taken back."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        if sending.taken:
            there = f"the update for round {offer.number} is already in, and stays there"
            stopped.add_note(f"{there}: {_again(offer)}")
        raise


def _again(offer: RoundOffer) -> str:
    return (
        f"run the same command with --round {offer.number} (or call submit again with the same "
        "update) to wait for its receipt"
    )


def _is_included(proposed: wire.Proposed, submitted: Submitted[Sealing]) -> bool:
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
        f"{patience.seconds:g} s: {_again(offer)}"
    )


class _Sending:
    """An upload under way. done: nothing is left to send, whether it was taken or not."""

    def __init__(
        self, connection: Connection, submitted: Submitted[Sealing], begun: set[bytes]
    ) -> None:
        self.done = False
        self._stolen = 0  # calls whose lanes began with the same tiles
        self._stuck: tuple[int, ...] = ()  # and those tiles
        self.earlier = False  # another upload of this client is complete in the round
        self._begun = begun
        self._round_id = submitted.joined.offer.round_id
        self._connection = connection
        self._client = submitted.joined.client.name
        self._retries: Retries = connection.retries()
        offer = submitted.joined.offer
        self._upload = Upload(offer.number, submitted.sealed, offer.shards)

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

    def look_ahead(self, session: Session, request: wire.OutcomeRequest) -> None:
        """Let the session know what the upload's call says of the round."""
        said = self._upload.outcome()
        if said is not None:
            session.ahead = request, said

    def _after(self, broken: grpc.RpcError) -> None:
        if self._upload.begun and Status.of(broken).code is grpc.StatusCode.PERMISSION_DENIED:
            self._stolen = self._stolen + 1 if self._upload.first == self._stuck else 1
            self._stuck = self._upload.first
            if self._stolen <= _STOLEN:
                # Its tiles are right. On the way somebody has changed them, or has used its ticket.
                broken = LaneBroken(Status.of(broken).said)
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
    metrics: Values | None = None,
) -> Outcome:
    """Seal an update (d,), send it, confirm its round, and wait for the receipt.

    When its round is void, the update goes under a fresh key to the round of the same number that
    replaces it, once that round's enclave has proved itself; resends: how often. It never goes to
    another number. outgoing: makes what is sealed for a round, by the terms of that round. metrics:
    what the client reports with it.
    """
    backoff = Backoff()
    while True:
        session.sending(joined, resends=resends)
        submitted = joined.sealing(outgoing(joined, update), metrics)
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
    session: Session, submitted: Submitted[Sealing], certified: Certified, delivery: Delivery
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
        with _CHECKING:
            client = submitted.finish(certified, model)
        session.remember(client)
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

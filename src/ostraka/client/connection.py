"""A client's connection to the enclave's service, its lanes, and how long to go on."""

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event as Signal
from threading import Lock, Thread
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakSet, WeakValueDictionary

import grpc

from ostraka.client.events import Event, Reconnecting
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED, encode
from ostraka.errors import ConfigError, ServiceError, printable
from ostraka.messages import ClientHello
from ostraka.transport import PROVED, TICKET_BYTES
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.dial import (
    IDLE_S,
    Backoff,
    Sockets,
    dial,
    dial_lane,
    reach,
)
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub


@dataclass
class Patience:
    """The time that one call of the user may take."""

    seconds: float | None

    def __post_init__(self) -> None:
        self._until = None if self.seconds is None else time.monotonic() + self.seconds

    @property
    def over(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until

    def limit(self, seconds: float) -> float:
        """The given seconds, or what is left of the timeout if that is less."""
        if self._until is None:
            return seconds
        return max(0.0, min(seconds, self._until - time.monotonic()))

    def sleep(self, seconds: float) -> None:
        time.sleep(self.limit(seconds))


REQUEST_S = 30.0
LONG_POLL_S = 60.0
UNCONFIRMED = "an outcome waits to be confirmed"  # and before the next round opens
TRANSFER_S = 3600.0  # for a stream; a peer that is gone is noticed sooner, by its keepalive

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 5.0

_NONCE_BYTES = 32
_SHOWN = 200  # characters of what the other side says
_ODD_ANSWERS = 5  # in a row, until they count as final
_AT_ONCE = 64  # shards that one client talks to; with more of them, the others wait
_MEANWHILE_S = 0.5
_DRAWN = 8  # tickets that no answer has confirmed

_T = TypeVar("_T")

_AGAIN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNAUTHENTICATED,
)
# The connection was lost, or is another one than this side believes.
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED)
# A greeting that is not taken: the client is not enrolled, or its service knows no greetings.
_REFUSED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)
_TOO_LARGE = "larger than max"  # gRPC's words; other limits of a service pass
# A service that dies can look like this. So can one that always fails, so patience is limited.
_ODD = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)

_ADVICE = {
    grpc.StatusCode.PERMISSION_DENIED: "is this client enrolled, and with this key? Its operator "
    "can tell (ostraka client enrol prints the lines to add)",
    grpc.StatusCode.INVALID_ARGUMENT: "do both sides run the same version of Ostraka?",
    grpc.StatusCode.UNIMPLEMENTED: "is this the address of an enclave of Ostraka?",
}


@dataclass(frozen=True)
class Status:
    """How a request ended."""

    code: grpc.StatusCode
    said: str

    @classmethod
    def of(cls, error: grpc.RpcError) -> "Status":
        return cls(error.code(), printable(error.details() or "", _SHOWN))

    def __str__(self) -> str:
        return self.said or self.code.name.lower().replace("_", " ")


class LaneBroken(grpc.RpcError):
    """A lane could not be opened or has ended. It may pass, unless the other side has said why."""

    def __init__(self, why: str, code: grpc.StatusCode = grpc.StatusCode.ABORTED) -> None:
        super().__init__(why)
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Greeting:
    """How a client proves that a connection is its own, which keeps a place there for it.

    federation: its id.
    """

    name: str
    identity: Identity = field(repr=False)
    federation: bytes

    def hello(self, nonce: bytes) -> bytes:
        """Raises ServiceError for a nonce that is none."""
        if len(nonce) != _NONCE_BYTES:
            raise ServiceError(f"a connection's nonce has {_NONCE_BYTES} bytes; got {len(nonce)}")
        hello = ClientHello(self.federation, nonce, self.name, UNSIGNED)
        return encode(self.identity.sign(hello))


class _Claiming:
    """The calls of a stub, which say that their connection was proved."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    def __getattr__(self, method: str) -> Any:
        return partial(getattr(self._stub, method), metadata=((PROVED, "1"),))


class Connection:
    """A channel to the enclave's service, for one call of the user at a time.

    patience: of that call. greeting: None for a party that is not enrolled.
    """

    def __init__(
        self,
        address: str,
        *,
        tls_ca: Path | None,
        patience: Patience,
        tell: Callable[[Event], None],
        greeting: Greeting | None = None,
    ) -> None:
        self._address = address
        self._tls_ca = tls_ca
        self.patience = patience
        self.tell = tell
        self._channel = dial(address, tls_ca=tls_ca)
        self._greeting = greeting
        self._plain: Any = EnclaveStub(self._channel)
        self._stub: Any = None  # after the greeting
        self._tickets: list[bytes] = []  # of upload lanes, announced: the newest
        self._drawn: dict[bytes, bytes] = {}  # by their digests: the last few
        self._lock, self._closed = Lock(), False
        self._lanes: WeakSet[Sockets] = WeakSet()

    @property
    def stub(self) -> Any:
        """The calls of the service. Greets it first; raises grpc.RpcError if that fails."""
        if self._stub is None:
            self._stub = self._greet()
        return self._stub

    def _greet(self) -> Any:
        """The calls that are right from here on.

        A service that does not take the greeting takes the calls of strangers. They are answered
        with what is wrong, in the words for it.
        """
        if self._greeting is None:
            return self._plain
        try:
            nonce = self._greet_with(b"")
            self._greet_with(self._greeting.hello(nonce))
        except grpc.RpcError as error:
            if error.code() not in _REFUSED:
                raise
            return self._plain
        return _Claiming(self._plain)

    def _greet_with(self, hello: bytes) -> bytes:
        digest = self.draw_ticket() if hello else b""
        request = wire.GreetRequest(hello=hello, ticket_digest=digest)
        reply = self._plain.Greet(request, timeout=self.patience.limit(REQUEST_S))
        self.keep_ticket(digest)
        return bytes(reply.nonce)

    def draw_ticket(self) -> bytes:
        """Draw a ticket for the next upload lane. Its digest, which a request is to announce."""
        ticket = os.urandom(TICKET_BYTES)
        digest = sha256(ticket).digest()
        self._drawn[digest] = ticket
        if len(self._drawn) > _DRAWN:
            del self._drawn[next(iter(self._drawn))]
        return digest

    def keep_ticket(self, digest: bytes) -> None:
        """Hold the ticket of this digest, if there is one: the service knows of it now, and of none
        before it."""
        if digest in self._drawn:
            self._tickets[:] = [self._drawn.pop(digest)]

    def take_ticket(self) -> bytes:
        """A ticket for one upload lane. Raises grpc.RpcError."""
        stub = self.stub  # A greeting announces one.
        if not self._tickets:
            request = wire.TicketRequest(ticket_digest=self.draw_ticket())
            stub.AnnounceTicket(request, timeout=self.patience.limit(REQUEST_S))
            self.keep_ticket(request.ticket_digest)
        return self._tickets.pop()

    def _lost(self) -> None:
        self._stub = None

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every call and every lane that is under way, from any thread."""
        self._channel.close()
        with self._lock:
            self._closed, held = True, list(self._lanes)
        for sockets in held:
            sockets.end()

    def ask(self, method: str, request: Any, *, seconds: float = REQUEST_S) -> Any:
        """The reply to one request, asked again while the service is away. Raises ServiceError."""
        return self.attempt(lambda: self.once(method, request, seconds=seconds))

    def once(self, method: str, request: Any, *, seconds: float = REQUEST_S) -> Any:
        """The reply to one request, or grpc.RpcError."""
        return getattr(self.stub, method)(request, timeout=self.patience.limit(seconds))

    @contextmanager
    def stream(self, method: str, request: Any) -> Iterator[Iterator[Any]]:
        """The replies to one request. What is left of them when the context ends is not taken."""
        replies = getattr(self.stub, method)(request, timeout=self.patience.limit(TRANSFER_S))
        try:
            yield replies
        finally:
            replies.cancel()

    def lanes(self) -> "Lanes":
        """What opens lanes, to be closed after use."""
        sockets = Sockets()
        with self._lock:
            self._lanes.add(sockets)
            if self._closed:
                sockets.end()
        return Lanes(self._address, self._tls_ca, self.patience, sockets)

    def attempt(self, work: Callable[[], _T]) -> _T:
        """What `work` returns, begun again while the service is away. Raises ServiceError."""
        retries = self.retries()
        while True:
            try:
                return work()
            except grpc.RpcError as error:
                retries.require_fits(error)
                retries.after(error)

    def retries(self) -> "Retries":
        return Retries(self._address, self.patience, self.tell, self._lost)


@dataclass(frozen=True)
class Lanes:
    """Opens lanes, from any thread. They end together, when this is closed."""

    address: str
    tls_ca: Path | None
    patience: Patience
    sockets: Sockets

    def __enter__(self) -> "Lanes":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sockets.close()

    def open(
        self,
        ticket: bytes,
        address: str = "",
        *,
        turn_s: float | None = None,
        first: bytes = b"",
    ) -> socket.socket:
        """The lane of this ticket. Raises LaneBroken.

        address: of the shard that it goes to, as the host says; the service's own unless given.
        turn_s: how long to wait for its turn, if that comes after the ticket. first: what is said
        over it first.
        """
        where, limit = address or self.address, self.patience.limit(REQUEST_S)
        try:
            return dial_lane(
                where,
                ticket,
                tls_ca=self.tls_ca,
                seconds=limit,
                turn_s=None if turn_s is None else self.patience.limit(turn_s),
                among=self.sockets,
                least=reach(self.address) if address else 0,
                first=first,
            )
        except ConfigError:
            raise
        except (OSError, ValueError) as failed:  # Some names cannot even be asked for.
            raise LaneBroken(f"no lane to {where}: {failed}") from None


def at_once(
    tasks: Sequence[Callable[[], None]],
    *,
    stop: Callable[[], None],
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Run all of these, each in a thread of its own, and return when all have ended.

    stop: ends them, if one of them raises or the caller is interrupted; that is then raised. A
    single one runs in the caller's thread. meanwhile: called there now and then, for several.
    """
    if len(tasks) < 2:
        for task in tasks:
            task()
        return
    # Not by a pool: Python has none for threads that go on when the main one has ended.
    left: SimpleQueue[Callable[[], None]] = SimpleQueue()
    ended: SimpleQueue[BaseException | None] = SimpleQueue()
    stopped = Signal()
    for task in tasks:
        left.put(task)

    def work() -> None:
        failure = None
        try:
            while not (left.empty() or stopped.is_set()):
                left.get_nowait()()
        except Empty:
            pass  # Another thread was quicker.
        except BaseException as raised:  # noqa: BLE001 (raised in the caller's thread)
            failure = raised
        ended.put(failure)

    count = min(len(tasks), _AT_ONCE)
    threads = [Thread(target=work, name="ostraka-client") for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        while count:
            with suppress(Empty):
                failure = ended.get(timeout=_MEANWHILE_S)
                count -= 1
                if failure is not None:
                    raise failure
            meanwhile()
    except BaseException:
        stopped.set()
        stop()
        raise
    finally:
        for thread in threads:
            thread.join()


class Resting:
    """Holds a connection between two calls of the user, if the next one comes soon.

    It is closed before this process forks, as training may: a channel does not survive that in
    either process.
    """

    def __init__(self) -> None:
        self._held: list[tuple[float, Connection]] = []  # taken in one step, from any thread
        _RESTING[id(self)] = self

    def rest(self, connection: Connection) -> None:
        """Hold a connection that has no call under way."""
        self._held.append((time.monotonic(), connection))

    def take(self) -> Connection | None:
        """The connection, if there is one that the other side has not closed by now."""
        with suppress(IndexError):
            since, connection = self._held.pop()
            if time.monotonic() - since < IDLE_S / 2:
                return connection
            connection.close()
        return None

    def end(self) -> None:
        with suppress(IndexError):
            self._held.pop()[1].close()


_RESTING: WeakValueDictionary[int, Resting] = WeakValueDictionary()


def _before_fork() -> None:
    for each in _RESTING.valuerefs():  # a list, made in one step: other threads may add to them
        if (resting := each()) is not None:
            resting.end()


os.register_at_fork(before=_before_fork)


class Retries:
    """Decides whether to try again, and waits before that."""

    def __init__(
        self,
        address: str,
        patience: Patience,
        tell: Callable[[Event], None],
        lost: Callable[[], None],
    ) -> None:
        self._address = address
        self._patience = patience
        self._tell = tell
        self._lost = lost
        self._backoff = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S)
        self._attempts = self._odd = 0
        self._greeted = False

    def require_fits(self, error: grpc.RpcError) -> None:
        """Raises ServiceError if a message was too large, for who would send the same again."""
        status = Status.of(error)
        if status.code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in status.said:
            raise self._refused(status) from None

    def after(self, error: grpc.RpcError) -> None:
        """Wait for the next attempt. Raises ServiceError if there should be none."""
        status = Status.of(error)
        if status.code in _LOST:
            self._lost()
        if status.code is grpc.StatusCode.UNAUTHENTICATED and not self._greeted:
            self._greeted = True  # It is there, and asks for a greeting: that is no failure.
            return
        self._odd = self._odd + 1 if status.code in _ODD else 0
        if status.code not in _AGAIN and not 0 < self._odd <= _ODD_ANSWERS:
            raise self._refused(status) from None
        if self._patience.over:
            raise self._unreachable(status) from None
        self._attempts += 1
        self._tell(Reconnecting(self._attempts, str(status), self._address))
        self._patience.sleep(self._backoff.next())

    def _refused(self, status: Status) -> ServiceError:
        advice = _ADVICE.get(status.code)
        what = f"{self._address} refuses: {status}"
        return ServiceError(
            f"{what}; {advice}" if advice else what, status=status.code.name, said=status.said
        )

    def _unreachable(self, status: Status) -> ServiceError:
        return ServiceError(
            f"{self._address} has not served this client within {self._patience.seconds:g} s "
            f"({status}): is it running, and can this machine reach it?",
            said=status.said,
        )


def published(connection: Connection, number: int) -> wire.OutcomeReply:
    """The certified receipt of a number whose certificate is too long for the answer about it.

    Not here yet if the chain does not have it, which may be another enclave's by now.
    """

    def read() -> wire.OutcomeReply:
        with connection.stream("GetChain", wire.ChainRequest(after=number - 1)) as links:
            for link in links:
                if link.WhichOneof("link") == "certified":
                    return wire.OutcomeReply(certified=link.certified)
        return wire.OutcomeReply(pending=wire.Pending())

    return connection.attempt(read)

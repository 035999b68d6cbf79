"""Upload lanes: an upload is a conversation, over a connection of its own.

    peer                          event loop                  thread of the lane
     ----- LANE, ticket ---------> whose ticket is it?
     ----- TLS handshake, if there is TLS
     ----- UploadRequest --------> header, limits, turn
     <---- granted --------------- which tile is the next
     ----- tile; tile; ... -------------------------------> Receiver.take, tile by tile
     <---- complete --------------
     <---- outcome --------------- when there is one, if that was asked for

Each of these is a frame: a length, and as many bytes. `refused` may come at any time, and ends it.
With shards, tiles go over lanes to those.

A ticket says who opens the lane. Its client draws it, and announces its digest in a call of gRPC:
so nobody on the path has it before it is shown. It is for one lane, and a party's newest replaces
the one before.
"""

import asyncio
import hashlib
import socket
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError

from ostraka.config import Member
from ostraka.enclave.lane import (
    Gate,
    LaneBroken,
    Line,
    Receiver,
    kernel_waits,
    receive,
    until_ended,
)
from ostraka.errors import MalformedMessage
from ostraka.transport import LENGTH
from ostraka.transport import ostraka_pb2 as wire

_STRANGERS = 4096  # tickets that strangers hold
_LONGEST = 2**16  # bytes of a request
_ENDED = "the upload's lane has ended"

_T = TypeVar("_T")


@dataclass(frozen=True)
class Caller:
    """party: the enrolled party whose connection it is; None for a stranger."""

    address: str
    party: Member | None

    @property
    def name(self) -> str:
        """What the caller is charged under."""
        return self.party.name if self.party else self.address

    def is_called(self, name: str) -> bool:
        return self.party is not None and self.party.name == name


class Uploads:
    """Knows whose tickets were announced, and has whoever shows one heard.

    threads: as many as there can be turns. readers: how many of them read at a time. idle_s: for a
    TLS handshake, a request, each tile, and for each answer to be taken. Use it as a context, on
    the event loop.
    """

    def __init__(
        self, threads: int, *, idle_s: float, readers: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self._serve: Callable[[Talk], Awaitable[None]] | None = None
        self._talks: set[Talk] = set()
        # By the digests of their tickets.
        self._strangers: OrderedDict[bytes, None] = OrderedDict()
        self._own: dict[bytes, Member] = {}
        self._newest: dict[str, bytes] = {}  # by name
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="ostraka-lane")
        gate, waits = Gate(readers), kernel_waits()
        self._line = partial(Line, idle_s=idle_s, tls=None, waits=waits, gate=gate)
        self._tls = tls
        self._idle_s = idle_s

    def __enter__(self) -> "Uploads":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._threads.shutdown()

    def serve(self, serve: "Callable[[Talk], Awaitable[None]]") -> None:
        """Have every conversation from now on had by this. Those of before it end: what limits them
        is not what limits the next ones."""
        for talk in tuple(self._talks):
            talk.cut()
        self._serve = serve

    def announce(self, digest: bytes, party: Member | None) -> None:
        """Note whose the ticket of this digest is: a stranger's, if it is no party's.

        Raises MalformedMessage for what is no digest.
        """
        if len(digest) != hashlib.sha256().digest_size:
            raise MalformedMessage("what announces a ticket is no digest of one")
        if party is not None:
            self._own.pop(self._newest.get(party.name, b""), None)
            self._own[digest], self._newest[party.name] = party, digest
            return
        self._strangers[digest] = None
        if len(self._strangers) > _STRANGERS:
            self._strangers.popitem(last=False)

    def claim(self, ticket: bytes, address: str) -> "Talk | None":
        """Return the lane that a peer of this address may have by its ticket, if any."""
        digest = hashlib.sha256(ticket).digest()
        party = self._own.pop(digest, None)
        if party is not None:
            self._newest.pop(party.name, None)
        elif self._strangers.pop(digest, digest) is not None:
            return None
        if self._serve is None:
            return None
        talk = Talk(
            Caller(address, party),
            self._serve,
            line=self._line,
            threads=self._threads,
            tls=self._tls,
            idle_s=self._idle_s,
            over=self._talks.discard,
        )
        self._talks.add(talk)
        return talk


class Talk:
    """One conversation. Its connection is the event loop's, but while tiles come.

    over: called with it at its end.
    """

    def __init__(
        self,
        caller: Caller,
        serve: "Callable[[Talk], Awaitable[None]]",
        *,
        line: Callable[[socket.socket], Line],
        threads: ThreadPoolExecutor,
        tls: ssl.SSLContext | None,
        idle_s: float,
        over: "Callable[[Talk], None]",
    ) -> None:
        self.caller = caller
        self._over = over
        self._serve = serve
        self._line_of = line
        self._threads = threads
        self._tls = tls
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._near: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def party(self) -> Member | None:
        return self.caller.party

    def connect(self, near: socket.socket, gone: Callable[[], None]) -> None:
        """Talk over the connection that has shown the ticket. gone: called once it is closed."""
        self._near = near
        self._serving = self._loop.create_task(self._converse())

        def end(_: object) -> None:
            if self._near is not None:
                self._near.close()
            self._over(self)
            gone()

        self._serving.add_done_callback(end)

    def cut(self) -> None:
        """Break the connection off, and end the conversation."""
        if self._near is not None:
            with suppress(OSError):
                # TLS must not notice: a thread may use the same object.
                socket.socket.shutdown(self._near, socket.SHUT_RDWR)
        if self._serving is not None:
            self._serving.cancel()

    async def _converse(self) -> None:
        with suppress(OSError, LaneBroken):  # TimeoutError is one. Nobody is left to hear of it.
            await self._serve(self)

    async def hear(self) -> wire.UploadRequest:
        """Return what the peer says first, behind the handshake if there is TLS.

        Raises MalformedMessage, TimeoutError, LaneBroken.
        """
        if self._tls is not None:
            await self._shake_hands(self._tls)
        said, until = b"", self._until
        while len(said) < LENGTH.size or len(said) < _size(said):
            more = await self._when_ready(partial(self._open.recv, _LONGEST), until)
            if not more:
                raise LaneBroken(_ENDED)
            said += more
        if len(said) > _size(said):
            raise MalformedMessage("more than a request was said before it was granted")
        try:
            return wire.UploadRequest.FromString(said[LENGTH.size :])
        except DecodeError:
            raise MalformedMessage("malformed request") from None

    async def _shake_hands(self, tls: ssl.SSLContext) -> None:
        try:
            self._near = secured = tls.wrap_socket(
                self._open, server_side=True, do_handshake_on_connect=False
            )
        except OSError:  # It has ended already.
            raise LaneBroken(_ENDED) from None
        await self._when_ready(secured.do_handshake, self._until)

    async def say(self, **answer: object) -> None:
        """Send an answer. Raises TimeoutError if the peer does not take it, and LaneBroken."""
        encoded = wire.UploadReply(**answer).SerializeToString()  # type: ignore[arg-type]
        rest, until = memoryview(LENGTH.pack(len(encoded)) + encoded), self._until
        while rest:
            send = partial(self._open.send, rest)
            rest = rest[await self._when_ready(send, until, writes=True) :]

    async def refuse(self, code: grpc.StatusCode, why: str) -> None:
        """Say why it ends here, to a peer that is still there."""
        with suppress(TimeoutError, LaneBroken):
            await self.say(refused=wire.Refused(code=code.value[0], why=why))

    async def receive(self, receiver: Receiver) -> None:
        """Wait until the upload is complete. Raises as `lane.receive` does."""
        line = self._line_of(self._open)
        reading = self._loop.run_in_executor(self._threads, receive, line, receiver)
        try:
            # The client's next call must not begin before this one's thread has ended.
            await until_ended(reading, cut=line.stop)
        finally:
            line.gather(1)
            self._open.setblocking(False)

    @property
    def _until(self) -> float:
        """When a step that begins now has to be done."""
        return self._loop.time() + self._idle_s

    @property
    def _open(self) -> socket.socket:
        if self._near is None:
            raise LaneBroken(_ENDED)
        return self._near

    async def _when_ready(
        self, work: Callable[[], _T], until: float, *, writes: bool = False
    ) -> _T:
        """Return what this gives once the connection lets it. Raises LaneBroken or TimeoutError."""
        while True:
            try:
                return work()
            except BlockingIOError:
                await self._until_ready(until, writes=writes)
            except ssl.SSLWantReadError:
                await self._until_ready(until, writes=False)
            except ssl.SSLWantWriteError:
                await self._until_ready(until, writes=True)
            except OSError:
                raise LaneBroken(_ENDED) from None

    async def _until_ready(self, until: float, *, writes: bool) -> None:
        """Most of what is said is here already, or goes out at once: only who waits has a time."""
        loop, fileno = self._loop, self._open.fileno()
        ready = loop.create_future()
        (loop.add_writer if writes else loop.add_reader)(fileno, _settle, ready)
        try:
            async with asyncio.timeout_at(until):
                await ready
        finally:
            (loop.remove_writer if writes else loop.remove_reader)(fileno)


def _size(said: bytes) -> int:
    """Return how long a frame is that begins so. Raises MalformedMessage if that is too long."""
    size: int = LENGTH.unpack_from(said)[0]
    if size > _LONGEST:
        raise MalformedMessage("an upload's request is too long")
    return LENGTH.size + size


def _settle(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)

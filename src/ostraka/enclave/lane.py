"""Lanes: bytes beside gRPC, on connections of their own. Here are those over which tiles come.

    peer                          door                        thread of the lane
     ----- LANE, ticket ---------> whose ticket is it?
     ----- TLS handshake, if there is TLS ------------------->
     ----- length, tile; length, tile; ... ------------------> Receiver.take, tile by tile

So it is at a shard: its lead was asked by the client, and has told it the ticket. Nothing is sent
back; a sender that is too fast is held up by TCP. A service's own upload lanes, whose tiles are
read by `receive`, too, are in `uploads`, and lanes over which models go out in `downloads`.
"""

import asyncio
import math
import os
import select
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from threading import Lock, local
from time import monotonic
from types import TracebackType
from typing import Protocol

from ostraka.config import Member
from ostraka.errors import OpenError
from ostraka.transport import LENGTH, TICKET_BYTES

_ENDED = "the upload's lane ended before it was complete"
_TIMEVAL = struct.Struct("ll")  # seconds and microseconds
_AT_ONCE = struct.pack("ii", 1, 0)
_MISSED = 4096  # tickets
_SURE = 2  # tiles: this one and the last
_PART = 2**18  # bytes that a peer takes in `idle_s`, at least
_LINGER_S = 0.001  # rounded up by the kernel to its own tick
_STRETCH = 64  # tiles
_OWN = local()  # what a thread of lanes keeps from one upload to the next


class LaneBroken(Exception):
    """The connection ended before the upload was complete. Its client may come again."""


class Receiver(Protocol):
    """Where the tiles of one upload go, in order. One thread at a time uses it."""

    @property
    def size(self) -> int:
        """The bytes of the next sealed tile; 0 once the upload is complete."""
        ...

    @property
    def left(self) -> int:
        """How many tiles are to come. All but the last are of one size."""
        ...

    def take(self, ciphertext: memoryview) -> None:
        """Open, check and keep the next tile. If this raises, nothing of the tile counts."""
        ...


class Tickets:
    """Issues a ticket for each upload whose turn has come, and knows whose a ticket is.

    threads: as many as there can be turns. readers: how many of them read at a time. idle_s: for a
    ticket to be shown, for a TLS handshake, and for each frame. tls: None for none. others: whether
    a ticket is of other lanes. Use it as a context, on the event loop.

    A ticket that others have drawn may be shown before it is issued. Whoever was the first to show
    it waits for it. If that one has left, the lane is broken from the beginning.
    """

    def __init__(
        self,
        threads: int,
        *,
        idle_s: float,
        readers: int = 2,
        tls: ssl.SSLContext | None = None,
        others: Callable[[bytes], bool] = lambda ticket: False,
    ) -> None:
        self._others = others
        self._issued: dict[bytes, Lane] = {}
        self._awaited: dict[bytes, Callable[[Lane], None]] = {}
        self._missed: dict[bytes, None] = {}  # the last of those that nobody waits for any more
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="ostraka-lane")
        self._line = partial(Line, idle_s=idle_s, tls=tls, waits=kernel_waits(), gate=Gate(readers))
        self._idle_s = idle_s

    def __enter__(self) -> "Tickets":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._threads.shutdown()

    @contextmanager
    def issue(
        self, receiver: Receiver, party: Member | None, ticket: bytes = b""
    ) -> Iterator["Lane"]:
        """Hold a lane open for the block. party: who has proved that the upload is its own.

        ticket: a new one unless given.
        """
        ticket = ticket or os.urandom(TICKET_BYTES)
        lane = Lane(ticket, receiver, party, self._threads, line=self._line, idle_s=self._idle_s)
        if (issued := self._awaited.pop(ticket, None)) is not None:
            issued(lane)
        elif ticket in self._missed:
            lane.miss()
        else:
            self._issued[ticket] = lane
        try:
            yield lane
        finally:
            self._issued.pop(lane.ticket, None)
            lane.end()

    def claim(self, ticket: bytes, address: str = "") -> "Lane | None":
        """Return the lane that this ticket opens, once; None for any other ticket."""
        return self._issued.pop(ticket, None)

    def await_issue(self, ticket: bytes, issued: "Callable[[Lane], None]") -> bool:
        """Have `issued` called with the lane. Return False if another waits for this ticket, or it
        is not one that can be issued."""
        if ticket in self._awaited or self._others(ticket):
            return False
        self._awaited[ticket] = issued
        return True

    def miss(self, ticket: bytes) -> None:
        """Wait for a ticket no longer."""
        if self._awaited.pop(ticket, None) is not None:
            self._missed[ticket] = None
        if len(self._missed) > _MISSED:
            del self._missed[next(iter(self._missed))]


class Lane:
    """One upload's connection: awaited by its call, brought by the door, read by a thread."""

    def __init__(
        self,
        ticket: bytes,
        receiver: Receiver,
        party: Member | None,
        threads: ThreadPoolExecutor,
        *,
        line: "Callable[[socket.socket], Line]",
        idle_s: float,
    ) -> None:
        self.ticket = ticket
        self.party = party
        self._receiver = receiver
        self._threads = threads
        self._line_of = line
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._came: asyncio.Future[Line] = self._loop.create_future()
        self._line: Line | None = None
        self._gone: Callable[[], None] = lambda: None
        self._reading = False

    def __repr__(self) -> str:
        return "Lane(<secret>)"

    def connect(self, near: socket.socket, gone: Callable[[], None]) -> None:
        """Take in the connection that has shown the ticket. gone: called once it is closed."""
        try:
            self._line = self._line_of(near)
        except OSError:  # It has ended already.
            near.close()
            gone()
            return
        self._gone = gone
        self._came.set_result(self._line)

    def miss(self) -> None:
        """Its connection came and has gone before this lane was there."""
        self._came.set_exception(LaneBroken(_ENDED))
        self._came.exception()  # Nobody may be left to hear of it.

    async def received(self) -> None:
        """Wait until the upload is complete. Raises as `receive` does."""
        async with asyncio.timeout(self._idle_s):
            line = await asyncio.shield(self._came)  # The door may still bring it.
        reading = self._loop.run_in_executor(self._threads, receive, line, self._receiver)
        self._reading = True
        reading.add_done_callback(lambda _: self._close())
        # The client's next call must not begin before this one's thread has ended.
        await until_ended(reading, cut=self.cut)

    def cut(self) -> None:
        """Break the connection off, if there is one. Its thread finds that it has ended."""
        if self._line is not None:
            self._line.cut()

    def end(self) -> None:
        """Close the connection, now or when its thread has ended."""
        self.cut()
        if not self._reading:
            self._close()

    def _close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._gone()


async def until_ended(working: "asyncio.Future[None]", *, cut: Callable[[], None]) -> None:
    """Wait for the thread of a lane. Raises what it raises.

    Whoever waits may be ended in the middle of it, for several reasons at once: then `cut` ends
    the connection, and this ends with the thread.
    """
    try:
        await asyncio.shield(working)
    finally:
        if not working.done():
            cut()
        while not working.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([working])
        working.exception()  # Nobody may be left to hear of it.


class Gate:
    """Lets some threads in at a time, in the order in which they have come.

    Frames are read behind it. More threads than there are processors to run them would only wait
    for Python's lock, and wake each other.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._queue: deque[Lock] = deque()  # Each is released when a place is handed to it.
        self._lock = Lock()

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._queue)

    def enter(self) -> None:
        """Wait for a place."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = Lock()
            turn.acquire()
            self._queue.append(turn)
        turn.acquire()

    def leave(self) -> None:
        """Give the place to who has waited for longest."""
        with self._lock:
            if self._queue:
                self._queue.popleft().release()
            else:
                self._free += 1


class Line:
    """The connection of a lane, as its thread uses it: frames come in, or a model goes out.

    late: the last frame did not come in time. waits: the kernel waits for all that is asked of it
    in one call, and no longer than it may take. gate: that frames are read behind.
    """

    def __init__(
        self,
        near: socket.socket,
        *,
        idle_s: float,
        tls: ssl.SSLContext | None,
        waits: bool,
        gate: Gate | None = None,
    ) -> None:
        self.late = False
        self._idle_s = idle_s
        self._near = near
        self._gate = gate or Gate(1)
        self._inside = False
        self._lingers = False
        self._ended = False
        self._flags = 0
        self._stretch = 0
        self._gathered = 1
        self._waits = waits and tls is None and not isinstance(near, ssl.SSLSocket)
        if tls is not None:
            self._near = tls.wrap_socket(near, server_side=True, do_handshake_on_connect=False)

    def begin(self) -> None:
        """Shake hands, where there is TLS. Raises OSError."""
        if self._waits:
            _wait_at_most(self._near, self._idle_s)
        elif isinstance(self._near, ssl.SSLSocket):
            self._near.settimeout(self._idle_s)
            self._near.do_handshake()

    def gather(self, size: int) -> None:
        """Have the kernel wake this thread when so many bytes are here, and not for each piece.

        As many have to come, or it will not wake before the peer ends, or time is over.
        """
        if self._waits and size != self._gathered:
            self._gathered = size
            with suppress(OSError):  # A system may not know it.
                self._near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Prepare for `fill`, and leave the gate in the end."""
        if self._waits:
            _limit(self._near, socket.SO_RCVTIMEO, _LINGER_S)
        self._linger(False)
        try:
            yield
        finally:
            self._leave()

    def fill(self, frame: memoryview) -> int:
        """Read until the frame is full. Return how many bytes came before the end, or in time.

        This thread keeps its place behind the gate while frames come promptly, and for a stretch of
        them if others wait.
        """
        if self._stretch >= _STRETCH and self._gate.waiting:
            self._leave()
        if not self._inside:
            self._enter()
        self._stretch += 1
        came = self._read(frame)
        return came if came == len(frame) else self._wait_for(frame, came)

    def _wait_for(self, frame: memoryview, came: int) -> int:
        """Go on with a frame that does not come promptly. Others have the place meanwhile."""
        until = monotonic() + self._idle_s
        while came < len(frame) and not self._ended:
            self._leave()
            begun = monotonic()
            if not self._poll(until - begun):
                self.late = True
                break
            here = monotonic()
            # Who lingers keeps others waiting. It pays if it would have paid now, and did not just
            # fail.
            self._linger(not self._lingers and here - begun < _LINGER_S)
            self._enter()
            until += monotonic() - here  # Who waits for a place is not late.
            came += self._read(frame[came:])
        return came

    def _poll(self, seconds: float) -> bool:
        """Wait for as much as `gather` says, or for anything. Return whether it came in time."""
        waiting = select.poll()
        waiting.register(self._near, select.POLLIN)
        return seconds > 0 and bool(waiting.poll(math.ceil(1000 * seconds)))

    def _read(self, rest: memoryview) -> int:
        """Read what is here, or comes while this lingers. Return how many bytes."""
        size, until = len(rest), 0.0
        try:
            while rest and not self._ended:
                taken = self._near.recv_into(rest, 0, self._flags)
                if taken == size:  # as a rule
                    return size
                if not taken:  # `stop` may have come meanwhile.
                    self._ended = True
                rest, now = rest[taken:], monotonic()
                until = until or now + _LINGER_S
                if now >= until:
                    break
        except (BlockingIOError, TimeoutError, ssl.SSLWantReadError):
            pass
        except OSError:
            self._ended = True
        return size - len(rest)

    def _linger(self, lingers: bool) -> None:
        """lingers: `_read` waits for a moment if there is too little."""
        self._lingers = lingers
        if self._waits:
            self._flags = socket.MSG_WAITALL if lingers else socket.MSG_DONTWAIT
        else:
            self._near.settimeout(_LINGER_S if lingers else 0)

    def _enter(self) -> None:
        self._gate.enter()
        self._inside = True
        self._stretch = 0

    def _leave(self) -> None:
        if self._inside:
            self._inside = False
            self._gate.leave()

    def pour(self, data: memoryview) -> None:
        """Send all of it, and wait until the peer has it. Raises OSError.

        TimeoutError is for one that takes less than a part of it in `idle_s`.
        """
        while data:
            most = data if self._waits else data[:_PART]
            taken = self._send(most)
            if taken < min(len(most), _PART):
                raise TimeoutError
            data = data[taken:]
        # Until the peer ends it, too, the system may hold much that the peer does not take.
        socket.socket.shutdown(self._near, socket.SHUT_WR)
        if not self._waits:
            self._near.settimeout(self._idle_s)
        try:
            socket.socket.recv(self._near, 1)
        except BlockingIOError:
            raise TimeoutError from None
        # One that says something, or has ended its side alone, does not have to have taken all.
        # For one that has, it makes no difference.
        self.forget()

    def _send(self, data: memoryview) -> int:
        """Send for as long as it may take. Return how many bytes the peer has taken."""
        until, rest = monotonic() + self._idle_s, data
        with suppress(BlockingIOError, TimeoutError):
            while rest and (left := until - monotonic()) > 0:
                if not self._waits:
                    self._near.settimeout(left)
                rest = rest[self._near.send(rest) :]
        return len(data) - len(rest)

    def stop(self) -> None:
        """Have nothing more read. What the peer is sent still arrives."""
        self._ended = True
        with suppress(OSError):
            socket.socket.shutdown(self._near, socket.SHUT_RD)

    def cut(self) -> None:
        with suppress(OSError):
            # TLS must not notice: its thread uses the same object.
            socket.socket.shutdown(self._near, socket.SHUT_RDWR)

    def forget(self) -> None:
        """Have the system keep nothing that the peer has not taken, once this is closed."""
        with suppress(OSError):
            self._near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)

    def close(self) -> None:
        self._near.close()


def receive(line: Line, receiver: Receiver) -> None:
    """Take the rest of an upload.

    Raises what `Receiver.take` raises, OpenError for a frame of another length, TimeoutError for a
    peer that is too slow, and LaneBroken.
    """
    try:
        line.begin()
    except TimeoutError:
        raise TimeoutError from None
    except OSError:
        raise LaneBroken(_ENDED) from None
    with line.reading():
        _take_tiles(line, receiver)


def _take_tiles(line: Line, receiver: Receiver) -> None:
    """Take the rest of an upload, tile by tile, all into the same memory."""
    size = receiver.size
    frame = _memory(LENGTH.size + size)
    tile = frame[LENGTH.size :]
    # What is missing of a frame, and the next one, are as many bytes as one frame: unless the next
    # is the last, which may be short.
    if receiver.left > _SURE:
        line.gather(len(frame))
    for left in range(receiver.left, 0, -1):
        if left == _SURE:
            line.gather(1)
        if left == 1:
            size = receiver.size
            frame, tile = frame[: LENGTH.size + size], tile[:size]
        came = line.fill(frame)
        if came >= LENGTH.size and LENGTH.unpack_from(frame)[0] != size:
            raise OpenError("tile")
        if came < len(frame):
            raise TimeoutError if line.late else LaneBroken(_ENDED)
        receiver.take(tile)


def _memory(size: int) -> memoryview:
    """This thread's own, for frames. New memory for each upload would cost as much as to read two
    tiles of it into what is there."""
    if len(getattr(_OWN, "frame", b"")) < size:
        _OWN.frame = memoryview(bytearray(size))
    frame: memoryview = _OWN.frame
    return frame[:size]


def _wait_at_most(near: socket.socket, seconds: float) -> None:
    """Have the kernel end each wait for this socket after a time."""
    near.setblocking(True)
    _limit(near, socket.SO_RCVTIMEO, seconds)
    _limit(near, socket.SO_SNDTIMEO, seconds)


def _limit(near: socket.socket, option: int, seconds: float) -> None:
    whole, part = divmod(seconds, 1)
    limit = _TIMEVAL.pack(int(whole), max(1, int(part * 1e6)))
    near.setsockopt(socket.SOL_SOCKET, option, limit)


def kernel_waits() -> bool:
    """Return whether the kernel waits for all that is asked of it, and for a limited time. Some
    that imitate Linux do not."""
    near, far = socket.socketpair()
    with near, far:
        try:
            _wait_at_most(near, 0.001)
            far.sendall(b"?")
            limited = any(near.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.size))
            return limited and near.recv_into(bytearray(2), 0, socket.MSG_WAITALL) == 1
        except OSError:
            return False

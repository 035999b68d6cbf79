"""Passes the bytes of one connection on, both ways and unread, unless it is a lane's.

Nothing is taken from a side before the other side has taken what came before, so that a peer that
does not read fills its own connection only.
"""

import asyncio
import fcntl
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from ostraka.transport import LANE, TICKET_BYTES

CHUNK = 2**20  # bytes that are passed on at a time

_CHUNKS = 4  # of one connection, before others have their turn
_COPIED = 2**18
_PIPES = 64  # at a time; what needs more is copied
_LINGER_S = 2.0  # for a peer to close a connection that the service has ended
_RETRY_S = 0.02  # while the server behind the door is busy, or restarts
_RETRIES = 100
_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK


class Passage:
    """One connection, from its first byte to its end.

    near: the peer's side. dial: connects to the server, which hears of a connection when there is
    something to hear. lane: takes over a connection that has shown a ticket. idle_s: for a peer
    that says nothing at first, or takes nothing that it is sent. gone: called once the connection
    has ended.
    """

    def __init__(
        self,
        near: socket.socket,
        *,
        dial: Callable[[], socket.socket],
        lane: Callable[[socket.socket, bytes], None],
        gone: Callable[[], None],
        pipes: "Pipes",
        idle_s: float,
    ) -> None:
        # The loop is told numbers, not sockets: of a socket that it does not know it would put the
        # addresses into words, for an error that it catches itself.
        self.loop = asyncio.get_running_loop()
        self._near = near
        self._dial = dial
        self._lane = lane
        self._gone = gone
        self._pipes = pipes
        self._idle_s = idle_s
        self._far: socket.socket | None = None
        self._ways: tuple[Way, ...] = ()
        self._timer = self.loop.call_later(idle_s, self.close)
        self._closed = False
        self._said = b""  # of what begins a lane

    def start(self) -> None:
        """Begin with what the peer says first, which has come with the connection, as a rule."""
        self._hear()

    def close(self) -> None:
        """End the connection on both sides, at once."""
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        for way in self._ways:
            way.stop()
        self.loop.remove_reader(self._near.fileno())
        self._near.close()
        if self._far is not None:
            self._far.close()
        self._gone()

    def stalled(self, stalled: bool) -> None:
        """Note whether the peer takes what it is sent. It has `idle_s` to go on."""
        self._timer.cancel()
        if stalled:
            self._timer = self.loop.call_later(self._idle_s, self.close)

    def ended(self, way: "Way") -> None:
        """One side says no more, and all that it has said was passed on."""
        inward, outward = self._ways
        way.stop()
        with suppress(OSError):
            way.sink.shutdown(socket.SHUT_WR)
        if way is inward and not outward.over:
            return  # The server answers what it was asked, and ends then.
        if inward.over:
            self.close()
            return
        # The peer may still be sending. If we closed now, it would be told of an error, and might
        # lose the last answer.
        inward.stop()
        self._timer.cancel()
        self._timer = self.loop.call_later(_LINGER_S, self.close)
        self.loop.add_reader(self._near.fileno(), self._ignore)

    def _ignore(self) -> None:
        try:
            if not self._near.recv(2**16):
                self.close()
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def _hear(self) -> None:
        """Tell by the first byte who is meant. Neither TLS nor HTTP/2 begins as a lane does."""
        try:
            first = self._near.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            self.loop.add_reader(self._near.fileno(), self._hear)
            return
        except OSError:
            self.close()
            return
        if first == LANE[:1]:
            self._read_ticket()
        else:
            self._begin()

    def _read_ticket(self) -> None:
        """Read what begins a lane, and no byte more: all that follows is for its thread."""
        whole = len(LANE) + TICKET_BYTES
        try:
            more = self._near.recv(whole - len(self._said))
        except BlockingIOError:
            self.loop.add_reader(self._near.fileno(), self._read_ticket)
            return
        except OSError:
            more = b""
        self._said += more
        if not more or self._said[: len(LANE)] != LANE[: len(self._said)]:
            self.close()
        elif len(self._said) == whole:
            self._closed = True  # This passage has ended, and the connection goes on.
            self._timer.cancel()
            self.loop.remove_reader(self._near.fileno())
            self._lane(self._near, self._said[len(LANE) :])
        else:
            self.loop.add_reader(self._near.fileno(), self._read_ticket)

    def _begin(self, tries: int = _RETRIES) -> None:
        self.loop.remove_reader(self._near.fileno())
        self._timer.cancel()
        if self._closed:
            return
        try:
            self._far = self._dial()
        except OSError:
            if tries:
                self._timer = self.loop.call_later(_RETRY_S, self._begin, tries - 1)
            else:
                self.close()
            return
        self._ways = (
            Way(self, self._near, self._far, self._pipes, watched=False),
            Way(self, self._far, self._near, self._pipes, watched=True),
        )
        for way in self._ways:
            way.start()


class Way:
    """One direction. It takes no more in until all of it was passed on.

    watched: whether the sink has to take what it is sent within a time.
    """

    def __init__(
        self,
        passage: Passage,
        source: socket.socket,
        sink: socket.socket,
        pipes: "Pipes",
        *,
        watched: bool,
    ) -> None:
        self.sink = sink
        self.over = False
        self._source = source
        self._passage = passage
        self._loop = passage.loop
        self._pipes = pipes
        self._watched = watched
        self._held: Carrier | None = None

    def start(self) -> None:
        self._loop.add_reader(self._source.fileno(), self._pass_on)

    def stop(self) -> None:
        """Take in no more, and forget what is held."""
        if self.over:
            return
        self.over = True
        self._loop.remove_reader(self._source.fileno())
        self._loop.remove_writer(self.sink.fileno())
        if self._held is not None:
            self._pipes.take_back(self._held)
            self._held = None

    def _pass_on(self) -> None:
        carrier = self._pipes.lend()
        try:
            for _ in range(_CHUNKS):
                taken = carrier.fill(self._source)
                self._pipes.count(taken, outward=self._watched)
                if not taken:
                    self._passage.ended(self)
                    break
                carrier.drain(self.sink)
                if taken < carrier.size // 2:
                    break  # There is hardly more; if there is, we are called again.
        except BlockingIOError:
            if carrier.held:
                self._hold(carrier)
                return
        except OSError:
            self._passage.close()
        self._pipes.take_back(carrier)

    def _hold(self, carrier: "Carrier") -> None:
        """Wait for the sink with what it did not take."""
        self._held = carrier
        self._loop.remove_reader(self._source.fileno())
        self._loop.add_writer(self.sink.fileno(), self._drain)
        if self._watched:
            self._passage.stalled(True)

    def _drain(self) -> None:
        carrier = self._held
        if carrier is None:
            return
        before = carrier.held
        try:
            carrier.drain(self.sink)
        except BlockingIOError:
            if self._watched and carrier.held < before:
                self._passage.stalled(True)
            return
        except OSError:
            self._passage.close()
            return
        if self._watched:
            self._passage.stalled(False)
        self._held = None
        self._pipes.take_back(carrier)
        self._loop.remove_writer(self.sink.fileno())
        self._loop.add_reader(self._source.fileno(), self._pass_on)


class Carrier(Protocol):
    """Takes bytes from a socket, and gives them to another one. size: how many at a time."""

    @property
    def size(self) -> int: ...

    @property
    def held(self) -> int:
        """How many bytes it has taken and not given yet."""
        ...

    def fill(self, source: socket.socket) -> int:
        """Take bytes. Return how many; 0 at the end. Raises BlockingIOError if there are none."""
        ...

    def drain(self, sink: socket.socket) -> None:
        """Give all that is held. Raises BlockingIOError if the sink does not take all of it."""
        ...

    def close(self) -> None: ...


class Spliced:
    """Lets the kernel move the bytes through a pipe: they are not copied into this process."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with suppress(OSError):  # The memory of all pipes is limited.
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, CHUNK)
        self.size = fcntl.fcntl(self._in, fcntl.F_GETPIPE_SZ)
        self.held = 0

    def fill(self, source: socket.socket) -> int:
        taken = os.splice(source.fileno(), self._in, self.size, flags=_FLAGS)
        self.held += taken
        return taken

    def drain(self, sink: socket.socket) -> None:
        while self.held:
            self.held -= os.splice(self._out, sink.fileno(), self.held, flags=_FLAGS)

    def close(self) -> None:
        os.close(self._out)
        os.close(self._in)


class Copied:
    """Copies the bytes through memory, where the kernel cannot move them.

    The memory is lent to one connection at a time. What a sink does not take is kept elsewhere.
    """

    size = _COPIED

    def __init__(self, memory: bytearray) -> None:
        self._memory = memoryview(memory)
        self._rest = memoryview(b"")

    @property
    def held(self) -> int:
        return len(self._rest)

    def fill(self, source: socket.socket) -> int:
        taken = source.recv_into(self._memory)
        self._rest = self._memory[:taken]
        return taken

    def drain(self, sink: socket.socket) -> None:
        try:
            while self._rest:
                self._rest = self._rest[sink.send(self._rest) :]
        except BlockingIOError:
            self._rest = memoryview(bytes(self._rest))
            raise

    def close(self) -> None:
        self._rest = memoryview(b"")


class Pipes:
    """Lends carriers, and keeps some pipes for the next one."""

    def __init__(self, *, splice: bool | None = None) -> None:
        self._splice = can_splice() if splice is None else splice
        self._free: list[Spliced] = []
        self._lent = 0  # pipes
        self.bytes_in = self.bytes_out = 0  # that were taken from peers, and from the server
        self._memory = bytearray(_COPIED)

    def count(self, taken: int, *, outward: bool) -> None:
        if outward:
            self.bytes_out += taken
        else:
            self.bytes_in += taken

    def lend(self) -> Carrier:
        if not self._splice or self._lent >= _PIPES:
            return Copied(self._memory)
        try:
            pipe = self._free.pop() if self._free else Spliced()
        except OSError:  # There are no descriptors left.
            return Copied(self._memory)
        self._lent += 1
        return pipe

    def take_back(self, carrier: Carrier) -> None:
        if not isinstance(carrier, Spliced):
            carrier.close()
            return
        self._lent -= 1
        if carrier.held:  # Of a connection that has ended; nobody else must get them.
            carrier.close()
        else:
            self._free.append(carrier)

    def close(self) -> None:
        while self._free:
            self._free.pop().close()


def can_splice() -> bool:
    """Return whether the kernel moves bytes between sockets. Some that imitate Linux do not."""
    near, far = socket.socketpair()
    with near, far:
        try:
            pipe = Spliced()
        except OSError:
            return False
        try:
            near.sendall(b"?")
            pipe.fill(far)
            pipe.drain(far)
            return near.recv(1) == b"?"
        except OSError:
            return False
        finally:
            pipe.close()

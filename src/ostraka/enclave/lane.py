"""Upload lanes: the tiles of one upload, on a connection of its own, straight into the enclave.

    peer                          door                        thread of the lane
     ----- LANE, ticket ---------> whose ticket is it?
     ----- TLS handshake, if there is TLS ------------------->
     ----- length, tile; length, tile; ... ------------------> Receiver.take, tile by tile

The call that was granted the ticket decides about the lane: both end together. Nothing is sent back
over it; a sender that is too fast is held up by TCP.
"""

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Protocol

from ostraka.config import Member
from ostraka.errors import OpenError
from ostraka.transport import LENGTH, TICKET_BYTES

_ENDED = "the upload's lane ended before it was complete"
_TIMEVAL = struct.Struct("ll")  # seconds and microseconds


class LaneBroken(Exception):
    """The connection ended before the upload was complete. Its client may come again."""


class Receiver(Protocol):
    """Where the tiles of one upload go, in order. One thread at a time uses it."""

    @property
    def size(self) -> int:
        """The bytes of the next sealed tile; 0 once the upload is complete."""
        ...

    def take(self, ciphertext: memoryview) -> None:
        """Open, check and keep the next tile. If this raises, nothing of the tile counts."""
        ...


class Tickets:
    """Issues a ticket for each upload whose turn has come, and knows whose a ticket is.

    threads: as many as there can be turns. idle_s: for a ticket to be shown, for a TLS handshake,
    and for each frame. tls: None for none. Use it as a context, on the event loop.
    """

    def __init__(self, threads: int, *, idle_s: float, tls: ssl.SSLContext | None = None) -> None:
        self._issued: dict[bytes, Lane] = {}
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="ostraka-lane")
        self._source = partial(_Source, idle_s=idle_s, tls=tls, waits=kernel_waits())
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
    def issue(self, receiver: Receiver, party: Member | None) -> Iterator["Lane"]:
        """Hold a lane open for the block. party: who has proved that the upload is its own."""
        lane = Lane(receiver, party, self._threads, source=self._source, idle_s=self._idle_s)
        self._issued[lane.ticket] = lane
        try:
            yield lane
        finally:
            self._issued.pop(lane.ticket, None)
            lane.end()

    def claim(self, ticket: bytes) -> "Lane | None":
        """Return the lane that this ticket opens, once; None for any other ticket."""
        return self._issued.pop(ticket, None)


class Lane:
    """One upload's connection: awaited by its call, brought by the door, read by a thread."""

    def __init__(
        self,
        receiver: Receiver,
        party: Member | None,
        threads: ThreadPoolExecutor,
        *,
        source: "Callable[[socket.socket], _Source]",
        idle_s: float,
    ) -> None:
        self.ticket = os.urandom(TICKET_BYTES)
        self.party = party
        self._receiver = receiver
        self._threads = threads
        self._read_from = source
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._came: asyncio.Future[_Source] = self._loop.create_future()
        self._source: _Source | None = None
        self._gone: Callable[[], None] = lambda: None
        self._reading = False

    def __repr__(self) -> str:
        return "Lane(<secret>)"

    def connect(self, near: socket.socket, gone: Callable[[], None]) -> None:
        """Take in the connection that has shown the ticket. gone: called once it is closed."""
        try:
            self._source = self._read_from(near)
        except OSError:  # It has ended already.
            near.close()
            gone()
            return
        self._gone = gone
        self._came.set_result(self._source)

    async def received(self) -> None:
        """Wait until the upload is complete.

        Raises what `Receiver.take` raises, OpenError for a frame of another length, TimeoutError
        for a peer that is too slow, and LaneBroken.
        """
        async with asyncio.timeout(self._idle_s):
            source = await asyncio.shield(self._came)  # The door may still bring it.
        reading = self._loop.run_in_executor(self._threads, _receive, source, self._receiver)
        self._reading = True
        reading.add_done_callback(self._read)
        try:
            await asyncio.shield(reading)
        finally:
            # The call may be ended in the middle of a tile, for several reasons at once. The
            # client's next call must not begin before this one's thread has ended.
            self.cut()
            while not reading.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([reading])

    def cut(self) -> None:
        """Break the connection off, if there is one. Its thread finds that it has ended."""
        if self._source is not None:
            self._source.cut()

    def end(self) -> None:
        """Close the connection, now or when its thread has ended."""
        self.cut()
        if not self._reading:
            self._close()

    def _read(self, reading: "asyncio.Future[None]") -> None:
        reading.exception()  # Nobody may be left to hear of it.
        self._close()

    def _close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._gone()


class _Source:
    """Reads frames from a connection. late: the last one did not come in time.

    waits: the kernel waits for a whole frame in one call, and no longer than it may take.
    """

    def __init__(
        self, near: socket.socket, *, idle_s: float, tls: ssl.SSLContext | None, waits: bool
    ) -> None:
        self.late = False
        self._idle_s = idle_s
        self._near = near
        self._waits = waits and tls is None
        if tls is not None:
            self._near = tls.wrap_socket(near, server_side=True, do_handshake_on_connect=False)

    def begin(self) -> None:
        """Shake hands, where there is TLS. Raises OSError."""
        if self._waits:
            _wait_at_most(self._near, self._idle_s)
        elif isinstance(self._near, ssl.SSLSocket):
            self._near.settimeout(self._idle_s)
            self._near.do_handshake()

    def fill(self, frame: memoryview) -> int:
        """Read until the frame is full. Return how many bytes came before the end, or in time."""
        until, rest = monotonic() + self._idle_s, frame
        try:
            while rest and (taken := self._read(rest, until)):
                rest = rest[taken:]
        except (BlockingIOError, TimeoutError):
            self.late = True
        except OSError:
            pass  # An end as any other.
        return len(frame) - len(rest)

    def _read(self, rest: memoryview, until: float) -> int:
        left = until - monotonic()
        if left <= 0:
            raise TimeoutError
        if self._waits:
            return self._near.recv_into(rest, 0, socket.MSG_WAITALL)
        self._near.settimeout(left)
        return self._near.recv_into(rest)

    def cut(self) -> None:
        with suppress(OSError):
            # TLS must not notice: its thread uses the same object.
            socket.socket.shutdown(self._near, socket.SHUT_RDWR)

    def close(self) -> None:
        self._near.close()


def _receive(source: _Source, receiver: Receiver) -> None:
    """Take the rest of an upload, tile by tile, all into the same memory."""
    try:
        source.begin()
    except TimeoutError:
        raise TimeoutError from None
    except OSError:
        raise LaneBroken(_ENDED) from None
    memory = memoryview(bytearray(LENGTH.size + receiver.size))
    while size := receiver.size:
        frame = memory[: LENGTH.size + size]
        came = source.fill(frame)
        if came >= LENGTH.size and LENGTH.unpack_from(frame)[0] != size:
            raise OpenError("tile")
        if came < len(frame):
            raise TimeoutError if source.late else LaneBroken(_ENDED)
        receiver.take(frame[LENGTH.size :])


def _wait_at_most(near: socket.socket, seconds: float) -> None:
    """Have the kernel end each wait for this socket after a time."""
    near.setblocking(True)
    whole, part = divmod(seconds, 1)
    limit = _TIMEVAL.pack(int(whole), max(1, int(part * 1e6)))
    near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def kernel_waits() -> bool:
    """Return whether the kernel waits for whole frames. Some that imitate Linux do not."""
    near, far = socket.socketpair()
    with near, far:
        try:
            _wait_at_most(near, 0.001)
            far.sendall(b"?")
            return near.recv_into(bytearray(2), 0, socket.MSG_WAITALL) == 1
        except OSError:
            return False

"""Workers across the network, as the driver of a round sees them.

The event loop owns the streams; the round is driven by a thread. What the thread says to a worker
goes through a short queue, so that a slow worker holds the thread back and not the memory.
"""

import asyncio
import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ostraka.encoding import decode, digest, encode
from ostraka.errors import MalformedMessage, WorkerGone
from ostraka.messages import Answer, ChannelAccept, ChannelOffer, MaskSeed, ShareTile
from ostraka.protocol.host import Computing, Worker
from ostraka.transport.ostraka_pb2 import EnclaveSays, Over, WorkerSays

_AHEAD = 2  # messages that wait to be sent to one worker
_PIECE = 2**20  # bytes of a share tile in one message
_UNREAD = 8  # messages of one worker that wait to be read

Said = TypeVar("Said", ChannelAccept, Answer)


class Connection:
    """One worker's stream. `None` in either queue means that it has ended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outgoing: asyncio.Queue[EnclaveSays | None] = asyncio.Queue(_AHEAD)
        self.incoming: queue.Queue[WorkerSays | None] = queue.Queue(_UNREAD)
        self.ended = False

    def heard(self, said: WorkerSays) -> None:
        """Keep a message to be read, or drop it if too many wait: that hurts this worker alone."""
        with suppress(queue.Full):
            self.incoming.put_nowait(said)

    def forget(self) -> None:
        """Drop the messages that were not read."""
        with suppress(queue.Empty):
            while True:
                self.incoming.get_nowait()

    def end(self) -> None:
        """Release the threads that wait for this worker, to hear from it or to be heard."""
        self.ended = True
        self.forget()
        self.incoming.put_nowait(None)
        while not self.outgoing.empty():
            self.outgoing.get_nowait()
        self.outgoing.put_nowait(None)


@dataclass
class Pool:
    """The workers that are connected now, by name. The newest stream of a worker counts."""

    loop: asyncio.AbstractEventLoop
    connected: dict[str, Connection] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @contextmanager
    def joined(self, connection: Connection) -> Iterator[None]:
        if (older := self.connected.get(connection.name)) is not None:
            older.end()
        self.connected[connection.name] = connection
        self.changed.set()
        try:
            yield
        finally:
            connection.end()
            if self.connected.get(connection.name) is connection:
                del self.connected[connection.name]

    def close(self) -> None:
        """End every stream."""
        for connection in self.connected.values():
            connection.end()

    async def wait_for(self, count: int, seconds: float) -> None:
        """Wait until enough workers are connected, or the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while len(self.connected) < count:
                    self.changed.clear()
                    await self.changed.wait()

    def remote(self, names: list[str], seconds: float) -> dict[str, Worker]:
        """Return the named workers that are connected, in this order. seconds: for one attempt."""
        here = [self.connected[name] for name in names if name in self.connected]
        return {each.name: RemoteWorker(each, self.loop, seconds) for each in here}


@dataclass(frozen=True)
class RemoteWorker:
    """A connected worker. Its methods block, and raise WorkerGone when its time is up."""

    connection: Connection
    loop: asyncio.AbstractEventLoop
    seconds: float

    def accept(self, offer: ChannelOffer) -> tuple[Computing, ChannelAccept]:
        line = _Line(self.connection, self.loop, time.monotonic() + self.seconds)
        self.connection.forget()
        line.say(EnclaveSays(offer=encode(offer)))
        expected = digest(offer)
        accepted = line.hear("accept", ChannelAccept, lambda said: said.offer == expected)
        return RemoteComputing(line, offer.attempt_id), accepted


@dataclass(frozen=True)
class RemoteComputing:
    """A connected worker in the middle of an attempt."""

    line: "_Line"
    attempt_id: bytes

    def add(self, tile: ShareTile) -> None:
        """Send a tile in pieces, because a large one would be copied by gRPC as a whole."""
        whole = memoryview(tile.ciphertext)
        last = len(whole) // _PIECE * _PIECE
        for start in range(0, last, _PIECE):
            self.line.say(EnclaveSays(share_piece=bytes(whole[start : start + _PIECE])))
        self.line.say(EnclaveSays(share=encode(replace(tile, ciphertext=whole[last:]))))

    def add_seed(self, message: MaskSeed) -> None:
        self.line.say(EnclaveSays(seed=encode(message)))

    def answer(self) -> Answer:
        mine = self.attempt_id
        answer = self.line.hear("answer", Answer, lambda said: said.attempt_id == mine)
        self.line.say(EnclaveSays(over=Over(attempt_id=mine)))
        return answer


@dataclass(frozen=True)
class _Line:
    """Speaks with one worker from a thread, until a time on the monotonic clock."""

    connection: Connection
    loop: asyncio.AbstractEventLoop
    until: float

    def say(self, what: EnclaveSays) -> None:
        self._require_alive()
        putting = asyncio.run_coroutine_threadsafe(self.connection.outgoing.put(what), self.loop)
        try:
            putting.result(self._left())
        except FutureTimeout:
            putting.cancel()
            raise self._gone("did not take its shares in time") from None

    def hear(self, kind: str, message: type[Said], wanted: Callable[[Said], bool]) -> Said:
        """Return the next message of this kind about this attempt. Older ones are passed over."""
        while True:
            try:
                said = self.connection.incoming.get(timeout=self._left())
            except queue.Empty:
                raise self._gone("did not answer in time") from None
            if said is None:
                raise self._gone("left")
            if said.WhichOneof("what") == "sorry":
                raise self._gone(f"cannot do it: {said.sorry[:200]!r}")
            if said.WhichOneof("what") != kind:
                continue
            try:
                heard = decode(message, getattr(said, kind))
            except MalformedMessage as bad:
                raise self._gone(f"sent nonsense: {bad}") from None
            if wanted(heard):
                return heard

    def _left(self) -> float:
        return max(0.0, self.until - time.monotonic())

    def _require_alive(self) -> None:
        if self.connection.ended:
            raise self._gone("left")

    def _gone(self, what: str) -> WorkerGone:
        return WorkerGone(self.connection.name, what)

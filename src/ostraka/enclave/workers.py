"""Workers across the network, as the driver of a round sees them.

The event loop owns the streams; the round is driven by a thread. What the thread says to a worker
goes through a short queue, so that a slow worker holds the thread back and not the memory. What a
worker says waits to be read in the same way: it is held back when nobody reads.
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
from ostraka.transport.ostraka_pb2 import AnswerPiece, EnclaveSays, Over, WorkerSays

_AHEAD = 2  # messages that wait to be sent to one worker
_PIECE = 2**20  # bytes of a share tile in one message
_UNREAD = 8  # messages of one worker that wait to be read
_VALUE_BYTES, _BESIDE = 8, 2**10  # of an answer, at the most: an entry, and all but the entries

Said = TypeVar("Said", ChannelAccept, Answer)


class Connection:
    """One worker's stream. `None` in either queue means that it has ended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outgoing: asyncio.Queue[EnclaveSays | None] = asyncio.Queue(_AHEAD)
        self.incoming: queue.SimpleQueue[WorkerSays | None] = queue.SimpleQueue()
        self.ended = False
        self._room = asyncio.Semaphore(_UNREAD)

    async def heard(self, said: WorkerSays) -> None:
        """Keep a message to be read. While too many wait, no more of this worker's are taken in."""
        await self._room.acquire()
        self.incoming.put(said)

    def was_read(self) -> None:
        """Make room for one more message. On the event loop."""
        self._room.release()

    def forget(self) -> int:
        """Drop the messages that were not read. Return how many."""
        dropped = 0
        with suppress(queue.Empty):
            while True:
                self.incoming.get_nowait()
                dropped += 1
        return dropped

    def end(self) -> None:
        """Release the threads that wait for this worker, to hear from it or to be heard."""
        self.ended = True
        self.forget()
        self.incoming.put(None)
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
        line.forget()
        line.say(EnclaveSays(offer=encode(offer)))
        expected = digest(offer)
        accepted = line.hear("accept", ChannelAccept, lambda said: said.offer == expected)
        entries = offer.rows * (offer.rows + 1) // 2
        return RemoteComputing(line, offer.attempt_id, entries * _VALUE_BYTES + _BESIDE), accepted


@dataclass(frozen=True)
class RemoteComputing:
    """A connected worker in the middle of an attempt. largest: the bytes of its answer, at most."""

    line: "_Line"
    attempt_id: bytes
    largest: int

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
        """Return the answer, of which all but the last part came in pieces."""
        mine, pieces = self.attempt_id, bytearray()

        def keep(piece: AnswerPiece) -> None:
            if piece.attempt_id != mine:
                return  # Of an attempt that was given up in the middle of its answer.
            if len(pieces) + len(piece.data) > self.largest:
                raise self.line.gone("sent more than an answer")
            pieces.extend(piece.data)

        last = self.line.hear("answer", Answer, lambda said: said.attempt_id == mine, keep)
        self.line.say(EnclaveSays(over=Over(attempt_id=mine)))
        if not pieces:
            return last
        pieces.extend(last.ciphertext)
        return replace(last, ciphertext=memoryview(pieces))


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
            raise self.gone("did not take its shares in time") from None

    def hear(
        self,
        kind: str,
        message: type[Said],
        wanted: Callable[[Said], bool],
        keep: Callable[[AnswerPiece], None] = lambda _: None,
    ) -> Said:
        """Return the next message of this kind about this attempt. Older ones are passed over.

        keep: takes the pieces that come before it.
        """
        while True:
            said = self._next()
            what = said.WhichOneof("what")
            if what == "sorry":
                raise self.gone(f"cannot do it: {said.sorry[:200]!r}")
            if what == "answer_piece":
                keep(said.answer_piece)
            if what != kind:
                continue
            try:
                heard = decode(message, getattr(said, kind))
            except MalformedMessage as bad:
                raise self.gone(f"sent nonsense: {bad}") from None
            if wanted(heard):
                return heard

    def forget(self) -> None:
        """Drop what the worker has said so far."""
        for _ in range(self.connection.forget()):
            self._make_room()

    def gone(self, what: str) -> WorkerGone:
        return WorkerGone(self.connection.name, what)

    def _next(self) -> WorkerSays:
        """Return what the worker says next."""
        try:
            said = self.connection.incoming.get(timeout=self._left())
        except queue.Empty:
            raise self.gone("did not answer in time") from None
        if said is None:
            raise self.gone("left")
        self._make_room()
        return said

    def _make_room(self) -> None:
        with suppress(RuntimeError):  # The loop has ended, and nothing more is heard.
            self.loop.call_soon_threadsafe(self.connection.was_read)

    def _left(self) -> float:
        return max(0.0, self.until - time.monotonic())

    def _require_alive(self) -> None:
        if self.connection.ended:
            raise self.gone("left")

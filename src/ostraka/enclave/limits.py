"""Per-peer limits on concurrency, rate and time, so that no peer starves the others."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, ip_address, ip_network
from itertools import islice
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

_MOST_PEERS = 4096  # that are remembered; the one that was silent longest is forgotten first
_NETWORK_BITS = 64  # of an IPv6 address: a peer with one address of a network has all of them


class TooMany(Exception):
    """A peer asks for more than its share. It may come again later."""


@dataclass
class Rate:
    """Limits each peer to a number of requests a minute, in bursts of at most that number."""

    per_minute: int
    clock: Callable[[], float] = time.monotonic
    _buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def spend(self, peer: str) -> None:
        """Count one request of this peer. Raises TooMany."""
        now = self.clock()
        tokens, then = self._buckets.pop(peer, (float(self.per_minute), now))
        tokens = min(self.per_minute, tokens + (now - then) * self.per_minute / 60)
        self._buckets[peer] = (max(tokens - 1, 0) if tokens >= 1 else tokens, now)
        if len(self._buckets) > _MOST_PEERS:
            self._buckets.popitem(last=False)
        if tokens < 1:
            raise TooMany(f"more than {self.per_minute} requests a minute")


@dataclass
class Share:
    """Limits how much each name may have in progress at a time."""

    most: int
    _held: dict[str, int] = field(default_factory=dict)

    def take(self, name: str) -> None:
        """Take one place of this name. Raises TooMany."""
        if self._held.get(name, 0) >= self.most:
            raise TooMany(f"more than {self.most} at a time")
        self._held[name] = self._held.get(name, 0) + 1

    def give_back(self, name: str) -> None:
        self._held[name] -= 1
        if not self._held[name]:
            del self._held[name]

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Hold one place of this name for the block. Raises TooMany."""
        self.take(name)
        try:
            yield
        finally:
            self.give_back(name)


class Turns:
    """A fixed number of places. Peers that find none free wait in line.

    While others wait, a turn lasts `turn_s` seconds, and it never lasts longer than `most_s`. It
    then ends with TimeoutError: a peer that can resume loses only its place.
    """

    def __init__(self, places: int, *, turn_s: float, most_s: float) -> None:
        self._places = asyncio.Semaphore(places)
        self._turn_s = turn_s
        self._most_s = most_s
        self._waiting = 0
        self._taken: dict[asyncio.Timeout, float] = {}  # when each turn began, the oldest first

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        await self._wait_in_line()
        try:
            async with asyncio.timeout(self._most_s) as limit:
                self._taken[limit] = asyncio.get_running_loop().time()
                self._make_room()
                try:
                    yield
                finally:
                    del self._taken[limit]
        finally:
            self._places.release()

    async def _wait_in_line(self) -> None:
        self._waiting += 1
        try:
            if self._places.locked():
                self._make_room()
            await self._places.acquire()
        finally:
            self._waiting -= 1

    def _make_room(self) -> None:
        """End the oldest turns when their time is up, one for each peer that waits."""
        for limit, since in islice(self._taken.items(), self._waiting):
            _end_by(limit, since + self._turn_s)


class Newest:
    """Keeps only the newest stream of each name. The older one ends before the new one begins.

    A stream that its party has proved to be its own is ended by another such one only: what others
    send in the party's name may be a replay.
    """

    def __init__(self) -> None:
        self._streams: dict[str, asyncio.Timeout] = {}
        self._proved: set[str] = set()  # names whose newest stream is their own
        self._locks: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def of(self, name: str, *, proved: bool) -> AsyncIterator[None]:
        """Hold the name for the block, which ends with TimeoutError when a newer stream comes.

        Raises TooMany for a stream that may not end the one before it.
        """
        if name in self._proved and not proved:
            raise TooMany("its client is on another connection")
        async with asyncio.timeout(None) as mine:
            if (older := self._streams.get(name)) is not None:
                _end_by(older, 0.0)
            self._streams[name] = mine
            if proved:
                self._proved.add(name)
            try:
                async with self._locks.setdefault(name, asyncio.Lock()):
                    yield
            finally:
                if self._streams.get(name) is mine:
                    del self._streams[name]
                    self._proved.discard(name)


def _end_by(limit: asyncio.Timeout, when: float) -> None:
    """Bring the end forward to this time, never back."""
    end = limit.when()
    if not limit.expired() and (end is None or when < end):
        limit.reschedule(when)


class Punctual(grpc.aio.ServerInterceptor):
    """Refuses a request that is malformed or does not arrive in time, for which gRPC would wait.

    On the wire a single request is a stream of one message. It is received as a stream, because
    that can be ended.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._handlers: dict[str, Any] = {}  # by method, of those that there are

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method
        if method not in self._handlers:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            self._handlers[method] = self._punctual(handler)
        return self._handlers[method]

    def _punctual(self, handler: Any) -> Any:
        """Return what serves the same method, if its request comes in time."""
        if handler.request_streaming:
            return handler

        async def one_reply(requests: AsyncIterator[Any], context: Any) -> Any:
            return await handler.unary_unary(await self._only(requests, context), context)

        async def many_replies(requests: AsyncIterator[Any], context: Any) -> None:
            await handler.unary_stream(await self._only(requests, context), context)

        coding = (handler.request_deserializer, handler.response_serializer)
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(many_replies, *coding)
        return grpc.stream_unary_rpc_method_handler(one_reply, *coding)

    async def _only(self, requests: AsyncIterator[Any], context: Any) -> Any:
        try:
            async with asyncio.timeout(self._seconds):
                return await anext(requests)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the request came too late")
        except (StopAsyncIteration, DecodeError):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "malformed request")


@lru_cache(maxsize=_MOST_PEERS)  # Every connection asks, and most come from where others came from.
def neighbourhood(host: str) -> str:
    """Return what counts as one address: an IPv4 address, or an IPv6 network."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ip_network((address.packed, _NETWORK_BITS), strict=False))

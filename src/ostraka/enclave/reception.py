"""Lets workers in: each proves its identity, and is shown whom it serves, before it gets work."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc.aio

from ostraka import events
from ostraka.attestation.claims import Binding, DeputyBinding, KeyBinding
from ostraka.config import Member
from ostraka.crypto.identity import check_signature
from ostraka.enclave.limits import Newest, Rate, TooMany
from ostraka.enclave.platform.interface import EvidenceProvider
from ostraka.enclave.workers import Connection, Pool
from ostraka.encoding import decode, encode
from ostraka.errors import MalformedMessage, OpenError, printable
from ostraka.events import Event
from ostraka.messages import Charter, Deputy, Evidence, WorkerHello
from ostraka.transport import ostraka_pb2 as wire

_NONCE_BYTES = 32
_SHOWN = 64  # characters of a claimed name

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass
class Quoting:
    """Asks the platform for evidence, one question at a time. Of strangers one is in line with the
    enrolled."""

    provider: EvidenceProvider
    _asking: int = 0
    _took_s: float = 0.0  # for the last answer
    _line: asyncio.Lock = field(default_factory=asyncio.Lock)
    _strangers: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def evidence(
        self, bound: Binding | KeyBinding | DeputyBinding, *, stranger: bool
    ) -> Evidence:
        self._asking += 1
        try:
            async with self.turn(stranger=stranger):
                begun = time.monotonic()
                found = await asyncio.to_thread(self.provider.evidence, bound.report_data())
                self._took_s = time.monotonic() - begun
                return found
        finally:
            self._asking -= 1

    @property
    def wait_s(self) -> float:
        """How long it will be, about, until who asks now is answered."""
        return (self._asking + 1) * self._took_s

    def turn(self, *, stranger: bool) -> AsyncExitStack:
        """The turn of one who asks."""
        return _Line([self._strangers, self._line] if stranger else [self._line])


class _Line(AsyncExitStack):
    def __init__(self, locks: list[asyncio.Lock]) -> None:
        super().__init__()
        self._locks = locks

    async def __aenter__(self) -> "_Line":
        for lock in self._locks:
            await self.enter_async_context(lock)
        return self


@dataclass(frozen=True)
class Serving:
    """Whom a worker serves here. deputy: the lead's word for a shard."""

    charter: Charter
    receipt_key: bytes
    deputy: Deputy | None = None

    def binding(self, nonce: bytes) -> KeyBinding | DeputyBinding:
        """What the proof to a worker is about."""
        federation = self.charter.federation.digest()
        if self.deputy is None:
            return KeyBinding(nonce, self.receipt_key, federation)
        return DeputyBinding(nonce, self.receipt_key, self.deputy.key, federation)


@dataclass
class Reception:
    """Where workers come in.

    prove: notes that a connection is a worker's own. gossip: limits what is told of strangers.
    """

    pool: Pool
    quoting: Quoting
    newest: Newest
    gossip: Rate
    tell: Callable[[Event], None]
    prove: Callable[[str, Member], None]

    async def meet(
        self,
        serving: Serving,
        requests: AsyncIterator[wire.WorkerSays],
        context: Context,
        idle_s: float,
    ) -> tuple[WorkerHello, Member]:
        """Return a worker that has proved its identity, and its hello. Raises OpenError."""
        nonce, federation = os.urandom(_NONCE_BYTES), serving.charter.federation
        deputy = b"" if serving.deputy is None else encode(serving.deputy)
        welcome = wire.Welcome(
            nonce=nonce,
            receipt_key=serving.receipt_key,
            federation=federation.id,
            deputy=deputy,
        )
        async with asyncio.timeout(idle_s):
            await context.write(wire.EnclaveSays(welcome=welcome))
            first = await anext(requests, None)
        if first is None or first.WhichOneof("what") != "hello":
            raise MalformedMessage("a worker begins with its hello")
        hello = decode(WorkerHello, first.hello)
        workers = {member.name: member for member in federation.workers}
        try:
            if hello.worker not in workers or hello.nonce != nonce:
                raise OpenError("WorkerHello")
            if hello.federation != federation.id:
                raise OpenError("WorkerHello")
            check_signature(hello, workers[hello.worker].key)
        except OpenError:
            with suppress(TooMany):
                self.gossip.spend("")
                name = printable(hello.worker, _SHOWN)
                self.tell(events.WorkerRefused(name, "not enrolled with this key"))
            raise
        self.prove(context.peer(), workers[hello.worker])
        return hello, workers[hello.worker]

    async def work(
        self,
        serving: Serving,
        hello: WorkerHello,
        requests: AsyncIterator[wire.WorkerSays],
        context: Context,
    ) -> None:
        """Prove to a worker whom it serves, and give it work for as long as its stream lasts."""
        evidence = await self.quoting.evidence(serving.binding(hello.challenge), stranger=False)
        proof = wire.Proof(charter=encode(serving.charter), evidence=encode(evidence))
        await context.write(wire.EnclaveSays(proof=proof))
        name = hello.worker
        async with self.newest.of(name, proved=True):
            connection = Connection(name)
            with self.pool.joined(connection):
                self.tell(events.WorkerJoined(name))
                try:
                    await _converse(connection, requests, context)
                finally:
                    self.tell(events.WorkerLeft(name))


async def _converse(
    connection: Connection, requests: AsyncIterator[wire.WorkerSays], context: Context
) -> None:
    """Carry what both sides say, until one of them ends."""
    both = [
        asyncio.create_task(_hear(connection, requests)),
        asyncio.create_task(_say(connection, context)),
    ]
    try:
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        for each in both:
            each.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def _hear(connection: Connection, requests: AsyncIterator[wire.WorkerSays]) -> None:
    async for said in requests:
        await connection.heard(said)


async def _say(connection: Connection, context: Context) -> None:
    while (said := await connection.outgoing.get()) is not None:
        await context.write(said)

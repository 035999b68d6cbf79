"""Answers clients and workers. Whatever one of them sends, only that one is affected."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
import grpc.aio

from ostraka import events
from ostraka.crypto.identity import check_signature
from ostraka.encoding import decode, encode
from ostraka.errors import (
    LocalProtocolError,
    MalformedMessage,
    NotEnrolled,
    OpenError,
    OstrakaError,
    PlatformError,
    Rejection,
    StorageFull,
    UpdateRejected,
)
from ostraka.messages import (
    Challenge,
    Charter,
    Introduction,
    UpdateHeader,
    UpdateTile,
    WorkerHello,
    vector_digest,
)
from ostraka.services.enclave.engine import Engine, Phase
from ostraka.services.enclave.limits import Rate, Share, TooMany
from ostraka.services.enclave.open_round import OpenRound
from ostraka.services.enclave.status import Status
from ostraka.services.enclave.workers import Connection
from ostraka.services.platform import EvidenceProvider
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.ostraka_pb2_grpc import EnclaveServicer

_LONG_POLL_S = 20.0
_PART = 2**20
_NONCE_BYTES = 32
_SHOWN = 64  # characters of a name that nobody vouches for

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (MalformedMessage, grpc.StatusCode.INVALID_ARGUMENT),
    (OpenError, grpc.StatusCode.PERMISSION_DENIED),
    (UpdateRejected, grpc.StatusCode.FAILED_PRECONDITION),
    (TooMany, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (StorageFull, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (TimeoutError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (PlatformError, grpc.StatusCode.UNAVAILABLE),
)


@asynccontextmanager
async def _answering(context: Context) -> AsyncIterator[None]:
    """Turns our errors into gRPC's. A bug of ours is told in the log, and not to the peer."""
    try:
        yield
    except tuple(kind for kind, _ in _CODES) as error:
        code = next(code for kind, code in _CODES if isinstance(error, kind))
        if isinstance(error, UpdateRejected):
            if error.reason == Rejection.REVOKED:
                code = grpc.StatusCode.PERMISSION_DENIED
            await context.abort(code, str(error.reason))
        await context.abort(code, str(error) or code.name.lower())


@dataclass
class Servicer(EnclaveServicer):
    """One instance serves all connections, on one event loop."""

    engine: Engine
    provider: EvidenceProvider
    status: Status
    uploads: asyncio.Semaphore
    rate: Rate  # of each enrolled client
    strangers: Share  # of each address, for calls that anybody may make
    quoting: asyncio.Lock = field(default_factory=asyncio.Lock)
    sending: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    # What anybody may ask.

    async def GetCharter(self, request: wire.CharterRequest, context: Context) -> wire.CharterReply:
        async with _answering(context):
            with self._stranger(context):
                return wire.CharterReply(charter=encode(self.engine.state.charters[-1]))

    async def GetChain(
        self, request: wire.ChainRequest, context: Context
    ) -> AsyncIterator[wire.ChainLink]:
        async with _answering(context):
            with self._stranger(context):
                for link in self._links(request.after):
                    yield link

    async def GetModel(
        self, request: wire.ModelRequest, context: Context
    ) -> AsyncIterator[wire.ModelPart]:
        async with _answering(context):
            with self._stranger(context):
                model = self.engine.state.last_state.model
                if request.digest != vector_digest(model):
                    await context.abort(grpc.StatusCode.NOT_FOUND, "not the present model")
                raw = memoryview(model.tobytes())
                async with asyncio.timeout(self.engine.file.limits.upload_s):
                    for start in range(0, len(raw), _PART):
                        yield wire.ModelPart(data=bytes(raw[start : start + _PART]))

    async def AwaitOutcome(
        self, request: wire.OutcomeRequest, context: Context
    ) -> wire.OutcomeReply:
        async with _answering(context):
            with self._stranger(context):
                return await self._outcome(request)

    async def GetStatus(self, request: wire.StatusRequest, context: Context) -> wire.StatusReply:
        async with _answering(context):
            with self._stranger(context):
                return wire.StatusReply(json=self.status.as_json())

    async def Adopt(self, request: wire.AdoptRequest, context: Context) -> wire.AdoptReply:
        async with _answering(context):
            with self._stranger(context):
                try:
                    self.engine.bring(decode(Charter, request.charter))
                except LocalProtocolError as unfit:
                    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(unfit))
                return wire.AdoptReply()

    # What enrolled clients do.

    async def Introduce(
        self, request: wire.IntroduceRequest, context: Context
    ) -> wire.IntroduceReply:
        async with _answering(context):
            challenge = decode(Challenge, request.challenge)
            self._authenticate(challenge)
            self.rate.spend(challenge.client)
            current = await self._wait_for_round(context)
            bound = current.collecting.binding(challenge.nonce)
            async with self.quoting:
                evidence = await asyncio.to_thread(self.provider.evidence, bound.report_data())
            return wire.IntroduceReply(
                introduction=encode(
                    Introduction(current.collecting.offer, bound.receipt_key, evidence)
                )
            )

    async def Upload(
        self, requests: AsyncIterator[wire.UploadRequest], context: Context
    ) -> AsyncIterator[wire.UploadReply]:
        async with _answering(context):
            limits = self.engine.file.limits
            header = await self._read_header(_patient(requests, limits.idle_s), context)
            async with self._sole(header.client), self.uploads, asyncio.timeout(limits.upload_s):
                current = await self._current(context)
                with self._refusals(header.client):
                    missing = current.begin(header)
                    self.engine.tell(events.UploadStarted(header.client, len(missing)))
                    yield wire.UploadReply(missing=wire.Missing(range=_ranges(missing)))
                    await self._take_tiles(
                        current, header, _patient(requests, limits.idle_s), context
                    )
                yield wire.UploadReply(complete=wire.Complete())

    # What enrolled workers do.

    async def Work(
        self, requests: AsyncIterator[wire.WorkerSays], context: Context
    ) -> AsyncIterator[wire.EnclaveSays]:
        async with _answering(context):
            nonce = os.urandom(_NONCE_BYTES)
            yield wire.EnclaveSays(
                welcome=wire.Welcome(nonce=nonce, receipt_key=self.engine.enclave.public)
            )
            async with asyncio.timeout(self.engine.file.limits.idle_s):
                first = await anext(requests, None)
            connection = Connection(self._hello(first, nonce))
            with self.engine.pool.joined(connection):
                self.engine.tell(events.WorkerJoined(connection.name))
                reading = asyncio.create_task(_read_into(connection, requests))
                try:
                    while (said := await connection.outgoing.get()) is not None:
                        yield said
                finally:
                    reading.cancel()
                    self.engine.tell(events.WorkerLeft(connection.name))

    # The steps of the above.

    @contextmanager
    def _stranger(self, context: Context) -> Iterator[None]:
        """One address cannot take all the places for calls that need no key."""
        address = context.peer().rpartition(":")[0]
        self.strangers.take(address)
        try:
            yield
        finally:
            self.strangers.give_back(address)

    def _authenticate(self, challenge: Challenge) -> None:
        federation = self.engine.federation
        keys = {member.name: member.key for member in federation.clients}
        if challenge.client not in keys:
            revoked = challenge.client in {member.name for member in federation.revoked}
            why = Rejection.REVOKED if revoked else "not enrolled"
            self.engine.tell(events.UploadRefused(challenge.client[:_SHOWN], why))
            raise NotEnrolled(challenge.client)
        check_signature(challenge, keys[challenge.client])

    async def _wait_for_round(self, context: Context) -> OpenRound:
        """The open round, or the next one. Aborts the call if there is none for too long."""
        engine = self.engine
        try:
            async with asyncio.timeout(min(_LONG_POLL_S, context.time_remaining() or _LONG_POLL_S)):
                async with engine.moved:
                    await engine.moved.wait_for(lambda: engine.current or _over(engine))
        except TimeoutError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no round is open yet")
        return await self._current(context)

    async def _current(self, context: Context) -> OpenRound:
        if self.engine.current is not None:
            return self.engine.current
        if self.engine.phase is Phase.FINISHED:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "finished")
        if self.engine.phase is Phase.STOPPED:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the service is stopping")
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(Rejection.LATE))
        raise AssertionError  # abort has raised

    async def _read_header(
        self, requests: AsyncIterator[wire.UploadRequest], context: Context
    ) -> UpdateHeader:
        """The first message. Its signature is checked by the enclave, when its turn has come."""
        first = await anext(requests, None)
        if first is None or first.WhichOneof("part") != "header":
            raise MalformedMessage("an upload begins with its header")
        header = decode(UpdateHeader, first.header)
        members = {member.name: member.key for member in self.engine.federation.clients}
        if header.client in members:
            check_signature(header, members[header.client])
            self.rate.spend(header.client)
        else:
            current = await self._current(context)
            with self._refusals(header.client):
                current.begin(header)
        return header

    @contextmanager
    def _refusals(self, client: str) -> Iterator[None]:
        """Tell the operator who was refused, and why."""
        try:
            yield
        except NotEnrolled as stranger:
            self.engine.tell(events.UploadRefused(stranger.name[:_SHOWN], "not enrolled"))
            raise
        except UpdateRejected as rejected:
            self.engine.tell(events.UploadRefused(client[:_SHOWN], rejected.reason))
            raise
        except (OstrakaError, TimeoutError) as failed:
            self.engine.tell(events.UploadRefused(client[:_SHOWN], str(failed) or "too slow"))
            raise

    @asynccontextmanager
    async def _sole(self, client: str) -> AsyncIterator[None]:
        """A client has one stream at a time: its newest. The older one ends before this begins."""
        mine = asyncio.current_task()
        older = self.sending.get(client)
        self.sending[client] = mine  # type: ignore[assignment]
        if older is not None and not older.done():
            older.cancel()
            await asyncio.wait([older], timeout=self.engine.file.limits.idle_s)
        try:
            yield
        finally:
            if self.sending.get(client) is mine:
                del self.sending[client]

    async def _take_tiles(
        self,
        current: OpenRound,
        header: UpdateHeader,
        requests: AsyncIterator[wire.UploadRequest],
        context: Context,
    ) -> None:
        while header.client not in current.collecting.complete:
            request = await anext(requests, None)
            if request is None:
                raise MalformedMessage("the upload ended before it was complete")
            if self.engine.current is not current:
                raise UpdateRejected(header.client, Rejection.LATE)
            for raw in request.tiles.tile:
                await current.take(header, decode(UpdateTile, raw))
        self.engine.tell(events.UploadCompleted(header.client))

    async def _outcome(self, request: wire.OutcomeRequest) -> wire.OutcomeReply:
        engine = self.engine

        def settled() -> bool:
            return engine.receipt(request.number) is not None or not _alive(engine, request)

        try:
            async with asyncio.timeout(_LONG_POLL_S), engine.moved:
                await engine.moved.wait_for(settled)
        except TimeoutError:
            return wire.OutcomeReply(pending=wire.Pending())
        receipt = engine.receipt(request.number)
        if receipt is None:
            return wire.OutcomeReply(void=wire.Void())
        return wire.OutcomeReply(receipt=encode(receipt))

    def _links(self, after: int) -> Iterator[wire.ChainLink]:
        """Each charter comes before the first receipt that is under it; the newest one is last."""
        state, done = self.engine.state, 0
        known = state.receipts(after)[:1] if after else ()
        if known and known[0].number == after:
            done = known[0].revision
        charters = [charter for charter in state.charters if charter.federation.revision > done]
        for receipt in state.receipts(after + 1):
            while charters and charters[0].federation.revision <= receipt.revision:
                yield wire.ChainLink(charter=encode(charters.pop(0)))
            yield wire.ChainLink(receipt=encode(receipt))
        for charter in charters:
            yield wire.ChainLink(charter=encode(charter))

    def _hello(self, first: wire.WorkerSays | None, nonce: bytes) -> str:
        """The name of a worker that has proved itself. Raises OpenError."""
        if first is None or first.WhichOneof("what") != "hello":
            raise MalformedMessage("a worker begins with its hello")
        hello = decode(WorkerHello, first.hello)
        for member in self.engine.federation.workers:
            if member.name == hello.worker and hello.nonce == nonce:
                check_signature(hello, member.key)
                return member.name
        raise OpenError("WorkerHello")


def _over(engine: Engine) -> bool:
    return engine.phase in (Phase.FINISHED, Phase.STOPPED)


def _alive(engine: Engine, request: wire.OutcomeRequest) -> bool:
    """Whether this very round can still be published."""
    here = engine.current.round_id if engine.current is not None else engine.measuring
    return here == request.round_id


async def _patient(
    requests: AsyncIterator[wire.UploadRequest], seconds: float
) -> AsyncIterator[wire.UploadRequest]:
    """The same messages, with so long to wait for each. Raises TimeoutError."""
    while True:
        async with asyncio.timeout(seconds):
            request = await anext(requests, None)
        if request is None:
            return
        yield request


async def _read_into(connection: Connection, requests: AsyncIterator[wire.WorkerSays]) -> None:
    try:
        async for said in requests:
            connection.heard(said)
    finally:
        connection.end()


def _ranges(numbers: frozenset[int]) -> Iterator[wire.Range]:
    """The numbers as runs: first, and one past the last."""
    ordered = sorted(numbers)
    starts = [n for n in ordered if n - 1 not in numbers]
    stops = [n + 1 for n in ordered if n + 1 not in numbers]
    return (wire.Range(start=a, stop=b) for a, b in zip(starts, stops, strict=True))

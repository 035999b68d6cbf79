"""Answers clients and workers. A bad message affects only the peer that sent it."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
import grpc.aio
import numpy as np
from google.protobuf.message import DecodeError

from ostraka import events
from ostraka.arrays import Float32
from ostraka.attestation.claims import KeyBinding
from ostraka.crypto.identity import check_encoded, check_signature
from ostraka.enclave import hardening
from ostraka.enclave.engine import Engine, Phase
from ostraka.enclave.limits import Newest, Rate, Share, TooMany, Turns, neighbourhood
from ostraka.enclave.open_round import OpenRound
from ostraka.enclave.platform.interface import EvidenceProvider
from ostraka.enclave.status import Status
from ostraka.enclave.workers import Connection
from ostraka.encoding import decode, encode
from ostraka.errors import (
    ConfigError,
    LocalProtocolError,
    MalformedMessage,
    NotEnrolled,
    OpenError,
    OstrakaError,
    PlatformError,
    Rejection,
    StorageFull,
    UpdateRejected,
    printable,
)
from ostraka.messages import (
    Certified,
    Challenge,
    Charter,
    Confirmation,
    Introduction,
    Proposal,
    UpdateHeader,
    UpdateTile,
    WorkerHello,
    chain,
    milestones,
    vector_digest,
)
from ostraka.protocol.confirm import path_to
from ostraka.transport import chain_link
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.ostraka_pb2_grpc import EnclaveServicer

_LONG_POLL_S = 20.0
_PART = 2**18  # of a model, in bytes
_NONCE_BYTES = 32
_TIDIED = 64  # uploads, after which memory is given back
_SHOWN = 64  # characters of a claimed name
_NOT_ENROLLED = "not enrolled"
_UNCONFIRMED = "an outcome waits to be confirmed"
_ANOTHER_KEY = "signed with another key than the enrolled one"
_LOG = logging.getLogger("ostraka.enclave")

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (MalformedMessage, grpc.StatusCode.INVALID_ARGUMENT),
    (DecodeError, grpc.StatusCode.INVALID_ARGUMENT),
    (OpenError, grpc.StatusCode.PERMISSION_DENIED),
    (UpdateRejected, grpc.StatusCode.FAILED_PRECONDITION),
    (TooMany, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (StorageFull, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (TimeoutError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (PlatformError, grpc.StatusCode.UNAVAILABLE),
)


@asynccontextmanager
async def _answering(context: Context) -> AsyncIterator[None]:
    """Turns our errors into gRPC's. A bug of ours is shown in the log, and not to the peer."""
    try:
        yield
    except tuple(kind for kind, _ in _CODES) as error:
        code = next(code for kind, code in _CODES if isinstance(error, kind))
        if isinstance(error, UpdateRejected):
            if error.reason == Rejection.REVOKED:
                code = grpc.StatusCode.PERMISSION_DENIED
            await context.abort(code, str(error.reason))
        await context.abort(code, str(error) or code.name.lower())
    except grpc.aio.BaseError:
        raise
    except Exception:  # noqa: BLE001 (any other error is a bug of ours)
        _LOG.exception("a request failed")
        await context.abort(grpc.StatusCode.INTERNAL, "the service failed")


@asynccontextmanager
async def _streaming(context: Context) -> AsyncIterator[None]:
    """Does the same for an answer of several messages.

    gRPC sends its headers with the first message. If that were interrupted by a time limit, they
    would be sent twice, and the peer would hear nothing more. So they are sent first.
    """
    await context.send_initial_metadata(())
    async with _answering(context):
        yield


@dataclass
class Servicer(EnclaveServicer):
    """One instance serves all connections, on one event loop."""

    engine: Engine
    provider: EvidenceProvider
    status: Status
    uploads: Turns
    downloads: Turns
    rate: Rate  # for each enrolled party
    strangers: Share  # of each address, for calls that anybody may make
    members: Share  # of each client, for its challenges
    gossip: Rate  # of what is told of strangers
    newest: Newest = field(default_factory=Newest)
    quoting: asyncio.Lock = field(default_factory=asyncio.Lock)
    hashing: asyncio.Lock = field(default_factory=asyncio.Lock)
    hashed: tuple[Float32, bytes] | None = None
    encoded: tuple[Certified, bytes] | None = None

    # What anybody may ask.

    async def GetCharter(self, request: wire.CharterRequest, context: Context) -> wire.CharterReply:
        async with _answering(context):
            with self._stranger(context):
                return wire.CharterReply(charter=encode(self.engine.state.charters[-1]))

    async def GetChain(self, request: wire.ChainRequest, context: Context) -> None:
        async with _streaming(context):
            with self._stranger(context):
                await self._send(self._links(request), context)

    async def GetModel(self, request: wire.ModelRequest, context: Context) -> None:
        async with _streaming(context):
            with self._stranger(context):
                model = self.engine.state.last_state.model
                if request.digest != await self._digest_of(model):
                    await context.abort(grpc.StatusCode.NOT_FOUND, "not the present model")
                await self._send(_parts(model), context)

    async def AwaitOutcome(
        self, request: wire.OutcomeRequest, context: Context
    ) -> wire.OutcomeReply:
        async with _answering(context):
            with self._stranger(context):
                return await self._outcome(request)

    async def Confirm(self, request: wire.ConfirmRequest, context: Context) -> wire.ConfirmReply:
        async with _answering(context):
            with self._stranger(context):
                self.engine.confirm(decode(Confirmation, request.confirmation))
                return wire.ConfirmReply()

    async def Remind(self, request: wire.RemindRequest, context: Context) -> wire.RemindReply:
        async with _answering(context):
            with self._stranger(context):
                self.engine.remind(decode(Proposal, request.proposal))
                async with self.engine.moved:
                    self.engine.moved.notify_all()
                return wire.RemindReply()

    async def GetStatus(self, request: wire.StatusRequest, context: Context) -> wire.StatusReply:
        async with _answering(context):
            with self._stranger(context):
                return wire.StatusReply(json=self.status.as_json())

    async def Adopt(self, request: wire.AdoptRequest, context: Context) -> wire.AdoptReply:
        async with _answering(context):
            with self._stranger(context):
                check_encoded(Charter, request.charter, self.engine.federation.authority)
                try:
                    self.engine.bring(decode(Charter, request.charter))
                except (ConfigError, LocalProtocolError) as unfit:
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
            with self.members.of(challenge.client):
                current = await self._wait_for_round(context)
                bound = current.intake.binding(challenge.nonce)
                async with self.quoting:
                    evidence = await asyncio.to_thread(self.provider.evidence, bound.report_data())
            return wire.IntroduceReply(
                introduction=encode(Introduction(current.intake.offer, bound.receipt_key, evidence))
            )

    async def Prove(self, request: wire.ProveRequest, context: Context) -> wire.ProveReply:
        async with _answering(context):
            challenge = decode(Challenge, request.challenge)
            self._authenticate(challenge)
            self.rate.spend(challenge.client)
            with self.members.of(challenge.client):
                key, federation = self.engine.enclave.receipt_key, self.engine.federation
                bound = KeyBinding(challenge.nonce, key, federation.digest())
                async with self.quoting:
                    evidence = await asyncio.to_thread(self.provider.evidence, bound.report_data())
            return wire.ProveReply(receipt_key=key, evidence=encode(evidence))

    async def Upload(self, requests: AsyncIterator[wire.UploadRequest], context: Context) -> None:
        async with _streaming(context):
            patient = _Patient(requests, self.engine.file.limits.idle_s)
            with self._stranger(context):
                header = await self._read_header(patient, context)
            async with self.newest.of(header.client):
                with self._refusals(header.client):
                    async with self.uploads.turn():
                        await self._receive(header, patient, context)

    # What enrolled workers do.

    async def Work(self, requests: AsyncIterator[wire.WorkerSays], context: Context) -> None:
        async with _streaming(context):
            with self._stranger(context):
                hello = await self._greet(requests, context)
            name = hello.worker
            self.rate.spend(name)
            await context.write(await self._proof(hello))
            async with self.newest.of(name):
                connection = Connection(name)
                with self.engine.pool.joined(connection):
                    self.engine.tell(events.WorkerJoined(name))
                    try:
                        await _converse(connection, requests, context)
                    finally:
                        self.engine.tell(events.WorkerLeft(name))

    # The steps of the above.

    def _stranger(self, context: Context) -> AbstractContextManager[None]:
        """Limit the calls without a key that one address has open at a time."""
        return self.strangers.of(neighbourhood(context.peer()))

    async def _send(self, replies: Iterable[Any], context: Context) -> None:
        async with self.downloads.turn():
            for reply in replies:
                await context.write(reply)

    async def _digest_of(self, model: Float32) -> bytes:
        """Return the digest, computed once a model: it takes time, and strangers may ask."""
        async with self.hashing:
            if self.hashed is None or self.hashed[0] is not model:
                self.hashed = (model, await asyncio.to_thread(vector_digest, model))
            return self.hashed[1]

    def _authenticate(self, challenge: Challenge) -> None:
        federation = self.engine.federation
        enrolled = federation.clients + federation.witnesses + federation.workers
        keys = {member.name: member.key for member in enrolled}
        if challenge.client not in keys:
            revoked = challenge.client in {member.name for member in federation.revoked}
            self._refused(challenge.client, Rejection.REVOKED if revoked else _NOT_ENROLLED)
            raise NotEnrolled(challenge.client)
        try:
            check_signature(challenge, keys[challenge.client])
        except OpenError:
            self._refused(challenge.client, _ANOTHER_KEY)
            raise

    async def _wait_for_round(self, context: Context) -> OpenRound:
        """Return the open round, or wait for the next one. Aborts the call after a time limit."""
        engine = self.engine
        try:
            async with asyncio.timeout(min(_LONG_POLL_S, context.time_remaining() or _LONG_POLL_S)):
                async with engine.moved:
                    await engine.moved.wait_for(
                        lambda: engine.current or engine.ballot or engine.forgotten or _over(engine)
                    )
        except TimeoutError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no round is open yet")
        if engine.ballot is not None or engine.forgotten is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, _UNCONFIRMED)
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

    async def _read_header(self, requests: "_Patient", context: Context) -> UpdateHeader:
        """Return the header of an upload, which is its first message."""
        first = await requests.next()
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
            self._refused(stranger.name, _NOT_ENROLLED)
            raise
        except UpdateRejected as rejected:
            self._refused(client, rejected.reason)
            raise
        except (OstrakaError, DecodeError, TimeoutError) as failed:
            self._refused(client, str(failed) or "too slow")
            raise

    def _refused(self, client: str, why: str) -> None:
        """Tell of a refusal. Strangers are told of rarely, so that they cannot fill the log."""
        with suppress(TooMany):
            if client not in {member.name for member in self.engine.federation.clients}:
                self.gossip.spend("")
            self.engine.tell(events.UploadRefused(printable(client, _SHOWN), why))

    async def _receive(self, header: UpdateHeader, requests: "_Patient", context: Context) -> None:
        """Receive one upload, or the rest of it."""
        current = await self._current(context)
        missing = current.begin(header)
        self.engine.tell(events.UploadStarted(header.client, len(missing)))
        await context.write(wire.UploadReply(missing=wire.Missing(range=_ranges(missing))))
        while header.client not in current.intake.complete:
            tiles = await _tiles(requests)
            if self.engine.current is not current:
                raise UpdateRejected(header.client, Rejection.LATE)
            await current.take(header, tiles)
            del tiles  # They are not kept while this upload waits for its next ones.
        self.engine.tell(events.UploadCompleted(header.client))
        if missing and len(current.intake.complete) % _TIDIED == 0:
            hardening.give_back()
        await context.write(wire.UploadReply(complete=wire.Complete()))

    async def _outcome(self, request: wire.OutcomeRequest) -> wire.OutcomeReply:
        engine = self.engine
        try:
            async with asyncio.timeout(_LONG_POLL_S), engine.moved:
                reply = await engine.moved.wait_for(lambda: self._outcome_now(request))
        except TimeoutError:
            reply = None
        return reply or wire.OutcomeReply(pending=wire.Pending())

    def _outcome_now(self, request: wire.OutcomeRequest) -> wire.OutcomeReply | None:
        """Return what can be said of a number now; None if the caller has to wait."""
        certified = self.engine.certified(request.number)
        if certified is None or self.engine.forgotten is not None:
            return _unpublished(self.engine, request)
        return wire.OutcomeReply(certified=self._encoded(certified))

    def _encoded(self, certified: Certified) -> bytes:
        """Return the bytes, made once: a certificate has many votes, and everybody asks for it."""
        if self.encoded is None or self.encoded[0] is not certified:
            self.encoded = certified, encode(certified)
        return self.encoded[1]

    def _links(self, request: wire.ChainRequest) -> Iterator[wire.ChainLink]:
        """Yield the chain behind receipt `after`, without the charters that were before it."""
        state, after, done = self.engine.state, request.after, 0
        known = self.engine.certified(after)
        if known is not None:
            done = known.receipt.revision
        charters = [charter for charter in state.charters if charter.federation.revision > done]
        published = state.published(after + 1)
        if request.newest:
            published = milestones(published)
        beginning = (state.abandon,) if state.abandon and state.abandon.number > after else ()
        yield from map(chain_link, chain(charters, (*beginning, *published)))

    async def _greet(
        self, requests: AsyncIterator[wire.WorkerSays], context: Context
    ) -> WorkerHello:
        """Return the hello of a worker that has proved its identity. Raises OpenError."""
        nonce = os.urandom(_NONCE_BYTES)
        welcome = wire.Welcome(
            nonce=nonce,
            receipt_key=self.engine.enclave.receipt_key,
            federation=self.engine.federation.id,
        )
        async with asyncio.timeout(self.engine.file.limits.idle_s):
            await context.write(wire.EnclaveSays(welcome=welcome))
            first = await anext(requests, None)
        if first is None or first.WhichOneof("what") != "hello":
            raise MalformedMessage("a worker begins with its hello")
        hello = decode(WorkerHello, first.hello)
        try:
            self._check_hello(hello, nonce)
        except OpenError:
            with suppress(TooMany):
                self.gossip.spend("")
                name = printable(hello.worker, _SHOWN)
                self.engine.tell(events.WorkerRefused(name, "not enrolled with this key"))
            raise
        return hello

    def _check_hello(self, hello: WorkerHello, nonce: bytes) -> None:
        federation = self.engine.federation
        keys = {member.name: member.key for member in federation.workers}
        expected = (nonce, federation.id)
        if hello.worker not in keys or (hello.nonce, hello.federation) != expected:
            raise OpenError("WorkerHello")
        check_signature(hello, keys[hello.worker])

    async def _proof(self, hello: WorkerHello) -> wire.EnclaveSays:
        """Tell a worker that it is admitted, and prove to it whom it serves."""
        charter = self.engine.state.charters[-1]
        key = self.engine.enclave.receipt_key
        bound = KeyBinding(hello.challenge, key, charter.federation.digest())
        async with self.quoting:
            evidence = await asyncio.to_thread(self.provider.evidence, bound.report_data())
        proof = wire.Proof(charter=encode(charter), evidence=encode(evidence))
        return wire.EnclaveSays(proof=proof)


def _over(engine: Engine) -> bool:
    return engine.phase in (Phase.FINISHED, Phase.STOPPED)


def _unpublished(engine: Engine, request: wire.OutcomeRequest) -> wire.OutcomeReply | None:
    """Return what can be said of a number without a receipt; None if the caller has to wait."""
    if engine.forgotten is not None:
        return wire.OutcomeReply(rolled_back=encode(engine.forgotten))
    if request.number <= engine.published:
        return wire.OutcomeReply(void=wire.Void())  # It was abandoned, and not by this enclave.
    ballot = engine.ballot
    if ballot is not None and ballot.proposal.number == request.number:
        asked = not request.voter or ballot.awaits(request.voter)
        return wire.OutcomeReply(proposed=_proposed(engine, request.leaf)) if asked else None
    if not request.round_id:
        return wire.OutcomeReply(void=wire.Void()) if _over(engine) else None
    here = engine.current.round_id if engine.current is not None else engine.measuring
    if engine.state.pending is not None:  # Before and after the time in which it is proposed.
        here = engine.state.pending[0].receipt.round_id
    return None if here == request.round_id else wire.OutcomeReply(void=wire.Void())


def _proposed(engine: Engine, leaf: bytes) -> wire.Proposed:
    """Return the pending proposal, with what proves to its client that an upload is in it."""
    if engine.state.pending is None or engine.ballot is None:
        raise LocalProtocolError("no outcome is pending")
    path = path_to(engine.state.pending[0].leaves, leaf)
    proposal = encode(engine.ballot.proposal)
    return wire.Proposed(proposal=proposal, path=path or (), included=path is not None)


@dataclass(frozen=True)
class _Patient:
    """The same messages, with a time limit for each."""

    requests: AsyncIterator[wire.UploadRequest]
    seconds: float

    async def next(self) -> wire.UploadRequest | None:
        """Return the next message, or None after the last one. Raises TimeoutError."""
        async with asyncio.timeout(self.seconds):
            return await anext(self.requests, None)


async def _tiles(requests: _Patient) -> list[UpdateTile]:
    request = await requests.next()
    if request is None:
        raise MalformedMessage("the upload ended before it was complete")
    if request.WhichOneof("part") != "tiles":
        raise MalformedMessage("behind its header, an upload has tiles only")
    return [decode(UpdateTile, raw) for raw in request.tiles.tile]


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
        connection.heard(said)


async def _say(connection: Connection, context: Context) -> None:
    while (said := await connection.outgoing.get()) is not None:
        await context.write(said)


def _parts(model: Float32) -> Iterator[wire.ModelPart]:
    """Yield the model's bytes in parts, without a copy of the whole for each reader."""
    raw = np.ascontiguousarray(model).data.cast("B")
    return (
        wire.ModelPart(data=bytes(raw[start : start + _PART]))
        for start in range(0, len(raw), _PART)
    )


def _ranges(numbers: frozenset[int]) -> Iterator[wire.Range]:
    """Return the numbers as ranges."""
    ordered = sorted(numbers)
    starts = [n for n in ordered if n - 1 not in numbers]
    stops = [n + 1 for n in ordered if n + 1 not in numbers]
    return (wire.Range(start=a, stop=b) for a, b in zip(starts, stops, strict=True))

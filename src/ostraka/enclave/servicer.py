"""Answers clients and workers. A bad message affects only the peer that sent it.

A caller is an enrolled party that has proved that its connection is its own, or an address. What a
message says of its sender charges nobody: signed messages can be replayed by anyone.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ostraka import events
from ostraka.arrays import Float32
from ostraka.attestation.claims import Binding, DeputyBinding, KeyBinding
from ostraka.attestation.verify import Circumstances
from ostraka.config import Federation, Member
from ostraka.crypto.identity import check_encoded, check_signature
from ostraka.enclave.downloads import Downloads
from ostraka.enclave.engine import Engine, Phase
from ostraka.enclave.front import Front
from ostraka.enclave.lane import LaneBroken
from ostraka.enclave.lead import Connected, RemotePart, Shards
from ostraka.enclave.limits import Newest, Rate, Share, TooMany, Turns
from ostraka.enclave.link import Broken, Spoilt, Taken
from ostraka.enclave.open_round import OpenRound
from ostraka.enclave.peering import Admission, PeerChannel
from ostraka.enclave.platform.interface import EvidenceProvider
from ostraka.enclave.reception import Quoting, Reception, Serving
from ostraka.enclave.status import Status
from ostraka.enclave.storage.models import Slices
from ostraka.enclave.uploads import Caller, Talk, Uploads
from ostraka.encoding import decode, digest, encode
from ostraka.errors import (
    AttestationRefused,
    ConfigError,
    LocalProtocolError,
    MalformedMessage,
    NotEnrolled,
    OpenError,
    OstrakaError,
    PlatformError,
    Rejection,
    RoundFailed,
    StorageFull,
    UpdateRejected,
    printable,
)
from ostraka.federation_file import FederationFile
from ostraka.merkle import path_to
from ostraka.messages import (
    SIMULATION,
    Certified,
    Challenge,
    Charter,
    ClientHello,
    Confirmation,
    Evidence,
    Introduction,
    Proposal,
    ShardAdmitted,
    ShardHello,
    UpdateHeader,
    chain,
    milestones,
    vector_digest,
)
from ostraka.protocol.confirm import leaf
from ostraka.transport import FINISHED, PROVED, chain_link, collateral
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.dial import is_told_address
from ostraka.transport.ostraka_pb2_grpc import EnclaveServicer

_LONG_POLL_S = 20.0
_AT_ONCE_S = 0.5  # for the next round to open, while a client waits for the outcome of this one
_MOVING_S = 5.0  # for shards to move to a new model
_PART = 2**18  # of a model, in bytes
_LONGEST = 2**18  # bytes of a receipt in an answer that all who took part get at once
_NONCE_BYTES = 32
_HELLOS = 8  # on one connection
_SHOWN = 64  # characters of a claimed name
_NOT_ENROLLED = "not enrolled"
_UNCONFIRMED = "an outcome waits to be confirmed"
_OTHER_MODEL = "not the present model"
_LAST_WORDS_S = 5.0  # for a shard to take what it was told before its stream ends
_NO_SHARDS = "this enclave has no shards: its federation.toml says how many there are"
_LONG = 1000  # characters of a refusal
_ANOTHER_KEY = "signed with another key than the enrolled one"
_LOG = logging.getLogger("ostraka.enclave")

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class NotProved(Exception):
    """The caller believes that its connection is proved to be its own, and it is not."""


class Refusal(Exception):
    """What a caller asks for cannot be had now, or never again."""

    def __init__(self, code: grpc.StatusCode, why: str) -> None:
        super().__init__(why)
        self.code = code


_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (MalformedMessage, grpc.StatusCode.INVALID_ARGUMENT),
    (DecodeError, grpc.StatusCode.INVALID_ARGUMENT),
    (NotProved, grpc.StatusCode.UNAUTHENTICATED),
    (OpenError, grpc.StatusCode.PERMISSION_DENIED),
    (UpdateRejected, grpc.StatusCode.FAILED_PRECONDITION),
    (TooMany, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (StorageFull, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (LaneBroken, grpc.StatusCode.ABORTED),
    (TimeoutError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (PlatformError, grpc.StatusCode.UNAVAILABLE),
)


def _status(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Return what the peer is told. A bug of ours is shown in the log, and not to the peer."""
    if isinstance(error, Refusal):
        return error.code, str(error)
    code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
    if code is None:
        _LOG.error("a request failed", exc_info=error)
        return grpc.StatusCode.INTERNAL, "the service failed"
    if isinstance(error, UpdateRejected):
        revoked = error.reason == Rejection.REVOKED
        return grpc.StatusCode.PERMISSION_DENIED if revoked else code, str(error.reason)
    return code, str(error) or code.name.lower()


@asynccontextmanager
async def _answering(context: Context) -> AsyncIterator[None]:
    """Turns our errors into gRPC's."""
    try:
        yield
    except grpc.aio.BaseError:
        raise
    except Exception as error:  # noqa: BLE001 (any other error is a bug of ours)
        await context.abort(*_status(error))


@asynccontextmanager
async def streaming(context: Context) -> AsyncIterator[None]:
    """Does the same for an answer of several messages.

    gRPC sends its headers with the first message. If that were interrupted by a time limit, they
    would be sent twice, and the peer would hear nothing more. So they are sent first.
    """
    await context.send_initial_metadata(())
    async with _answering(context):
        yield


def _when_done(context: Context, then: Callable[[], None]) -> None:
    """Call `then` when the call is over, and its answer is read or unwanted."""

    def done(_: Context) -> None:
        then()

    callback: Any = done  # What is known of gRPC's types asks for an instance of a class.
    context.add_done_callback(callback)


@dataclass(frozen=True)
class Allowance:
    """What one kind of callers has for itself, so that the other kind cannot take it.

    calls: that one caller has open. rate: of what costs us more than an answer.
    """

    calls: Share
    rate: Rate
    uploads: Turns
    chains: Turns


@dataclass(frozen=True)
class Roster:
    """Who is enrolled now, and observers. It is made once for each federation and file: with many
    clients it takes longer than to answer a request."""

    federation: Federation
    file: FederationFile
    observers: tuple[Member, ...]

    @cached_property
    def clients(self) -> dict[str, Member]:
        return {each.name: each for each in self.federation.clients}

    @cached_property
    def voting(self) -> dict[str, Member]:
        """Those who greet, by name: clients, witnesses and observers."""
        others = (*self.federation.witnesses, *self.observers)
        return self.clients | {each.name: each for each in others}

    @cached_property
    def everybody(self) -> dict[str, Member]:
        return {each.name: each for each in self.federation.workers} | self.voting

    @cached_property
    def members(self) -> frozenset[Member]:
        return frozenset(self.everybody.values())


@dataclass
class Servicer(EnclaveServicer):
    """One instance serves all connections, on one event loop."""

    engine: Engine
    provider: EvidenceProvider
    status: Status
    door: Front
    uploads: Uploads
    downloads: Downloads
    enrolled: Allowance
    strangers: Allowance
    gossip: Rate  # of what is told of strangers
    newest: Newest = field(default_factory=Newest)
    hashing: asyncio.Lock = field(default_factory=asyncio.Lock)
    hashed: tuple[Float32, bytes] | None = None
    encoded: tuple[Certified, bytes] | None = None
    charter: tuple[Charter, bytes, bytes] | None = None  # with its bytes, and their digest
    on_their_way: int = 0  # bytes of models in answers to votes
    roster: "Roster | None" = None

    def __post_init__(self) -> None:
        self.quoting = Quoting(self.provider)
        self.reception = Reception(
            pool=self.engine.pool,
            quoting=self.quoting,
            newest=self.newest,
            gossip=self.gossip,
            tell=self.engine.tell,
            prove=self._prove_peer,
        )

    def _prove_peer(self, peer: str, party: Member) -> None:
        self.door.prove(self.door.visitor(peer), party)

    # What anybody may ask.

    async def Greet(self, request: wire.GreetRequest, context: Context) -> wire.GreetReply:
        # No place and no rate of the address is asked for: others may have used them up.
        async with _answering(context):
            visitor = self.door.visitor(context.peer())
            if request.hello:
                visitor.hellos += 1
                if visitor.hellos > _HELLOS:
                    raise TooMany(f"more than {_HELLOS} greetings on one connection")
                party = self._verified(decode(ClientHello, request.hello), visitor.nonce)
                self.door.prove(visitor, party)
                # A client greets again whenever it has been told to wait, for as long as it waits.
                visitor.hellos = 0
                if request.ticket_digest:
                    self.uploads.announce(request.ticket_digest, party)
            return wire.GreetReply(nonce=visitor.nonce)

    async def GetCharter(self, request: wire.CharterRequest, context: Context) -> wire.CharterReply:
        async with _answering(context):
            self._hold_place(context)
            return wire.CharterReply(charter=self._charter(b""))

    async def GetChain(self, request: wire.ChainRequest, context: Context) -> None:
        async with streaming(context):
            with self._place(context):
                await self._send(self._links(request), context)

    async def GetModel(self, request: wire.ModelRequest, context: Context) -> wire.ModelReply:
        async with _answering(context):
            self._hold_place(context)
            state = self.engine.state.last_state
            if isinstance(state, Slices):
                slices = await self._slices(request.digest, context)
                return wire.ModelReply(slices=slices)
            model = state.model
            if request.digest != await self._digest_of(model):
                await context.abort(grpc.StatusCode.NOT_FOUND, _OTHER_MODEL)
            ticket = self.downloads.ticket(model, self._caller(context).party)
            return wire.ModelReply(slices=[wire.ModelSlice(length=len(model), ticket=ticket)])

    async def AwaitOutcome(
        self, request: wire.OutcomeRequest, context: Context
    ) -> wire.OutcomeReply:
        async with _answering(context):
            self._hold_place(context)
            return await self._outcome(request)

    async def Confirm(self, request: wire.ConfirmRequest, context: Context) -> wire.ConfirmReply:
        async with _answering(context):
            self._hold_place(context)
            self._charge(context)
            vote = decode(Confirmation, request.confirmation)
            self.engine.confirm(vote)
            if not request.HasField("then"):
                return wire.ConfirmReply()
            reply = wire.ConfirmReply(outcome=await self._outcome(request.then))
            out = reply.outcome.WhichOneof("outcome") in ("certified", "published")
            if out and self._caller(context).is_called(vote.voter):
                reply.model = self._short_model(context)
                # A client that has to fetch the model first would come too late for the round.
                if reply.model and request.HasField("next"):
                    await self._introduce_next(vote.number + 1, request.next, reply, context)
            return reply

    async def Remind(self, request: wire.RemindRequest, context: Context) -> wire.RemindReply:
        async with _answering(context):
            self._hold_place(context)
            self._charge(context)
            self.engine.remind(decode(Proposal, request.proposal))
            async with self.engine.moved:
                self.engine.moved.notify_all()
            return wire.RemindReply()

    async def GetStatus(self, request: wire.StatusRequest, context: Context) -> wire.StatusReply:
        async with _answering(context):
            self._hold_place(context)
            party = self._caller(context).party
            names = party is not None or self.status.is_operator(request.token)
            return wire.StatusReply(json=self.status.as_json(names=names))

    async def Adopt(self, request: wire.AdoptRequest, context: Context) -> wire.AdoptReply:
        async with _answering(context):
            self._hold_place(context)
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
            self._hold_place(context)
            challenge = self._challenged(request, context)
            current = await self._wait_for_round(context)
            return await self._introduction(current, challenge, request, context)

    async def Prove(self, request: wire.ProveRequest, context: Context) -> wire.ProveReply:
        async with _answering(context):
            self._hold_place(context)
            self._charge(context)
            challenge = decode(Challenge, request.challenge)
            key, federation = self.engine.enclave.receipt_key, self.engine.federation
            self._authenticate(challenge, self._roster().everybody, self._caller(context))
            bound = KeyBinding(challenge.nonce, key, federation.digest())
            evidence = await self._evidence(bound, self._caller(context))
            return wire.ProveReply(receipt_key=key, evidence=encode(evidence))

    async def AnnounceTicket(
        self, request: wire.TicketRequest, context: Context
    ) -> wire.TicketReply:
        async with _answering(context):
            self._hold_place(context)
            self._charge(context)
            self.uploads.announce(request.ticket_digest, self._caller(context).party)
            return wire.TicketReply()

    async def take_upload(self, talk: Talk) -> None:
        """Hear one upload, or the rest of it, to its end."""
        try:
            await self._hear_upload(talk, self._still_enrolled(talk.caller))
        except Exception as error:  # noqa: BLE001 (any other error is a bug of ours)
            await talk.refuse(*_status(error))

    async def _hear_upload(self, talk: Talk, caller: Caller) -> None:
        allowance = self._allowance(caller)
        with allowance.calls.of(caller.name):
            allowance.rate.spend(caller.name)
            request = await talk.hear()
            header = self._read_header(request, caller)
        async with self.newest.of(header.client, proved=caller.is_called(header.client)):
            with self._refusals(header.client, caller):
                async with allowance.uploads.turn():
                    number = await self._receive(header, talk, caller)
        if request.await_outcome:
            with allowance.calls.of(caller.name):
                await self._tell_outcome(header, number, talk)

    # What shards do.

    async def Join(self, requests: AsyncIterator[wire.ShardSays], context: Context) -> None:
        async with streaming(context):
            if self.engine.shards is None:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, _NO_SHARDS)
            with self._place(context):
                self._charge(context)
                shard = await self._admit(requests, context)
            try:
                await self._serve_shard(shard, requests, context)
            except RoundFailed as unable:
                self.engine.tell(events.ShardRefused(str(unable)))
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(unable)[:_LONG])
            except (OpenError, MalformedMessage) as odd:
                self.engine.tell(events.ShardRefused(f"shard {shard.number}: {odd}"))
                raise
            if self.engine.phase is Phase.FINISHED:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, FINISHED)

    # What enrolled workers do.

    async def Work(self, requests: AsyncIterator[wire.WorkerSays], context: Context) -> None:
        async with streaming(context):
            idle_s, serving = self.engine.file.limits.idle_s, self._serving()
            with self._place(context):
                hello, _ = await self.reception.meet(serving, requests, context, idle_s)
            self._charge(context)
            await self.reception.work(serving, hello, requests, context)
            if self.engine.phase is Phase.FINISHED:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, FINISHED)

    # The steps of the above.

    async def _admit(self, requests: AsyncIterator[wire.ShardSays], context: Context) -> Connected:
        """Prove ourselves to a shard that proves itself. Raises OpenError or RemoteProtocolError.

        Evidence takes its time to make and to verify, and strangers may ask: they wait in line.
        """
        engine, idle_s = self.engine, self.engine.file.limits.idle_s
        shards = self._shards()
        admission = Admission(
            engine.federation,
            engine.state.identity,
            shards=shards.count,
            provider=self.provider,
            code_id=engine.state.sealer.code_id,
        )
        async with asyncio.timeout(idle_s):
            await context.write(wire.LeadSays(welcome=encode(admission.welcome)))
            first = await anext(requests, None)
        if first is None or first.WhichOneof("what") != "hello":
            raise MalformedMessage("a shard begins with its hello")
        hello = decode(ShardHello, first.hello)
        try:
            async with self.quoting.turn(stranger=True):
                admitted, channel = await asyncio.to_thread(self._verify_shard, admission, hello)
        except (AttestationRefused, OpenError, ConfigError) as refused:
            with suppress(TooMany):
                self.gossip.spend("")
                engine.tell(events.ShardRefused(printable(str(refused), _LONG)))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, printable(str(refused), _LONG))
        async with asyncio.timeout(idle_s):
            await context.write(wire.LeadSays(admitted=encode(admitted)))
        loop = asyncio.get_running_loop()
        return Connected(hello.shard, channel, loop, hello.revision)

    def _verify_shard(
        self, admission: Admission, hello: ShardHello
    ) -> tuple[ShardAdmitted, PeerChannel]:
        found = collateral.for_evidence(
            hello.evidence, admission.policy, beside=self.engine.file.path
        )
        simulated = self.provider.kind == SIMULATION
        return admission.admit(hello, Circumstances(int(time.time()), found, simulated))

    async def _serve_shard(
        self, shard: Connected, requests: AsyncIterator[wire.ShardSays], context: Context
    ) -> None:
        """Carry what both sides say, until one of them ends."""
        ready = shard.expect()

        async def hear() -> None:
            async for said in requests:
                for sealed in said.sealed.messages:
                    shard.hear(sealed)

        async def say() -> None:
            while messages := await shard.outgoing.take():
                await context.write(wire.LeadSays(sealed=wire.Sealed(messages=messages)))

        async def serve() -> None:
            await self._restored(shard, asyncio.wrap_future(ready))
            with self._shards().joined(shard, self.engine.federation.revision):
                self.engine.tell(events.ShardJoined(shard.number, shard.address))
                await shard.over.wait()

        tasks = [asyncio.create_task(each()) for each in (hear, say, serve)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            shard.end()
            # What was said last is still heard: it may be a new revision.
            await asyncio.wait(tasks[1:2], timeout=_LAST_WORDS_S)
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _restored(self, shard: Connected, ready: "asyncio.Future[Any]") -> None:
        """Have a shard load its slice of the present model. Raises RoundFailed if it cannot."""
        engine, shards = self.engine, self._shards()
        async with asyncio.timeout(engine.file.limits.idle_s):
            said, _ = await ready
        if not is_told_address(said.address):
            raise RoundFailed(f"shard {shard.number} gives an address that is none")
        shard.address = said.address
        restored: tuple[int, bytes] | None = None
        # Another may be published meanwhile: first in the ledger, and then in the enclave.
        while restored != (engine.published, engine.enclave.model):
            restored = published, model = engine.published, engine.enclave.model
            state = engine.state.last_state
            if isinstance(state, Slices):
                await shards.restore(shard, engine.federation.terms, state, published, model)

    def _shards(self) -> Shards:
        if self.engine.shards is None:
            raise LocalProtocolError("this enclave has no shards")
        return self.engine.shards

    async def _slices(self, digest: bytes, context: Context) -> list[wire.ModelSlice]:
        """Tell where the slices of the model are. Aborts the call if they are not there in time.

        An outcome is known before all shards have moved to its model, which takes them the longer
        the larger it is. Clients that asked again meanwhile would cost the lead more.
        """
        shards, moved = self._shards(), self.engine.moved
        if digest != self.engine.enclave.model:
            await context.abort(grpc.StatusCode.NOT_FOUND, _OTHER_MODEL)
        try:
            async with asyncio.timeout(_MOVING_S), moved:
                await moved.wait_for(lambda: shards.show(digest))
        except TimeoutError:
            # To a client, an unavailable service is another connection, which it would greet.
            await context.abort(grpc.StatusCode.ABORTED, "not all shards are here yet")
        here = [shards.connected[number] for number in range(shards.count)]
        spans = shards.spans(self.engine.federation.terms)
        return [
            wire.ModelSlice(address=shard.address, length=span.length, ticket=shard.ticket)
            for shard, span in zip(here, spans, strict=True)
        ]

    async def _receive_at_shards(self, header: UpdateHeader, talk: Talk, *, own: bool) -> None:
        """Have the tiles that are missing brought to the shards that own them.

        Lanes end with the turn: a shard has threads for as many lanes as there are turns here.
        """
        parts = self._shards().parts
        try:
            await self._bring(parts, header, talk, own=own)
        except BaseException:
            for part in parts:
                part.cut(header.client, header.upload_id)
            raise

    async def _bring(
        self, parts: Sequence[RemotePart], header: UpdateHeader, talk: Talk, *, own: bool
    ) -> None:
        client, upload_id = header.client, header.upload_id
        try:
            granted = [part.grant(client, upload_id, own=own) for part in parts]
            taken = [await lane.taken() for lane in granted]
        except RoundFailed as failed:
            raise LaneBroken(str(failed)) from None
        lanes = [
            wire.ShardLane(
                address=part.shard.address, ticket=lane.ticket, next=part.span.first + count
            )
            for part, lane, count in zip(parts, granted, taken, strict=True)
        ]
        await talk.say(granted=wire.Granted(shards=lanes))
        for settled in asyncio.as_completed([lane.settled for lane in granted]):
            _require_taken(client, await settled)

    def _caller(self, context: Context) -> Caller:
        """Return who calls. Raises NotProved if the caller would be surprised by that."""
        visitor = self.door.visitor(context.peer())
        caller = self._still_enrolled(Caller(visitor.address, visitor.party))
        if caller.party is None and PROVED in dict(context.invocation_metadata() or ()):
            raise NotProved("this connection has not been proved to be yours: greet again")
        return caller

    def _still_enrolled(self, caller: Caller) -> Caller:
        """Return the caller, as a stranger if it is not on the roster any more."""
        known = caller.party in self._roster().members
        return caller if known else Caller(caller.address, None)

    def _roster(self) -> Roster:
        known, federation, file = self.roster, self.engine.federation, self.engine.file
        if known is None or known.federation is not federation or known.file is not file:
            known = self.roster = Roster(federation, file, observers(self.engine))
        return known

    def _allowance(self, caller: Caller) -> Allowance:
        return self.enrolled if caller.party else self.strangers

    def _place(self, context: Context) -> AbstractContextManager[None]:
        """Limit the calls that one caller has open at a time."""
        caller = self._caller(context)
        return self._allowance(caller).calls.of(caller.name)

    def _hold_place(self, context: Context) -> None:
        """The same until the caller has read the answer, which is in memory as long as that."""
        caller = self._caller(context)
        calls, name = self._allowance(caller).calls, caller.name
        calls.take(name)
        _when_done(context, lambda: calls.give_back(name))

    def _charge(self, context: Context) -> None:
        """Limit what one caller asks for in a minute. Raises TooMany."""
        caller = self._caller(context)
        self._allowance(caller).rate.spend(caller.name)

    def _verified(self, hello: ClientHello, nonce: bytes) -> Member:
        """Return who has signed the connection's nonce. Raises OpenError or NotProved."""
        federation, members = self.engine.federation, self._roster().voting
        if hello.client not in members:
            raise NotEnrolled(hello.client)
        check_signature(hello, members[hello.client].key)
        if hello.federation != federation.id:
            raise OpenError("ClientHello")  # Its policy will tell it so, when it sees the charter.
        if hello.nonce != nonce:
            raise NotProved("signed for another connection")
        return members[hello.client]

    async def _evidence(
        self, bound: Binding | KeyBinding | DeputyBinding, caller: Caller
    ) -> Evidence:
        return await self.quoting.evidence(bound, stranger=caller.party is None)

    async def _send(self, replies: Iterable[Any], context: Context) -> None:
        """Send these. Raises TimeoutError if the peer does not take one of them in time."""
        idle_s = self.engine.file.limits.idle_s
        async with self._allowance(self._caller(context)).chains.turn():
            for reply in replies:
                async with asyncio.timeout(idle_s):
                    await context.write(reply)

    async def _digest_of(self, model: Float32) -> bytes:
        """Return the digest, computed once a model: it takes time, and strangers may ask."""
        async with self.hashing:
            if self.hashed is None or self.hashed[0] is not model:
                self.hashed = (model, await asyncio.to_thread(vector_digest, model))
            return self.hashed[1]

    def _authenticate(
        self, challenge: Challenge, enrolled: dict[str, Member], caller: Caller
    ) -> None:
        federation = self.engine.federation
        if challenge.client not in enrolled:
            revoked = challenge.client in {member.name for member in federation.revoked}
            why = Rejection.REVOKED if revoked else _NOT_ENROLLED
            self._refused(challenge.client, why, caller)
            raise NotEnrolled(challenge.client)
        try:
            check_signature(challenge, enrolled[challenge.client].key)
        except OpenError:
            self._refused(challenge.client, _ANOTHER_KEY, caller)
            raise

    def _challenged(self, request: wire.IntroduceRequest, context: Context) -> Challenge:
        """Read an enrolled client's challenge. Raises OpenError, MalformedMessage or TooMany."""
        self._charge(context)
        challenge = decode(Challenge, request.challenge)
        self._authenticate(challenge, self._roster().clients, self._caller(context))
        return challenge

    async def _introduction(
        self,
        current: OpenRound,
        challenge: Challenge,
        request: wire.IntroduceRequest,
        context: Context,
    ) -> wire.IntroduceReply:
        """Prove the enclave and its open round to who has asked for that."""
        bound = current.intake.binding(challenge.nonce)
        charter = self._charter(request.holds)
        evidence = await self._evidence(bound, self._caller(context))
        introduction = Introduction(current.intake.offer, bound.receipt_key, evidence)
        if request.ticket_digest:
            self.uploads.announce(request.ticket_digest, self._caller(context).party)
        return wire.IntroduceReply(introduction=encode(introduction), charter=charter)

    async def _introduce_next(
        self,
        number: int,
        request: wire.IntroduceRequest,
        reply: wire.ConfirmReply,
        context: Context,
    ) -> None:
        """Introduce the round of this number if it opens at once, and evidence does not take long:
        the outcome must not wait for it. If that fails, it is asked for by itself, and its client
        is told why then.
        """
        engine = self.engine

        def settled() -> bool:
            return engine.current is not None or _unconfirmed(engine) or _over(engine)

        with suppress(OpenError, MalformedMessage, TooMany, PlatformError, TimeoutError):
            challenge = self._challenged(request, context)
            async with asyncio.timeout(_AT_ONCE_S), engine.moved:
                await engine.moved.wait_for(settled)
            current = engine.current
            if current is None or current.number != number:
                return
            if self.quoting.wait_s <= _AT_ONCE_S:
                introduced = self._introduction(current, challenge, request, context)
                reply.introduced.CopyFrom(await introduced)

    async def _wait_for_round(self, context: Context) -> OpenRound:
        """Return the open round, or wait for the next one. Raises Refusal after a time limit."""
        engine = self.engine
        try:
            async with asyncio.timeout(min(_LONG_POLL_S, context.time_remaining() or _LONG_POLL_S)):
                async with engine.moved:
                    await engine.moved.wait_for(
                        lambda: (
                            engine.current
                            or _unconfirmed(engine)
                            or engine.forgotten
                            or _over(engine)
                        )
                    )
        except TimeoutError:
            raise Refusal(grpc.StatusCode.UNAVAILABLE, "no round is open yet") from None
        if _unconfirmed(engine) or engine.forgotten is not None:
            raise Refusal(grpc.StatusCode.FAILED_PRECONDITION, _UNCONFIRMED)
        return self._current()

    def _current(self) -> OpenRound:
        """Return the open round. Raises Refusal."""
        if self.engine.current is not None:
            return self.engine.current
        if self.engine.phase is Phase.FINISHED:
            raise Refusal(grpc.StatusCode.FAILED_PRECONDITION, FINISHED)
        if self.engine.phase is Phase.STOPPED:
            raise Refusal(grpc.StatusCode.UNAVAILABLE, "the service is stopping")
        raise Refusal(grpc.StatusCode.FAILED_PRECONDITION, str(Rejection.LATE))

    def _read_header(self, request: wire.UploadRequest, caller: Caller) -> UpdateHeader:
        """Return the header of an upload, signed for the open round."""
        header = decode(UpdateHeader, request.header)
        current = self._current()
        with self._refusals(header.client, caller):
            current.intake.require_current(header)
        return header

    @contextmanager
    def _refusals(self, client: str, caller: Caller) -> Iterator[None]:
        """Tell the operator who was refused, and why."""
        try:
            yield
        except NotEnrolled as stranger:
            self._refused(stranger.name, _NOT_ENROLLED, caller)
            raise
        except UpdateRejected as rejected:
            own = rejected.reason.provable  # It can be nobody else's fault, whoever brought it.
            self._refused(client, rejected.reason, caller, own=own)
            raise
        except (OstrakaError, LaneBroken, TimeoutError) as failed:
            self._refused(client, str(failed) or "too slow", caller)
            raise

    def _refused(self, client: str, why: str, caller: Caller, *, own: bool = False) -> None:
        """Tell of a refusal: of the client's own doing, or of what an address sends in its name.

        Of strangers it is told rarely, so that they cannot fill the log.
        """
        address = "" if own or caller.is_called(client) else caller.name
        with suppress(TooMany):
            if address:
                self.gossip.spend("")
            self.engine.tell(events.UploadRefused(printable(client, _SHOWN), why, address))

    async def _receive(self, header: UpdateHeader, talk: Talk, caller: Caller) -> int:
        """Receive one upload, or the rest of it. Return the number of its round."""
        current, own = self._current(), caller.is_called(header.client)
        current.begin(header, own=own)
        try:
            if self.engine.shards is None:
                await self._receive_here(current, header, talk)
            else:
                self.engine.tell(events.UploadStarted(header.client, header.tiles))
                await self._receive_at_shards(header, talk, own=own)
                if (flaw := current.intake.flaw(header.client)) is not None:
                    raise UpdateRejected(header.client, flaw)  # of all tiles together
            self.engine.tell(events.UploadCompleted(header.client))
        finally:
            current.note_change()  # Only now, so that the round's end is told after this.
        await talk.say(complete=wire.Complete())
        return current.number

    async def _receive_here(self, current: OpenRound, header: UpdateHeader, talk: Talk) -> None:
        """Take the tiles that are missing in this process."""
        receiver = current.receiver(header)
        first = receiver.next
        self.engine.tell(events.UploadStarted(header.client, header.tiles - first))
        await talk.say(granted=wire.Granted(next=first))
        if first < header.tiles:
            await talk.receive(receiver)

    async def _tell_outcome(self, header: UpdateHeader, number: int, talk: Talk) -> None:
        """Tell a client what becomes of the round that its upload is complete in."""
        question = wire.OutcomeRequest(
            number=number, round_id=header.round_id, leaf=leaf(header), voter=header.client
        )
        await talk.say(outcome=await self._outcome(question))

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
        encoded = self._encoded(certified)
        if len(encoded) > _LONGEST:
            return wire.OutcomeReply(published=wire.Published())
        return wire.OutcomeReply(certified=encoded)

    def _encoded(self, certified: Certified) -> bytes:
        """Return the bytes, made once: a certificate has many votes, and everybody asks for it."""
        if self.encoded is None or self.encoded[0] is not certified:
            self.encoded = certified, encode(certified)
        return self.encoded[1]

    def _short_model(self, context: Context) -> bytes:
        """Return the model if it fits into one part, and few of them are on their way.

        A reply stays in memory until its peer reads it, if ever, and all voters would get theirs at
        once. A client that gets none asks for it, and waits for a turn.
        """
        state = self.engine.state.last_state
        if isinstance(state, Slices):
            return b""
        model = state.model
        most, size = self.engine.file.limits.uploads * _PART, model.nbytes
        if size > _PART or self.on_their_way + size > most:
            return b""

        def gone() -> None:
            self.on_their_way -= size

        _when_done(context, gone)
        self.on_their_way += size
        return model.tobytes()

    def _charter(self, held: bytes) -> bytes:
        """Return the newest charter, or nothing if its digest is `held`."""
        newest = self.engine.state.charters[-1]
        if self.charter is None or self.charter[0] is not newest:
            self.charter = newest, encode(newest), digest(newest)
        _, encoded, digested = self.charter
        return b"" if held == digested else encoded

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
        for link in chain(charters, (*beginning, *published)):
            if isinstance(link, Certified) and link is published[-1]:
                yield wire.ChainLink(certified=self._encoded(link))
            else:
                yield chain_link(link)

    def _serving(self) -> Serving:
        """Whom workers serve here."""
        return Serving(self.engine.state.charters[-1], self.engine.enclave.receipt_key)


def _require_taken(client: str, event: Taken | Spoilt | Broken) -> None:
    """Raises what a lane to a shard has ended with, as it would be raised here."""
    if isinstance(event, Spoilt):
        raise UpdateRejected(client, Rejection(event.reason))
    if isinstance(event, Broken) and event.code == "closed":
        raise UpdateRejected(client, Rejection.LATE)
    if isinstance(event, Broken):
        raise {"late": TimeoutError, "odd": OpenError}.get(event.code, LaneBroken)(event.why)


def observers(engine: Engine) -> tuple[Member, ...]:
    """Return whom the operator lets see the status.

    What the authority has signed comes first, and may be newer than the operator's file: a name or
    a key that is on the roster, or was, is no observer's.
    """
    federation = engine.federation
    voting = (*federation.clients, *federation.witnesses)
    taken = {
        part
        for each in (*voting, *federation.workers, *federation.revoked)
        for part in (each.name, each.key)
    }
    return tuple(each for each in engine.file.observers if not {each.name, each.key} & taken)


def _unconfirmed(engine: Engine) -> bool:
    """Whether an outcome waits for votes. One that was just published may have its ballot still."""
    return engine.ballot is not None and engine.ballot.proposal.number > engine.published


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

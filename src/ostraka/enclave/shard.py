"""A shard's process: joins its lead, takes in its tiles, and does what the lead asks.

It has no memory of its own but the slices that it has sealed, and these open under the lead's key
alone. Whoever starts it again, or starts it from an older disk, starts a new shard, which the lead
tells what is the newest.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import numpy as np

from ostraka import events
from ostraka.attestation.verify import Circumstances
from ostraka.config import Federation, Member
from ostraka.core import optimiser
from ostraka.core.optimiser import ServerState
from ostraka.crypto.aead import TAG_BYTES
from ostraka.crypto.identity import Identity, check_signature
from ostraka.enclave import hardening, link
from ostraka.enclave.downloads import Downloads
from ostraka.enclave.front import Front
from ostraka.enclave.lane import LaneBroken, Tickets
from ostraka.enclave.limits import Newest, Rate, Share
from ostraka.enclave.link import COMMANDS, Link, Outbox
from ostraka.enclave.open_round import Receiver
from ostraka.enclave.peering import Joining
from ostraka.enclave.platform.choose import Platform
from ostraka.enclave.reception import Quoting, Reception, Serving
from ostraka.enclave.servicer import Context, streaming
from ostraka.enclave.storage.models import SliceFiles, SliceName
from ostraka.enclave.storage.spool import Spool
from ostraka.enclave.workers import Pool
from ostraka.encoding import decode, encode
from ostraka.errors import (
    ConfigError,
    LocalProtocolError,
    MalformedMessage,
    OpenError,
    OstrakaError,
    Rejection,
    RemoteProtocolError,
    StorageFull,
    UpdateRejected,
)
from ostraka.events import Event
from ostraka.federation_file import FederationFile
from ostraka.messages import SIMULATION, Charter, Deputy, ShardAdmitted, ShardWelcome, vector_leaves
from ostraka.protocol.enclave import Arrival, Cohort, Memory, Shard, ShardRound, Threads
from ostraka.protocol.host import OwnColumns
from ostraka.transport import FINISHED, collateral
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.dial import channel_options, require_address
from ostraka.transport.ostraka_pb2_grpc import EnclaveServicer, EnclaveStub

_T = TypeVar("_T")
_MIB = 2**20
_LARGEST = 8 * 2**20  # of a message of the lead
_WORKERS_S = 5.0  # to wait for workers when a round closes
_CALLS = 32  # of one address at a time
_LONGEST = 500  # characters of what the lead is told
_ORDERS = (link.Grant, link.Cut, link.End, link.Adopt, link.Stop)  # are not answered
_NOT_JOINED = "this shard waits for its lead"


class Finished(Exception):
    """The lead has published all rounds."""


@dataclass
class Settings:
    """How one shard is run.

    number: which one it is. advertise: where clients and workers find it; where it listens unless
    given. tls_ca: certificates that vouch for the lead.
    """

    path: Path
    lead: str
    number: int
    advertise: str | None = None
    tls_ca: Path | None = None


@dataclass
class _OpenRound:
    """A round at this shard. lanes: the newest of each client. tasks: all that have not ended."""

    opened: ShardRound
    spool: Spool
    lanes: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    cohort: Cohort | None = None
    digest: bytes = b""
    columns: OwnColumns | None = None
    plan: bytes = b""


class ShardService:
    """Does what the lead asks, one thing after the other. Tiles come in meanwhile."""

    def __init__(
        self,
        settings: Settings,
        file: FederationFile,
        charter: Charter,
        *,
        platform: Platform,
        tell: Callable[[Event], None],
        tickets: Tickets,
        downloads: Downloads,
        memory: Memory,
        threads: Threads,
    ) -> None:
        self.settings = settings
        self.file = file
        self.charter = charter
        self.federation = charter.federation
        self.pool = Pool(asyncio.get_running_loop())
        self.tell = tell
        self.serving: Serving | None = None  # while there is a lead
        self.finished = False  # The lead has published all rounds.
        self._platform = platform
        self._tickets = tickets
        self._downloads = downloads
        self._memory = memory
        self._threads = threads
        self._files = SliceFiles(file.state, platform.code_id)
        self._identity: Identity | None = None
        self._role: Shard | None = None
        self._candidate: tuple[SliceName, ServerState] | None = None  # not confirmed yet
        self._round: _OpenRound | None = None
        self._link: Link | None = None
        self._named: tuple[Federation, dict[str, Member]] | None = None

    # The connection to the lead.

    async def join(self, address: str) -> None:
        """Serve the lead until the stream ends. Raises OstrakaError, grpc.RpcError or Finished."""
        settings = self.settings
        joining = Joining(
            self.federation,
            settings.number,
            provider=self._platform.provider,
            code_id=self._platform.code_id,
        )
        commands: asyncio.Queue[tuple[Any, list[bytearray]]] = asyncio.Queue()
        hello: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        outgoing = Outbox()
        async with _dial(settings) as channel:
            stub: Any = EnclaveStub(channel)
            call = stub.Join(_said(hello, outgoing))
            self._link = None
            working = None
            try:
                self._link, deputy, receipt_key = await self._shake_hands(
                    joining, call, (hello, outgoing), commands
                )
                self._identity = joining.identity
                self.serving = Serving(self.charter, receipt_key, deputy)
                self._link.say(link.Ready(address))
                self.tell(events.LeadJoined(settings.number, settings.lead))
                working = asyncio.create_task(self._work(commands))
                reading = asyncio.create_task(self._read(call))
                done, _ = await asyncio.wait(
                    (working, reading), return_when=asyncio.FIRST_COMPLETED
                )
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                for each in done:
                    each.result()
            finally:
                self.serving, self._link = None, None
                self.pool.close()  # Workers know this shard by a key that ends here.
                if working is not None:
                    working.cancel()
                    await asyncio.gather(working, return_exceptions=True)
                await self._give_up()
                hello.cancel()
                outgoing.end()
                call.cancel()

    async def _shake_hands(
        self,
        joining: Joining,
        call: Any,
        outgoing: "tuple[asyncio.Future[bytes], Outbox]",
        commands: "asyncio.Queue[tuple[Any, list[bytearray]]]",
    ) -> tuple[Link, Deputy, bytes]:
        """Prove ourselves to the lead, and have it prove itself."""
        says = await self._next(call, "welcome")
        first, sealed = outgoing
        hello = await asyncio.to_thread(joining.hello, decode(ShardWelcome, says.welcome))
        first.set_result(encode(hello))
        says = await self._next(call, "admitted")
        admitted = decode(ShardAdmitted, says.admitted)
        found = await asyncio.to_thread(
            collateral.for_evidence, admitted.evidence, joining.policy, beside=self.settings.path
        )
        simulated = self._platform.provider.kind == SIMULATION
        now = Circumstances(int(time.time()), found, simulated)
        channel, deputy = await asyncio.to_thread(joining.finish, admitted, now)
        heard = partial(self._heard, commands)
        return Link(channel, sealed.put, COMMANDS, heard), deputy, admitted.receipt_key

    def _heard(
        self,
        commands: "asyncio.Queue[tuple[Any, list[bytearray]]]",
        message: Any,
        blobs: list[bytearray],
    ) -> None:
        # The stream may end before its turn comes, and how that ends is anyone's word.
        self.finished |= isinstance(message, link.Stop) and message.finished
        commands.put_nowait((message, blobs))

    async def _next(self, call: Any, kind: str) -> wire.LeadSays:
        async with asyncio.timeout(self.file.limits.idle_s):
            says = await call.read()
        if says is grpc.aio.EOF:
            await _raise_status(call)
        if says.WhichOneof("what") != kind:
            raise MalformedMessage(f"the lead did not say {kind!r}")
        return says  # type: ignore[no-any-return]

    async def _read(self, call: Any) -> None:
        while (says := await call.read()) is not grpc.aio.EOF:
            for sealed in says.sealed.messages:
                if self._link is not None:
                    self._link.hear(sealed)
        if self.finished:
            raise Finished
        await _raise_status(call)

    async def _work(self, commands: "asyncio.Queue[tuple[Any, list[bytearray]]]") -> None:
        """Carry out commands, in their order."""
        while True:
            message, blobs = await commands.get()
            if isinstance(message, _ORDERS):
                await self._obey(message)
                continue
            try:
                reply = await self._answer(message, blobs)
            except (OstrakaError, OSError) as unable:
                # What is wrong with a row is no error: this is about disks and mistakes.
                reply = (link.Failed(str(unable)[:_LONGEST]),)
            if self._link is not None:
                self._link.say(*reply)

    # What the lead asks.

    async def _answer(self, message: Any, blobs: list[bytearray]) -> tuple[Any, ...]:
        """What to say to what the lead asks, with the arrays behind it."""
        answers: dict[type[Any], Callable[[], Awaitable[tuple[Any, ...]]]] = {
            link.Restore: lambda: _to_its_end(self._restore, message),
            link.Open: lambda: self._open(message),
            link.Resume: lambda: self._resume(message),
            link.Close: lambda: self._close(message),
            link.Sketch: lambda: _to_its_end(self._sketch, message),
            link.Measure: lambda: self._measure(message),
            link.Combine: lambda: self._combine(message, blobs),
            link.Advance: lambda: self._advance(message),
            link.Publish: lambda: _to_its_end(self._publish, message),
        }
        return await answers[type(message)]()

    async def _obey(self, message: Any) -> None:
        """Do what the lead says and waits for no answer to. Raises Finished."""
        if isinstance(message, link.Stop):
            await self._give_up()
            if message.finished:
                raise Finished
        elif isinstance(message, link.Adopt):
            self._adopt(decode(Charter, message.charter))
        elif isinstance(message, link.Grant):
            self._grant(message)
        elif self._round is None or message.round_id != self._round.opened.context.round_id:
            return
        elif isinstance(message, link.End):
            self._round.opened.part.end(message.client, message.upload_id)
        elif (lane := self._round.lanes.get(message.client)) is not None:
            lane.cancel()  # Whoever is granted the next one waits for its thread to end.

    def _adopt(self, charter: Charter) -> None:
        """Work under a new revision of the same authority. Raises OpenError or ConfigError."""
        if charter.federation.revision <= self.federation.revision:
            return
        check_signature(charter, self.federation.authority)
        charter.federation.require_follows(self.federation)
        self.charter, self.federation = charter, charter.federation
        if self._role is not None:
            self._role.federation = charter.federation
        if self.serving is not None:
            self.serving = replace(self.serving, charter=charter)

    def _restore(self, message: link.Restore) -> tuple[Any, ...]:
        """Put our slice together, from the files that have it."""
        span = link.span_of(message, self.federation.terms.tile)
        if message.slices:
            state = self._assembled(message)
        else:
            terms = self.federation.terms
            _, first = self.file.initial_model()
            state = optimiser.start(np.ascontiguousarray(first[span.part]), terms.optimiser)
        self._role = Shard(self.federation, self._known_identity(), span, state)
        self._candidate = None
        model = self._role.state.model
        return (link.Restored(vector_leaves(model), self._downloads.show(model)),)

    def _assembled(self, message: link.Restore) -> ServerState:
        """Our values, of all slices that have some of them. Raises StateError."""
        start, stop = message.start, message.start + message.length
        parts = []
        for name in message.slices:
            first, end = max(start, name.start), min(stop, name.start + name.length)
            if first < end:
                whole = self._files.load(message.number, name, message.key)
                inside = slice(first - name.start, end - name.start)
                parts.append(optimiser.part_of(whole, inside))
        return parts[0] if len(parts) == 1 else optimiser.joined(parts)

    async def _open(self, message: link.Open) -> tuple[Any, ...]:
        await self._give_up()
        role = self._shard()
        spool = Spool(
            self.file.state,
            terms=self.federation.terms,
            rows=len(self.federation.clients),
            limit=self.file.storage.spool_mib * _MIB,
            span=role.span,
        )
        opened = await _to_its_end(
            role.open_round, message.number, message.round_id, self._memory, spool
        )
        self._round = _OpenRound(opened, spool)
        return (link.Opened(opened.last_square),)

    def _grant(self, message: link.Grant) -> None:
        """A lane for what is missing of an upload. It lasts until that is complete, or ends."""
        upload = message.client, message.upload_id
        try:
            round_ = self._open_round(message.round_id)
            if message.begun is not None:
                with suppress(StorageFull):  # Then there is no arrival.
                    round_.opened.part.begin(message.begun)
            arrival = self._arrival(round_, message)
        except LocalProtocolError as unable:
            self._tell_lead(link.Broken(*upload, "broken", str(unable)))
            return
        if arrival.complete:
            return
        if (older := round_.lanes.get(message.client)) is not None:
            older.cancel()  # It was of an upload that this one replaces.
        lane = asyncio.create_task(self._lane(message, round_, arrival))
        round_.lanes[message.client] = lane
        round_.tasks.add(lane)
        lane.add_done_callback(round_.tasks.discard)

    async def _resume(self, message: link.Resume) -> tuple[Any, ...]:
        """End the lane of an upload, and tell how far it has come."""
        round_ = self._open_round(message.round_id)
        arrival = self._arrival(round_, message)
        if (older := round_.lanes.pop(message.client, None)) is not None:
            await _end([older])
        if arrival.complete:
            self._told(message, round_)
        return (link.Resumed(arrival.next),)

    def _arrival(self, round_: _OpenRound, message: link.Grant | link.Resume) -> Arrival:
        arrival = round_.opened.part.upload(message.client, message.upload_id)
        if arrival is None:
            raise LocalProtocolError("there is no room for an upload, or it was replaced")
        return arrival

    async def _lane(self, message: link.Grant, round_: _OpenRound, arrival: Arrival) -> None:
        """Take tiles, and tell the lead what has become of them."""
        broken = partial(link.Broken, message.client, message.upload_id)
        receiver = Receiver(arrival, partial(_sealed_size, round_.opened))
        party = self._clients().get(message.client) if message.own else None
        with self._tickets.issue(receiver, party, message.ticket) as lane:
            try:
                await lane.received()
            except UpdateRejected as rejected:
                if arrival.spoilt is not None:
                    self._tell_lead(
                        link.Spoilt(message.client, message.upload_id, str(arrival.spoilt))
                    )
                else:
                    self._tell_lead(broken("closed", str(rejected.reason)))
            except TimeoutError:
                self._tell_lead(broken("late", "too slow"))
            except OpenError as odd:
                self._tell_lead(broken("odd", str(odd)))
            except (LaneBroken, OstrakaError) as ended:
                self._tell_lead(broken("broken", str(ended)))
            else:
                self._told(message, round_)

    def _told(self, message: link.Grant | link.Resume, round_: _OpenRound) -> None:
        part, upload = round_.opened.part, (message.client, message.upload_id)
        arrived = part.arrived(*upload)
        if arrived is not None:
            resident = part.resident(*upload)
            self._tell_lead(link.Taken(*upload, arrived.squares, arrived.along, resident))

    async def _close(self, message: link.Close) -> tuple[Any, ...]:
        round_ = self._open_round(message.round_id)
        if link.cohort_digest(message.round_id, message.rows) != message.cohort:
            raise MalformedMessage("a cohort is not the one that it is named")
        await _end(round_.tasks)
        rows = [(row.client, row.upload_id) for row in message.rows]
        round_.cohort = round_.opened.close(rows)
        round_.digest = message.cohort
        hardening.give_back()
        return (link.Closed(message.cohort),)

    def _sketch(self, message: link.Sketch) -> tuple[Any, ...]:
        cohort = self._closed(message)[1]
        sketches = [row.sketch for row in cohort.rows if row.sketch is not None]
        together = cohort.context.vectors.take(sum(map(len, sketches)))
        return link.Sketched(message.cohort), np.concatenate(sketches, out=together)

    async def _measure(self, message: link.Measure) -> tuple[Any, ...]:
        round_, cohort = self._closed(message)
        before = _without(cohort, message.absent)
        terms = self.federation.terms
        if not terms.inside:
            await self.pool.wait_for(terms.workers, _WORKERS_S)
        partial_ = await _to_its_end(self._columns(round_, cohort).measure)
        sums, counted = partial_.sums, hasattr(partial_.sums, "gram")
        reply = link.MeasuredPart(
            cohort=message.cohort,
            changed=_changed(cohort, before),
            by=partial_.by,
            counted=counted,
            rounded=getattr(sums, "rounded", False),
            error=getattr(sums, "error", 0.0),
        )
        return reply, *link.partial_arrays(partial_)

    async def _combine(self, message: link.Combine, blobs: list[bytearray]) -> tuple[Any, ...]:
        round_, cohort = self._closed(message)
        before = _without(cohort, message.absent)
        scales, plan = link.read_plan(message, blobs, len(cohort.rows))
        columns = self._columns(round_, cohort)
        with suppress(UpdateRejected):
            await _to_its_end(columns.combine, scales, plan)
            round_.plan = message.plan
        return (link.Combined(message.cohort, message.plan, _changed(cohort, before)),)

    async def _advance(self, message: link.Advance) -> tuple[Any, ...]:
        """Move our slice, and make it durable under the lead's key."""
        round_, cohort = self._closed(message)
        if round_.plan != message.plan or not message.plan:
            raise LocalProtocolError("another plan was carried out")
        columns = self._columns(round_, cohort)
        leaves = await _to_its_end(partial(columns.advance, null=message.null))
        made = columns.slice
        if made is None:
            raise LocalProtocolError("a round that has advanced has a slice")
        number, start = round_.opened.context.number, self._shard().span.start
        name = await _to_its_end(self._files.save, number, start, message.key, made.state)
        self._candidate = name, made.state
        return (link.Advanced(message.cohort, message.plan, leaves, name),)

    def _publish(self, message: link.Publish) -> tuple[Any, ...]:
        """Go on from the slice that was confirmed."""
        role = self._shard()
        if self._candidate is not None and self._candidate[0] == message.slice:
            state = self._candidate[1]
        else:
            state = self._files.load(message.number, message.slice, message.key)
        if (message.slice.start, message.slice.length) != (role.span.start, role.span.length):
            raise LocalProtocolError("this slice is another shard's")
        self._role = Shard(self.federation, self._known_identity(), role.span, state)
        self._candidate = None
        self._files.prune(message.number, message.slice, message.key)
        model = self._role.state.model
        return (link.Moved(vector_leaves(model), self._downloads.show(model)),)

    # The steps of the above.

    def _columns(self, round_: _OpenRound, cohort: Cohort) -> OwnColumns:
        if round_.columns is None:
            names = [member.name for member in self.federation.workers]
            workers = self.pool.remote(names, self.file.rounds.measure_s)
            loop = asyncio.get_running_loop()

            def tell(event: Event) -> None:
                loop.call_soon_threadsafe(self.tell, event)

            round_.columns = OwnColumns(cohort, self._threads, workers, tell)
        return round_.columns

    async def _give_up(self) -> None:
        """End the round that is open, if any, and forget its rows."""
        round_, self._round = self._round, None
        if round_ is not None:
            round_.opened.part.stop()
            await _end(round_.tasks)
            round_.spool.close()

    def _open_round(self, round_id: bytes | None = None) -> _OpenRound:
        if self._round is None:
            raise LocalProtocolError("no round is open at this shard")
        if round_id not in (None, self._round.opened.context.round_id):
            raise LocalProtocolError("another round is open at this shard")
        return self._round

    def _closed(self, message: Any) -> tuple[_OpenRound, Cohort]:
        round_ = self._open_round(message.round_id)
        if round_.cohort is None or round_.digest != message.cohort:
            raise LocalProtocolError("this cohort is not the one that was closed")
        return round_, round_.cohort

    def _clients(self) -> dict[str, Member]:
        """By name. They are put together once for each revision, not for each upload."""
        if self._named is None or self._named[0] is not self.federation:
            named = {member.name: member for member in self.federation.clients}
            self._named = self.federation, named
        return self._named[1]

    def _shard(self) -> Shard:
        if self._role is None:
            raise LocalProtocolError("this shard has no slice yet")
        return self._role

    def _known_identity(self) -> Identity:
        if self._identity is None:
            raise LocalProtocolError("nobody has joined")
        return self._identity

    def _tell_lead(self, event: Any) -> None:
        if self._link is not None:
            self._link.say(event)


class ShardServicer(EnclaveServicer):
    """Answers workers. The lead answers everybody else; clients come over lanes alone."""

    def __init__(self, shard: ShardService, door: Front, platform: Platform) -> None:
        limits = shard.file.limits
        self._shard = shard
        self._door = door
        self._calls = Share(_CALLS)
        self._reception = Reception(
            pool=shard.pool,
            quoting=Quoting(platform.provider),
            newest=Newest(),
            gossip=Rate(limits.requests_per_minute),
            tell=shard.tell,
            prove=lambda peer, party: door.prove(door.visitor(peer), party),
        )

    async def Work(self, requests: AsyncIterator[wire.WorkerSays], context: Context) -> None:
        async with streaming(context):
            serving, idle_s = self._shard.serving, self._shard.file.limits.idle_s
            if serving is None:
                await context.abort(grpc.StatusCode.UNAVAILABLE, _NOT_JOINED)
                raise AssertionError  # abort has raised
            visitor = self._door.visitor(context.peer())
            with self._calls.of(visitor.address):
                hello, _ = await self._reception.meet(serving, requests, context, idle_s)
            await self._reception.work(serving, hello, requests, context)
            if self._shard.finished:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, FINISHED)


def _without(cohort: Cohort, absent: tuple[str, ...]) -> frozenset[str]:
    """Leave out whom the lead has left out. Returns all who are out."""
    for client in absent:
        cohort.standing.reject(client, Rejection.CHANGED)
    return frozenset(cohort.standing.rejected)


def _changed(cohort: Cohort, before: frozenset[str]) -> tuple[str, ...]:
    """Whose rows were found to have changed since."""
    return tuple(name for name in cohort.standing.rejected if name not in before)


def _sealed_size(opened: ShardRound, index: int) -> int:
    """How many bytes a sealed tile of a shard has."""
    context = opened.context
    return context.terms.tile_bytes(context.span.first + index) + TAG_BYTES


async def _to_its_end(work: Callable[..., _T], *given: Any) -> _T:
    """What a thread makes of it. If nobody waits for that any more, this still ends after it.

    A thread cannot be ended from outside, and the next round has its rows in the same memory.
    """
    thread = asyncio.ensure_future(asyncio.to_thread(work, *given))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        while not thread.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([thread])
        thread.exception()  # Nobody is left to hear of it.
        raise


async def _end(lanes: Iterable["asyncio.Task[None]"]) -> None:
    tasks = list(lanes)
    for lane in tasks:
        lane.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _dial(settings: Settings) -> grpc.aio.Channel:
    require_address(settings.lead)
    options = channel_options(_LARGEST, transfers=True)
    if settings.tls_ca is None:
        return grpc.aio.insecure_channel(settings.lead, options=options)
    try:
        authorities = settings.tls_ca.read_bytes()
    except OSError as unreadable:
        raise ConfigError(f"{settings.tls_ca}: {unreadable.strerror}") from None
    credentials = grpc.ssl_channel_credentials(authorities)
    return grpc.aio.secure_channel(settings.lead, credentials, options=options)


async def _said(hello: "asyncio.Future[bytes]", sealed: Outbox) -> AsyncIterator[wire.ShardSays]:
    """All that a shard says to its lead."""
    yield wire.ShardSays(hello=await hello)
    while messages := await sealed.take():
        yield wire.ShardSays(sealed=wire.Sealed(messages=messages))


async def _raise_status(call: Any) -> None:
    """Raises how the stream has ended, which nobody has proved to be the lead's word."""
    code, details = await call.code(), await call.details()
    raise RemoteProtocolError(f"{code.name.lower().replace('_', ' ')}: {details}")

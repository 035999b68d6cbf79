"""The lead's side of its shards: who has joined, and what each is asked.

The event loop owns the streams. A round's steps are driven by a thread, which waits for replies;
what becomes of tiles is told on the loop. A shard that leaves takes its part of an open round with
it: that round is opened again, under new keys, when all shards are there.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from ostraka.arrays import AnyArray, Buffer, Float32, Float64
from ostraka.attestation import policy_file
from ostraka.config import Federation, Span, Terms, cut_into_spans
from ostraka.core.rules import Columnwise, Plan
from ostraka.crypto.aead import KEY_BYTES
from ostraka.enclave import link
from ostraka.enclave.link import EVENTS, REPLIES, Link, Outbox
from ostraka.enclave.peering import PeerChannel
from ostraka.enclave.storage.models import SliceName, Slices
from ostraka.encoding import encode
from ostraka.errors import (
    LocalProtocolError,
    MalformedMessage,
    Rejection,
    RoundFailed,
    UpdateRejected,
    printable,
)
from ostraka.messages import Charter, joined_digest
from ostraka.protocol.enclave import Arrived, Begun, Cohort, Enclave, Intake, Leaves, Partial
from ostraka.protocol.enclave.cohort import RoundContext, Row
from ostraka.protocol.enclave.propose import Slice
from ostraka.transport import TICKET_BYTES

_RESTORE_S = 600.0  # to read a slice from disk
_RESUME_S = 30.0
_LONGEST = 200  # characters of why a shard cannot do something


class Connected:
    """One shard's stream. revision: that it was admitted under. on_event: takes what becomes of
    tiles, on the loop. on_end: called there when the stream has ended."""

    def __init__(
        self,
        number: int,
        channel: PeerChannel,
        loop: asyncio.AbstractEventLoop,
        revision: int = 0,
    ) -> None:
        self.number = number
        self.revision = revision
        self.address = ""
        self.model: tuple[bytes, ...] = ()  # the leaves of its slice
        self.shows = b""  # the digest of the model that its ticket is for
        self.ticket = b""
        self.outgoing = Outbox()
        self.on_event: Callable[[Any], None] = lambda event: None
        self.on_end: Callable[[], None] = lambda: None
        self.ended = False
        self.over = asyncio.Event()
        self._loop = loop
        self._link = Link(channel, self.outgoing.put, (*REPLIES, *EVENTS), self._heard)
        self._saying = Lock()
        self._asked: deque[Future[tuple[Any, list[bytearray]]]] = deque()

    def tell(self, message: Any) -> None:
        """Say something that is not answered."""
        with self._saying:
            if not self.ended:
                self._link.say(message)

    def ask(
        self, message: Any, *arrays: Buffer | AnyArray
    ) -> "Future[tuple[Any, list[bytearray]]]":
        """Say something. The reply, and what is behind it, or RoundFailed."""
        reply: Future[tuple[Any, list[bytearray]]] = Future()
        with self._saying:
            if self.ended:
                reply.set_exception(self._left())
                return reply
            self._asked.append(reply)
            self._link.say(message, *arrays)
        return reply

    def expect(self) -> "Future[tuple[Any, list[bytearray]]]":
        """What the shard says first, unasked."""
        reply: Future[tuple[Any, list[bytearray]]] = Future()
        self._asked.append(reply)
        return reply

    def hear(self, sealed: bytes) -> None:
        """Take in what came. Raises OpenError or MalformedMessage, which ends the stream."""
        self._link.hear(sealed)

    def end(self) -> None:
        """Nothing comes any more: whoever waits for a reply is told so."""
        with self._saying:
            if self.ended:
                return
            self.ended = True
            waiting, self._asked = self._asked, deque()
        for reply in waiting:
            if not reply.done():
                reply.set_exception(self._left())
        self.outgoing.end()
        self._loop.call_soon_threadsafe(self._note_end)

    def _note_end(self) -> None:
        self.over.set()
        self.on_end()

    def note(self, reply: link.Restored | link.Moved, model: bytes) -> None:
        """Take in what a shard says of its slice of this model."""
        self.model, self.shows, self.ticket = reply.model, model, reply.ticket

    def require_here(self) -> None:
        """Raises RoundFailed once the stream has ended."""
        if self.ended:
            raise self._left()

    def _left(self) -> RoundFailed:
        return RoundFailed(f"shard {self.number} has left")

    def _heard(self, message: Any, blobs: list[bytearray]) -> None:
        if isinstance(message, EVENTS):
            self.on_event(message)
            return
        if not self._asked:
            raise MalformedMessage("a shard has answered what it was not asked")
        reply = self._asked.popleft()
        if reply.done():
            return  # Nobody waits for it any more.
        if isinstance(message, link.Failed):
            why = printable(message.why, _LONGEST)  # It may name a file, and so its host's folder.
            reply.set_exception(RoundFailed(f"shard {self.number}: {why}"))
        else:
            reply.set_result((message, blobs))


@dataclass
class _Tiles:
    """What the lead has heard of one upload at one shard."""

    upload_id: bytes
    arrived: Arrived | None = None
    spoilt: Rejection | None = None
    resident: bool = True


@dataclass(frozen=True)
class RemoteLane:
    """A lane to a shard. settled: what will become of it. resumed: the shard's answer, if the
    upload was granted a lane before."""

    ticket: bytes = field(repr=False)
    settled: "asyncio.Future[Any]"
    resumed: "Future[tuple[Any, list[bytearray]]] | None"

    async def taken(self) -> int:
        """How many tiles are there. Raises RoundFailed."""
        if self.resumed is None:
            return 0
        async with asyncio.timeout(_RESUME_S):
            reply, _ = await asyncio.wrap_future(self.resumed)
        resumed: link.Resumed = reply
        return resumed.taken


class RemotePart:
    """A part of a round whose tiles come to another process."""

    def __init__(self, shard: Connected, context: RoundContext, span: Span) -> None:
        self.shard = shard
        self.span = span
        self._round_id = context.round_id
        self._uploads: dict[str, _Tiles] = {}
        self._begun: dict[str, Begun] = {}  # that the shard has not heard of
        # By client, too: ids are public, and anyone may choose one that another client uses.
        self._waiting: dict[tuple[str, bytes], asyncio.Future[Any]] = {}
        self._granted: set[tuple[str, bytes]] = set()
        self._stopped = False
        shard.on_event = self._on_event
        shard.on_end = partial(self._settle_all, "gone", f"shard {shard.number} has left")

    def begin(self, begun: Begun, row: Row | None = None) -> None:
        """The shard hears of it with its first lane: two messages cost twice as much as one."""
        self._uploads[begun.client] = _Tiles(begun.upload_id)
        self._begun[begun.client] = begun

    def taken(self, client: str, upload_id: bytes) -> int:
        known = self._of(client, upload_id)
        return self.span.tiling.count if known is not None and known.arrived is not None else 0

    def arrived(self, client: str, upload_id: bytes) -> Arrived | None:
        known = self._of(client, upload_id)
        return None if known is None else known.arrived

    def spoilt(self, client: str, upload_id: bytes) -> Rejection | None:
        known = self._of(client, upload_id)
        return None if known is None else known.spoilt

    def resident(self, client: str, upload_id: bytes) -> bool:
        known = self._of(client, upload_id)
        return known is None or known.resident

    def end(self, client: str, upload_id: bytes) -> bool:
        self.shard.tell(link.End(self._round_id, client, upload_id))
        return self.arrived(client, upload_id) is not None

    def stop(self) -> None:
        """Whoever still sends is too late. The shard ends its lanes when it is told that the round
        is closed, or given up, and says nothing of them."""
        self._stopped = True
        self._settle_all("closed", str(Rejection.LATE))

    def _settle_all(self, code: str, why: str) -> None:
        """No more will be heard of any lane."""
        waiting, self._waiting = self._waiting, {}
        for upload, settled in waiting.items():
            if not settled.done():
                settled.set_result(link.Broken(*upload, code, why))

    def grant(self, client: str, upload_id: bytes, *, own: bool) -> RemoteLane:
        """A lane for the tiles that are missing. The shard hears of it as soon as the client.

        own: the client itself brings them. Raises UpdateRejected once the round is closed, and
        RoundFailed once the shard has left.
        """
        if self._stopped:
            raise UpdateRejected(client, Rejection.LATE)
        self.shard.require_here()
        upload, resumed = (client, upload_id), None
        settled: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[upload] = settled
        if upload in self._granted:
            resumed = self.shard.ask(link.Resume(self._round_id, *upload))
        self._granted.add(upload)
        ticket = os.urandom(TICKET_BYTES)
        self.shard.tell(link.Grant(self._round_id, *upload, own, ticket, self._unheard(*upload)))
        return RemoteLane(ticket, settled, resumed)

    def _unheard(self, client: str, upload_id: bytes) -> Begun | None:
        """What the shard has not heard of an upload, which it hears now."""
        begun = self._begun.get(client)
        if begun is None or begun.upload_id != upload_id:
            return None
        return self._begun.pop(client)

    def cut(self, client: str, upload_id: bytes) -> None:
        """End the lane of an upload whose call has ended: its turn is another's now."""
        self._waiting.pop((client, upload_id), None)
        self.shard.tell(link.Cut(self._round_id, client, upload_id))

    def _of(self, client: str, upload_id: bytes) -> _Tiles | None:
        known = self._uploads.get(client)
        return known if known is not None and known.upload_id == upload_id else None

    def _on_event(self, event: Any) -> None:
        known = self._of(event.client, event.upload_id)
        if known is not None and isinstance(event, link.Taken):
            known.arrived = Arrived(event.squares, event.along)
            known.resident = event.resident
        if known is not None and isinstance(event, link.Spoilt):
            known.spoilt = Rejection(event.reason)
        waiting = self._waiting.pop((event.client, event.upload_id), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(event)


class RemoteColumns:
    """The columns that another process has, of a closed round. seconds: for one reply."""

    slice: Slice | None = None

    def __init__(self, shard: Connected, cohort: Cohort, key: bytes, seconds: float) -> None:
        self._shard = shard
        self._cohort = cohort
        self._key = key
        self._seconds = seconds
        self._round_id = cohort.context.round_id
        self._digest = link.cohort_digest(self._round_id, cohort.rows)
        self._plan = b""
        self.name: SliceName | None = None  # of the slice that it has sealed

    def close(self) -> None:
        """Fix the rows."""
        rows = tuple(link.Upload(row.client, row.upload_id) for row in self._cohort.rows)
        self._ask(link.Close(self._round_id, self._digest, rows), link.Closed)

    def add_sketches(self, total: Sequence[Float32]) -> None:
        _, blobs = self._ask(link.Sketch(self._round_id, self._digest), link.Sketched)
        parts = _array(blobs, np.float32, len(total), len(total[0]))
        for sum_, part in zip(total, parts, strict=True):
            np.add(sum_, part, out=sum_)

    def measure(self) -> Partial:
        message = link.Measure(self._round_id, self._digest, self._absent)
        reply, blobs = self._ask(message, link.MeasuredPart)
        self._reject(reply.changed)
        return link.read_partial(reply, blobs, len(self._cohort.rows))

    def combine(self, scales: Float64, plan: Plan) -> None:
        columnwise = isinstance(plan, Columnwise)
        blank = link.Combine(
            round_id=self._round_id,
            cohort=self._digest,
            plan=bytes(32),
            absent=self._absent,
            columnwise=columnwise,
            last=0.0 if isinstance(plan, Columnwise) else plan.last,
            reducer=plan.reducer if isinstance(plan, Columnwise) else "",
            count=plan.count if isinstance(plan, Columnwise) else 0,
        )
        arrays = [scales, *link.plan_arrays(plan)]
        self._plan = link.plan_digest(blank, arrays)
        reply, _ = self._ask(replace(blank, plan=self._plan), link.Combined, *arrays)
        if reply.plan != self._plan:
            raise RoundFailed(f"shard {self._shard.number} has carried out another plan")
        self._reject(reply.changed)
        if reply.changed:
            raise UpdateRejected(reply.changed[0], Rejection.CHANGED)

    def advance(self, *, null: bool) -> Leaves:
        message = link.Advance(self._round_id, self._digest, self._plan, null, self._key)
        reply, _ = self._ask(message, link.Advanced)
        if reply.plan != self._plan:
            raise RoundFailed(f"shard {self._shard.number} has carried out another plan")
        self.name = reply.slice
        leaves: Leaves = reply.leaves
        return leaves

    @property
    def _absent(self) -> tuple[str, ...]:
        standing = self._cohort.standing
        return tuple(name for name in self._cohort.clients if name not in standing)

    def _reject(self, changed: Sequence[str]) -> None:
        for client in changed:
            if client not in self._cohort.clients:
                raise RoundFailed(f"shard {self._shard.number} speaks of other rows")
            self._cohort.standing.reject(client, Rejection.CHANGED)

    def _ask(
        self, message: Any, kind: type[Any], *arrays: Buffer | AnyArray
    ) -> tuple[Any, list[bytearray]]:
        """The reply, of this kind and about this cohort. Raises RoundFailed."""
        try:
            reply, blobs = self._shard.ask(message, *arrays).result(self._seconds)
        except FutureTimeout:
            raise RoundFailed(f"shard {self._shard.number} did not answer in time") from None
        if not isinstance(reply, kind) or reply.cohort != self._digest:
            raise RoundFailed(f"shard {self._shard.number} has answered something else")
        return reply, blobs


@dataclass
class Shards:
    """All shards of one lead. count: how many there must be. lost: called when one leaves."""

    count: int
    connected: dict[int, Connected] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    lost: Callable[[int], None] = lambda number: None
    parts: tuple[RemotePart, ...] = ()  # of the open round
    columns: tuple[RemoteColumns, ...] = ()  # of the closed round
    key: bytes = field(default=b"", repr=False)  # of the slices that the round will have

    def spans(self, terms: Terms) -> tuple[Span, ...]:
        """Which values each shard has. Raises ConfigError."""
        return cut_into_spans(terms.tiling, self.count)

    @contextmanager
    def joined(self, shard: Connected, revision: int) -> Iterator[None]:
        """Count a shard that is restored. Raises RoundFailed if there is one of its number: whoever
        runs the same code could else take the place of a shard in the middle of a round.

        revision: the newest. One that was adopted while the shard joined was told to the others,
        and a shard that did not hear of it would work by terms and rosters that are over.
        """
        if shard.number in self.connected:
            raise RoundFailed(f"there is a shard {shard.number} already")
        if shard.revision != revision:
            raise RoundFailed(
                f"shard {shard.number} was admitted under revision {shard.revision}, and revision "
                f"{revision} was adopted since: it has to join again under that"
            )
        self.connected[shard.number] = shard
        self.changed.set()
        try:
            yield
        finally:
            shard.end()
            if self.connected.get(shard.number) is shard:
                del self.connected[shard.number]
            self.lost(shard.number)

    @property
    def missing(self) -> tuple[int, ...]:
        """The numbers of those that are not here."""
        return tuple(each for each in range(self.count) if each not in self.connected)

    @property
    def complete(self) -> bool:
        return not self.missing

    def show(self, model: bytes) -> bool:
        """Whether all shards are here, with their slices of this model and of no other."""
        return self.complete and all(each.shows == model for each in self.connected.values())

    async def restore(
        self, shard: Connected, terms: Terms, state: Slices, number: int, model: bytes
    ) -> None:
        """Have a shard load its slice. Raises RoundFailed, which says what it lacks."""
        span = self.spans(terms)[shard.number]
        message = link.Restore(span.start, span.length, number, model, state.key, state.slices)
        async with asyncio.timeout(_RESTORE_S):
            reply, _ = await asyncio.wrap_future(shard.ask(message))
        shard.note(reply, model)

    def require_model(self, terms: Terms, model: bytes) -> None:
        """Raises RoundFailed unless the slices of all shards are this model."""
        leaves = [leaf for number in range(self.count) for leaf in self.connected[number].model]
        if joined_digest(terms.dimension, leaves) != model:
            raise RoundFailed("the shards' slices are not those of the last receipt's model")

    async def open_round(self, enclave: Enclave, terms: Terms) -> Intake:
        """Open a round at all shards, which must be there. Raises RoundFailed."""
        self.require_model(terms, enclave.model)
        spans = self.spans(terms)
        here = [self.connected[number] for number in range(self.count)]
        number, round_id = enclave.next_number, enclave.new_round_id()
        asked = [shard.ask(link.Open(number, round_id)) for shard in here]
        try:
            async with asyncio.timeout(_RESTORE_S):
                replies = [await asyncio.wrap_future(each) for each in asked]
        except TimeoutError:
            raise RoundFailed("a shard did not open the round in time") from None
        for shard in here:
            shard.require_here()
        opened = [reply for reply, _ in replies]
        squares = [each.last_square for each in opened if each.last_square is not None]
        made: list[RemotePart] = []

        def part(at: int, context: RoundContext) -> RemotePart:
            made.append(RemotePart(here[at], context, spans[at]))
            return made[-1]

        last_square = sum(squares) if terms.composition.needs_last else None
        intake = enclave.lead_round(spans, part, last_square, round_id=round_id)
        self.parts, self.columns, self.key = tuple(made), (), os.urandom(KEY_BYTES)
        return intake

    def close(self, cohort: Cohort, seconds: float) -> tuple[RemoteColumns, ...]:
        """The columns of a closed round, at all shards. It blocks. Raises RoundFailed."""
        self.columns = tuple(
            RemoteColumns(part.shard, cohort, self.key, seconds) for part in self.parts
        )
        for columns in self.columns:
            columns.close()
        return self.columns

    def slices(self) -> Slices:
        """What names the slices of the round that was just finished."""
        names = [columns.name for columns in self.columns]
        sealed = tuple(name for name in names if name is not None)
        if len(sealed) != self.count:
            raise LocalProtocolError("not all shards have sealed their slices")
        return Slices(self.key, sealed)

    async def publish(self, number: int, model: bytes, state: Slices) -> None:
        """Tell the shards that an outcome was confirmed. One that is away, or whose span has
        changed since, is told when it joins."""
        asked = []
        for at, shard in list(self.connected.items()):
            if at < len(state.slices):
                message = link.Publish(number, model, state.key, state.slices[at])
                asked.append((shard, shard.ask(message)))
            else:
                shard.end()
        for shard, reply in asked:
            try:
                async with asyncio.timeout(_RESTORE_S):
                    moved, _ = await asyncio.wrap_future(reply)
                shard.note(moved, model)
            except (RoundFailed, TimeoutError):
                shard.end()

    def stop_round(self) -> None:
        """The open round is given up."""
        for part in self.parts:
            part.shard.tell(link.Stop(finished=False))
        self.parts = self.columns = ()

    def require_fit(self, federation: Federation) -> None:
        """Raises ConfigError unless shards can work under this revision."""
        policy_file.of_shards(federation)
        self.spans(federation.terms)

    def adopt(self, charter: Charter, before: Federation) -> None:
        """Have all shards work under a new revision, from the next round on.

        They join again if they are held to another policy, which has to be met before it counts,
        and if it moves their ranges.
        """
        after = charter.federation
        again = after.shard_policy != before.shard_policy
        again = again or self.spans(after.terms) != self.spans(before.terms)
        for shard in list(self.connected.values()):
            shard.tell(link.Adopt(encode(charter)))
            if again:
                del self.connected[shard.number]
                shard.end()

    def end(self, *, finished: bool) -> None:
        """End all streams. finished: all rounds are over, and no shard is needed any more."""
        for shard in list(self.connected.values()):
            shard.tell(link.Stop(finished))
            shard.end()


def _array(blobs: Sequence[bytearray], dtype: Any, *shape: int) -> AnyArray:
    try:
        (blob,) = blobs
        return np.frombuffer(blob, dtype).reshape(shape)
    except ValueError:
        raise RoundFailed("a shard has sent an array of another shape") from None

"""What a lead and its shards say to each other, over the channel that both have attested.

    lead                                        shard
       <------- Ready -------------------------    where clients and workers find it
       -------- Restore ---------------------->    which slices of which number, and its own span
       <------- Restored ----------------------    the leaves of its slice, and a ticket for it
       -------- Open ------------------------->    a round
       <------- Opened ------------------------
       -------- Grant, many ------------------>    an upload that was let in; a lane for its tiles
       -------- Resume, some ----------------->    it comes again, and is granted another lane
       <------- Resumed -----------------------
       -------- Cut, End, some --------------->    its call has ended; it is replaced
       <------- Taken, Spoilt or Broken, many -    what has become of its tiles
       -------- Close ------------------------>    the rows, in their order
       <------- Closed ------------------------
       -------- Sketch, or Measure ----------->
       <------- Sketched, or MeasuredPart ----->   with arrays
       -------- Combine ---------------------->    the plan
       <------- Combined ----------------------
       -------- Advance ---------------------->    and seal the new slice under this key
       <------- Advanced ----------------------    it is durable: the lead may sign now
       -------- Publish ---------------------->    it was confirmed
       <------- Moved -------------------------
       -------- Adopt, Stop ------------------>    between rounds

Every message after `Open` names the round, and after `Close` the cohort, which is a digest of all
rows in their order; after `Combine` also the plan. So parts of two rounds, attempts or plans never
come together, whatever is started again in between. Replies come in the order of what was asked;
what becomes of tiles is told when it happens.
"""

import asyncio
import hashlib
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ostraka.arrays import AnyArray, Buffer
from ostraka.config import Span
from ostraka.core.rules import Columnwise, Plan, Weights
from ostraka.enclave.peering import PeerChannel
from ostraka.enclave.storage.models import SliceName
from ostraka.encoding import Digest, Id, Key, decode, encode, pack
from ostraka.errors import MalformedMessage
from ostraka.protocol.enclave import Begun, Counted, Leaves, Partial, Summed
from ostraka.protocol.enclave.cohort import Row

_PIECE = 2**20  # bytes of an array in one message of the channel
_AT_ONCE = 2**16  # bytes of short messages that are sent together
_HEAD = struct.Struct(">cI")
_WHOLE, _MORE = b"M", b"A"
_LARGEST = 2**40  # bytes of arrays behind one message
_COHORT = b"ostraka/shard/cohort/v1"
_PLAN = b"ostraka/shard/plan/v1"


@dataclass(frozen=True)
class Ready:
    LABEL: ClassVar[bytes] = b"ostraka/shard/ready/v1"

    address: str


@dataclass(frozen=True)
class Restore:
    """Which state is the newest. key: that its slices are sealed under. slices: none for the first
    model, which every shard has beside its federation file."""

    LABEL: ClassVar[bytes] = b"ostraka/shard/restore/v1"

    start: int
    length: int
    number: int
    model: Digest
    key: Key = field(repr=False)
    slices: tuple[SliceName, ...]


@dataclass(frozen=True)
class Restored:
    """model: the leaves of its slice. ticket: of the lanes that bring it to clients."""

    LABEL: ClassVar[bytes] = b"ostraka/shard/restored/v2"

    model: tuple[Digest, ...]
    ticket: bytes


@dataclass(frozen=True)
class Open:
    LABEL: ClassVar[bytes] = b"ostraka/shard/open/v1"

    number: int
    round_id: Id


@dataclass(frozen=True)
class Opened:
    """last_square: as `ShardRound` has it."""

    LABEL: ClassVar[bytes] = b"ostraka/shard/opened/v1"

    last_square: float | None = field(repr=False)


@dataclass(frozen=True)
class Grant:
    """A lane. ticket: opens it; the lead has drawn it, so that nobody waits for an answer. own: the
    client itself brings its upload, and not somebody who has seen its header. begun: of an upload
    that was let in just now, in the place of an earlier one; None if it comes again."""

    LABEL: ClassVar[bytes] = b"ostraka/shard/grant/v3"

    round_id: Id
    client: str
    upload_id: Id
    own: bool
    ticket: Key = field(repr=False)
    begun: Begun | None = None


@dataclass(frozen=True)
class Resume:
    """The lane that an upload was granted before has ended, or must."""

    LABEL: ClassVar[bytes] = b"ostraka/shard/resume/v1"

    round_id: Id
    client: str
    upload_id: Id


@dataclass(frozen=True)
class Resumed:
    """taken: how many tiles are here."""

    LABEL: ClassVar[bytes] = b"ostraka/shard/resumed/v1"

    taken: int


@dataclass(frozen=True)
class Taken:
    """All tiles of an upload are here."""

    LABEL: ClassVar[bytes] = b"ostraka/shard/taken/v1"

    client: str
    upload_id: Id
    squares: float = field(repr=False)
    along: float = field(repr=False)
    resident: bool


@dataclass(frozen=True)
class Spoilt:
    """The client itself has spoilt its upload."""

    LABEL: ClassVar[bytes] = b"ostraka/shard/spoilt/v1"

    client: str
    upload_id: Id
    reason: str


@dataclass(frozen=True)
class Broken:
    """A lane has ended before its upload was complete. code: how the client's call is to end."""

    LABEL: ClassVar[bytes] = b"ostraka/shard/broken/v1"

    client: str
    upload_id: Id
    code: str
    why: str


@dataclass(frozen=True)
class Cut:
    """The call that a lane was granted to has ended. What came over it stays."""

    LABEL: ClassVar[bytes] = b"ostraka/shard/cut/v1"

    round_id: Id
    client: str
    upload_id: Id


@dataclass(frozen=True)
class End:
    LABEL: ClassVar[bytes] = b"ostraka/shard/end/v1"

    round_id: Id
    client: str
    upload_id: Id


@dataclass(frozen=True)
class Upload:
    """A row, by its client and its upload."""

    client: str
    upload_id: Id


@dataclass(frozen=True)
class Close:
    LABEL: ClassVar[bytes] = b"ostraka/shard/close/v1"

    round_id: Id
    cohort: Digest
    rows: tuple[Upload, ...]


@dataclass(frozen=True)
class Closed:
    LABEL: ClassVar[bytes] = b"ostraka/shard/closed/v1"

    cohort: Digest


@dataclass(frozen=True)
class Sketch:
    LABEL: ClassVar[bytes] = b"ostraka/shard/sketch/v1"

    round_id: Id
    cohort: Digest


@dataclass(frozen=True)
class Sketched:
    """With (n, m) float32 behind it."""

    LABEL: ClassVar[bytes] = b"ostraka/shard/sketched/v1"

    cohort: Digest


@dataclass(frozen=True)
class Measure:
    """absent: who takes no part any more."""

    LABEL: ClassVar[bytes] = b"ostraka/shard/measure/v1"

    round_id: Id
    cohort: Digest
    absent: tuple[str, ...]


@dataclass(frozen=True)
class MeasuredPart:
    """A `Partial`. changed: whose rows have changed.

    Behind it are, if it was counted: (n, n) int32, s and v (n,) int64, steps (n,) float64; else
    (n, n) float64.
    """

    LABEL: ClassVar[bytes] = b"ostraka/shard/measured/v1"

    cohort: Digest
    changed: tuple[str, ...]
    by: str
    counted: bool
    rounded: bool
    error: float


@dataclass(frozen=True)
class Combine:
    """A plan, with its arrays behind it: what clips each row, and what `plan_arrays` gives."""

    LABEL: ClassVar[bytes] = b"ostraka/shard/combine/v1"

    round_id: Id
    cohort: Digest
    plan: Digest
    absent: tuple[str, ...]
    columnwise: bool
    last: float = field(repr=False)
    reducer: str
    count: int


@dataclass(frozen=True)
class Combined:
    LABEL: ClassVar[bytes] = b"ostraka/shard/combined/v1"

    cohort: Digest
    plan: Digest
    changed: tuple[str, ...]


@dataclass(frozen=True)
class Advance:
    LABEL: ClassVar[bytes] = b"ostraka/shard/advance/v1"

    round_id: Id
    cohort: Digest
    plan: Digest
    null: bool
    key: Key = field(repr=False)


@dataclass(frozen=True)
class Advanced:
    LABEL: ClassVar[bytes] = b"ostraka/shard/advanced/v1"

    cohort: Digest
    plan: Digest
    leaves: Leaves
    slice: SliceName


@dataclass(frozen=True)
class Publish:
    """slice: the one of the number that was confirmed; any other of it was never confirmed."""

    LABEL: ClassVar[bytes] = b"ostraka/shard/publish/v1"

    number: int
    model: Digest
    key: Key = field(repr=False)
    slice: SliceName


@dataclass(frozen=True)
class Moved:
    """As `Restored`."""

    LABEL: ClassVar[bytes] = b"ostraka/shard/moved/v2"

    model: tuple[Digest, ...]
    ticket: bytes


@dataclass(frozen=True)
class Stop:
    """The round is given up, or the federation has ended."""

    LABEL: ClassVar[bytes] = b"ostraka/shard/stop/v1"

    finished: bool


@dataclass(frozen=True)
class Adopt:
    """A new revision, from the next round on. charter: an encoded Charter."""

    LABEL: ClassVar[bytes] = b"ostraka/shard/adopt/v1"

    charter: bytes


@dataclass(frozen=True)
class Failed:
    """A shard cannot do what it was asked. why: words for the log, about no row."""

    LABEL: ClassVar[bytes] = b"ostraka/shard/failed/v1"

    why: str


EVENTS = (Taken, Spoilt, Broken)
REPLIES = (
    Ready,
    Restored,
    Opened,
    Resumed,
    Closed,
    Sketched,
    MeasuredPart,
    Combined,
    Advanced,
    Moved,
    Failed,
)
COMMANDS = (
    Restore,
    Open,
    Grant,
    Resume,
    Cut,
    End,
    Close,
    Sketch,
    Measure,
    Combine,
    Advance,
    Publish,
    Adopt,
    Stop,
)
Kinds: TypeAlias = Sequence[type[Any]]


class Link:
    """Writes messages with arrays behind them, and reads those of the other side.

    send: takes sealed bytes, in order. kinds: what the other side may say. heard: takes a message
    and what is behind it.
    """

    def __init__(
        self,
        channel: PeerChannel,
        send: Callable[[bytes], None],
        kinds: Kinds,
        heard: Callable[[Any, list[bytearray]], None],
    ) -> None:
        self._channel = channel
        self._send = send
        self._kinds = {pack(kind.LABEL): kind for kind in kinds}
        self._heard = heard
        self._message: Any = None
        self._blobs: list[bytearray] = []
        self._filled: list[int] = []

    def say(self, message: Any, *arrays: Buffer | AnyArray) -> None:
        """Send a message, and the bytes of arrays behind it. One thread at a time."""
        views = [_raw(each) for each in arrays]
        encoded = encode(message)
        sizes = b"".join(len(view).to_bytes(8, "big") for view in views)
        self._send(self._channel.seal(_HEAD.pack(_WHOLE, len(views)) + sizes + encoded))
        for view in views:
            for start in range(0, len(view), _PIECE):
                piece = (_HEAD.pack(_MORE, 0), view[start : start + _PIECE])
                self._send(self._channel.seal(b"".join(piece)))

    def hear(self, sealed: bytes) -> None:
        """Take in what the other side has sent next. Raises OpenError or MalformedMessage."""
        plain = self._channel.open(sealed)
        if len(plain) < _HEAD.size:
            raise MalformedMessage("a message of a peer has a head")
        mark, count = _HEAD.unpack_from(plain)
        rest = memoryview(plain)[_HEAD.size :]
        if mark == _WHOLE and self._message is None:
            self._begin(rest, count)
        elif mark == _MORE and self._message is not None:
            self._fill(rest)
        else:
            raise MalformedMessage("a message of a peer comes in its place")
        if self._message is not None and not self._missing():
            message, blobs = self._message, self._blobs
            self._message, self._blobs = None, []
            self._heard(message, blobs)

    def _begin(self, rest: memoryview, count: int) -> None:
        if len(rest) < 8 * count:
            raise MalformedMessage("a message of a peer is shorter than its head says")
        sizes = [int.from_bytes(rest[8 * at : 8 * at + 8], "big") for at in range(count)]
        if sum(sizes) > _LARGEST:
            raise MalformedMessage("what is behind a message of a peer is too long")
        body = bytes(rest[8 * count :])
        kind = next((each for mark, each in self._kinds.items() if body.startswith(mark)), None)
        if kind is None:
            raise MalformedMessage("a message of a peer is of a kind that it may not send")
        self._message = decode(kind, body)
        self._blobs = [bytearray(size) for size in sizes]
        self._filled = [0] * count

    def _fill(self, piece: memoryview) -> None:
        at = next(at for at, blob in enumerate(self._blobs) if self._filled[at] < len(blob))
        start, blob = self._filled[at], self._blobs[at]
        if not piece or start + len(piece) > len(blob):
            raise MalformedMessage("an array of a peer is longer than was said")
        blob[start : start + len(piece)] = piece
        self._filled[at] += len(piece)

    def _missing(self) -> bool:
        return any(
            filled < len(blob) for filled, blob in zip(self._filled, self._blobs, strict=True)
        )


class Outbox:
    """Sealed messages on their way to the other side, in order.

    Most are a few hundred bytes, and to send one by itself costs many times what it takes to make
    it: so whatever is ready goes together. Made on the event loop; any thread may put.
    """

    def __init__(self) -> None:
        self._sealed: deque[bytes] = deque()
        self._ended = False
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._there = asyncio.Event()

    def put(self, sealed: bytes) -> None:
        self._sealed.append(sealed)
        self._wake()

    def end(self) -> None:
        """What was put before is still taken."""
        self._ended = True
        self._wake()

    async def take(self) -> list[bytes]:
        """Wait for messages. Return those that are there, and none at the end."""
        while not self._sealed and not self._ended:
            self._there.clear()
            await self._there.wait()
        taken: list[bytes] = []
        size = 0
        while self._sealed and (not taken or size + len(self._sealed[0]) <= _AT_ONCE):
            taken.append(self._sealed.popleft())
            size += len(taken[-1])
        return taken

    def _wake(self) -> None:
        if get_ident() == self._thread:
            self._there.set()
        else:
            self._loop.call_soon_threadsafe(self._there.set)


def cohort_digest(round_id: bytes, rows: Iterable[Row | Upload]) -> bytes:
    """Names a round's rows in their order."""
    names = (part for row in rows for part in (row.client.encode(), row.upload_id))
    return hashlib.sha256(pack(_COHORT, round_id, *names)).digest()


def plan_arrays(plan: Plan) -> list[AnyArray]:
    """What a plan consists of, beside its few numbers."""
    if isinstance(plan, Columnwise):
        return [plan.matrix]
    return [plan.values, plan.shares]


def plan_digest(message: Combine, arrays: Sequence[Buffer | AnyArray]) -> bytes:
    """Names a plan. message: with any digest in its place."""
    blank = encode(message, plan=bytes(32))
    return hashlib.sha256(pack(_PLAN, blank, *(bytes(_raw(each)) for each in arrays))).digest()


def _raw(array: Buffer | AnyArray) -> memoryview:
    """The bytes of an array, without a copy if they lie together."""
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array).data.cast("B")
    return memoryview(array).cast("B")


def read_plan(message: Combine, blobs: Sequence[bytearray], rows: int) -> tuple[AnyArray, Plan]:
    """What clips each row, and the plan. Raises MalformedMessage."""
    if plan_digest(message, blobs) != message.plan:
        raise MalformedMessage("a plan is not the one that it is named")
    arrays = [np.frombuffer(blob, np.float64) for blob in blobs]
    if message.columnwise:
        scales, matrix = arrays
        if matrix.size % rows:
            raise MalformedMessage("a plan is for other rows")
        mixed = matrix.reshape(-1, rows)
        reducer: Any = message.reducer
        return scales, Columnwise(mixed, reducer, message.count)
    scales, values, shares = arrays
    if not len(scales) == len(values) == len(shares) == rows:
        raise MalformedMessage("a plan is for other rows")
    return scales, Weights(values, shares, last=message.last)


def partial_arrays(partial: Partial) -> list[AnyArray]:
    """What `MeasuredPart` has behind it. Signed residues have 31 bits."""
    sums = partial.sums
    if isinstance(sums, Counted):
        return [sums.gram.astype("<i4"), sums.s, sums.v, sums.steps]
    return [sums.products]


def read_partial(message: MeasuredPart, blobs: Sequence[bytearray], rows: int) -> Partial:
    """Raises MalformedMessage."""
    try:
        if message.counted:
            gram, s, v, steps = blobs
            counted = Counted(
                np.frombuffer(gram, "<i4").astype(np.int64).reshape(rows, rows),
                np.frombuffer(s, np.int64).reshape(rows),
                np.frombuffer(v, np.int64).reshape(rows),
                np.frombuffer(steps, np.float64).reshape(rows),
                rounded=message.rounded,
            )
            return Partial(counted, message.by)
        (products,) = blobs
        summed = np.frombuffer(products, np.float64).reshape(rows, rows)
        return Partial(Summed(summed, message.error), message.by)
    except ValueError:
        raise MalformedMessage("what a shard has measured is of other rows") from None


def span_of(message: Restore, tile: int) -> Span:
    return Span(message.start, message.length, tile)

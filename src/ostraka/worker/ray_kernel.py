"""The kernel of a worker on a Ray cluster, as the worker's own process sees it.

    worker's process  --socket-->  driver, its child  --Ray-->  actors, on any node

Ray ends a process that has lost its cluster, unpickles what a cluster sends, and has no access
control. The worker's process therefore never loads it. Its child, the driver (`ray_driver`), does,
and gets no key but those of the attempts. If the driver ends, attempts fail, and another is
started until one finds a cluster again.

A request is a frame of JSON with a frame of bytes behind it, and so is its reply. Events of the
driver may come before a reply. Nothing is unpickled here.
"""

import json
import logging
import math
import re
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import count
from select import select
from threading import Event, Lock, Thread
from typing import Any
from weakref import finalize

import numpy as np

from ostraka import logs
from ostraka.arrays import AnyArray, Buffer
from ostraka.config import Tiling
from ostraka.core.gram import DTYPES, Source, Sum, Values
from ostraka.crypto.aead import SealedGroups
from ostraka.crypto.channel import ShareOpener
from ostraka.errors import ConfigError, LocalProtocolError, OpenError, ServiceError, installing
from ostraka.protocol.worker import MaskTile, SealedTile
from ostraka.transport.dial import Backoff

# The driver's class of actors is found by its module on every node, so that is not run as a script.
_PROGRAM = "from ostraka.worker.ray_driver import main; main()"
_AUTO = "auto"
_ADDRESS = re.compile(r"[^\s/:]+:[0-9]{1,5}")
_LENGTH = struct.Struct(">Q")
_LAST_LINES = 30
_MOST_SAID = 2**20  # bytes of JSON, from a process that a whole cluster can write to
_END_S = 10.0
_GREETING_S = 120.0
_LOG = logging.getLogger("ostraka.worker")


@dataclass(frozen=True)
class RayOptions:
    """Where the cluster is, and what to ask of it. Raises ConfigError for what it cannot have.

    actors: how many; None for as many as fit. gpus: for each actor. patience_s: how long to wait
    for a cluster, and for an actor when all are lost.
    """

    address: str = _AUTO
    actors: int | None = None
    gpus: float = 0.0
    patience_s: float = 60.0

    def __post_init__(self) -> None:
        if self.address != _AUTO and not _ADDRESS.fullmatch(self.address):
            raise ConfigError(
                f"no address of a Ray cluster: {self.address!r}. Pass 'auto' on a node of it, or "
                "HOST:PORT of its head, which listens at 6379 unless told otherwise"
            )
        if self.actors is not None and self.actors < 1:
            raise ConfigError(f"a worker on Ray needs 1 actor or more; got {self.actors}")
        if not (math.isfinite(self.gpus) and self.gpus >= 0):
            raise ConfigError(f"an actor cannot have {self.gpus} GPUs")


@dataclass(frozen=True)
class RayConnected:
    """An event: this worker has a cluster, and actors on it."""

    nodes: int
    cpus: float
    gpus: float
    actors: int


@dataclass(frozen=True)
class RayLost:
    """An event: there is no cluster to compute on. retry_s: the seconds until the next try."""

    why: str
    retry_s: float


@dataclass(frozen=True)
class ActorLost:
    """An event: an actor, or its node, is gone. blocks: those that were sent to others for it."""

    blocks: int
    why: str


@dataclass(frozen=True)
class ActorFailed:
    """An event: an actor could not multiply a block, and the attempt ends. The actor goes on."""

    why: str


@dataclass(frozen=True)
class ActorReady:
    """An event: one more actor can be sent blocks. actors: how many can."""

    actors: int


@dataclass(frozen=True)
class AwaitingActors:
    """An event: no actor is ready, and the cluster has this many seconds to start one."""

    seconds: float


_EVENTS: dict[str, tuple[type[Any], int]] = {
    "ActorFailed": (ActorFailed, logging.WARNING),
    "ActorLost": (ActorLost, logging.WARNING),
    "ActorReady": (ActorReady, logging.INFO),
    "AwaitingActors": (AwaitingActors, logging.WARNING),
}


class Line:
    """One end of a socket, over which frames of bytes go."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, frame: Buffer) -> None:
        """Raises OSError if the other end is gone."""
        self._end.sendall(_LENGTH.pack(len(frame)))
        self._end.sendall(frame)

    def receive(self, most: int | None = None) -> bytearray:
        """Waits for a frame, of at most this many bytes if that is said: the line ends otherwise.

        Raises EOFError or OSError if the other end is gone.
        """
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if most is not None and size > most:
            self.close()
            raise EOFError
        return self._read(size)

    def close(self) -> None:
        """Wakes what waits at either end."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Gives the socket back. It must not be in use."""
        self._end.close()

    def has_frame(self, seconds: float) -> bool:
        return bool(select([self._end], [], [], seconds)[0])

    def _read(self, size: int) -> bytearray:
        frame = bytearray(size)
        left = memoryview(frame)
        while left:
            got = self._end.recv_into(left, flags=socket.MSG_WAITALL)
            if not got:
                raise EOFError
            left = left[got:]
        return frame


class RayKernel:
    """Computes on the actors of a cluster, until it is closed.

    Raises ConfigError if there is no such cluster, if it has not what is asked for, or if another
    worker computes on it.
    """

    def __init__(self, options: RayOptions, *, backoff: Backoff | None = None) -> None:
        if find_spec("ray") is None:
            raise ConfigError(f"--ray needs ray, which is not installed: {installing('ray')}")
        self._options = options
        self._backoff = backoff or Backoff()
        self._stopping = Event()
        self._driver: _Driver | None = _Driver(options)
        self._keeper = Thread(target=self._keep, args=(self._driver,), name="ray", daemon=True)
        self._keeper.start()

    def begin(self, rows: int, values: Values) -> Sum:
        """Starts a sum. Raises ServiceError while there is no cluster."""
        driver = self._driver
        if driver is None:
            raise ServiceError("this worker has lost its Ray cluster, and tries to connect again")
        return driver.begin(rows, values)

    def close(self) -> None:
        """Ends the driver, and with it the actors. Sums that wait raise. Any thread may call it."""
        self._stopping.set()
        if (driver := self._driver) is not None:
            driver.close()

    def _keep(self, driver: "_Driver | None") -> None:
        """Starts a new driver whenever there is none."""
        while driver is not None:
            why = driver.wait()
            self._driver = None
            driver = self._again(why)
            self._driver = driver
            if self._stopping.is_set() and driver is not None:
                driver.close()

    def _again(self, why: str) -> "_Driver | None":
        """Tries until there is a driver. Returns None once this kernel is closed."""
        while not self._stopping.is_set():
            delay = self._backoff.next()
            logs.event(_LOG, RayLost(why, round(delay, 2)), logging.WARNING)
            if self._stopping.wait(delay):
                break
            try:
                driver = _Driver(self._options)
            except ConfigError as refused:
                why = str(refused)
                continue
            self._backoff.reset()
            return driver
        return None


class _Driver:
    """The child process that is connected to Ray. Raises ConfigError if it cannot connect."""

    def __init__(self, options: RayOptions) -> None:
        ours, theirs = socket.socketpair()
        self._line = Line(ours)
        with theirs:
            words = [str(theirs.fileno()), json.dumps(asdict(options))]
            self._child = subprocess.Popen(  # noqa: S603 (ourselves)
                [sys.executable, "-P", "-c", _PROGRAM, *words],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is for the worker, which then closes the driver.
            )
        self._said: deque[str] = deque(maxlen=_LAST_LINES)
        self._listener = Thread(target=self._listen, name="ray-output", daemon=True)
        self._listener.start()
        self._lock = Lock()
        self._numbers = count()
        self._owed: int | None = None  # the sum whose last request has had no reply
        self._failures: dict[int, Exception] = {}
        self._forgotten: deque[int] = deque()
        try:
            logs.event(_LOG, self._greet(options))
        except BaseException:
            self.close()
            self.wait()
            raise

    def begin(self, rows: int, values: Values) -> Sum:
        number = next(self._numbers)
        self.post(number, {"do": "begin", "rows": rows, "values": values})
        running = _RaySum(self, number, rows, values)
        finalize(running, self._forgotten.append, number)
        return running

    def post(self, number: int, request: dict[str, Any], body: Buffer = b"") -> None:
        """Sends a request of a sum. Raises what became of an earlier one: this reply is awaited by
        the next request, so that the worker takes in a tile while the driver passes on another."""
        with self._lock:
            self._send(number, request, body)
            self._owed = number

    def ask(self, number: int, request: dict[str, Any], most: int) -> bytearray:
        """Sends a request of a sum, and returns the bytes of its reply. Raises as `post` does.

        most: how many bytes that can be.
        """
        with self._lock:
            self._send(number, request, b"")
            answer = self._receive(number, most)
            self._raise_failure(number)
            return answer

    def close(self) -> None:
        """Ends the process, and so the actors. A request that waits for a reply raises."""
        self._line.close()
        try:
            self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()

    def wait(self) -> str:
        """Waits until the process has ended. Returns its last words."""
        self._child.wait()
        self._listener.join(_END_S)
        with self._lock:  # Who holds it finds the line ended.
            self._line.release()
        spoken = [line for line in self._said if line.strip()]
        return spoken[-1] if spoken else f"the driver ended with code {self._child.returncode}"

    def _greet(self, options: RayOptions) -> RayConnected:
        """Waits for the driver's first words."""
        try:
            if not self._line.has_frame(_GREETING_S + 2 * options.patience_s):
                raise ConfigError(f"the Ray cluster at {options.address} does not answer")
            said = self._hear()
        except (EOFError, OSError):
            raise ConfigError(f"no connection to Ray: {self.wait()}") from None
        if "refused" in said:
            raise ConfigError(said["refused"])
        return RayConnected(**said)

    def _send(self, number: int, request: dict[str, Any], body: Buffer) -> None:
        if self._owed is not None:
            self._receive(self._owed)
        self._raise_failure(number)
        forgotten = [self._forgotten.popleft() for _ in range(len(self._forgotten))]
        for each in forgotten:
            self._failures.pop(each, None)
        try:
            self._line.send(json.dumps(request | {"sum": number, "over": forgotten}).encode())
            self._line.send(body)
        except OSError:
            raise _gone() from None

    def _receive(self, number: int, most: int = 0) -> bytearray:
        """Receives the reply that this sum waits for, and keeps its failure if it is one."""
        self._owed = None
        try:
            reply = self._hear()
            answer = self._line.receive(most)
        except (EOFError, OSError):
            raise _gone() from None
        if (failure := reply["failure"]) is not None:
            self._failures[number] = _FAILURES[failure](reply["why"])
        return answer

    def _hear(self) -> dict[str, Any]:
        """Returns what the driver says next, and logs the events before it."""
        while True:
            said: dict[str, Any] = json.loads(self._line.receive(_MOST_SAID))
            if (name := said.pop("event", None)) is None:
                return said
            event, level = _EVENTS[name]
            logs.event(_LOG, event(**said), level)

    def _raise_failure(self, number: int) -> None:
        if (failure := self._failures.get(number)) is not None:
            raise failure

    def _listen(self) -> None:
        """Keeps the last lines that Ray prints: its last words, if it ends."""
        if self._child.stdout is not None:
            with self._child.stdout as lines:
                self._said.extend(line.rstrip() for line in lines)


class _RaySum:
    """A sum that the driver keeps."""

    def __init__(self, driver: _Driver, number: int, rows: int, values: Values) -> None:
        self._driver, self._number, self._rows = driver, number, rows
        self._dtype = DTYPES[values]

    def add(self, block: AnyArray) -> None:
        plain = np.ascontiguousarray(block, self._dtype)
        self._driver.post(self._number, {"do": "add", "source": {}}, plain.data.cast("B"))

    def add_from(self, source: Source, space: AnyArray) -> None:
        described, body = describe(source)
        self._driver.post(self._number, {"do": "add", "source": described}, body)

    def total(self) -> AnyArray:
        most = self._rows**2 * self._dtype.itemsize
        raw = self._driver.ask(self._number, {"do": "total"}, most)
        return np.frombuffer(raw, self._dtype).reshape(self._rows, self._rows)


def describe(source: Source) -> tuple[dict[str, Any], Buffer]:
    """Returns what `understand` makes this source of: plain values, and bytes."""
    match source:
        case SealedTile(shares, layout, index, ciphertext):
            tiling = asdict(layout.columns)
            plain = {"key": shares.key.hex(), "rows": layout.rows, "bytes": layout.value_bytes}
            return plain | {"tiling": tiling, "index": index}, ciphertext
        case MaskTile(seed, rows, columns, index):
            return {"rows": rows, "tiling": asdict(columns), "index": index}, seed
    raise LocalProtocolError(f"a {type(source).__name__} cannot be sent to an actor")


def understand(described: dict[str, Any], body: Buffer) -> Source:
    """Returns the source that `describe` described."""
    rows, columns = described["rows"], Tiling(**described["tiling"])
    if "key" not in described:
        return MaskTile(bytes(body), rows, columns, described["index"])
    layout = SealedGroups(columns, rows, described["bytes"])
    return SealedTile(
        ShareOpener(bytes.fromhex(described["key"])), layout, described["index"], body
    )


_FAILURES: dict[str, Callable[[str], Exception]] = {"open": OpenError, "service": ServiceError}


def _gone() -> ServiceError:
    return ServiceError("this worker has lost its Ray cluster in the middle of an attempt")

"""The driver of a worker on a Ray cluster, and the actors that compute for it.

The worker's process starts it as a child, and speaks to it over a socket (`ray_kernel`). Blocks go
to actors by turns, two at a time to each. They stay in the driver's object store until their
products have come back: if an actor or its node is lost, they are sent to others. A product is
added once, in the order in which the blocks came, so that sums of float64 do not depend on chance.

Ray has no access control. Who reaches the cluster can run code in every process here, read the
tiles and the keys of an attempt, and is this worker. So no two workers may share a cluster: an
actor whose name can be taken once stands for the worker, and ends with this process.
"""

import json
import logging
import os
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, TypeAlias

import numpy as np

# Ray reads this when it is loaded: it would warn that a default is going to change.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from ray.exceptions import (
    ActorAlreadyExistsError,
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    WorkerCrashedError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ostraka.arrays import AnyArray
from ostraka.core import field
from ostraka.core.gram import DTYPES, Values
from ostraka.errors import ConfigError, OpenError, ServiceError
from ostraka.worker.backends import choose
from ostraka.worker.ray_kernel import (
    ActorFailed,
    ActorLost,
    ActorReady,
    AwaitingActors,
    Line,
    RayConnected,
    RayOptions,
    understand,
)

# Ray comes without types.
_Handle: TypeAlias = Any
_Ref: TypeAlias = Any

_VERSION = version("ostraka")
_NAMESPACE = "ostraka"
_HOLDER = "worker"
# One block is multiplied while the next is on its way. More would only take memory.
_IN_FLIGHT = 2
# A block that takes its actor with it each time would otherwise do so for ever.
_MOST_TRIES = 5
_REACH_S = 5.0
# An actor takes a few seconds to start. Nothing is said before.
_SILENT_S = 8.0
# Until a driver that has just ended is gone from its cluster.
_HOLDER_S = 5.0
_LOST = (RayActorError, NodeDiedError, ObjectLostError, OutOfMemoryError, WorkerCrashedError)


class Actor:
    """Multiplies blocks, in a process of its own on any node."""

    def prepare(self, device: str) -> tuple[str, str]:
        """Makes the kernel. Returns the version of Ostraka here, and why there is no kernel."""
        try:
            self._kernel = choose(device)
        except ConfigError as refused:
            return _VERSION, str(refused)
        return _VERSION, ""

    def product(
        self, rows: int, values: Values, described: dict[str, Any], body: AnyArray
    ) -> AnyArray | None:
        """Returns the Gram matrix of one block, or None if it does not open. body: uint8."""
        dtype = DTYPES[values]
        running = self._kernel.begin(rows, values)
        if described:
            source = understand(described, body.data)
            width = len(body) // (rows * dtype.itemsize)
            try:
                running.add(source.make(np.empty((rows, width), dtype)))
            except OpenError:
                return None
        else:
            running.add(body.view(dtype).reshape(rows, -1))
        return running.total()


class Holder:
    """Stands for the one worker of a cluster. It lives as long as the driver that made it."""

    def __init__(self, who: str) -> None:
        self._who = who

    def who(self) -> str:
        return self._who


@dataclass
class _Block:
    """A block that an actor works on. body: in the object store, until the product is here."""

    described: dict[str, Any]
    body: _Ref
    actor: _Handle
    product: _Ref
    tries: int = 1


Tell: TypeAlias = Callable[[Any], None]


class Crew:
    """The actors: those that can be sent blocks, and those that the cluster has yet to start."""

    def __init__(self, wanted: int, options: RayOptions, tell: Tell) -> None:
        self._wanted, self._options, self._tell = wanted, options, tell
        self._device = "cuda" if options.gpus else "cpu"
        self._kind = ray.remote(num_cpus=1, num_gpus=options.gpus, max_restarts=0)(Actor)
        self._ready: list[_Handle] = []
        self._joining: dict[_Ref, _Handle] = {}

    def members(self) -> list[_Handle]:
        """Returns the actors that can be sent blocks, and waits for one if there is none.

        Raises ServiceError if that takes too long.
        """
        self._welcome(0)
        if not self._ready:
            self._await_one()
        return self._ready

    def dismiss(self, actor: _Handle) -> bool:
        """Gives up an actor, for which another is started. Returns False if that was done."""
        if actor not in self._ready:
            return False
        self._ready.remove(actor)
        ray.kill(actor)
        return True

    def _await_one(self) -> None:
        patience, start, told = self._options.patience_s, time.monotonic(), False
        while not self._ready:
            self._welcome(1.0)
            waited = time.monotonic() - start
            if not told and waited > _SILENT_S:
                self._tell(AwaitingActors(patience))
                told = True
            if waited > patience and not self._ready:
                raise ServiceError(
                    f"the Ray cluster has started no actor within {patience:g} seconds: it has "
                    f"{_shown(_nodes())}, and other jobs may hold them"
                )

    def _welcome(self, seconds: float) -> None:
        """Starts what is missing, and takes in what is ready."""
        while len(self._ready) + len(self._joining) < self._wanted:
            actor = self._kind.remote()
            self._joining[actor.prepare.remote(self._device)] = actor
        if not self._joining:
            return
        done, _ = ray.wait(list(self._joining), timeout=seconds)
        for each in done:
            actor = self._joining.pop(each)
            try:
                theirs, refused = ray.get(each)
            except _LOST as lost:
                if isinstance(lost, RayActorError) and "ModuleNotFoundError" in str(lost):
                    raise ConfigError(_elsewhere("no Ostraka is installed there")) from None
                continue
            if theirs != _VERSION:
                raise ConfigError(_elsewhere(f"it has Ostraka {theirs}"))
            if refused:
                raise ConfigError(f"an actor cannot compute: {refused}")
            self._ready.append(actor)
            self._tell(ActorReady(len(self._ready)))


class RunningSum:
    """A Gram matrix, and the blocks of it that are on their way."""

    def __init__(self, rows: int, values: Values, crew: Crew, tell: Tell) -> None:
        self._rows, self._values, self._crew, self._tell = rows, values, crew, tell
        self._total = np.zeros((rows, rows), DTYPES[values])
        self._spare = np.empty_like(self._total)
        self._pending: deque[_Block] = deque()

    def add(self, described: dict[str, Any], body: bytearray) -> None:
        """Sends a block to an actor, and waits until there is room for another.

        Raises OpenError or ServiceError for a block that was sent before.
        """
        actor = self._free_actor()
        stored = ray.put(np.frombuffer(body, np.uint8))
        product = actor.product.remote(self._rows, self._values, described, stored)
        self._pending.append(_Block(described, stored, actor, product))
        while len(self._pending) >= _IN_FLIGHT * len(self._crew.members()):
            self._settle()

    def total(self) -> AnyArray:
        """Waits for all blocks. Raises as `add` does."""
        while self._pending:
            self._settle()
        return self._total

    def _free_actor(self) -> _Handle:
        busy = Counter(id(block.actor) for block in self._pending)
        return min(self._crew.members(), key=lambda actor: busy[id(actor)])

    def _settle(self) -> None:
        """Adds the product of the oldest block."""
        oldest = self._pending[0]
        while True:
            try:
                product = ray.get(oldest.product)
                break
            except _LOST as lost:
                self._replace(oldest, type(lost).__name__)
        if product is None:
            raise OpenError("share")
        self._pending.popleft()
        if self._values == "residues":
            field.add(self._total, product, self._total, self._spare)
        else:
            self._total += product

    def _replace(self, failed: _Block, why: str) -> None:
        """Sends the blocks of a lost actor to others. Raises ServiceError if it was of no use."""
        if failed.tries >= _MOST_TRIES:
            raise ServiceError(f"a block was lost with its actor {failed.tries} times: {why}")
        failed.tries += 1
        self._crew.dismiss(failed.actor)
        theirs = [block for block in self._pending if block.actor is failed.actor]
        self._tell(ActorLost(len(theirs), why))
        for block in theirs:
            block.actor = self._free_actor()
            block.product = block.actor.product.remote(
                self._rows, self._values, block.described, block.body
            )


def connect(options: RayOptions, tell: Tell) -> tuple[Crew, _Handle, RayConnected]:
    """Returns the actors, the holder of the cluster, and what there is. Raises ConfigError."""
    _reach(options.address)
    try:
        ray.init(
            address=options.address,
            namespace=_NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, RayError) as refused:
        raise ConfigError(
            f"no Ray cluster at {options.address!r}: {_first_line(refused)} Start one with "
            "`ray start --head`, and this worker on a node of it"
        ) from None
    holder = _hold()
    wanted = _wanted(options)
    crew = Crew(wanted, options, tell)
    try:
        crew.members()
    except ServiceError as none:
        raise ConfigError(str(none)) from None
    nodes = _nodes()
    found = RayConnected(len(nodes), _sum(nodes, "CPU"), _sum(nodes, "GPU"), wanted)
    return crew, holder, found


def _reach(address: str) -> None:
    """Raises ConfigError if nobody listens. Ray itself would try for minutes."""
    if ":" in address:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), _REACH_S).close()
        except (OSError, OverflowError) as failed:
            raise ConfigError(f"no Ray cluster at {address!r}: {failed}") from None


def _hold() -> _Handle:
    """Takes the cluster for this worker. Raises ConfigError if another has it."""
    who = f"process {os.getppid()} on {socket.gethostname()}"
    node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    kind = ray.remote(num_cpus=0, max_restarts=-1)(Holder).options(
        name=_HOLDER, namespace=_NAMESPACE, scheduling_strategy=node
    )
    until = time.monotonic() + _HOLDER_S
    while True:
        try:
            holder = kind.remote(who)
        except ActorAlreadyExistsError:
            if time.monotonic() < until:
                time.sleep(0.5)
                continue
            raise ConfigError(
                f"another worker computes on this Ray cluster{_other()}: two workers on one "
                "cluster are one colluder, since Ray has no access control. Give each worker a "
                "cluster of its own"
            ) from None
        ray.get(holder.who.remote())
        return holder


def _other() -> str:
    with suppress(ValueError, RayError, GetTimeoutError):
        holder = ray.get_actor(_HOLDER, namespace=_NAMESPACE)
        return f" ({ray.get(holder.who.remote(), timeout=_REACH_S)})"
    return ""


def _wanted(options: RayOptions) -> int:
    """Returns the number of actors. Raises ConfigError if they can never fit."""
    nodes = _nodes()
    room = sum(_room(node, options.gpus) for node in nodes)
    each = "1 CPU" + (f" and {options.gpus:g} GPUs" if options.gpus else "")
    if room < (options.actors or 1):
        raise ConfigError(
            f"{options.actors or 1} actors of {each} each do not fit: the Ray cluster has "
            f"{_shown(nodes)}, with room for {room}"
        )
    return options.actors or room


def _room(node: dict[str, float], gpus: float) -> int:
    cpus = int(node.get("CPU", 0))
    return min(cpus, int(node.get("GPU", 0) / gpus)) if gpus else cpus


def _nodes() -> list[dict[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _sum(nodes: list[dict[str, float]], what: str) -> float:
    return sum(node.get(what, 0.0) for node in nodes)


def _shown(nodes: list[dict[str, float]]) -> str:
    each = ", ".join(
        f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes
    )
    return f"{len(nodes)} nodes ({each})"


def _elsewhere(what: str) -> str:
    return f"a node of the Ray cluster cannot run actors: {what}. Install {_VERSION} on all"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


class _Server:
    """Does what the worker's process asks for, until it ends or the cluster is of no use."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._sums: dict[int, RunningSum] = {}

    def tell(self, event: Any) -> None:
        self.say({"event": type(event).__name__} | asdict(event))

    def say(self, what: dict[str, Any]) -> None:
        self._line.send(json.dumps(what).encode())

    def serve(self, crew: Crew) -> None:
        """Raises EOFError when the worker's process has ended, and ServiceError or ConfigError if
        the cluster is of no use. What was asked for last is then answered already."""
        while True:
            request, body = json.loads(self._line.receive()), self._line.receive()
            for over in request["over"]:
                self._sums.pop(over, None)
            answer, failure, why = b"", None, ""
            try:
                answer = self._do(crew, request, body)
            except OpenError:
                failure, why = "open", "share"
            except (ServiceError, ConfigError) as failed:
                self._reply(b"", "service", str(failed))
                raise
            except RayError as failed:
                self.tell(ActorFailed(str(failed).strip().rpartition("\n")[2]))
                failure, why = "service", f"an actor of this worker failed: {type(failed).__name__}"
            self._reply(answer, failure, why)

    def _do(self, crew: Crew, request: dict[str, Any], body: bytearray) -> bytes:
        number = request["sum"]
        match request["do"]:
            case "begin":
                self._sums[number] = RunningSum(request["rows"], request["values"], crew, self.tell)
            case "add":
                self._sums[number].add(request["source"], body)
            case "total":
                return self._sums[number].total().tobytes()
        return b""

    def _reply(self, answer: bytes, failure: str | None, why: str) -> None:
        self.say({"failure": failure, "why": why})
        self._line.send(answer)


def main() -> None:
    """Serves the process at the other end of the socket whose number is the first argument."""
    line = Line(socket.socket(fileno=int(sys.argv[1])))
    options = RayOptions(**json.loads(sys.argv[2]))
    server = _Server(line)
    with suppress(EOFError, OSError):  # The worker has ended, or has closed this driver.
        try:
            crew, _holder, found = connect(options, server.tell)
        except ConfigError as refused:
            server.say({"refused": str(refused)})
            return
        server.say(asdict(found))
        try:
            server.serve(crew)
        except (ServiceError, ConfigError) as useless:
            sys.exit(str(useless))

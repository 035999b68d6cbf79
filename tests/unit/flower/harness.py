"""A federation of Flower in this process: the real strategy and apps, over the test's own grid.

A test does by `grid.down` and `grid.up` what a SuperLink could do to messages.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from ostraka.carried.in_process import FoundingTerms, UnsafeInProcessEnclave
from ostraka.carried.messages import ASK, Hello, SealedReply, is_poll, read_hello
from ostraka.core import rules
from ostraka.flower import UNSAFE_SIMULATION, PrivateMultiKrum, PrivateRobust, sealing_mod
from ostraka.flower.records import RECORD, message_record, read_message
from ostraka.messages import Receipt

PAPER = rules.parse("multi-krum")
LOST_S = 60.0  # for a reply, by default: see Clock

Tamper = Callable[[int, Message], Message | None]


def carried(content: RecordDict) -> RecordDict:
    """Return the content as it comes out on the other side of a network."""
    return recorddict_from_proto(recorddict_to_proto(content))


@dataclass
class Clock:
    """The courier's time, which flies while the courier waits only for what is lost.

    So no node has to be quick, and no test waits. A wait of more than LOST_S is in vain.
    """

    skipped: float = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.skipped


CLOCK = Clock()


@dataclass
class LocalGrid(Grid):
    """Runs each node's app when it is sent a message.

    down, up: what the SuperLink makes of a message to a node, and of its reply; None to lose it.
    """

    apps: dict[int, ClientApp]
    contexts: dict[int, Context]
    down: Tamper = lambda node, message: message
    up: Tamper = lambda node, message: message
    replies: dict[str, Message] = field(default_factory=dict)
    log: list[tuple[int, Message, Message]] = field(default_factory=list)
    run: Any = None
    lost: dict[str, int] = field(default_factory=dict)  # how often each was asked for in vain
    _began: float = 0.0  # when messages were pushed, in seconds that were skipped before

    def set_run(self, run: Any) -> None:
        self.run = run

    def create_message(self, *arguments: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.apps)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self._began = CLOCK.skipped
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        asked = list(message_ids)
        for each in asked:
            if each in self.lost and not self.replies:
                self.lost[each] += 1
                gone = min(self.lost[each] / 2, 1) * LOST_S
                CLOCK.skipped = max(CLOCK.skipped, self._began + gone)
        return [self.replies.pop(each) for each in asked if each in self.replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return self.pull_messages(self.push_messages(list(messages)))

    def _push(self, message: Message) -> str:
        node = message.metadata.dst_node_id
        name = str(uuid4())
        message.metadata.__dict__["_message_id"] = name
        sent = Message(carried(message.content), node, message.metadata.message_type)
        sent.metadata.__dict__["_message_id"] = name
        arriving = self.down(node, sent)
        if arriving is None:
            self.lost[name] = 0
            return name
        before = Message(carried(arriving.content), node, message.metadata.message_type)
        try:
            reply = self.apps[node](arriving, self.contexts[node])
        except Exception as failed:  # noqa: BLE001 (as Flower does it, text and all)
            reply = Message(Error(2, repr(failed)), reply_to=arriving)
        if reply.has_content():
            reply.content = carried(reply.content)
        self.log.append((node, before, reply))
        leaving = self.up(node, reply)
        if leaving is None:
            self.lost[name] = 0
        else:
            self.replies[name] = leaving
        return name


Update = Callable[[int, int, dict[str, np.ndarray]], dict[str, np.ndarray]]


def honest(node: int, number: int, model: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([node, number])
    return {
        name: value + (1 + 0.1 * rng.normal(size=value.shape)).astype(value.dtype)
        for name, value in model.items()
    }


def question(node: int) -> Message:
    """Return what asks a node for its challenge."""
    return Message(RecordDict({RECORD: message_record(ASK)}), node, "train")


def is_sealed(reply: Message) -> bool:
    """Tell whether a reply brings a sealed update."""
    if not reply.has_content() or RECORD not in reply.content:
        return False
    return SealedReply.LABEL in read_message(reply.content)[:64]


def polls(message: Message) -> bool:
    """Tell whether this asks a node to confirm an outcome."""
    return RECORD in message.content and is_poll(read_message(message.content))


def record_of(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


@dataclass
class Federation:
    """model: the first one. trained: how often each node's app has trained."""

    grid: LocalGrid
    strategy: PrivateRobust
    model: dict[str, np.ndarray]
    trained: dict[int, int] = field(default_factory=dict)
    honest = staticmethod(honest)
    is_sealed = staticmethod(is_sealed)
    polls = staticmethod(polls)
    question = staticmethod(question)

    @property
    def receipts(self) -> list[Receipt]:
        return self.strategy.receipts

    def start(self, rounds: int = 1, timeout: float = LOST_S, **more: Any) -> Any:
        first = record_of(self.model)
        return self.strategy.start(self.grid, first, rounds, timeout=timeout, **more)

    def greet(self, node: int) -> Hello:
        """Ask a node for its challenge."""
        reply = self.grid.apps[node](question(node), self.grid.contexts[node])
        return read_hello(read_message(reply.content))

    def add(self, node: int, update: Update = honest, mods: list[Any] | None = None) -> None:
        """Add a node with an ordinary app, which replies with arrays and metrics."""
        app = ClientApp(mods=[sealing_mod(UNSAFE_SIMULATION)] if mods is None else mods)

        @app.train()
        def train(message: Message, context: Context) -> Message:
            self.trained[node] = self.trained.get(node, 0) + 1
            record = message.content.array_records["arrays"]
            model = {name: array.numpy() for name, array in record.items()}
            number = message.content.config_records["config"]["server-round"]
            assert isinstance(number, int)
            after = update(node, number, model)
            metrics = MetricRecord({"loss": 0.25 + node, "num-examples": 10**12})
            content = RecordDict({"arrays": record_of(after), "metrics": metrics})
            return Message(content, reply_to=message)

        @app.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            mean = float(message.content.array_records["arrays"]["weight"].numpy().mean())
            metrics = MetricRecord({"mean": mean, "num-examples": 1})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)

        self.grid.apps[node] = app
        self.grid.contexts[node] = Context(1, node, {"partition-id": node}, RecordDict(), {})


def identify() -> None:
    """Set the identity that Flower needs to make messages, and sets in its own processes."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def make(
    n: int = 7,
    f: int = 1,
    *,
    update: Update = honest,
    mods: Callable[[int], list[Any]] | None = None,
    newcomers: bool = False,
    terms: dict[str, Any] | None = None,
    **strategy: Any,
) -> Federation:
    """Make n nodes that train by `update(node, round, model)`, and an enclave for them."""
    founding: dict[str, Any] = {
        "composition": PAPER,
        "client_momentum": 0.0,
        "disclose_selection": True,
    }
    enclave = UnsafeInProcessEnclave(
        FoundingTerms(f, **(founding | (terms or {}))), newcomers=newcomers
    )
    made = PrivateMultiKrum(
        enclave=enclave,
        num_malicious_nodes=f,
        challenge_timeout=LOST_S,
        outcome_timeout=LOST_S,
        **strategy,
    )
    first = {
        "weight": np.linspace(-1, 1, 60, dtype="<f4").reshape(6, 10),
        "bias": np.zeros(6, "<f4"),
    }
    federation = Federation(LocalGrid({}, {}), made, first)
    for node in range(n):
        federation.add(node, update, mods(node) if mods else None)
    return federation

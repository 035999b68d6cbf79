"""Messages to nodes, and how long to wait for their replies.

Each reply is pulled in a thread of its own: Flower announces a reply before its parts have come,
waits for those for hours if need be, and cannot be told to stop.
"""

import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from ostraka.carried.relay import Enough, left_out
from ostraka.errors import MalformedMessage
from ostraka.flower.records import RECORD, message_record, read_message, size_of

LOG = logging.getLogger("flwr.ostraka")

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 1.0
_ALONE_S = 0.1  # for one pull before the next begins, so that they seldom run side by side
_MOST_ABANDONED = 4  # pulls of one node, each of which holds threads of Flower's as well


class Courier(Grid):
    """Flower's grid, except that it goes on without nodes that do not reply.

    It asks more often than every three seconds, and `enough` says when replies suffice. It is the
    `Carrier` of `ostraka.carried`.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._outbox: list[tuple[int, bytes]] = []
        self._abandoned: dict[int, list[Thread]] = {}  # pulls that are still running, by node
        self.enough: Enough | None = None
        self.largest: int | None = None  # bytes of one reply, None for any number

    def send(self, node: int, message: bytes) -> None:
        """Put a message in the outbox, which `receive` sends."""
        self._outbox.append((node, message))

    def receive(self, *, seconds: float, enough: Enough) -> dict[int, bytes]:
        """Send the outbox, and return what nodes reply within this time."""
        outbox, self._outbox = self._outbox, []
        self.enough = enough
        messages = [
            Message(
                RecordDict({RECORD: message_record(each)}), node, MessageType.TRAIN, ttl=seconds
            )
            for node, each in outbox
        ]
        return read_replies(self.send_and_receive(messages, timeout=seconds))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Return the replies in time: at most one to each of these messages.

        A reply bears the id of the node that was asked, not the one that it claims.
        """
        sent = list(messages)
        if not sent:
            return []
        taken = set(self._grid.push_messages(sent))
        awaited: dict[str, int] = {}
        for each in sent:
            message, node = each.metadata.message_id, each.metadata.dst_node_id
            if message not in taken:
                LOG.warning("node %d cannot be reached: left out", node)
            elif self._is_clogged(node):
                left_out(
                    LOG, node, f"{_MOST_ABANDONED} of its replies are announced, and do not come"
                )
            else:
                awaited[message] = node
        return self._receive(awaited, math.inf if timeout is None else timeout)

    def _receive(self, awaited: dict[str, int], timeout: float) -> list[Message]:
        until = time.monotonic() + timeout
        receiving = _Receiving(_Pulls(self._grid), awaited, until, self.enough, self.largest)
        receiving.run()
        for message, node in awaited.items():
            if receiving.serves_all:
                LOG.info("enough others answered for an outcome: node %d was not waited for", node)
            else:
                LOG.warning("node %d has not answered in time: left out", node)
            if message in receiving.pulls.running:
                self._abandoned.setdefault(node, []).append(receiving.pulls.running[message])
        return receiving.replies

    def _is_clogged(self, node: int) -> bool:
        alive = [pull for pull in self._abandoned.pop(node, []) if pull.is_alive()]
        if alive:
            self._abandoned[node] = alive
        return len(alive) >= _MOST_ABANDONED

    # The rest is the grid's own.

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)


def require_content(reply: Message) -> RecordDict:
    """Return what a reply holds. Raises MalformedMessage for an error, with the node's reason."""
    if reply.has_error():
        raise MalformedMessage(reply.error.reason or "no reason was given")
    return reply.content


def read_replies(replies: Iterable[Message]) -> dict[int, bytes]:
    """Return Ostraka's message in each reply, by node. A node without one is left out."""
    read: dict[int, bytes] = {}
    for reply in replies:
        node = reply.metadata.src_node_id
        try:
            read[node] = read_message(require_content(reply))
        except MalformedMessage as refused:
            left_out(LOG, node, str(refused))
    return read


@dataclass(frozen=True)
class _Pulled:
    """How a pull has ended. message: the one asked about. replies: empty if no reply has come."""

    message: str
    replies: tuple[Message, ...] = ()
    failed: BaseException | None = None


class _Pulls:
    """Pulls replies, each in a thread of its own, so that none keeps the others waiting.

    The threads are daemons and not those of an executor, for which an exit would wait.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._ended: SimpleQueue[_Pulled] = SimpleQueue()
        self._running: dict[str, Thread] = {}

    @property
    def running(self) -> Mapping[str, Thread]:
        """Pulls by message, until `next` has returned them."""
        return self._running

    def start(self, message: str) -> None:
        thread = Thread(target=self._pull, args=(message,), name="ostraka-pull", daemon=True)
        self._running[message] = thread
        thread.start()

    def next(self, seconds: float) -> _Pulled | None:
        """Return a pull that has ended or ends within this time."""
        try:
            pulled = self._ended.get(timeout=seconds)
        except Empty:
            return None
        del self._running[pulled.message]
        return pulled

    def _pull(self, message: str) -> None:
        try:
            # One by one: a reply that Flower cannot read must not take the others with it.
            pulled = _Pulled(message, tuple(self._grid.pull_messages([message])))
        except BaseException as failed:  # noqa: BLE001 (the waiting thread judges it)
            pulled = _Pulled(message, failed=failed)
        self._ended.put(pulled)


@dataclass
class _Receiving:
    """awaited: the node of each message without a reply yet. until: on the monotonic clock."""

    pulls: _Pulls
    awaited: dict[str, int]
    until: float
    enough: Enough | None
    largest: int | None
    replies: list[Message] = field(default_factory=list)
    _counted: int = 0

    def run(self) -> None:
        """Pull until no reply is awaited or time is up. Pulls that still run are abandoned."""
        wait = _FIRST_WAIT_S
        while self.awaited and self._left > 0:
            self._ask_for_each()
            self._hasten()
            self._take_for(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)

    @property
    def _left(self) -> float:
        return max(0.0, self.until - time.monotonic())

    def _ask_for_each(self) -> None:
        """Ask once for every reply: enough replies shorten the wait after that, not the asking."""
        for message in list(self.awaited):
            # Its reply may have come in the meantime, and there is no second one.
            if message in self.awaited and message not in self.pulls.running and self._left > 0:
                self.pulls.start(message)
                self._take_one(_ALONE_S)

    def _take_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self.awaited and (rest := min(end - time.monotonic(), self._left)) > 0:
            self._take_one(rest)
            self._hasten()

    def _take_one(self, seconds: float) -> None:
        pulled = self.pulls.next(min(seconds, self._left))
        if pulled is not None and (pulled.replies or pulled.failed is not None):
            self._take(self.awaited.pop(pulled.message), pulled)

    def _take(self, node: int, pulled: _Pulled) -> None:
        """Take a reply for the message that was asked about, since a reply can claim another one.

        Raises what ends a run of Flower, which is not an Exception.
        """
        if isinstance(pulled.failed, Exception):
            left_out(LOG, node, f"its reply cannot be read: {pulled.failed!r}")
            return
        if pulled.failed is not None:
            raise pulled.failed
        reply = pulled.replies[0]
        if reply.metadata.reply_to_message_id != pulled.message:
            left_out(LOG, node, "its reply says that it is to another message")
            return
        if self.largest is not None and reply.has_content():
            size = size_of(reply.content)
            if size > self.largest:
                left_out(LOG, node, f"its reply has {size} bytes; at most {self.largest} are taken")
                return
        reply.metadata.__dict__["_src_node_id"] = node
        self.replies.append(reply)
        self._counted += self._counts(node, reply)

    def _counts(self, node: int, reply: Message) -> bool:
        try:
            content = require_content(reply)
            message = read_message(content) if RECORD in content else b""  # An evaluation has none.
            return self.enough is not None and self.enough.counts(node, message)
        except MalformedMessage:
            return False

    @property
    def serves_all(self) -> bool:
        """Whether enough has come for all nodes, those included that were not waited for."""
        return self._has_enough and bool(self.enough and self.enough.for_all)

    @property
    def _has_enough(self) -> bool:
        return self.enough is not None and self._counted >= self.enough.replies

    def _hasten(self) -> None:
        if self._has_enough and self.enough and self.enough.grace is not None:
            self.until = min(self.until, time.monotonic() + self.enough.grace)

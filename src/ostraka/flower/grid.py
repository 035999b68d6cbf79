"""Replies are pulled in threads: Flower hands out a reply before its parts, and waits for those.

It may do so for hours, and cannot be told to stop.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid


@dataclass(frozen=True)
class Pulled:
    """How a pull has ended. message: whose reply it was for. replies: none, if none has come."""

    message: str
    replies: tuple[Message, ...] = ()
    failed: BaseException | None = None


class Pulls:
    """Each in a thread of its own, so that none keeps the others waiting.

    The threads are daemons, and not those of an executor: an exit would wait for them.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._ended: SimpleQueue[Pulled] = SimpleQueue()
        self._running: dict[str, Thread] = {}

    @property
    def running(self) -> Mapping[str, Thread]:
        """By message. One that has ended is among them until `next` has returned it."""
        return self._running

    def start(self, message: str) -> None:
        thread = Thread(target=self._pull, args=(message,), name="ostraka-pull", daemon=True)
        self._running[message] = thread
        thread.start()

    def next(self, seconds: float) -> Pulled | None:
        """One that has ended, or ends within so long."""
        try:
            pulled = self._ended.get(timeout=seconds)
        except Empty:
            return None
        del self._running[pulled.message]
        return pulled

    def _pull(self, message: str) -> None:
        try:
            # One by one: a reply that Flower cannot read must not take the others with it.
            pulled = Pulled(message, tuple(self._grid.pull_messages([message])))
        except BaseException as failed:  # noqa: BLE001 (for whoever waits to judge)
            pulled = Pulled(message, failed=failed)
        self._ended.put(pulled)


_LOG = logging.getLogger("flwr.ostraka")
_SHOWN = 300  # characters of what somebody else says
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 1.0
_ALONE_S = 0.1  # for one pull before the next begins, so that they seldom run side by side
_MOST_ABANDONED = 4  # pulls of one node, each of which holds threads of Flower's as well


@dataclass(frozen=True)
class Patience:
    """grace: seconds for the rest to answer, once `enough` have; None for all the time there is.

    counts: whether a reply is one of those. Else a few that answer at once, and with nothing, could
    cut off those who work.
    """

    enough: int
    grace: float | None
    counts: Callable[[Message], bool]


class Courier(Grid):
    """Flower's grid, but it goes on without nodes that do not answer.

    It asks more often than every three seconds, and can be told how many replies are enough.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._abandoned: dict[int, list[Thread]] = {}  # pulls that nobody waits for, by node
        self.patience: Patience | None = None

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Replies in time. Each is an answer to one of these messages, and each is answered once.

        A reply bears the id of the node that was asked, whatever it says.
        """
        sent = list(messages)
        if not sent:
            return []
        taken = set(self._grid.push_messages(sent))
        awaited: dict[str, int] = {}
        for each in sent:
            message, node = each.metadata.message_id, each.metadata.dst_node_id
            if message not in taken:
                _LOG.warning("node %d cannot be reached: left out", node)
            elif self._is_clogged(node):
                left_out(node, f"{_MOST_ABANDONED} of its replies are announced, and do not come")
            else:
                awaited[message] = node
        return self._receive(awaited, math.inf if timeout is None else timeout)

    def _receive(self, awaited: dict[str, int], timeout: float) -> list[Message]:
        receiving = _Receiving(
            Pulls(self._grid), awaited, time.monotonic() + timeout, self.patience
        )
        receiving.run()
        for message, node in awaited.items():
            _LOG.warning("node %d has not answered in time: left out", node)
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


@dataclass
class _Receiving:
    """awaited: the node of each message without a reply yet. until: on the monotonic clock."""

    pulls: Pulls
    awaited: dict[str, int]
    until: float
    patience: Patience | None
    replies: list[Message] = field(default_factory=list)
    _usable: int = 0

    def run(self) -> None:
        """Until nothing is awaited or time is up. What is still being pulled then is abandoned."""
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
        """One turn for all: enough replies shorten the wait, and never the turn."""
        for message in list(self.awaited):
            # Its reply may have come since the turn began, and nobody has a second one.
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

    def _take(self, node: int, pulled: Pulled) -> None:
        """The message that was pulled for is the one that counts: the reply is the sender's word.

        Raises what ends a run of Flower's, which is no Exception.
        """
        if isinstance(pulled.failed, Exception):
            left_out(node, f"its reply cannot be read: {pulled.failed!r}")
            return
        if pulled.failed is not None:
            raise pulled.failed
        reply = pulled.replies[0]
        if reply.metadata.reply_to_message_id != pulled.message:
            left_out(node, "its reply says that it is to another message")
            return
        reply.metadata.__dict__["_src_node_id"] = node
        self.replies.append(reply)
        self._usable += self.patience is not None and self.patience.counts(reply)

    def _hasten(self) -> None:
        patience = self.patience
        if patience and patience.grace is not None and self._usable >= patience.enough:
            self.until = min(self.until, time.monotonic() + patience.grace)


def left_out(node: int, why: str) -> None:
    _LOG.warning("node %d is left out: %s", node, printable(why))


def printable(text: str) -> str:
    """A node's words, fit for a log."""
    return "".join(each if each.isprintable() else " " for each in text[:_SHOWN])

"""Messages to nodes, and how long their replies are waited for."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

_LOG = logging.getLogger("flwr.ostraka")
_SHOWN = 300  # characters of what somebody else says
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 1.0


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

    def __init__(self, grid: Grid, clock: Callable[[], float] = time.monotonic) -> None:
        self._grid = grid
        self._clock = clock
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
            if each.metadata.message_id in taken:
                awaited[each.metadata.message_id] = each.metadata.dst_node_id
            else:
                _LOG.warning("node %d cannot be reached: left out", each.metadata.dst_node_id)
        return self._receive(awaited, None if timeout is None else self._clock() + timeout)

    def _receive(self, awaited: dict[str, int], until: float | None) -> list[Message]:
        replies: list[Message] = []
        usable = 0
        wait = _FIRST_WAIT_S
        while awaited and (until is None or self._clock() < until):
            new = self._pull(awaited)
            replies += new
            usable += sum(map(self._counts, new))
            until = self._sooner(until, usable)
            if awaited:
                time.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT_S)
        for node in awaited.values():
            _LOG.warning("node %d has not answered in time: left out", node)
        return replies

    def _pull(self, awaited: dict[str, int]) -> list[Message]:
        """Replies that have come; their messages are awaited no more."""
        replies: list[Message] = []
        for name, node in list(awaited.items()):
            # One by one: a reply that Flower cannot read must not take the others with it.
            try:
                pulled = list(self._grid.pull_messages([name]))
            except Exception as unreadable:  # noqa: BLE001 (whatever a node's bytes lead to)
                left_out(node, f"its reply cannot be read: {unreadable!r}")
                del awaited[name]
                continue
            for reply in pulled:
                if reply.metadata.reply_to_message_id == name and name in awaited:
                    reply.metadata.__dict__["_src_node_id"] = awaited.pop(name)
                    replies.append(reply)
        return replies

    def _counts(self, reply: Message) -> bool:
        return self.patience is not None and self.patience.counts(reply)

    def _sooner(self, until: float | None, answered: int) -> float | None:
        patience = self.patience
        if patience is None or patience.grace is None or answered < patience.enough:
            return until
        soon = self._clock() + patience.grace
        return soon if until is None else min(until, soon)

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


def left_out(node: int, why: str) -> None:
    _LOG.warning("node %d is left out: %s", node, printable(why))


def printable(text: str) -> str:
    """A node's words, fit for a log."""
    return "".join(each if each.isprintable() else " " for each in text[:_SHOWN])

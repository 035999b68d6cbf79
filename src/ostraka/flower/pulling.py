"""Replies are pulled in threads: Flower hands out a reply before its parts, and waits for those.

It may do so for hours, and cannot be told to stop.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread

from flwr.app import Message
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

"""Whether the enclave has taken this worker in.

It does not say so: it speaks when it has work, and ends the stream of a stranger at once. So its
first word counts, or that the stream lasts.
"""

from collections.abc import Callable
from threading import Lock, Timer


class Admission:
    """Calls `say` once. after_s: seconds that the stream of a stranger does not last."""

    def __init__(self, say: Callable[[], None], *, after_s: float) -> None:
        self._say = say
        self._once = Lock()
        self._timer = Timer(after_s, self.take)
        self._timer.daemon = True

    def expect(self) -> None:
        """This worker has said who it is."""
        self._timer.start()

    def take(self) -> None:
        """The enclave has spoken."""
        if self._once.acquire(blocking=False):
            self._say()

    def give_up(self) -> None:
        """The stream has ended."""
        self._timer.cancel()

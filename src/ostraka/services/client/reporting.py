"""Where events go if nobody asked for them: into the log, so that nobody waits in the dark."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from ostraka.services.client.events import Event, Reconnecting, Uploading, Waiting

AGAIN_S = 30.0

_LOG = logging.getLogger("ostraka.client")


class Report:
    """Logs events, the same one at most every half a minute. clock: seconds, that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[type[Event], tuple[Event, float]] = {}

    def __call__(self, event: Event) -> None:
        now, what = self._clock(), _whatever_the_attempt(event)
        before, when = self._last.get(type(event), (None, 0.0))
        if what != before or now - when >= AGAIN_S:
            self._last[type(event)] = what, now
            # In words: whoever uses the library formats its log in their own way.
            _LOG.log(_level(event), "%s", event)


def _whatever_the_attempt(event: Event) -> Event:
    return replace(event, attempt=0) if isinstance(event, Reconnecting) else event


def _level(event: Event) -> int:
    return logging.INFO if isinstance(event, Waiting | Uploading) else logging.WARNING

"""What a client reports while it waits, and where the reports go."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True)
class Waiting:
    """Nothing is wrong. The other side is not there yet."""

    what: str

    def __str__(self) -> str:
        return f"waiting for {self.what}"


@dataclass(frozen=True)
class Reconnecting:
    """The enclave's service does not answer as it should; it is asked again."""

    attempt: int
    why: str
    address: str = ""

    def __str__(self) -> str:
        at = f" to reach {self.address}" if self.address else ""
        return f"attempt {self.attempt}{at} failed ({self.why}): trying again"


@dataclass(frozen=True)
class Uploading:
    """Some of the update's tiles are on their way; the others have arrived before."""

    round: int
    tiles: int
    of: int

    def __str__(self) -> str:
        return f"sending {self.tiles} of {self.of} tiles for round {self.round}"


@dataclass(frozen=True)
class Sending:
    """An upload goes on: this many bytes of all have gone out, in this time."""

    round: int
    sent: int
    of: int
    seconds: float

    def __str__(self) -> str:
        left = self.seconds * (self.of - self.sent) / self.sent
        size = f"{self.sent / _MB:.1f} of {self.of / _MB:.1f} MB"
        return f"sent {size} for round {self.round}, about {left:.0f} s left"


@dataclass(frozen=True)
class Resending:
    """The round was opened again; the same update goes to it under a fresh key."""

    round: int

    def __str__(self) -> str:
        return f"round {self.round} was opened again: sending the update anew"


@dataclass(frozen=True)
class AlreadySent:
    """An earlier update of this client is complete in this round, and that one counts."""

    round: int

    def __str__(self) -> str:
        return f"round {self.round} has an update of this client already: that one counts"


@dataclass(frozen=True)
class Confirmed:
    """This client has confirmed the outcome of a round, unseen."""

    round: int

    def __str__(self) -> str:
        return f"confirmed the outcome of round {self.round}"


@dataclass(frozen=True)
class RollbackProved:
    """The enclave's state was copied or set back. What proves it is in this file."""

    proof: Path

    def __str__(self) -> str:
        return f"the enclave's state was copied or set back; the proof is in {self.proof}"


@dataclass(frozen=True)
class ForkProved:
    """The enclave signed two receipts for one round. Both are in this file."""

    proof: Path

    def __str__(self) -> str:
        return f"the chain is forked; both receipts are in {self.proof}"


Event: TypeAlias = (
    Waiting
    | Reconnecting
    | Uploading
    | Sending
    | Resending
    | AlreadySent
    | Confirmed
    | ForkProved
    | RollbackProved
)


AGAIN_S = 30.0

_MB = 1e6

_LOG = logging.getLogger("ostraka.client")


def log(event: Event) -> None:
    """In words: a program that uses the library formats its log in its own way."""
    _LOG.log(_level(event), "%s", event)


class Report:
    """Tells events, the same one at most every half a minute. clock: seconds, that only grow."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, tell: Callable[[Event], None] = log
    ) -> None:
        self._clock = clock
        self._tell = tell
        self._last: dict[type[Event], tuple[Event, float]] = {}

    def __call__(self, event: Event) -> None:
        now, what = self._clock(), _whatever_the_attempt(event)
        before, when = self._last.get(type(event), (None, 0.0))
        if what != before or now - when >= AGAIN_S:
            self._last[type(event)] = what, now
            self._tell(event)


def _whatever_the_attempt(event: Event) -> Event:
    """The same for all attempts, and for all of one upload."""
    if isinstance(event, Sending):
        return replace(event, sent=0, seconds=0.0)
    return replace(event, attempt=0) if isinstance(event, Reconnecting) else event


def _level(event: Event) -> int:
    ordinary = isinstance(event, Waiting | Uploading | Sending | Confirmed)
    return logging.INFO if ordinary else logging.WARNING

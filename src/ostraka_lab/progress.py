"""Where the federation is, from what its processes log."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from ostraka.errors import RoundFailed
from ostraka_lab.children import Logged

_NAMED = 3  # clients that are still awaited: so many fit into the line
_MOST_SKIPPED = 3  # rounds in a row, after which nobody waits any longer


@dataclass
class RoundTimes:
    """When things happened in one round, in seconds since 1970; how long the enclave took."""

    opened: float = 0.0
    trained: float = 0.0  # by the last client
    closed: float = 0.0
    published: float = 0.0
    enclave: dict[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def stages(self) -> dict[str, float]:
        """Seconds of each stage; none of a round that was over before anybody listened.

        Clients send while others still train: that counts as training.
        """
        if not self.closed:
            return {}
        trained = min(max(self.trained, self.opened), self.closed)
        outside = {"train": trained - self.opened, "send": self.closed - trained}
        return {name: round(spent, 4) for name, spent in (outside | self.enclave).items()}

    @property
    def wall(self) -> float | None:
        """Seconds of the whole round, if anybody listened to it."""
        return round(self.published - self.opened, 4) if self.closed else None


@dataclass
class Progress:
    """Listens to the events of the enclave and of the clients."""

    clients: tuple[str, ...]
    workers: int
    rounds: int
    published: int = 0
    times: dict[int, RoundTimes] = field(default_factory=dict)
    losses: dict[int, list[float]] = field(default_factory=dict)  # of training, by round
    gone: dict[str, str] = field(default_factory=dict)  # clients, and why
    _started: bool = False
    _joined: set[str] = field(default_factory=set)
    _trained: set[str] = field(default_factory=set)
    _arrived: set[str] = field(default_factory=set)
    _closed: bool = False
    _skipped: int = 0

    @property
    def ready(self) -> bool:
        """Whether clients can come."""
        return self._started and len(self._joined) == self.workers

    @property
    def current(self) -> int:
        return self.published + 1

    def timed(self, number: int) -> RoundTimes:
        return self.times.get(number, RoundTimes())

    def lose(self, clients: Iterable[str], why: str) -> None:
        """These clients take no part any more."""
        self.gone |= dict.fromkeys(clients, why)

    def hear_client(self, event: Logged) -> None:
        match event.get("event"):
            case "Trained":
                self._trained.add(event["client"])
                self._at(event["round"]).trained = _time(event)
                self.losses.setdefault(event["round"], []).append(event["loss"])
            case "ClientFailed":
                self.lose([event["client"]], event["why"])

    def hear_enclave(self, event: Logged) -> None:
        """Raises RoundFailed when one round after the other is given up."""
        match event.get("event"):
            case "ServiceStarted":
                self._started = True
                self.published = event["next_round"] - 1
            case "WorkerJoined":
                self._joined.add(event["worker"])
            case "RoundOpened":
                self._at(event["number"]).opened = _time(event)
            case "UploadCompleted" | "UploadRefused":
                self._arrived.add(event["client"])
            case "RoundClosed":
                self._closed = True
                self._at(event["number"]).closed = _time(event)
                self._at(event["number"]).missing = tuple(event["missing"])
            case "RoundTimed":
                names = ("measure", "average", "publish")
                self._at(event["number"]).enclave = {name: event[f"{name}_s"] for name in names}
            case "RoundPublished":
                self._at(event["number"]).published = _time(event)
                self.published = event["number"]
                self._begin_round()
            case "RoundSkipped":
                self._skip(event)

    def __str__(self) -> str:
        if not self.ready:
            return f"starting the enclave and {self.workers} workers"
        if self.published >= self.rounds:
            return "finishing"
        if not (self._trained or self._arrived or self.times.get(self.current - 1)):
            return f"starting {len(self.clients)} clients"
        return f"round {self.current} of {self.rounds}: {self._doing()}"

    def _doing(self) -> str:
        if self._closed:
            return "measuring"
        present = [name for name in self.clients if name not in self.gone]
        awaited = [name for name in present if name not in self._arrived]
        text = f"{len(self._trained)} trained, {len(self._arrived)} of {len(self.clients)} in"
        if 0 < len(awaited) <= _NAMED:
            text = f"{text}, waiting for {', '.join(awaited)}"
        elif not awaited and self.gone:
            text = f"{text}, waiting in vain for {', '.join(sorted(self.gone)[:_NAMED])}"
        return text

    def _begin_round(self) -> None:
        self._trained, self._arrived, self._closed, self._skipped = set(), set(), False, 0

    def _skip(self, event: Logged) -> None:
        skipped = self._skipped + 1
        self._begin_round()
        self._skipped = skipped
        if skipped >= _MOST_SKIPPED:
            raise RoundFailed(
                f"round {event['number']} was given up {skipped} times: {event['why']}"
            )

    def _at(self, number: int) -> RoundTimes:
        return self.times.setdefault(number, RoundTimes())


def _time(event: Logged) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()

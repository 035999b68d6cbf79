"""Where the federation is, from what its enclave logs."""

from dataclasses import dataclass, field

from ostraka.demo.children import Logged
from ostraka.errors import RoundFailed

_NAMED = 3  # clients that are still awaited: so many fit into the line


@dataclass
class Progress:
    """Listens to the enclave's events. measured_by: the workers of each round, if it had any."""

    clients: tuple[str, ...]
    workers: int
    rounds: int
    published: int = 0
    measured_by: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _started: bool = False
    _joined: set[str] = field(default_factory=set)
    _arrived: set[str] = field(default_factory=set)
    _closed: bool = False

    @property
    def ready(self) -> bool:
        """Whether clients can come."""
        return self._started and len(self._joined) == self.workers

    def note(self, event: Logged) -> None:
        """Raises RoundFailed for a round that was given up: in a demo nobody stays away."""
        match event.get("event"):
            case "ServiceStarted":
                self._started = True
            case "WorkerJoined":
                self._joined.add(event["worker"])
            case "UploadCompleted" | "UploadRefused":
                self._arrived.add(event["client"])
            case "RoundClosed":
                self._closed = True
            case "AttemptStarted":
                self.measured_by[self.published + 1] = tuple(event["workers"])
            case "RoundPublished":
                self.published = event["number"]
                self._arrived, self._closed = set(), False
            case "RoundSkipped":
                raise RoundFailed(f"round {event['number']} was given up: {event['why']}")

    def __str__(self) -> str:
        if not self.ready:
            return f"starting the enclave and {self.workers} workers"
        if self.published == self.rounds:
            return "ending all processes"
        if not (self._arrived or self.published):
            return f"starting {len(self.clients)} clients"
        return f"round {self.published + 1} of {self.rounds}: {self._doing()}"

    def _doing(self) -> str:
        if self._closed:
            workers = self.measured_by.get(self.published + 1)
            return f"{' and '.join(workers)} measure" if workers else "measuring"
        awaited = [name for name in self.clients if name not in self._arrived]
        arrived = f"{len(self.clients) - len(awaited)} of {len(self.clients)} clients are in"
        if 0 < len(awaited) <= _NAMED:
            return f"{arrived}, waiting for {', '.join(awaited)}"
        return arrived

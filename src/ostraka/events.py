"""What an operator may see of a round. Never an update, a distance, a score or a selection."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class ClientRejected:
    """A client's update took no part, and why."""

    client: str
    reason: str


@dataclass(frozen=True)
class DistancesChosen:
    """Where distances will be measured was left to the machine; this is its reason."""

    why: str


@dataclass(frozen=True)
class AttemptStarted:
    """The cohort is being measured: by these workers, or inside the enclave if there are none."""

    clients: int
    workers: tuple[str, ...]


@dataclass(frozen=True)
class WorkerLied:
    """A worker's answer was provably false. It gets no further work in this round."""

    worker: str


@dataclass(frozen=True)
class WorkerFailed:
    """A worker did not answer, or not usably. That is a fault, not a lie."""

    worker: str
    what: str


@dataclass(frozen=True)
class RoundPublished:
    """The round is over, and its receipt is signed."""

    number: int
    participants: int
    kept: int


Event: TypeAlias = (
    ClientRejected | DistancesChosen | AttemptStarted | WorkerLied | WorkerFailed | RoundPublished
)

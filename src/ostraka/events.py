"""What an operator may see of a round. Never an update, a distance, a score or a selection."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

_NAMED = 3  # at most, in a sentence


def named(clients: Sequence[str] | int) -> str:
    """Clients in a sentence: a few by their names, many by their number, and so if only that."""
    if isinstance(clients, int) or len(clients) > _NAMED:
        count = clients if isinstance(clients, int) else len(clients)
        return f"{count} client{'s' * (count != 1)}"
    return ", ".join(clients)


@dataclass(frozen=True)
class ServiceStarted:
    """The enclave's service answers. evidence: what it proves itself by."""

    address: str
    evidence: str
    code_id: str
    sealing_key: str
    next_round: int


@dataclass(frozen=True)
class FederationAdopted:
    """A revision of the terms and roster is in force from the next round on."""

    revision: int
    clients: int
    workers: int
    revoked: tuple[str, ...]


@dataclass(frozen=True)
class FederationIgnored:
    """The federation file has changed and cannot be used; the old one stays in force."""

    why: str


@dataclass(frozen=True)
class Cautioned:
    """The terms in force protect less than they could, and receipts will say so."""

    what: str


@dataclass(frozen=True)
class RoundOpened:
    """Clients can send their updates, for `deadline_s` seconds."""

    number: int
    deadline_s: float
    clients: int

    def __str__(self) -> str:
        return f"waiting for {named(self.clients)}"


@dataclass(frozen=True)
class UploadStarted:
    """The first bytes of a client's update, or the next ones after a break."""

    client: str
    missing: int  # tiles


@dataclass(frozen=True)
class UploadCompleted:
    """All of a client's update has arrived. Whether it is any good shows later."""

    client: str


@dataclass(frozen=True)
class UploadRefused:
    """An upload was refused.

    address: who sent it in the client's name, unless it was the client itself. Whoever it was may
    have replayed what the client sent before.
    """

    client: str
    why: str
    address: str = ""


@dataclass(frozen=True)
class AddressCrowded:
    """All places of strangers were taken, and this address, which has most, gave one up."""

    address: str
    places: int


@dataclass(frozen=True)
class QuorumReached:
    """There are enough updates to close the round, which waits `seconds` more for the others."""

    number: int
    arrived: int
    seconds: float
    missing: tuple[str, ...]

    def __str__(self) -> str:
        return f"quorum reached, waiting {self.seconds:.0f} s more for {named(self.missing)}"


@dataclass(frozen=True)
class QuorumMissed:
    """There were too few updates at the deadline; without extensions left, the round is skipped."""

    number: int
    arrived: int
    quorum: int
    extensions_left: int


@dataclass(frozen=True)
class RoundClosed:
    """Who takes part is fixed."""

    number: int
    arrived: int
    missing: tuple[str, ...]


@dataclass(frozen=True)
class RoundSkipped:
    """Nothing was published. The round is opened again under fresh keys."""

    number: int
    why: str


@dataclass(frozen=True)
class RoundProposed:
    """An outcome is sealed, and waits for this many confirmations. Nothing of it is shown."""

    number: int
    needed: int


@dataclass(frozen=True)
class ConfirmationsAwaited:
    """An outcome cannot be published yet. It waits as long as it takes, also over a restart."""

    number: int
    missing: int
    silent: tuple[str, ...]


@dataclass(frozen=True)
class NullStep:
    """The rule could not stand on the updates. The number is used up, and the model unchanged."""

    number: int
    why: str


@dataclass(frozen=True)
class RolledBack:
    """This enclave has signed a proposal that it does not know: its state is not the newest.

    It publishes nothing. Stop it, bring back the newest state, and start it again.
    """

    number: int


@dataclass(frozen=True)
class CopyProved:
    """Another copy of this enclave has proposed another outcome of the same round."""

    number: int


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
class ShardJoined:
    """A shard has proved itself to its lead, and has its slice of the model."""

    shard: int
    address: str


@dataclass(frozen=True)
class ShardLeft:
    """A shard is gone, and may come back. A round that is open is opened again."""

    shard: int


@dataclass(frozen=True)
class ShardRefused:
    """A shard was not let in, or does not have what it must have."""

    why: str


@dataclass(frozen=True)
class ShardsAwaited:
    """No round opens before all shards are there."""

    number: int
    missing: tuple[int, ...]


@dataclass(frozen=True)
class LeadJoined:
    """This shard serves a lead that has proved itself."""

    shard: int
    lead: str


@dataclass(frozen=True)
class LeadLost:
    """This shard has no lead. It asks again."""

    lead: str
    why: str
    retry_s: float


@dataclass(frozen=True)
class WorkerJoined:
    """A worker offers its service."""

    worker: str


@dataclass(frozen=True)
class WorkerLeft:
    """A worker is gone, and may come back."""

    worker: str


@dataclass(frozen=True)
class WorkerRefused:
    """A peer claimed to be a worker and could not prove it."""

    worker: str
    why: str


@dataclass(frozen=True)
class TooFewWorkers:
    """The terms want workers, and not enough are here: the enclave measures by itself."""

    connected: int
    needed: int


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
class RoundTimed:
    """How many seconds a round took after it was closed, stage by stage, since the last start."""

    number: int
    measure_s: float = 0.0
    average_s: float = 0.0
    hold_s: float = 0.0
    confirm_s: float = 0.0
    publish_s: float = 0.0


@dataclass(frozen=True)
class RoundPublished:
    """The round is over, and its receipt is signed. note: what that says of how the rule worked."""

    number: int
    participants: int
    kept: int
    note: str = ""


@dataclass(frozen=True)
class StorageNoticed:
    """Something about the stored state that an operator should know. It is usable."""

    what: str


@dataclass(frozen=True)
class StorageFailed:
    """The disk does not take what must be kept. Nothing is published until it does."""

    what: str


@dataclass(frozen=True)
class ClockJumped:
    """The wall clock and the time that passed disagree. Deadlines count the time that passed."""

    seconds: float


@dataclass(frozen=True)
class ServerRestarted:
    """A malformed request has ended the server, and it was started again at once."""


@dataclass(frozen=True)
class Finished:
    """All rounds are published. The service stays for `seconds`, for clients to fetch the last."""

    number: int
    seconds: float

    def __str__(self) -> str:
        return f"finished: round {self.number} was the last one"


@dataclass(frozen=True)
class Stopping:
    """The service ends."""

    why: str


Event: TypeAlias = (
    ServiceStarted
    | ShardJoined
    | ShardLeft
    | ShardRefused
    | ShardsAwaited
    | LeadJoined
    | LeadLost
    | FederationAdopted
    | FederationIgnored
    | Cautioned
    | RoundOpened
    | UploadStarted
    | UploadCompleted
    | UploadRefused
    | AddressCrowded
    | QuorumReached
    | QuorumMissed
    | RoundClosed
    | RoundSkipped
    | RoundProposed
    | ConfirmationsAwaited
    | NullStep
    | RolledBack
    | CopyProved
    | ClientRejected
    | DistancesChosen
    | AttemptStarted
    | WorkerJoined
    | WorkerLeft
    | WorkerRefused
    | TooFewWorkers
    | WorkerLied
    | WorkerFailed
    | RoundTimed
    | RoundPublished
    | StorageNoticed
    | StorageFailed
    | ClockJumped
    | ServerRestarted
    | Finished
    | Stopping
)

# What an operator should look at, and what at once. Everything else is the ordinary course.
WARNINGS = (
    FederationIgnored,
    Cautioned,
    QuorumMissed,
    RoundSkipped,
    ConfirmationsAwaited,
    NullStep,
    ClientRejected,
    UploadRefused,
    AddressCrowded,
    ShardLeft,
    ShardRefused,
    ShardsAwaited,
    LeadLost,
    WorkerLeft,
    WorkerRefused,
    WorkerFailed,
    TooFewWorkers,
    StorageNoticed,
    ClockJumped,
    ServerRestarted,
)
ERRORS = (WorkerLied, StorageFailed, RolledBack, CopyProved)

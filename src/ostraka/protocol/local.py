"""A federation whose enclave, workers and host share one process.

Simulations, benchmarks and tests run on it; a service differs in who carries the messages. It
protects no one from the process that it runs in.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

import numpy as np

from ostraka.arrays import Buffer
from ostraka.config import Federation, Member, Terms, cut_into_spans
from ostraka.core import optimiser
from ostraka.core.optimiser import ServerState
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.identity import Identity
from ostraka.crypto.updates import SealedUpdate
from ostraka.encoding import UNSIGNED
from ostraka.errors import LocalProtocolError
from ostraka.events import Event
from ostraka.messages import (
    IN_PROCESS,
    Certified,
    Charter,
    Confirmation,
    Link,
    RoundOffer,
    chain,
    vector_digest,
)
from ostraka.protocol import host
from ostraka.protocol.confirm import Ballot
from ostraka.protocol.enclave import (
    Cohort,
    Enclave,
    Intake,
    Memory,
    Part,
    Proposed,
    Shard,
    ShardRound,
    Threads,
)
from ostraka.protocol.enclave.cohort import RoundContext
from ostraka.protocol.enclave.shard import square_of
from ostraka.protocol.host import Host, OwnColumns
from ostraka.protocol.worker import Worker

_ID_BYTES = 32

WORKER = "worker-"  # begins the names of the workers


class InMemory:
    """A spool for rows that find no room in the budget, in the same process all the same."""

    def __init__(self) -> None:
        self._tiles: dict[tuple[int, int], bytes] = {}

    def write(self, row: int, index: int, ciphertext: Buffer) -> None:
        self._tiles[row, index] = bytes(ciphertext)

    def read(self, row: int, index: int, start: int, size: int) -> Buffer:
        return memoryview(self._tiles[row, index])[start : start + size]

    def clear(self) -> None:
        self._tiles.clear()


@dataclass
class LocalShard:
    """A shard in the lead's process. workers: by name, as they know this shard."""

    shard: Shard
    workers: dict[str, host.Worker]
    memory: Memory = field(default_factory=Memory)
    _spool: InMemory = field(default_factory=InMemory)
    _round: ShardRound | None = None

    @property
    def last_square(self) -> float:
        return square_of(optimiser.keeping_last(self.shard.state, keep=True)) or 0.0

    def open(self, context: RoundContext) -> Part:
        """Its part of a round of the lead."""
        if self._round is not None:
            self._round.part.stop()
            self._round = None
        self._spool.clear()
        self.shard.federation = context.federation
        self._round = self.shard.open_round(
            context.number, context.round_id, self.memory, self._spool
        )
        return self._round.part

    def close(
        self, cohort: Cohort, threads: Threads, tell: Callable[[Event], None]
    ) -> host.Columns:
        """Its columns of the cohort. What it finds out about a row, the lead's cohort knows."""
        if self._round is None:
            raise LocalProtocolError("no round is open")
        own = self._round.close([(row.client, row.upload_id) for row in cohort.rows])
        shared = replace(own, standing=cohort.standing)
        return OwnColumns(shared, threads, self.workers, tell)


def _one_at_a_time(entropy: Entropy) -> Entropy:
    """Shards draw in threads of their own, and a stream that two of them read may give both of them
    the same bytes."""
    lock = Lock()

    def draw(count: int) -> bytes:
        with lock:
            return entropy(count)

    return draw


def _staffed(
    staff: dict[str, Identity], receipt_key: bytes, entropy: Entropy
) -> dict[str, host.Worker]:
    """Workers that serve the enclave of this key."""
    return {
        name: Worker(identity, receipt_key=receipt_key, entropy=entropy)
        for name, identity in staff.items()
    }


def _shards(
    federation: Federation,
    count: int,
    state: ServerState | None,
    staff: dict[str, Identity],
    entropy: Entropy,
) -> list[LocalShard]:
    terms = federation.terms
    if state is None:
        state = optimiser.start(np.zeros(terms.dimension, np.float32), terms.optimiser)
    shards = []
    for span in cut_into_spans(terms.tiling, count):
        identity = Identity.generate(entropy)
        part = optimiser.part_of(state, span.part)
        shard = Shard(federation, identity, span, part, entropy)
        shards.append(LocalShard(shard, _staffed(staff, identity.public, entropy)))
    return shards


@dataclass
class LocalFederation:
    """Rounds of one federation: `open` a round, `take` uploads, `finish` it, `confirm`, `release`.

    workers: by name; spares beyond those that the terms ask for take over from one that fails.
    tell: takes what an operator may see. memory: for the rows of a round. shards: who have the
    model and the values of updates; none if the enclave itself has them.
    """

    authority: Identity = field(repr=False)
    enclave: Enclave
    workers: dict[str, host.Worker]
    charters: list[Charter]
    threads: Threads = field(default_factory=Threads)
    tell: Callable[[Event], None] = lambda event: None
    published: list[Certified] = field(default_factory=list)
    _intake: Intake | None = None
    _proposed: Proposed | None = None
    memory: Memory = field(default_factory=Memory)
    _ballot: Ballot | None = None
    _spool: InMemory = field(default_factory=InMemory)
    shards: list["LocalShard"] = field(default_factory=list)

    @classmethod
    def found(
        cls,
        terms: Terms,
        clients: Sequence[Member],
        *,
        entropy: Entropy,
        witnesses: Sequence[Member] = (),
        spares: int = 0,
        state: ServerState | None = None,
        evidence: str = IN_PROCESS,
        threads: Threads | None = None,
        tell: Callable[[Event], None] = lambda event: None,
        shards: int = 1,
    ) -> "LocalFederation":
        """Draw keys for the authority, the enclave and the workers. Raises ConfigError.

        spares: workers beyond those that the terms ask for. state: what the first round starts
        from; a model of zeros unless given. shards: among how many the values are divided.
        """
        entropy = _one_at_a_time(entropy)
        count = 0 if terms.inside else terms.workers + spares
        staff = {f"{WORKER}{number}": Identity.generate(entropy) for number in range(1, count + 1)}
        authority = Identity.generate(entropy)
        federation = Federation(
            terms,
            tuple(clients),
            tuple(Member(name, identity.public) for name, identity in staff.items()),
            authority.public,
            entropy(_ID_BYTES),
            initial=b"" if state is None else vector_digest(state.model),
            witnesses=tuple(witnesses),
        )
        enclave = Enclave(
            federation,
            Identity.generate(entropy),
            state=state if shards == 1 else None,
            evidence=evidence,
            leads=shards > 1,
            entropy=entropy,
        )
        charter = authority.sign(Charter(federation, UNSIGNED))
        return cls(
            authority,
            enclave,
            _staffed(staff, enclave.receipt_key, entropy),
            [charter],
            threads or Threads(),
            tell,
            shards=_shards(federation, shards, state, staff, entropy) if shards > 1 else [],
        )

    @property
    def federation(self) -> Federation:
        """The newest revision."""
        return self.charters[-1].federation

    @property
    def terms(self) -> Terms:
        return self.federation.terms

    def revise(self, terms: Terms, clients: tuple[Member, ...]) -> None:
        """Sign and adopt a new revision, for the next round. Raises ConfigError."""
        revision = self.federation.revision + 1
        newer = replace(self.federation, terms=terms, clients=clients, revision=revision)
        charter = self.authority.sign(Charter(newer, UNSIGNED))
        self.enclave.adopt(charter)
        self.charters.append(charter)

    def open(self) -> RoundOffer:
        """Open the next round. One that was open is given up, and takes no more."""
        if self._intake is not None:
            self._intake.stop()  # Both have the same memory.
            self._intake = None
        self._spool.clear()
        if self.shards:
            spans = [each.shard.span for each in self.shards]
            needed = self.terms.composition.needs_last
            squares = [each.last_square for each in self.shards] if needed else []
            self._intake = self.enclave.lead_round(
                spans,
                lambda number, context: self.shards[number].open(context),
                sum(squares) if needed else None,
            )
        else:
            self._intake = self.enclave.open_round(self.memory, self._spool)
        return self._intake.offer

    @property
    def intake(self) -> Intake:
        """The open round."""
        if self._intake is None:
            raise LocalProtocolError("no round is open")
        return self._intake

    def take(self, sealed: SealedUpdate) -> None:
        """Bring one upload to the enclave. Raises RemoteProtocolError if it is refused."""
        self.intake.accept(sealed.header)
        for tile in sealed.tiles:
            self.intake.take(sealed.header.client, tile)

    def close(self) -> Cohort:
        """Fix who takes part. Raises TooFewUpdates, and the round stays open."""
        return self.intake.close()

    def host(self, cohort: Cohort) -> Host:
        """What drives the closed round to its end."""
        return Host(
            threads=self.threads,
            workers=self.workers,
            tell=self.tell,
            shards=[each.close(cohort, self.threads, self.tell) for each in self.shards],
        )

    def finish(self) -> Ballot:
        """Close the round, run all steps, and ask for confirmations."""
        cohort = self.close()
        driver = self.host(cohort)
        return self.propose(driver.finish(cohort, driver.measure(cohort)))

    def propose(self, proposed: Proposed) -> Ballot:
        """Ask for confirmations of an outcome."""
        self._proposed = proposed
        self._ballot = self.enclave.ballot(proposed.pending)
        return self._ballot

    @property
    def ballot(self) -> Ballot:
        """What counts the confirmations of the outcome that was proposed."""
        if self._ballot is None:
            raise LocalProtocolError("no outcome was proposed")
        return self._ballot

    @property
    def proposed(self) -> Proposed:
        """The outcome that waits for confirmations."""
        if self._proposed is None:
            raise LocalProtocolError("no outcome was proposed")
        return self._proposed

    def confirm(self, confirmation: Confirmation) -> None:
        """Count one confirmation. Raises RemoteProtocolError."""
        self.ballot.add(confirmation)

    def release(self) -> tuple[Proposed, Certified]:
        """Publish the outcome. Raises ReceiptRefused while too few have confirmed it."""
        proposed = self.proposed
        pending = proposed.pending
        certified = Certified(pending.receipt, self.ballot.certificate(pending.salt))
        self.enclave.follow(certified, None if self.shards else proposed.state)
        for shard, part in zip(self.shards, proposed.slices, strict=False):
            shard.shard.state = part.state
        self.published.append(certified)
        self._intake = None
        self._spool.clear()
        self._proposed = self._ballot = None
        return proposed, certified

    def links(self, after: int) -> Iterator[Link]:
        """All charters, and the receipts behind receipt `after`."""
        return chain(self.charters, self.published[after:])

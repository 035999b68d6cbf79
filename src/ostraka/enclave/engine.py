"""Opens, closes, measures and publishes one round after the other."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from ostraka import events, federation_file
from ostraka.config import Federation
from ostraka.enclave import hardening
from ostraka.enclave.open_round import OpenRound
from ostraka.enclave.storage.offline import OfflinePool
from ostraka.enclave.storage.spool import Spool
from ostraka.enclave.storage.state import EnclaveState
from ostraka.enclave.workers import Pool
from ostraka.errors import (
    ConfigError,
    LeakyMasking,
    LocalProtocolError,
    OpenError,
    RemoteProtocolError,
    RoundFailed,
    StateError,
    StorageFull,
)
from ostraka.events import Event
from ostraka.federation_file import FederationFile, charter_path
from ostraka.messages import Charter, Receipt
from ostraka.protocol.enclave import Cohort, Enclave, Published
from ostraka.protocol.host import Host, lanes

_GRACE_S = 5.0  # to wait for workers when a round closes
_AHEAD = 2  # attempts for which masks are made ahead
_RETRY_S = 1.0  # after the disk has failed
_MOST_RETRY_S = 30.0
_CLOCK_TOLERANCE_S = 5.0
_MIB = 2**20
_SEALED_BYTES = 5  # of one sealed value, rounded up


class Phase(StrEnum):
    """Where the service is in a round."""

    STARTING = "starting"
    COLLECTING = "collecting"
    MEASURING = "measuring"
    PUBLISHING = "publishing"
    FINISHED = "finished"
    STOPPED = "stopped"


@dataclass
class Engine:
    """The rounds of one federation.

    `current` is the open round, None between rounds. `moved` is notified whenever anything has
    changed that a client may be waiting for.
    """

    path: Path
    file: FederationFile
    state: EnclaveState
    enclave: Enclave
    pool: Pool
    tell: Callable[[Event], None]
    current: OpenRound | None = None
    measuring: bytes | None = None  # the id of the round that is being measured
    phase: Phase = Phase.STARTING
    brought: Charter | None = None  # to be adopted
    ignored: str | None = None  # why the federation file cannot be used, as last told
    deadline: float = 0.0  # of the open round, on the monotonic clock
    stages: dict[str, float] = field(default_factory=dict)  # seconds, of the last round
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def federation(self) -> Federation:
        return self.state.federation

    @property
    def published(self) -> int:
        head = self.state.head
        return head.number if head else 0

    async def run(self) -> None:
        """Run all rounds that are left, or until `stopping` is set."""
        Spool.clean(self._folder)
        offline = self._offline()
        try:
            while self.published < self.file.rounds.count and not self.stopping.is_set():
                if self._adopt_if_signed():
                    offline.stop()
                    offline = self._offline()
                await self._round(offline)
        finally:
            offline.stop()
        done = self.published >= self.file.rounds.count
        await self._go(Phase.FINISHED if done else Phase.STOPPED)

    def announce(self) -> None:
        """Tell which terms and roster are in force, and what an operator should know about them."""
        terms = self.federation.terms
        self.tell(_adopted(self.federation))
        if terms.masking == "gaussian" and not terms.inside:
            self.tell(events.Cautioned(str(LeakyMasking())))
        if not (terms.verify or terms.inside):
            self.tell(events.Cautioned("verify = false: a worker that lies is not noticed"))

    def receipt(self, number: int) -> Receipt | None:
        return self.state.receipts(number)[0] if 1 <= number <= self.published else None

    async def _round(self, offline: OfflinePool) -> None:
        """Run one round, to a published receipt or to a reason why there is none."""
        try:
            with closing(self._spool()) as spool:
                try:
                    await self._open(spool)
                    cohort = await self._collect()
                    if cohort is not None:
                        await self._finish(cohort, offline)
                finally:
                    self.current = self.measuring = None
        except (RoundFailed, RemoteProtocolError, StateError, StorageFull) as failed:
            self._skip(str(failed))
            await _first_of(self.stopping, seconds=_RETRY_S)
        finally:
            await self._go(self.phase)

    def _spool(self) -> Spool:
        return Spool(
            self._folder,
            terms=self.federation.terms,
            rows=len(self.federation.clients),
            limit=self.file.storage.spool_mib * _MIB,
        )

    async def _open(self, spool: Spool) -> None:
        intake = self.enclave.open_round()
        self.current = OpenRound(intake, spool, self.federation)
        self.deadline = time.monotonic() + self.file.rounds.deadline_s
        self.tell(events.RoundOpened(self.current.number, self.file.rounds.deadline_s))
        await self._go(Phase.COLLECTING)

    async def _collect(self) -> Cohort | None:
        """Wait for all, or for a quorum at the deadline. Return None if the round is given up."""
        rounds, current = self.file.rounds, self._open_round()
        for left in range(rounds.extensions, -1, -1):
            await self._until_all_or_deadline(current)
            if self.stopping.is_set():
                self.tell(events.RoundSkipped(current.number, "the service is stopping"))
                return None
            arrived = current.answered
            if arrived >= self.file.quorum or not current.awaited:
                return self._close(current)
            self.tell(events.QuorumMissed(current.number, arrived, self.file.quorum, left))
            self.deadline = time.monotonic() + rounds.deadline_s
        self._skip(f"no quorum after {rounds.extensions} extensions")
        return None

    async def _until_all_or_deadline(self, current: OpenRound) -> None:
        """Wait by the monotonic clock. A jump of the wall clock is told, and changes nothing."""
        offset = time.time() - time.monotonic()
        while current.awaited and not self.stopping.is_set():
            self._hurry(current)
            left = self.deadline - time.monotonic()
            if left <= 0:
                return
            current.changed.clear()
            await _first_of(current.changed, self.stopping, seconds=min(left, 1.0))
            jump = time.time() - time.monotonic() - offset
            if abs(jump) > _CLOCK_TOLERANCE_S:
                self.tell(events.ClockJumped(round(jump, 1)))
                offset += jump

    def _hurry(self, current: OpenRound) -> None:
        """Once the quorum is there, shorten the deadline to the time of grace."""
        grace = self.file.rounds.grace_s
        if grace is not None and current.answered >= self.file.quorum:
            self.deadline = min(self.deadline, time.monotonic() + grace)

    def _close(self, current: OpenRound) -> Cohort:
        cohort = current.intake.close()
        missing = tuple(sorted(current.awaited))
        self.tell(events.RoundClosed(current.number, len(cohort.clients), missing))
        return cohort

    async def _finish(self, cohort: Cohort, offline: OfflinePool) -> None:
        """Measure, average and make durable. Only then are clients told."""
        current, terms = self._open_round(), self.federation.terms
        self.current, self.measuring = None, current.round_id
        await self._go(Phase.MEASURING)
        hardening.give_back()
        if not terms.inside:
            await self.pool.wait_for(terms.workers, _GRACE_S)
        names = [member.name for member in self.federation.workers]
        with offline.resting(), lanes(self.file.enclave.threads) as lent:
            host = Host(
                lanes=lent,
                tiles=current.tiles(cohort),
                workers=self.pool.remote(names, self.file.rounds.measure_s),
                prepare=offline.take,
                tell=self._tell_from_thread(),
            )
            with self._stage("measure"):
                measured = await asyncio.to_thread(host.measure, cohort)
            with self._stage("average"):
                published = await asyncio.to_thread(host.finish, cohort, measured)
        await self._go(Phase.PUBLISHING)
        with self._stage("publish"):
            await self._make_durable(published)
        self._report(published)

    async def _make_durable(self, published: Published) -> None:
        """Retry until the disk takes it: a signed round is published, and never signed again."""
        wait = _RETRY_S
        while True:
            try:
                await asyncio.to_thread(self.state.publish, published.receipt, published.state)
                break
            except OSError as failed:
                self.tell(events.StorageFailed(f"round {published.receipt.number}: {failed}"))
            if self.stopping.is_set():
                raise RoundFailed("the disk takes nothing, and the service is stopping")
            await _first_of(self.stopping, seconds=wait)
            wait = min(2 * wait, _MOST_RETRY_S)
        self.enclave.follow(published.receipt, published.state)

    def _report(self, published: Published) -> None:
        for client, reason in published.rejected.items():
            self.tell(events.ClientRejected(client, reason))
        receipt = published.receipt
        stages = {f"{name}_s": seconds for name, seconds in self.stages.items()}
        self.tell(events.RoundTimed(receipt.number, **stages))
        self.tell(events.RoundPublished(receipt.number, receipt.participants, receipt.kept))

    def _skip(self, why: str) -> None:
        self.tell(events.RoundSkipped(self.published + 1, why))
        try:
            self.state.skip(self.published + 1, why)
        except OSError as failed:
            self.tell(events.StorageFailed(str(failed)))

    def bring(self, charter: Charter) -> None:
        """Note a revision for the next round. Raises OpenError or LocalProtocolError if unfit."""
        self.enclave.require_adoptable(charter)
        if self.brought is None or charter.federation.revision > self.brought.federation.revision:
            self.brought = charter

    def _adopt_if_signed(self) -> bool:
        """Adopt a newer revision, if one was brought or lies beside the federation file."""
        try:
            charter = self._newest()
            if charter is None:
                return False
            self.enclave.require_adoptable(charter)
            self.state.adopt(charter)
            self.enclave.adopt(charter)
        except (ConfigError, OpenError, LocalProtocolError, OSError) as refused:
            if str(refused) != self.ignored:
                self.tell(events.FederationIgnored(str(refused)))
            self.ignored = str(refused)
            return False
        self.ignored = None
        self.announce()
        return True

    def _newest(self) -> Charter | None:
        """Return the revision to adopt, if any. The operator's own settings are read again, too."""
        brought, self.brought = self.brought, None
        if brought is not None and brought.federation.revision > self.federation.revision:
            return brought
        file = federation_file.load(self.path)
        charter = federation_file.load_charter(charter_path(self.path))
        federation_file.require_signed(file, charter)
        self.file = file
        newer = charter.federation.revision > self.federation.revision
        return charter if newer else None

    def _offline(self) -> OfflinePool:
        terms = self.federation.terms
        cheap = terms.inside or (terms.masking == "exact" and terms.workers % 2)
        updates = len(self.federation.clients) * terms.dimension * _SEALED_BYTES
        limit = max(0, self.file.storage.spool_mib * _MIB - updates)
        pool = OfflinePool(self.enclave, self._folder, depth=0 if cheap else _AHEAD, limit=limit)
        pool.start()
        return pool

    @property
    def _folder(self) -> Path:
        return self.state.folder

    def _open_round(self) -> OpenRound:
        if self.current is None:
            raise LocalProtocolError("no round is open")
        return self.current

    def _tell_from_thread(self) -> Callable[[Event], None]:
        loop = asyncio.get_running_loop()

        def tell(event: Event) -> None:
            loop.call_soon_threadsafe(self.tell, event)

        return tell

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.stages[name] = round(time.perf_counter() - start, 4)

    async def _go(self, phase: Phase) -> None:
        self.phase = phase
        async with self.moved:
            self.moved.notify_all()


def _adopted(federation: Federation) -> Event:
    return events.FederationAdopted(
        revision=federation.revision,
        clients=len(federation.clients),
        workers=len(federation.workers),
        revoked=tuple(member.name for member in federation.revoked),
    )


async def _first_of(*signals: asyncio.Event, seconds: float) -> None:
    """Wait for any of these, for at most this number of seconds."""
    waiting = [asyncio.ensure_future(signal.wait()) for signal in signals]
    try:
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()

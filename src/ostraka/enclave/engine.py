"""Opens, closes, measures, proposes and publishes one round after the other."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from ostraka import events, federation_file
from ostraka.config import Federation
from ostraka.crypto.identity import check_signature
from ostraka.enclave import hardening
from ostraka.enclave.lead import Shards
from ostraka.enclave.open_round import OpenRound
from ostraka.enclave.storage.models import Slices
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
from ostraka.messages import Certified, Charter, Confirmation, Proposal, Receipt
from ostraka.protocol.confirm import Ballot, Electorate, electorates
from ostraka.protocol.enclave import NOT_ROBUST, Cohort, Enclave, Intake, Memory
from ostraka.protocol.host import Columns, Host, lend_threads

_GRACE_S = 5.0  # to wait for workers when a round closes
_SHARD_ATTEMPTS = 8  # of the time for workers, that a shard has for one step
_RETRY_S = 1.0  # after the disk has failed
_MOST_RETRY_S = 30.0
_CLOCK_TOLERANCE_S = 5.0
_REMIND_S = 60.0  # between two words about confirmations that are missing
_MIB = 2**20


class Phase(StrEnum):
    """Where the service is in a round."""

    STARTING = "starting"
    COLLECTING = "collecting"
    MEASURING = "measuring"
    CONFIRMING = "confirming"
    PUBLISHING = "publishing"
    ROLLED_BACK = "rolled back"
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
    memory: Memory
    tell: Callable[[Event], None]
    shards: Shards | None = None  # that have the model and the values of updates
    require_room: Callable[[Federation], None] = lambda _: None  # raises ConfigError
    current: OpenRound | None = None
    measuring: bytes | None = None  # the id of the round that is being measured
    ballot: Ballot | None = None  # of the outcome that waits to be confirmed
    forgotten: Proposal | None = None  # signed by this enclave, which does not know of it
    copied: bool = False  # a copy has proposed another outcome of the pending round
    phase: Phase = Phase.STARTING
    brought: Charter | None = None  # to be adopted
    seen: tuple[bytes, bytes] | None = None  # of the file and its charter, with nothing to adopt
    ignored: str | None = None  # why the federation file cannot be used, as last told
    deadline: float = 0.0  # of the open round, on the monotonic clock
    stages: dict[str, float] = field(default_factory=dict)  # seconds, of the last round
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    halted: asyncio.Event = field(default_factory=asyncio.Event)  # stopping, or rolled back
    voted: asyncio.Event = field(default_factory=asyncio.Event)
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def federation(self) -> Federation:
        return self.state.federation

    @property
    def published(self) -> int:
        """The number of the last round that is settled."""
        head = self.state.head
        return head.number if head else 0

    def stop(self) -> None:
        """End after what cannot be interrupted."""
        self.stopping.set()
        self.halted.set()

    async def run(self) -> None:
        """Run all rounds that are left, or until `stopping` is set."""
        Spool.clean(self._folder)
        await self._resume()
        while self.published < self.file.rounds.count and not self.halted.is_set():
            self._adopt_if_signed()
            await self._round()
        if self.forgotten is not None:
            await self._go(Phase.ROLLED_BACK)
            await self.stopping.wait()
        done = self.published >= self.file.rounds.count
        await self._go(Phase.FINISHED if done else Phase.STOPPED)

    def announce(self) -> None:
        """Tell which terms and roster are in force, and what an operator should know about them."""
        terms = self.federation.terms
        self.tell(_adopted(self.federation))
        if terms.masking == "gaussian" and not terms.inside:
            self.tell(events.Cautioned(str(LeakyMasking())))
        if terms.f and not terms.composition.robust:
            self.tell(events.Cautioned(NOT_ROBUST))
        for each in electorates(self.state.electors):
            if each.silent < each.f:
                self.tell(events.Cautioned(_too_few(each)))
        if terms.confirm == "none":
            self.tell(events.Cautioned("confirm = none: who copies the enclave can read an update"))
        if self.federation.expires is not None and time.time() > self.federation.expires:
            self.tell(events.Cautioned("the charter has expired: clients join no round under it"))
        if not (terms.verify or terms.inside):
            self.tell(events.Cautioned("verify = false: a worker that lies is not noticed"))

    def certified(self, number: int) -> Certified | None:
        """The receipt of this number, if this enclave has published it."""
        found = self.state.published(number)[:1] if number >= 1 else ()
        return found[0] if found and found[0].receipt.number == number else None

    def confirm(self, confirmation: Confirmation) -> bool:
        """Count one vote. Returns False if its number is settled. Raises OpenError."""
        if confirmation.number <= self.published:
            return False
        if self.ballot is None:
            raise OpenError("Confirmation")
        if self.ballot.add(confirmation) and self.ballot.confirmed:
            self.voted.set()
        return True

    def remind(self, proposal: Proposal) -> None:
        """Take note of a proposal that this enclave has signed. Raises OpenError for any other.

        If it is of a number that this enclave has not proposed, its state is an older one: then it
        publishes nothing any more. An outcome that is pending stays so: it is released if enough
        confirm it, and then no other can be.
        """
        check_signature(proposal, self.enclave.receipt_key)
        if proposal.federation != self.federation.id:
            raise OpenError("Proposal")
        if proposal.number <= self.published:
            return
        pending = self.state.pending[0].proposal if self.state.pending is not None else None
        if pending is None or proposal.number > pending.number:
            if self.forgotten is None:
                self.tell(events.RolledBack(proposal.number))
            self.forgotten = proposal
            self.halted.set()
        elif proposal != pending and not self.copied:
            self.copied = True
            self.tell(events.CopyProved(proposal.number))

    async def _round(self) -> None:
        """Run one round, to a published receipt or to a reason why there is none."""
        try:
            with ExitStack() as stack:
                try:
                    spool = None if self.shards else stack.enter_context(closing(self._spool()))
                    await self._open(spool)
                    cohort = await self._collect()
                    if cohort is not None:
                        await self._finish(cohort)
                finally:
                    if self.current is not None:
                        self.current.intake.stop()
                    if self.shards is not None:
                        self.shards.stop_round()
                    self.current = self.measuring = None
        except (RoundFailed, RemoteProtocolError, StateError, StorageFull) as failed:
            if self.state.pending is None:  # Otherwise it goes on when the service starts again.
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

    async def _open(self, spool: Spool | None) -> None:
        if self.shards is not None:
            intake = await self._open_at_shards(self.shards)
        else:
            # The first round, and one with more clients, touches memory, which may take seconds.
            intake = await asyncio.to_thread(self.enclave.open_round, self.memory, spool)
        self.current = OpenRound(intake, self.federation, self.file.quorum)
        self.deadline = time.monotonic() + self.file.rounds.deadline_s
        clients = len(self.federation.clients)
        self.tell(events.RoundOpened(self.current.number, self.file.rounds.deadline_s, clients))
        await self._go(Phase.COLLECTING)

    async def _open_at_shards(self, shards: Shards) -> Intake:
        """Wait for all shards, and open the round at each. Raises RoundFailed."""
        number = self.enclave.next_number
        while not shards.complete:
            self.tell(events.ShardsAwaited(number, shards.missing))
            await self._go(Phase.STARTING)
            shards.changed.clear()
            await _first_of(shards.changed, self.halted, seconds=_REMIND_S)
            if self.halted.is_set():
                raise RoundFailed("the service is stopping, and waits for shards")
        return await shards.open_round(self.enclave, self.federation.terms)

    def lose_shard(self, number: int) -> None:
        """A shard has left. An open round cannot be finished without it."""
        self.tell(events.ShardLeft(number))
        if self.current is not None:
            self.current.failed = f"shard {number} has left"
            self.current.changed.set()

    async def _collect(self) -> Cohort | None:
        """Wait for all, or for a quorum at the deadline. Return None if the round is given up."""
        rounds, current = self.file.rounds, self._open_round()
        for left in range(rounds.extensions, -1, -1):
            await self._until_all_or_deadline(current)
            if current.failed:
                raise RoundFailed(current.failed)
            if self.halted.is_set():
                why = "the service is stopping" if self.stopping.is_set() else "rolled back"
                self.tell(events.RoundSkipped(current.number, why))
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
        while current.awaited and not (self.halted.is_set() or current.failed):
            self._hurry(current)
            left = self.deadline - time.monotonic()
            if left <= 0:
                return
            current.changed.clear()
            await _first_of(current.changed, self.halted, seconds=min(left, 1.0))
            jump = time.time() - time.monotonic() - offset
            if abs(jump) > _CLOCK_TOLERANCE_S:
                self.tell(events.ClockJumped(round(jump, 1)))
                offset += jump

    def _hurry(self, current: OpenRound) -> None:
        """Once the quorum is there, shorten the deadline to the time of grace."""
        grace, arrived = self.file.rounds.grace_s, current.answered
        if arrived < current.quorum:
            return
        now = time.monotonic()
        if grace is not None:
            self.deadline = min(self.deadline, now + grace)
        if not current.quorate:
            current.quorate = True
            left = round(max(0.0, self.deadline - now), 1)
            missing = tuple(sorted(current.awaited))
            self.tell(events.QuorumReached(current.number, arrived, left, missing))

    def _close(self, current: OpenRound) -> Cohort:
        cohort = current.intake.close()
        missing = tuple(sorted(current.awaited))
        self.tell(events.RoundClosed(current.number, len(cohort.clients), missing))
        return cohort

    async def _finish(self, cohort: Cohort) -> None:
        """Measure, average and make durable. Only then is anybody asked to confirm."""
        current, terms = self._open_round(), self.federation.terms
        self.stages.clear()
        self.current, self.measuring = None, current.round_id
        await self._go(Phase.MEASURING)
        hardening.give_back()
        if not terms.inside and (self.shards is None or terms.sketch):
            await self.pool.wait_for(terms.workers, _GRACE_S)
        names = [member.name for member in self.federation.workers]
        with lend_threads(self.file.enclave.threads) as lent:
            host = Host(
                threads=lent,
                workers=self.pool.remote(names, self.file.rounds.measure_s),
                tell=self._tell_from_thread(),
                shards=await self._close_at_shards(cohort),
            )
            with self._stage("measure"):
                measured = await asyncio.to_thread(host.measure, cohort)
            with self._stage("average"):
                proposed = await asyncio.to_thread(host.finish, cohort, measured)
        if self.forgotten is not None:
            raise RoundFailed("the enclave's state is not its newest")
        with self._stage("hold"):
            number = proposed.receipt.number
            state = proposed.state if self.shards is None else self.shards.slices()
            await self._until_stored(number, self.state.hold, proposed.pending, state)
        await self._confirm()

    async def _close_at_shards(self, cohort: Cohort) -> Sequence[Columns]:
        """What has the columns of a closed round; nothing without shards. Raises RoundFailed."""
        if self.shards is None:
            return ()
        seconds = _SHARD_ATTEMPTS * self.file.rounds.measure_s
        return await asyncio.to_thread(self.shards.close, cohort, seconds)

    async def _resume(self) -> None:
        """Go on with an outcome that was pending when the service ended."""
        if self.state.pending is not None:
            self.stages.clear()
            with suppress(RoundFailed):  # The disk fails, and the service is stopping.
                await self._confirm()

    async def _confirm(self) -> None:
        """Wait until the pending outcome is confirmed, and publish it. It stays pending if not."""
        if self.state.pending is None:
            raise LocalProtocolError("no outcome is pending")
        pending, state = self.state.pending
        number = pending.receipt.number
        self.voted.clear()
        self.ballot = ballot = self.enclave.ballot(pending)
        try:
            if not ballot.confirmed:
                self.tell(events.RoundProposed(number, ballot.missing))
                await self._go(Phase.CONFIRMING)
            with self._stage("confirm"):
                await self._until_confirmed(ballot)
            if not ballot.confirmed:
                return
            certified = Certified(pending.receipt, ballot.certificate(pending.salt))
            with self._stage("publish"):
                await self._until_stored(number, self.state.publish, certified)
            if isinstance(state, Slices):
                self.enclave.follow(certified, None)
                if self.shards is not None:
                    await self.shards.publish(number, pending.receipt.model, state)
            else:
                self.enclave.follow(certified, state)
        finally:
            self.ballot = None
            self.copied = False
        self._report(pending.receipt)
        await self._go(Phase.PUBLISHING)

    async def _until_confirmed(self, ballot: Ballot) -> None:
        """Wait for the quorum, however long that takes, or for the service to stop."""
        number = ballot.proposal.number
        while ballot.missing and not self.stopping.is_set():
            told = await _first_of(self.voted, self.stopping, seconds=_REMIND_S)
            if not told:
                silent = tuple(sorted(ballot.awaited))
                self.tell(events.ConfirmationsAwaited(number, ballot.missing, silent))

    async def _until_stored(self, number: int, store: Callable[..., None], *what: object) -> None:
        """Retry until the disk takes it: a signed outcome is never signed again."""
        wait = _RETRY_S
        while True:
            try:
                return await asyncio.to_thread(store, *what)
            except OSError as failed:
                self.tell(events.StorageFailed(f"round {number}: {failed}"))
            if self.stopping.is_set():
                raise RoundFailed("the disk takes nothing, and the service is stopping")
            await _first_of(self.stopping, seconds=wait)
            wait = min(2 * wait, _MOST_RETRY_S)

    def _report(self, receipt: Receipt) -> None:
        for each in receipt.rejected:
            self.tell(events.ClientRejected(each.client, each.reason))
        if receipt.failure:
            self.tell(events.NullStep(receipt.number, receipt.failure))
        stages = {f"{name}_s": seconds for name, seconds in self.stages.items()}
        self.tell(events.RoundTimed(receipt.number, **stages))
        self.tell(
            events.RoundPublished(receipt.number, receipt.participants, receipt.kept, receipt.note)
        )

    def _skip(self, why: str) -> None:
        self.tell(events.RoundSkipped(self.published + 1, why))
        try:
            self.state.skip(self.published + 1, why)
        except OSError as failed:
            self.tell(events.StorageFailed(str(failed)))

    def bring(self, charter: Charter) -> None:
        """Note a revision for the next round.

        Raises OpenError, LocalProtocolError or ConfigError if it is unfit.
        """
        self._require_fit(charter)
        if self.brought is None or charter.federation.revision > self.brought.federation.revision:
            self.brought = charter

    def _require_fit(self, charter: Charter) -> None:
        """Raises unless a revision can be adopted, this machine has memory for its rounds, and its
        shards can work under it."""
        self.enclave.require_adoptable(charter)
        self.require_room(charter.federation)
        if self.shards is not None:
            self.shards.require_fit(charter.federation)

    def _adopt_if_signed(self) -> None:
        """Adopt a newer revision, if one was brought or lies beside the federation file."""
        try:
            charter = self._newest()
            if charter is None:
                return
            self._require_fit(charter)
            before = self.federation
            self.state.adopt(charter)
            self.enclave.adopt(charter)
            if self.shards is not None:
                self.shards.adopt(charter, before)
        except (ConfigError, OpenError, LocalProtocolError, OSError) as refused:
            if str(refused) != self.ignored:
                self.tell(events.FederationIgnored(str(refused)))
            self.ignored = str(refused)
            return
        self.ignored = None
        self.announce()

    def _newest(self) -> Charter | None:
        """Return the revision to adopt, if any. The operator's own settings are read again, too."""
        brought, self.brought = self.brought, None
        if brought is not None and brought.federation.revision > self.federation.revision:
            return brought
        content = self._content()
        if content is not None and content == self.seen:
            return None
        self.seen = None  # Whatever comes of the new content, the old one would be news again.
        file = federation_file.load(self.path)
        charter = federation_file.load_charter(charter_path(self.path))
        federation_file.require_signed(file, charter)
        self.file = file
        if charter.federation.revision > self.federation.revision:
            return charter
        self.seen = content
        return None

    def _content(self) -> tuple[bytes, bytes] | None:
        """Return the bytes of the file and of its charter; None if they cannot be read."""
        with suppress(OSError):
            return self.path.read_bytes(), charter_path(self.path).read_bytes()
        return None

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


def _too_few(electorate: Electorate) -> str:
    return (
        f"{len(electorate.voters)} voters confirm outcomes, and {electorate.quorum} must answer: "
        f"{electorate.silent} may be silent, and the terms let {electorate.f} be Byzantine"
    )


async def _first_of(*signals: asyncio.Event, seconds: float) -> bool:
    """Wait for any of these, for at most this number of seconds. Return whether one has come."""
    waiting = [asyncio.ensure_future(signal.wait()) for signal in signals]
    try:
        done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for each in waiting:
            each.cancel()

"""What drives a closed round: it carries messages, and lends the enclave threads.

It runs in the enclave's process and hands the value of one step to the next without looking into
it. What it sends is ciphertext. The workers may be in this process or across a network.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from ostraka import events
from ostraka.arrays import Float32, Float64
from ostraka.core.rules import Plan
from ostraka.errors import (
    ConfigError,
    LocalProtocolError,
    RemoteProtocolError,
    RoundFailed,
    UpdateRejected,
    WorkerError,
    WorkerGone,
    WorkerLied,
)
from ostraka.events import Event
from ostraka.messages import (
    Answer,
    ChannelAccept,
    ChannelOffer,
    MaskSeed,
    ShareTile,
    note_digest,
)
from ostraka.protocol.enclave import (
    Cohort,
    Dispute,
    Inside,
    Leaves,
    Measured,
    Offload,
    Partial,
    Proposed,
    Slice,
    Threads,
    advance,
    advance_by_nothing,
    combine,
    decide,
    gather,
    in_vain,
    propose,
    propose_null_step,
)

_T = TypeVar("_T")


class Computing(Protocol):
    """A worker in the middle of an attempt."""

    def add(self, tile: ShareTile) -> None: ...
    def add_seed(self, message: MaskSeed) -> None: ...
    def answer(self) -> Answer: ...


class Worker(Protocol):
    """A worker that can be asked. It raises WorkerError for everything that it does wrong."""

    def accept(self, offer: ChannelOffer) -> tuple[Computing, ChannelAccept]: ...


class Columns(Protocol):
    """The columns of a closed round that one shard has, as the lead asks for them.

    What a shard finds out about a row is known to the lead's cohort when a method returns, or
    raises.
    """

    @property
    def slice(self) -> Slice | None:
        """The outcome on these columns, if it is in this process."""

    def add_sketches(self, total: Sequence[Float32]) -> None:
        """Add the sketches of these columns to those of all rows, (m,) each."""

    def measure(self) -> Partial:
        """The inner products of these columns."""

    def combine(self, scales: Float64, plan: Plan) -> None:
        """Carry out a plan. Raises UpdateRejected if a row has changed: decide anew."""

    def advance(self, *, null: bool) -> Leaves:
        """Move the model by what was combined, or by nothing. What it gives is durable."""


class OwnColumns:
    """The columns that are in this process: of a shard, or all of them.

    workers: whom to ask, by name. tell: takes what an operator may see.
    """

    def __init__(
        self,
        cohort: Cohort,
        threads: Threads,
        workers: Mapping[str, Worker],
        tell: Callable[[Event], None],
    ) -> None:
        self._cohort = cohort
        self._threads = threads
        self._workers = workers
        self._tell = tell
        self._aggregate: Float32 | None = None
        self.slice: Slice | None = None

    def add_sketches(self, total: Sequence[Float32]) -> None:
        for row, sum_ in zip(self._cohort.rows, total, strict=True):
            if row.sketch is not None and row.sketch is not sum_:
                np.add(sum_, row.sketch, out=sum_)

    def measure(self) -> Partial:
        """Try with workers, each time on fresh masks; inside the enclave when too few are left."""
        cohort, terms, left = self._cohort, self._cohort.terms, dict(self._workers)
        count = terms.workers
        while not terms.inside and len(left) >= count:
            chosen = dict(list(left.items())[:count])
            self._tell(events.AttemptStarted(len(cohort.clients), tuple(chosen)))
            try:
                return self._offload(chosen)
            except UpdateRejected:
                continue  # The receipt names the client, and the others get fresh masks.
            except WorkerLied as lie:
                for name in lie.workers:
                    del left[name]
                    self._tell(events.WorkerLied(name))
            except WorkerError as fault:
                del left[fault.worker]
                self._tell(events.WorkerFailed(fault.worker, str(fault)))
        if not terms.inside:
            self._tell(events.TooFewWorkers(len(left), count))
        self._tell(events.AttemptStarted(len(cohort.clients), ()))
        while True:
            with contextlib.suppress(UpdateRejected):  # The receipt names the client.
                return Inside(cohort, self._threads).measure()

    def combine(self, scales: Float64, plan: Plan) -> None:
        self._aggregate = None
        self._aggregate = combine(self._cohort, scales, plan, self._threads)

    def advance(self, *, null: bool) -> Leaves:
        if self._aggregate is None:
            raise LocalProtocolError("nothing was combined yet")
        context = self._cohort.context
        self.slice = (
            advance_by_nothing(context, self._threads)
            if null
            else advance(context, self._aggregate, self._threads)
        )
        return self.slice.leaves

    def _offload(self, workers: dict[str, Worker]) -> Partial:
        """One attempt. Raises WorkerError, and WorkerLied where a lie was proved."""
        offload = Offload(self._cohort, list(workers), self._threads)
        offers = zip(workers.items(), offload.offers, strict=True)
        joined = [_join(name, worker, offer) for (name, worker), offer in offers]
        computing = [each for each, _ in joined]
        masking = offload.connect([accept for _, accept in joined])
        if (seed := masking.seed()) is not None:
            computing[-1].add_seed(seed)
        for shares in masking.encode():
            for worker, share in zip(computing, shares, strict=False):
                worker.add(share)
        # One at a time: with many clients an answer is as large as a matrix.
        outcome = masking.decode(worker.answer() for worker in computing)
        if isinstance(outcome, Dispute):
            outcome.settle()
        return outcome


@dataclass
class Host:
    """Drives one closed round to its end, from one step of the enclave to the next.

    tell: takes what an operator may see. shards: who has the columns; this process has all of them
    if there are none.
    """

    threads: Threads
    workers: Mapping[str, Worker]
    tell: Callable[[Event], None]
    shards: Sequence[Columns] = ()
    _own: OwnColumns | None = None

    def measure(self, cohort: Cohort) -> Measured:
        """Have every shard measure its columns; or measure their sketches, which add up."""
        shards = self._columns(cohort)
        if cohort.terms.sketch is None:
            return gather(cohort, _all(shards, lambda shard: shard.measure()))
        if self.shards:
            m = cohort.terms.sketch
            for row in cohort.rows:
                row.sketch = np.zeros(m, np.float32)
            total = [row.sketch for row in cohort.rows if row.sketch is not None]
            for shard in shards:  # One after the other, so that their sum has one order.
                shard.add_sketches(total)
        own = OwnColumns(cohort, self.threads, self.workers, self.tell)
        return gather(cohort, [own.measure()])

    def finish(self, cohort: Cohort, measured: Measured) -> Proposed:
        """Decide, combine and propose; anew without a client whose bytes have changed since.

        Whatever the rows lead to is an outcome. If the rule fails on them, that is one, too, and
        all rows are read a second time all the same: else whoever sees the disk would see it, and
        could end the process before the outcome is held.
        """
        shards = self._columns(cohort)
        plan, failure = _plan(cohort, measured)
        while not self._carry_out(shards, measured.scales, plan):
            plan, failure = _plan(cohort, measured)
        outcome = _all(shards, lambda shard: shard.advance(null=bool(failure)))
        proposed = (
            propose_null_step(cohort, measured, failure)
            if failure
            else propose(cohort, measured, plan, outcome)
        )
        slices = tuple(each.slice for each in shards if each.slice is not None)
        if len(slices) == 1 and not failure:
            note_digest(slices[0].state.model, proposed.receipt.model)
        return replace(proposed, slices=slices)

    def _carry_out(self, shards: Sequence[Columns], scales: Float64, plan: Plan) -> bool:
        """Have every shard combine its columns. Returns False if a row has changed."""
        try:
            _all(shards, lambda shard: shard.combine(scales, plan))
        except UpdateRejected:
            return False  # The receipt names the client.
        return True

    def _columns(self, cohort: Cohort) -> Sequence[Columns]:
        if self.shards:
            return self.shards
        if self._own is None:
            self._own = OwnColumns(cohort, self.threads, self.workers, self.tell)
        return (self._own,)


def _all(shards: Sequence[Columns], work: Callable[[Columns], _T]) -> list[_T]:
    """What each shard makes of it, all at a time. If some fail, raises what the first of them did
    when all have ended."""
    if len(shards) == 1:
        return [work(shards[0])]
    with ThreadPoolExecutor(len(shards)) as pool:
        asked = [pool.submit(work, shard) for shard in shards]
    return [each.result() for each in asked]


def _plan(cohort: Cohort, measured: Measured) -> tuple[Plan, str]:
    """The plan, or one that is carried out in vain, and why the rule has made none."""
    try:
        return decide(cohort, measured), ""
    except RoundFailed as failure:
        return in_vain(cohort), str(failure)
    except Exception as bug:  # noqa: BLE001 (a trace in the log would tell of the rows)
        return in_vain(cohort), f"the rule failed on these updates ({type(bug).__name__})"


def _join(name: str, worker: Worker, offer: ChannelOffer) -> tuple[Computing, ChannelAccept]:
    """A worker that does not take its offer is at fault, and not the round."""
    try:
        return worker.accept(offer)
    except WorkerError:
        raise
    except RemoteProtocolError as refused:
        raise WorkerGone(name, f"did not take part: {refused}") from None


@contextlib.contextmanager
def lend_threads(count: int) -> Iterator[Threads]:
    """Threads that end with the block. Raises ConfigError for fewer than one."""
    if count < 1:
        raise ConfigError(f"threads must be at least 1; got {count}")
    with ThreadPoolExecutor(count) as pool:
        yield Threads(count, pool.map) if count > 1 else Threads()

"""What drives a closed round: it carries messages, and lends the enclave threads.

It runs in the enclave's process and hands the value of one step to the next without looking into
it. What it sends is ciphertext. The workers may be in this process or across a network.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from ostraka import events
from ostraka.core.rules import Plan
from ostraka.errors import (
    ConfigError,
    RemoteProtocolError,
    RoundFailed,
    UpdateRejected,
    WorkerError,
    WorkerGone,
    WorkerLied,
)
from ostraka.events import Event
from ostraka.messages import Answer, ChannelAccept, ChannelOffer, MaskSeed, ShareTile
from ostraka.protocol.enclave import (
    Cohort,
    Dispute,
    Inside,
    Measured,
    Offload,
    Proposed,
    Threads,
    combine,
    decide,
    in_vain,
    propose,
    propose_null_step,
)


class Computing(Protocol):
    """A worker in the middle of an attempt."""

    def add(self, tile: ShareTile) -> None: ...
    def add_seed(self, message: MaskSeed) -> None: ...
    def answer(self) -> Answer: ...


class Worker(Protocol):
    """A worker that can be asked. It raises WorkerError for everything that it does wrong."""

    def accept(self, offer: ChannelOffer) -> tuple[Computing, ChannelAccept]: ...


@dataclass(frozen=True)
class Host:
    """Drives one closed round to its end, from one step of the enclave to the next.

    tell: takes what an operator may see.
    """

    threads: Threads
    workers: Mapping[str, Worker]
    tell: Callable[[Event], None]

    def measure(self, cohort: Cohort) -> Measured:
        """Try with workers, each time on fresh masks; inside the enclave when too few are left."""
        terms, left = cohort.terms, dict(self.workers)
        count = terms.workers
        while not terms.inside and len(left) >= count:
            chosen = dict(list(left.items())[:count])
            self.tell(events.AttemptStarted(len(cohort.clients), tuple(chosen)))
            try:
                return self._offload(cohort, chosen)
            except UpdateRejected:
                continue  # The receipt names the client, and the others get fresh masks.
            except WorkerLied as lie:
                for name in lie.workers:
                    del left[name]
                    self.tell(events.WorkerLied(name))
            except WorkerError as fault:
                del left[fault.worker]
                self.tell(events.WorkerFailed(fault.worker, str(fault)))
        if not terms.inside:
            self.tell(events.TooFewWorkers(len(left), count))
        self.tell(events.AttemptStarted(len(cohort.clients), ()))
        while True:
            with contextlib.suppress(UpdateRejected):  # The receipt names the client.
                return Inside(cohort, self.threads).measure()

    def finish(self, cohort: Cohort, measured: Measured) -> Proposed:
        """Decide, combine and propose; anew without a client whose bytes have changed since.

        Whatever the rows lead to is an outcome. If the rule fails on them, that is one, too, and
        all rows are read a second time all the same: else whoever sees the disk would see it, and
        could end the process before the outcome is held.
        """
        while True:
            plan, failure = _plan(cohort, measured)
            with contextlib.suppress(UpdateRejected):  # The receipt names the client.
                aggregate = combine(cohort, measured, plan, self.threads)
                if failure:
                    return propose_null_step(cohort, measured, failure, self.threads)
                return propose(cohort, measured, plan, aggregate, self.threads)

    def _offload(self, cohort: Cohort, workers: dict[str, Worker]) -> Measured:
        """One attempt. Raises WorkerError, and WorkerLied where a lie was proved."""
        offload = Offload(cohort, list(workers), self.threads)
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

"""Drives the enclave's first pass with real workers, and times the enclave's part alone."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from ostraka.arrays import Buffer
from ostraka.bench.stopwatch import Stopwatch
from ostraka.crypto.offline import OfflineMask, OfflineNoise
from ostraka.errors import LocalProtocolError
from ostraka.messages import Answer, ChannelAccept, ChannelOffer, ShareTile
from ostraka.protocol.enclave import Averaging, Cohort, Dispute, Lanes
from ostraka.protocol.worker import Computing, Worker


class WorkerLink(Protocol):
    """A worker, wherever it runs."""

    def accept(self, offer: ChannelOffer) -> ChannelAccept: ...

    def add(self, share: ShareTile) -> None: ...

    def answer(self) -> Answer: ...


class LocalWorker:
    """A worker in this process."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._computing: Computing

    def accept(self, offer: ChannelOffer) -> ChannelAccept:
        self._computing, accept = self._worker.accept(offer)
        return accept

    def add(self, share: ShareTile) -> None:
        self._computing.add(share)

    def answer(self) -> Answer:
        return self._computing.answer()


def first_pass(
    cohort: Cohort,
    offline: OfflineNoise | OfflineMask,
    *,
    tiles: Iterable[Sequence[Buffer]],
    noise: Iterable[Buffer] | None,
    workers: Sequence[WorkerLink],
    clock: Stopwatch,
    lanes: Lanes | None = None,
) -> Averaging:
    """Open, check, mask, seal to the workers, decode. `clock` sees only what the enclave does."""
    with clock:
        connecting = cohort.offload(offline, lanes=lanes)
        offers = connecting.offers
    accepts = [worker.accept(offer) for worker, offer in zip(workers, offers, strict=True)]
    with clock:
        masking = connecting.connect(accepts)
    for shares in clock.each(masking.encode(tiles, noise)):
        for worker, share in zip(workers, shares, strict=True):
            worker.add(share)
    answers = [worker.answer() for worker in workers]
    with clock:
        outcome = masking.decode(answers)
    if isinstance(outcome, Dispute):
        raise LocalProtocolError("honest workers were taken for liars")
    return outcome

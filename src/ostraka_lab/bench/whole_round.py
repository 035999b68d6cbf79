"""One whole round by the real roles and their real driver, with a clock for every party.

Sealing comes first, on a clock of its own. So does the enclave's memory for rows, which a service
takes once, at its start. Then the round itself: sealed updates in, confirmed model out. What the
enclave prepares in it, noise or a mask's Gram matrix, has a clock, too.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from ostraka.arrays import Float32
from ostraka.config import Manifest, Terms
from ostraka.crypto.channel import Channel
from ostraka.crypto.masks import Noise
from ostraka.crypto.updates import SealedUpdate, TileOpener
from ostraka.errors import LocalProtocolError
from ostraka.events import TooFewWorkers
from ostraka.messages import Answer, ChannelAccept, ChannelOffer, MaskSeed, ShareTile
from ostraka.protocol.enclave import Intake, Masking, Proposed, Threads
from ostraka.protocol.enclave.encoders import LeadingGram
from ostraka.protocol.host import Computing, Worker
from ostraka.protocol.round import Parties, enrol
from ostraka_lab.bench.machine import Ledger, forget_peak, peak_bytes, resident_bytes

CLIENTS = "clients"
COLLECT, ARRIVE, PREPARE, ENCODE = "collect", "arrive", "prepare", "encode"
AGGREGATE, CONFIRM, RELEASE = "aggregate", "confirm", "release"
# Only where `parts` is asked for; else they are in ARRIVE and in ENCODE.
OPEN, ENCRYPT, DECODE = "open", "encrypt", "decode"

_SMALL = 8192
_ARRIVAL = (COLLECT, ARRIVE, OPEN)
_FIRST_PASS = (ARRIVE, PREPARE, OPEN, ENCODE, ENCRYPT, DECODE)
_BESIDES = (COLLECT, AGGREGATE, CONFIRM, RELEASE)


@dataclass
class Traffic:
    """Bytes on every link: all uploads together, and what all workers get and answer."""

    uploads: int = 0
    shares: int = 0
    answers: int = 0


@dataclass(frozen=True)
class Played:
    """What one round took. cpu_s: by party and part. wall_s, peak_rss: of the round itself.

    inputs_rss: what was resident when it began, with sealed updates, and without the memory for
    rows that the enclave takes at its start.
    """

    cpu_s: dict[str, float]
    wall_s: float
    peak_rss: int
    inputs_rss: int
    traffic: Traffic
    selected: tuple[int, ...]
    aggregate: Float32 = field(repr=False)

    @property
    def enclave_cpu_s(self) -> float:
        """The enclave's CPU: from the first sealed update to the released model."""
        return self.first_pass_cpu_s + self.besides_cpu_s

    @property
    def first_pass_cpu_s(self) -> float:
        """The enclave's CPU to find the outliers: from the first tile to the inner products."""
        return sum(self.cpu_s.get(part, 0.0) for part in _FIRST_PASS)

    @property
    def arrival_cpu_s(self) -> float:
        """The enclave's CPU before the close: headers; tiles opened, checked, folded and kept."""
        return sum(self.cpu_s.get(part, 0.0) for part in _ARRIVAL)

    @property
    def prepare_cpu_s(self) -> float:
        """The part of that which noise takes, or the Gram matrix of a mask."""
        return self.cpu_s.get(PREPARE, 0.0)

    @property
    def besides_cpu_s(self) -> float:
        """The enclave's CPU for all that is the same wherever distances are computed."""
        return sum(self.cpu_s.get(part, 0.0) for part in _BESIDES)

    @property
    def worker_cpu_s(self) -> float:
        """The CPU of all workers together."""
        return sum(s for party, s in self.cpu_s.items() if party.startswith("worker-"))

    @property
    def slowest_worker_s(self) -> float:
        return max((s for party, s in self.cpu_s.items() if party.startswith("worker-")), default=0)


def play(
    terms: Terms,
    updates: Iterable[Float32],
    *,
    clients: int,
    threads: Threads | None = None,
    parts: bool = False,
) -> Played:
    """Play one round. updates: one (d,) per client.

    parts: time opening, encrypting and decoding apart, which works with one thread only.
    """
    ledger, traffic = Ledger(), Traffic()
    parties = enrol(terms, clients=clients)
    federation = parties.federation
    federation.threads, federation.tell = threads or Threads(), refuse_surprises
    offer = federation.open()
    submitted = []
    for client, update in zip(parties.clients, updates, strict=True):
        with ledger(CLIENTS):
            submitted.append(parties.join(client, offer, update))
    traffic.uploads = sum(_size(each.sealed) for each in submitted)

    forget_peak()
    inputs = resident_bytes() - clients * terms.dimension * terms.format.dtype.itemsize
    start = time.perf_counter()
    with _told_apart(ledger) if parts else contextlib.nullcontext():
        with ledger(COLLECT):
            # Clients that start together announce themselves together.
            for each in submitted:
                federation.intake.accept(each.sealed.header)
            for each in submitted:
                _receive(federation.intake, each.sealed, ledger)
            cohort = federation.close()
        host = replace(federation.host(cohort), workers=_clocked_workers(parties, ledger, traffic))
        with prepared_apart(partial(ledger, PREPARE)), ledger(ENCODE):
            measured = host.measure(cohort)
    with ledger(AGGREGATE):
        ballot = federation.propose(host.finish(cohort, measured))
    with ledger(CONFIRM):
        for each in submitted if ballot.awaited else ():
            with ledger(CLIENTS):
                confirmation = each.vote(ballot.proposal).joined.client.confirmation()
            if ballot.missing:  # A service publishes when enough have confirmed.
                federation.confirm(confirmation)
    with ledger(RELEASE):
        proposed, _ = federation.release()
    wall = time.perf_counter() - start
    return Played(
        cpu_s=dict(ledger.seconds),
        wall_s=wall,
        peak_rss=peak_bytes(),
        inputs_rss=inputs,
        traffic=traffic,
        selected=_rows(proposed, parties),
        aggregate=proposed.aggregate,
    )


def _receive(intake: Intake, sealed: SealedUpdate, ledger: Ledger) -> None:
    """As a service does it: the upload's place is found once, and tiles come there."""
    with ledger(ARRIVE):
        arrival = intake.arrival(sealed.header.client, sealed.header.upload_id)
        if arrival is None:
            raise LocalProtocolError("an upload of a benchmark was replaced")
        for tile in sealed.tiles:
            arrival.take(tile.index, tile.ciphertext)


def warm_up(terms: Terms, *, clients: int) -> None:
    """Play a small round under the same terms, so that nothing is set up on a clock."""
    small = min(terms.dimension, max(_SMALL, 2 * clients, terms.sketch or 0))
    few = replace(terms, manifest=Manifest.flat(small))
    play(few, repeated(clients, small), clients=clients)


def _clocked_workers(parties: Parties, ledger: Ledger, traffic: Traffic) -> dict[str, Worker]:
    return {
        name: ClockedWorker(worker, partial(ledger, name), traffic)
        for name, worker in parties.federation.workers.items()
    }


Clock = Callable[[], contextlib.AbstractContextManager[None]]


class ClockedWorker:
    """A worker whose work is on a clock of its own, and whose bytes are counted."""

    def __init__(self, worker: Worker, clock: Clock, traffic: Traffic | None = None) -> None:
        self._worker = worker
        self._clock = clock
        self._traffic = traffic or Traffic()

    def accept(self, offer: ChannelOffer) -> tuple[Computing, ChannelAccept]:
        with self._clock():
            computing, accept = self._worker.accept(offer)
        return _ClockedComputing(computing, self._clock, self._traffic), accept


class _ClockedComputing:
    def __init__(self, computing: Computing, clock: Clock, traffic: Traffic) -> None:
        self._computing = computing
        self._clock = clock
        self._traffic = traffic

    def add(self, tile: ShareTile) -> None:
        self._traffic.shares += len(tile.ciphertext)
        with self._clock():
            self._computing.add(tile)

    def add_seed(self, message: MaskSeed) -> None:
        self._traffic.shares += len(message.ciphertext)
        with self._clock():
            self._computing.add_seed(message)

    def answer(self) -> Answer:
        with self._clock():
            answer = self._computing.answer()
        self._traffic.answers += len(answer.ciphertext)
        return answer


@contextlib.contextmanager
def prepared_apart(clock: Clock) -> Iterator[None]:
    """Put noise, and the Gram matrix of a mask, on a clock of their own."""
    with (
        _charged(Noise, "__init__", clock),
        _charged(Noise, "tile", clock),
        _charged(LeadingGram, "end_tile", clock),
    ):
        yield


@contextlib.contextmanager
def _told_apart(ledger: Ledger) -> Iterator[None]:
    """Put opening, encrypting and decoding on clocks of their own. For one thread only."""
    with (
        _charged(TileOpener, "open_bytes", partial(ledger, OPEN)),
        _charged(Channel, "seal_share", partial(ledger, ENCRYPT)),
        _charged(Masking, "decode", partial(ledger, DECODE)),
    ):
        yield


@contextlib.contextmanager
def _charged(owner: type, method: str, clock: Clock) -> Iterator[None]:
    original = getattr(owner, method)

    def charged(*arguments: Any, **options: Any) -> Any:
        with clock():
            return original(*arguments, **options)

    setattr(owner, method, charged)
    try:
        yield
    finally:
        setattr(owner, method, original)


def refuse_surprises(event: object) -> None:
    """Fail if the round falls back to the enclave: that is not the round to measure."""
    if isinstance(event, TooFewWorkers):
        raise LocalProtocolError("the workers of a benchmark failed")


def _size(upload: SealedUpdate) -> int:
    return sum(len(tile.ciphertext) for tile in upload.tiles)


def _rows(proposed: Proposed, parties: Parties) -> tuple[int, ...]:
    row_of = {client.name: row for row, client in enumerate(parties.clients)}
    return tuple(sorted(row_of[name] for name in proposed.selected))


def repeated(clients: int, dimension: int) -> Iterator[Float32]:
    """Give updates whose values do not matter: a few vectors, again and again."""
    few = np.random.default_rng(0).standard_normal((min(clients, 8), dimension), dtype=np.float32)
    return (few[row % len(few)] for row in range(clients))

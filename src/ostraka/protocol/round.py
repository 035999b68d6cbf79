"""One round, all roles in one process, in the order of the paper's sections.

This is the executable specification: deployments drive the same roles over a network. Nothing here
is trusted with a secret but the roles themselves; what the host holds is ciphertext.
"""

import contextlib
import operator
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ostraka import calibration, events
from ostraka.arrays import Buffer, Float32
from ostraka.attestation.claims import in_process
from ostraka.config import Federation, Manifest, Member, Terms, default_tile
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.identity import Identity
from ostraka.crypto.updates import SealedUpdate
from ostraka.errors import ConfigError, LeakyMasking, Rejection, RemoteProtocolError
from ostraka.events import Event
from ostraka.messages import Receipt, RoundOffer
from ostraka.protocol.client import Client
from ostraka.protocol.enclave import Cohort, Collecting, Enclave, Lanes, Published
from ostraka.protocol.host import Host, Prepared
from ostraka.protocol.worker import Worker


@dataclass(frozen=True)
class RoundResult:
    """What a round yields. Only this in-process specification shows who was selected.

    aggregate: (d,) float32, the mean of the selected, clipped rows. rejected: rows that broke the
    protocol. distance_error: what no squared distance that the selection rests on is expected to be
    off by. events: what an operator would have seen.
    """

    aggregate: Float32
    selected: tuple[int, ...]
    rejected: dict[int, Rejection]
    receipt: Receipt
    distance_error: float
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Parties:
    """Everybody who takes part, in one process. Workers beyond those in the rules are spares."""

    terms: Terms
    enclave: Enclave
    clients: list[Client]
    workers: dict[str, Worker]

    def seal(self, client: Client, offer: RoundOffer, update: Float32) -> SealedUpdate:
        """What a client sends to the enclave that it shares this process with."""
        attested = in_process(offer, self.enclave.receipt_key)
        return client.join(offer, attested).seal(update).sealed


def run_round(
    updates: npt.ArrayLike,
    *,
    f: int,
    k: int | None = None,
    masking: str = "exact",
    sketch: int | None = None,
    workers: int = 2,
    clip_norm: float | None = None,
    verify: bool = True,
    distances: str = "workers",
    threads: int = 1,
    entropy: Entropy | None = None,
) -> RoundResult:
    """Aggregate updates (n, d) of which f may be Byzantine.

    k: how many to average (None: n - f). masking: "exact", the paper's "gaussian", or "none" for
    distances inside the enclave. sketch: fold rows to so many columns first. workers: 2 to 7, of
    which half may collude. clip_norm: longer rows are scaled down to it (None: 4 x the median norm,
    rounded up to a power of two). verify: check the workers. distances: "workers", "inside", or
    "auto" for the cheaper. entropy: a source of secret bytes, called with a count (None: the OS).
    """
    rows = _as_rows(updates)
    n, d = rows.shape
    log: list[Event] = []
    terms = Terms(
        Manifest.flat(d),
        f=_whole("f", f),
        k=None if k is None else _whole("k", k),
        masking=masking,
        sketch=None if sketch is None else _whole("sketch", sketch),
        workers=_whole("workers", workers),
        clip_norm=None if clip_norm is None else float(clip_norm),
        verify=bool(verify),
        distances="workers" if distances == "auto" else distances,
        tile=default_tile(n, d),
    )
    if distances == "auto" and not terms.inside:
        choice = calibration.load().choose(n, terms.columns.length, terms.workers)
        terms = replace(terms, distances=choice.distances)
        log.append(events.DistancesChosen(str(choice)))
    parties = enrol(terms, clients=n, entropy=entropy or os.urandom)
    if masking == "gaussian" and not terms.inside:
        warnings.warn(LeakyMasking(), stacklevel=2)
    with _lanes(_whole("threads", threads)) as lanes:
        result = play(parties, rows, lanes)
    return replace(result, events=(*log, *result.events))


def play(parties: Parties, rows: Float32, lanes: Lanes) -> RoundResult:
    """One round of the protocol. rows: (n, d), one per client."""
    enclave, terms, log = parties.enclave, parties.terms, list[Event]()

    # Section 3.2, noise generation: offline, before there are updates; sealed and kept outside.
    made = [] if terms.inside else [Prepared(enclave)]

    # Section 3.1: each client checks the enclave's offer and seals its update to it.
    collecting, spool = enclave.open_round(), Spool(terms)
    for client, update in zip(parties.clients, rows, strict=True):
        spool.collect(collecting, parties.seal(client, collecting.offer, update))
    cohort = collecting.close()

    # Section 3.2, encoding to decoding: by workers on masked rows, or inside the enclave.
    host = Host(
        terms=terms,
        lanes=lanes,
        tiles=partial(spool.tiles, cohort),
        workers=parties.workers,
        prepare=lambda: made.pop() if made else Prepared(enclave),
        tell=log.append,
    )
    averaging = host.measure(cohort)

    # Section 3.2, aggregation: the enclave averages the chosen K and signs what it did.
    published = host.average(averaging)
    enclave.follow(published.receipt, published.state)
    return _result(published, [client.name for client in parties.clients], log)


class Spool:
    """The host's memory of ciphertext, by upload and tile."""

    def __init__(self, terms: Terms) -> None:
        self._count = terms.tiling.count
        self._tiles: dict[tuple[bytes, int], Buffer] = {}

    def collect(self, collecting: Collecting, sealed: SealedUpdate) -> None:
        """Hand one upload to the enclave. A rejected client is the enclave's to report."""
        with contextlib.suppress(RemoteProtocolError):
            collecting.accept(sealed.header)
            for tile in sealed.tiles:
                collecting.accept_tile(tile)
                self._tiles[tile.upload_id, tile.index] = tile.ciphertext

    def tiles(self, cohort: Cohort) -> Iterator[list[Buffer]]:
        """Tile by tile, the ciphertext of every row."""
        for index in range(self._count):
            yield [self._tiles[upload, index] for upload in cohort.uploads]


def enrol(terms: Terms, *, clients: int, spares: int = 0, entropy: Entropy = os.urandom) -> Parties:
    """Identities for everybody, and the federation that pins them."""
    count = 0 if terms.inside else terms.workers + spares
    members = {f"client-{row}": Identity.generate(entropy) for row in range(clients)}
    helpers = {f"worker-{number}": Identity.generate(entropy) for number in range(1, count + 1)}
    authority = Identity.generate(entropy)
    federation = Federation(terms, _roster(members), _roster(helpers), authority.public)
    enclave = Enclave(federation, Identity.generate(entropy), entropy=entropy)
    return Parties(
        terms,
        enclave,
        [Client(name, identity, federation, entropy=entropy) for name, identity in members.items()],
        {
            name: Worker(identity, receipt_key=enclave.receipt_key, entropy=entropy)
            for name, identity in helpers.items()
        },
    )


def _roster(identities: dict[str, Identity]) -> tuple[Member, ...]:
    return tuple(Member(name, identity.public) for name, identity in identities.items())


def _as_rows(updates: npt.ArrayLike) -> Float32:
    try:
        given = np.asarray(updates)
    except (ValueError, TypeError, RuntimeError) as bad:
        raise ConfigError(
            f"updates are numbers, one row of equal length per client: {bad}"
        ) from None
    if given.ndim != 2 or given.dtype.kind not in "fiub" or np.ma.isMaskedArray(updates):
        raise ConfigError(
            f"updates are real numbers, one row per client, (n, d); "
            f"got shape {given.shape} of {given.dtype}"
        )
    # A value beyond float32 becomes an infinity here, and its row is rejected for that.
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(given, dtype="<f4")


def _whole(name: str, value: int) -> int:
    """A whole number, numpy's own among them."""
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} is a whole number; got {value!r}") from None


@contextlib.contextmanager
def _lanes(threads: int) -> Iterator[Lanes]:
    if threads < 1:
        raise ConfigError(f"at least one thread; got threads={threads}")
    with ThreadPoolExecutor(threads) as pool:
        yield Lanes(threads, pool.map) if threads > 1 else Lanes()


def _result(published: Published, names: list[str], log: list[Event]) -> RoundResult:
    row_of = {name: row for row, name in enumerate(names)}
    rejections = (
        events.ClientRejected(name, reason) for name, reason in published.rejected.items()
    )
    receipt = published.receipt
    done = events.RoundPublished(receipt.number, receipt.participants, receipt.kept)
    return RoundResult(
        aggregate=published.aggregate,
        selected=tuple(row_of[name] for name in published.selected),
        rejected={row_of[name]: reason for name, reason in published.rejected.items()},
        receipt=receipt,
        distance_error=published.distance_error,
        events=(*log, *rejections, done),
    )

"""A made-up federation to measure: its parties, their updates, and ciphertext as a host keeps it.

    terms_of    the terms of a round, by how it is masked
    cast        the parties: identities, and the federation that pins them
    Layout      where ciphertext lies in a host's file
    Workload    sealed updates in memory, for rounds under different terms
    Attempt     one such round, closed and ready to be measured

Keys and updates are functions of a party's name alone, so that two processes agree on them without
exchanging them. Nothing here is secret.
"""

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ostraka.arrays import AnyArray, Buffer, Float32, cut
from ostraka.attestation.claims import in_process
from ostraka.config import (
    MAX_PIECE_VALUES,
    Federation,
    Manifest,
    Member,
    Terms,
    default_tile,
)
from ostraka.core import optimiser, rules, uploads
from ostraka.core.optimiser import ServerState
from ostraka.core.rules import Composition
from ostraka.core.sketch import MIN_SIZE
from ostraka.crypto.aead import TAG_BYTES
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.identity import Identity
from ostraka.crypto.stream import SecretStream
from ostraka.crypto.updates import SealedUpdate, TileOpener, UploadKey, tile_context
from ostraka.errors import ConfigError, LocalProtocolError
from ostraka.messages import IN_PROCESS, RoundOffer, UpdateHeader
from ostraka.protocol.client import Client
from ostraka.protocol.confirm import leaf
from ostraka.protocol.enclave import Arrivals, Begun, Cohort, Enclave, Intake, Memory, Threads
from ostraka.protocol.enclave.cohort import Publication, RoundContext, Row, Standing
from ostraka.protocol.enclave.keeping import Keeping
from ostraka.protocol.host import Host
from ostraka.protocol.worker import Worker
from ostraka_lab.bench.machine import Stopwatch
from ostraka_lab.bench.whole_round import ClockedWorker, refuse_surprises

GAUSSIAN, EXACT, INSIDE = "gaussian", "exact", "inside"
SKETCH, SKETCH_INSIDE = "sketch", "sketch-inside"
UPDATES = "updates"  # the file of ciphertext
DEFAULT = rules.compose(rules.DEFAULT, rules.DEFAULT_PRE)
PAPER = rules.compose(
    rules.PAPER
)  # for what is compared with the paper, or with others' Multi-Krum

_MASKINGS = {
    GAUSSIAN: "gaussian",
    EXACT: "exact",
    INSIDE: "none",
    SKETCH: "exact",
    SKETCH_INSIDE: "none",
}
SKETCH_VALUES = 16 * 2**20  # of all clients together, at most, where sketches are measured
_COLUMNS = 16_384  # of a sketch
_UPDATE_BYTES = 4  # a value
_WORKERS = {"gaussian": 2, "exact": 3, "none": 2}  # the third makes the Gram matrix of the mask


@dataclass(frozen=True)
class Cast:
    """The identities of all parties, and the federation that pins them."""

    federation: Federation
    enclave: Identity

    @property
    def terms(self) -> Terms:
        return self.federation.terms

    def seal(self, row: int, offer: RoundOffer, values: Float32 | None = None) -> SealedUpdate:
        """Seal the upload of one client. Its tiles open under `_upload_key(row)`.

        values: (d,) instead of `update`.
        """
        name = self.federation.clients[row].name

        def entropy(count: int) -> bytes:
            return _upload_key(row)[:count]

        client = Client(name, _identity(name), self.federation, entropy=entropy)
        joined = client.join(offer, in_process(offer, self.enclave.public))
        return joined.seal(update(row, self.terms.dimension) if values is None else values).sealed

    def state(self) -> ServerState:
        """The model before the first round: zeros."""
        return optimiser.start(np.zeros(self.terms.dimension, np.float32), self.terms.optimiser)

    def workers(self) -> dict[str, Worker]:
        return {
            member.name: Worker(_identity(member.name), receipt_key=self.enclave.public)
            for member in self.federation.workers
        }


def cast(clients: int, dimension: int, *, masking: str, sketch: int | None = None) -> Cast:
    """Make a federation of this size, with the default rule. Raises ConfigError if none can be."""
    terms = Terms(
        Manifest.flat(dimension),
        f=byzantine(clients),
        masking=masking,
        sketch=sketch,
        workers=_WORKERS[masking],
        tile=default_tile(dimension),
    )
    federation = Federation(
        terms,
        tuple(_member(f"client-{row}") for row in range(clients)),
        tuple(_member(f"worker-{number}") for number in range(1, terms.workers + 1)),
        _identity("authority").public,
        bytes(32),
    )
    return Cast(federation, _identity("enclave"))


def least_sketch(composition: Composition = DEFAULT) -> int:
    """The fewest columns that a sketch may have."""
    return max(MIN_SIZE, *(part.least_sketch or 0 for part in composition.parts))


def sketch_size(clients: int, dimension: int, composition: Composition = DEFAULT) -> int | None:
    """The columns to fold to: 16,384, or 4 Mi values for all clients; None if that is too few.

    More than those 4 Mi only where the rule needs longer sketches.
    """
    least = least_sketch(composition)
    columns = min(_COLUMNS, dimension, max(least, MAX_PIECE_VALUES // clients))
    return columns if columns >= least and clients * columns <= SKETCH_VALUES else None


def byzantine(clients: int, composition: Composition = DEFAULT) -> int:
    """The f to plan for: a fifth of the clients, or as many as the rule allows."""
    least = composition.least
    return max((f for f in range(clients // 5 + 1) if least(f) <= clients), default=0)


def update(row: int, dimension: int) -> Float32:
    """One client's update (d,): standard normals."""
    return np.random.default_rng(row).standard_normal(dimension, dtype=np.float32)


def _upload_key(row: int) -> bytes:
    """The 32 bytes that a client draws each time that it draws: also its upload's key."""
    return _seed(f"upload-{row}")


def _member(name: str) -> Member:
    return Member(name, _identity(name).public)


def _identity(name: str) -> Identity:
    return Identity(_seed(name))


def _seed(name: str) -> bytes:
    return hashlib.sha256(b"ostraka/bench/" + name.encode()).digest()


def terms_of(
    name: str,
    clients: int,
    dimension: int,
    *,
    f: int | None = None,
    composition: Composition = DEFAULT,
    upload: str = uploads.DEFAULT,
) -> Terms:
    """The terms of a round. f: None for a fifth of the clients. upload: the format of updates.

    Raises ConfigError.
    """
    folded = name in (SKETCH, SKETCH_INSIDE)
    columns = sketch_size(clients, dimension, composition) if folded else dimension
    if columns is None:
        raise ConfigError(
            f"{clients} updates of {dimension} values are too short for a sketch, or too many: "
            f"{composition} needs {least_sketch(composition)} columns"
        )
    return Terms(
        Manifest.flat(dimension),
        f=byzantine(clients, composition) if f is None else f,
        rule=composition.name,
        pre=composition.pre,
        options=composition.options,
        masking=_MASKINGS[name],
        workers=_WORKERS[_MASKINGS[name]],
        sketch=columns if folded else None,
        tile=default_tile(dimension),
        upload=upload,
    )


class Layout:
    """Where each row's part of a sealed tile lies in the file of updates: row after row."""

    def __init__(self, terms: Terms, rows: int) -> None:
        self.tiling = terms.tiling
        self.rows = rows

    def size(self, index: int) -> int:
        """The size of one row's part of a tile."""
        return self.tiling.size(index) * _UPDATE_BYTES + TAG_BYTES

    def offset(self, index: int, row: int) -> int:
        # Only the last tile may be shorter, and nothing lies behind it.
        return index * self.rows * self.size(0) + row * self.size(index)


class Workload:
    """A federation whose clients have sealed their updates, all in memory.

    One set of uploads serves rounds under different terms: these are tried in turn, by cohorts
    that hold the same rows. row_of: the update (d,) of a row. sealing: what the clients took.
    """

    def __init__(
        self,
        clients: int,
        dimension: int,
        threads: int = 1,
        row_of: Callable[[int], Float32] | None = None,
    ) -> None:
        self._row_of = row_of or (lambda row: update(row, dimension))
        self.clients = clients
        self.dimension = dimension
        self.parties = cast(clients, dimension, masking="gaussian")
        self.terms = self.parties.terms
        self.tiling = self.terms.tiling
        self.threads = (
            Threads(threads, ThreadPoolExecutor(threads).map) if threads > 1 else Threads()
        )
        self.headers: list[UpdateHeader] = []
        self._begun: list[Begun] = []
        self._openers: list[TileOpener] = []
        self._tiles: list[list[Buffer]] = [[] for _ in range(self.tiling.count)]
        self._memory = Memory(clients * dimension * _UPDATE_BYTES)
        self.sealing = Stopwatch()
        self._seal_updates()

    @cached_property
    def updates(self) -> Float32:
        """The updates in the clear (n, d)."""
        rows = np.empty((self.clients, self.dimension), np.float32)
        for row in range(self.clients):
            rows[row] = self._row_of(row)
        return rows

    @property
    def sketch(self) -> int | None:
        """The columns that rows can be folded to."""
        return sketch_size(self.clients, self.dimension)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The rows as the enclave keeps them, folded if they can be. They serve under any terms."""
        return self.receive(Stopwatch(), sketch=self.sketch)

    def open_row(self, index: int, row: int, out: AnyArray) -> None:
        """Open one tile of one row into `out`, a view as bytes, as the enclave does."""
        self._openers[row].open_into(index, self._tiles[index][row], out)

    def open_tile(self, index: int, block: Float32) -> Float32:
        """Open one tile of all rows into `block` (n, tile), and give the part that was written."""
        block = cut(block, self.clients, self.tiling.size(index))
        for row, out in enumerate(block.view(np.uint8)):
            self.open_row(index, row, out)
        return block

    def intake(self) -> Intake:
        """The round that the updates are sealed to, open and without uploads. It can be opened as
        often as it is measured: its key comes from no real randomness."""
        return self._open_round(self._memory)

    def receive(self, clock: Stopwatch, *, sketch: int | None) -> tuple[Row, ...]:
        """Bring all tiles, as they arrive behind their headers: opened, checked, folded and kept.

        There is memory for one set of rows, and these take the place of those before. sketch: how
        many columns to fold to.
        """
        parties = cast(self.clients, self.dimension, masking="none", sketch=sketch)
        keeping = Keeping(parties.federation, self._memory, None, os.urandom)
        arrivals = Arrivals(_context(parties), keeping)
        for begun in self._begun:
            arrivals.begin(begun)
        uploads_ = [(each.client, each.upload_id) for each in self._begun]
        with clock:
            for row, upload in enumerate(uploads_):
                arrival = arrivals.upload(*upload)
                if arrival is None:
                    raise LocalProtocolError("an upload was lost")
                for index, tiles in enumerate(self._tiles):
                    arrival.take(index, tiles[row])
        self.rows = arrivals.rows(uploads_)
        return self.rows

    def attempt(self, masking: str, *, sketch: bool = False) -> "Attempt":
        """Make a round under these terms, after its close."""
        columns = self.sketch if sketch else None
        return Attempt(self, cast(self.clients, self.dimension, masking=masking, sketch=columns))

    def _open_round(self, memory: Memory) -> Intake:
        enclave = Enclave(self.parties.federation, self.parties.enclave, entropy=_entropy())
        return enclave.open_round(memory)

    def _seal_updates(self) -> None:
        offer = self._open_round(Memory(0)).offer
        for row in range(self.clients):
            values = self._row_of(row)
            with self.sealing:
                upload = self.parties.seal(row, offer, values)
            for tile in upload.tiles:
                self._tiles[tile.index].append(tile.ciphertext)
            self.headers.append(upload.header)
            key = UploadKey(_upload_key(row), tile_context(upload.header))
            begun = Begun(
                client=upload.header.client,
                upload_id=upload.header.upload_id,
                header=leaf(upload.header),
                norm=uploads.norm(values),
                step=0.0,
                key=key.of(self.parties.terms.span),
                bound=key.bound,
            )
            self._begun.append(begun)
            self._openers.append(TileOpener(begun.key, begun.bound))


def _entropy() -> Entropy:
    """The same bytes in every process. What is measured keeps no secret."""
    return SecretStream(_seed("enclave's entropy")).bytes


def _context(parties: Cast) -> RoundContext:
    return RoundContext(
        federation=parties.federation,
        identity=parties.enclave,
        entropy=os.urandom,
        publication=Publication(1),
        round_id=bytes(32),
        previous=bytes(32),
        confirmed=True,
        state=parties.state(),
        span=parties.terms.span,
        spans=(parties.terms.span,),
        model=bytes(32),
        evidence=IN_PROCESS,
    )


class Attempt:
    """One round, closed and ready to be measured."""

    def __init__(self, load: Workload, parties: Cast) -> None:
        self.cohort = Cohort(_context(parties), load.rows, Standing(parties.terms, {}))
        self._load = load
        self._workers = parties.workers()

    def host(self, clock: Stopwatch) -> Host:
        """The real driver of the round. The clock stands still while a worker works."""
        return Host(
            threads=self._load.threads,
            workers={
                name: ClockedWorker(worker, clock.paused) for name, worker in self._workers.items()
            },
            tell=refuse_surprises,
        )

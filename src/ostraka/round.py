"""One round, all roles in one process, in the order of the paper's sections.

This is the executable specification: deployments drive the same roles over a network. Nothing here
is trusted with a secret but the roles themselves; what lies in `spool` and `noise` is ciphertext.
"""

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ostraka.arrays import Buffer, Float32
from ostraka.config import Federation, Manifest, Member, RoundConfig, default_tile
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.identity import Identity
from ostraka.crypto.updates import SealedUpdate
from ostraka.errors import ConfigError, LeakyMasking, Rejection, UpdateRejected
from ostraka.messages import Receipt
from ostraka.roles.client import Client
from ostraka.roles.enclave import Cohort, Collecting, Enclave, Published
from ostraka.roles.worker import Worker


@dataclass(frozen=True)
class RoundResult:
    """What a round yields. Only this in-process specification shows who was selected.

    aggregate: (d,) float32, the mean of the selected, clipped rows. rejected: rows that broke the
    protocol. distance_error: the stated error of the squared distances that the selection rests on.
    """

    aggregate: Float32
    selected: tuple[int, ...]
    rejected: dict[int, Rejection]
    receipt: Receipt
    distance_error: float


def run_round(
    updates: npt.ArrayLike,
    *,
    f: int,
    k: int | None = None,
    masking: str,
    clip_norm: float | None = None,
    entropy: Entropy | None = None,
) -> RoundResult:
    """Aggregate updates (n, d) of which f may be Byzantine.

    k: how many to average (None: n - f). masking: "gaussian" is the paper's, "none" measures inside
    the enclave. clip_norm: longer rows are scaled down to it (None: 4 x the median norm, rounded up
    to a power of two). entropy: a source of secret bytes, called with a count (None: the OS).
    """
    rows = _as_rows(updates)
    rules = _rules(rows, f=f, k=k, masking=masking, clip_norm=clip_norm)
    enclave, clients, workers = _enrol(rules, len(rows), entropy or os.urandom)

    # Section 3.2, noise generation: offline, before there are updates, sealed and kept outside.
    offline = enclave.prepare_noise() if workers else None
    noise = list(offline.make()) if offline else []

    # Section 3.1: each client checks the enclave's offer and seals its update to it.
    collecting, spool = enclave.open_round(), _Spool()
    for client, update in zip(clients, rows, strict=True):
        spool.collect(collecting, client.join(collecting.offer).seal(update).sealed)
    cohort = collecting.close()

    # Section 3.2, encoding to decoding: by the workers on masked rows, or inside the enclave.
    if offline:
        connecting = cohort.offload(offline)
        accepted = [
            worker.accept(offer) for worker, offer in zip(workers, connecting.offers, strict=True)
        ]
        masked = connecting.connect([accept for _, accept in accepted])
        for shares in masked.encode(spool.tiles(cohort, rules.tiles), noise):
            for (computing, _), share in zip(accepted, shares, strict=True):
                computing.add(share)
        averaging = masked.decode([computing.answer() for computing, _ in accepted])
    else:
        averaging = cohort.inside().measure(spool.tiles(cohort, rules.tiles))

    # Section 3.2, aggregation: the enclave averages the chosen K and signs what it did.
    published = averaging.average(spool.tiles(cohort, rules.tiles))
    return _result(published, [client.name for client in clients])


class _Spool:
    """Where a host keeps ciphertext for the enclave."""

    def __init__(self) -> None:
        self._tiles: dict[tuple[bytes, int], Buffer] = {}

    def collect(self, collecting: Collecting, sealed: SealedUpdate) -> None:
        """Hand one upload to the enclave. A rejected client is the enclave's to report."""
        with contextlib.suppress(UpdateRejected):
            collecting.accept(sealed.header)
            for tile in sealed.tiles:
                collecting.accept_tile(tile)
                self._tiles[tile.upload_id, tile.index] = tile.ciphertext

    def tiles(self, cohort: Cohort, count: int) -> Iterator[list[Buffer]]:
        """Tile by tile, the ciphertext of every row."""
        for index in range(count):
            yield [self._tiles[upload, index] for upload in cohort.uploads]


def _as_rows(updates: npt.ArrayLike) -> Float32:
    # A value beyond float32 becomes an infinity here, and its row is rejected for that.
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(updates, dtype=np.float32)
    if rows.ndim != 2:
        raise ConfigError(f"updates are one row per client, (n, d); got shape {rows.shape}")
    return rows


def _rules(
    rows: Float32, *, f: int, k: int | None, masking: str, clip_norm: float | None
) -> RoundConfig:
    n, d = rows.shape
    if masking == "gaussian":
        warnings.warn(LeakyMasking(), stacklevel=3)
    return RoundConfig(
        Manifest.flat(d), f=f, k=k, masking=masking, clip_norm=clip_norm, tile=default_tile(n)
    )


def _enrol(
    rules: RoundConfig, n: int, entropy: Entropy
) -> tuple[Enclave, list[Client], list[Worker]]:
    """Identities for everybody, and the federation that pins them."""
    clients = {f"client-{row}": Identity.generate(entropy) for row in range(n)}
    helpers = 0 if rules.masking == "none" else 2
    workers = {f"worker-{point}": Identity.generate(entropy) for point in range(helpers)}
    federation = Federation(rules, _members(clients), _members(workers))
    enclave = Enclave(federation, Identity.generate(entropy), entropy=entropy)
    return (
        enclave,
        [
            Client(name, identity, federation, enclave.public, entropy=entropy)
            for name, identity in clients.items()
        ],
        [
            Worker(identity, enclave=enclave.public, entropy=entropy)
            for identity in workers.values()
        ],
    )


def _members(identities: dict[str, Identity]) -> tuple[Member, ...]:
    return tuple(Member(name, identity.public) for name, identity in identities.items())


def _result(published: Published, names: list[str]) -> RoundResult:
    row_of = {name: row for row, name in enumerate(names)}
    return RoundResult(
        aggregate=published.aggregate,
        selected=tuple(row_of[name] for name in published.selected),
        rejected={row_of[name]: reason for name, reason in published.rejected.items()},
        receipt=published.receipt,
        distance_error=published.distance_error,
    )

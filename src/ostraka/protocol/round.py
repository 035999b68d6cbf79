"""One round, all roles in one process, in the order of the paper's sections.

This is the executable specification: deployments drive the same roles over a network. Only the
roles are trusted with a secret; what the host holds is ciphertext.
"""

import contextlib
import math
import operator
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from ostraka import calibration, events
from ostraka.arrays import Float32
from ostraka.attestation.claims import in_process
from ostraka.config import Manifest, Member, Tensor, Terms, default_tile
from ostraka.core import rules, uploads
from ostraka.core.metrics import Values
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.identity import Identity
from ostraka.crypto.updates import SealedUpdate
from ostraka.errors import (
    ConfigError,
    LeakyMasking,
    Rejection,
    RemoteProtocolError,
    RoundFailed,
    ToleranceUsedUp,
)
from ostraka.events import Event
from ostraka.messages import Receipt, RoundOffer
from ostraka.protocol.client import Client, Submitted
from ostraka.protocol.enclave import Proposed, Threads
from ostraka.protocol.host import lend_threads
from ostraka.protocol.local import LocalFederation


@dataclass(frozen=True)
class RoundResult:
    """What a round yields. Only this in-process specification shows who was selected.

    aggregate: (d,) float32, the weighted mean of the clipped rows. selected: the rows of weight
    above 0. weights: (n,) float64, by row. rejected: rows that broke the protocol. receipt: what
    the enclave signs about the round. distance_error: the largest error to expect of a squared
    distance that the selection rests on. events: what an operator would have seen. arrays: the
    aggregate by name, if updates were given by name.
    """

    aggregate: Float32
    selected: tuple[int, ...]
    rejected: dict[int, Rejection]
    receipt: Receipt
    weights: npt.NDArray[np.float64]
    distance_error: float
    events: tuple[Event, ...]
    arrays: dict[str, Float32] = field(default_factory=dict)


@dataclass(frozen=True)
class Parties:
    """Everyone who takes part, in one process."""

    federation: LocalFederation
    clients: list[Client]

    def join(
        self, client: Client, offer: RoundOffer, update: Float32, metrics: Values | None = None
    ) -> Submitted[SealedUpdate]:
        """What a client does that shares its process with the enclave."""
        attested = in_process(offer, self.federation.enclave.receipt_key)
        return client.join(offer, attested).seal(update, metrics)

    def seal(self, client: Client, offer: RoundOffer, update: Float32) -> SealedUpdate:
        return self.join(client, offer, update).sealed


Named: TypeAlias = Mapping[str, npt.ArrayLike]


def run_round(
    updates: npt.ArrayLike | Sequence[Named],
    *,
    f: int,
    rule: str = rules.DEFAULT,
    pre: Sequence[str] | None = None,
    masking: str = "exact",
    sketch: int | None = None,
    workers: int = 2,
    clip_norm: float | None = None,
    verify: bool = True,
    distances: str = "workers",
    threads: int = 1,
    disclose_values: bool = False,
    upload: str = uploads.DEFAULT,
    metrics: Sequence[Values | None] | None = None,
    shards: int = 1,
    entropy: Entropy | None = None,
    **options: float | str | None,
) -> RoundResult:
    """Aggregate updates (n, d) of which f may be Byzantine.

    updates: one row per client, or one dict of arrays per client, such as a state dict. f: how many
    of them may be Byzantine. rule: the aggregation rule. pre: pre-aggregations before it (None: arc
    and nnm before the default rule, nothing before others). options: what they take, such as k
    (`rules.Options`); root is "client-0" for the first row. masking: "exact", the paper's
    "gaussian", or "none" for distances inside the enclave. sketch: fold rows to this many columns
    first. workers: 2 to 7, of which half may collude. clip_norm: longer rows are scaled down to it
    (None: 4 x the median norm, rounded up to a power of two). verify: check the workers. distances:
    "workers", "inside", or "auto" for the cheaper. threads: for opening, masking, sealing and
    averaging; the result does not depend on it. disclose_values: allow a rule whose aggregate holds
    single values of single clients. upload: the format that rows are sent in, such as "int8".
    metrics: what each client reports, by name, or None for one that does not; all who report have
    the same names, and the receipt has the means. shards: among how many enclaves the values of
    an update are divided. entropy: a source of secret bytes, called with a
    count (None: the OS).
    """
    rows, manifest = _as_rows(updates)
    n, d = rows.shape
    composition = rules.compose(rule, rules.asked_pre(rule, pre), rules.read_options(options))
    log: list[Event] = []
    terms = Terms(
        manifest,
        f=_whole("f", f),
        rule=composition.name,
        pre=composition.pre,
        options=composition.options,
        masking=masking,
        sketch=None if sketch is None else _whole("sketch", sketch),
        workers=_whole("workers", workers),
        clip_norm=None if clip_norm is None else float(clip_norm),
        verify=bool(verify),
        disclose_values=disclose_values,
        upload=upload,
        report_metrics=_named_metrics(metrics, n),
        distances="workers" if distances == "auto" else distances,
        tile=default_tile(d, _whole("shards", shards)),
    )
    if distances == "auto" and not terms.inside:
        choice = calibration.load().choose(n, terms.measured, terms.workers, integers=terms.counted)
        terms = replace(terms, distances=choice.distances)
        log.append(events.DistancesChosen(str(choice)))
    parties = enrol(
        terms, clients=n, shards=_whole("shards", shards), entropy=entropy or os.urandom
    )
    if masking == "gaussian" and not terms.inside:
        warnings.warn(LeakyMasking(), stacklevel=2)
    with lend_threads(_whole("threads", threads)) as lent:
        result = play(parties, rows, lent, metrics)
    if result.rejected and len(result.rejected) >= terms.f:
        warnings.warn(ToleranceUsedUp(len(result.rejected), terms.f), stacklevel=2)
    arrays = _by_name(result.aggregate, manifest) if _is_named(updates) else {}
    return replace(result, events=(*log, *result.events), arrays=arrays)


def play(
    parties: Parties,
    rows: Float32,
    lent: Threads | None = None,
    metrics: Sequence[Values | None] | None = None,
) -> RoundResult:
    """One round of the protocol. rows: (n, d), one per client. lent: threads for the enclave.

    metrics: what each client reports.
    """
    federation, log = parties.federation, list[Event]()
    federation.threads, federation.tell = lent or Threads(), log.append

    # Section 3.1: each client checks the enclave's offer and seals its update to it.
    offer = federation.open()
    submitted = [
        parties.join(client, offer, update, reported)
        for client, update, reported in zip(
            parties.clients, rows, metrics or [None] * len(rows), strict=True
        )
    ]
    for upload in submitted:
        with contextlib.suppress(RemoteProtocolError):  # The receipt names a rejected client.
            federation.take(upload.sealed)
    cohort = federation.close()

    # Section 3.2, noise generation to decoding: by workers on masked rows, or inside the enclave.
    # Noise is drawn when the cohort is fixed, and not before as in the paper (ADR 12).
    host = federation.host(cohort)
    measured = host.measure(cohort)

    # Section 3.2, aggregation: the rule gives each row its weight, and the enclave averages and
    # signs what it did. It shows nothing of that yet.
    ballot = federation.propose(host.finish(cohort, measured))

    # Beyond the paper: each client confirms one outcome of this number, ever. So a host that copies
    # the enclave has at most one aggregate of it.
    if ballot.awaited:
        submitted = [each.vote(ballot.proposal) for each in submitted]
        for each in submitted:
            federation.confirm(each.joined.client.confirmation())
    proposed, certified = federation.release()

    # Each client checks the receipt and the model before it goes on to the next round.
    model = proposed.state.model
    parties.clients[:] = [each.finish(certified, model) for each in submitted]
    if certified.receipt.failure:
        raise RoundFailed(certified.receipt.failure)
    return _result(proposed, [client.name for client in parties.clients], log)


def _named_metrics(metrics: Sequence[Values | None] | None, n: int) -> tuple[str, ...]:
    """What the terms have to name: what the first client reports that reports. Raises
    ConfigError."""
    if metrics is not None and len(metrics) != n:
        raise ConfigError(f"metrics are one dict per client, or None; got {len(metrics)} for {n}")
    return tuple(next((each for each in metrics or () if each is not None), ()))


def enrol(
    terms: Terms,
    *,
    clients: int,
    spares: int = 0,
    shards: int = 1,
    entropy: Entropy = os.urandom,
) -> Parties:
    """Identities for everyone, and the federation that pins them."""
    members = {f"client-{row}": Identity.generate(entropy) for row in range(clients)}
    roster = [Member(name, identity.public) for name, identity in members.items()]
    local = LocalFederation.found(terms, roster, spares=spares, shards=shards, entropy=entropy)
    return Parties(
        local,
        [
            Client(name, identity, local.federation, entropy=entropy)
            for name, identity in members.items()
        ],
    )


def _is_named(updates: object) -> TypeGuard[Sequence[Named]]:
    """Whether these are dicts of arrays, and not rows."""
    return isinstance(updates, list | tuple) and any(isinstance(each, Mapping) for each in updates)


def _as_rows(updates: npt.ArrayLike | Sequence[Named]) -> tuple[Float32, Manifest]:
    """Rows (n, d), and what they consist of. Raises ConfigError."""
    if not _is_named(updates):
        rows = _as_matrix(updates)
        return rows, Manifest.flat(rows.shape[1])
    try:
        given = [{name: np.asarray(each) for name, each in dict(row).items()} for row in updates]
    except (ValueError, TypeError, RuntimeError) as bad:
        raise ConfigError(f"updates are dicts of arrays, one per client: {bad}") from None
    shapes = {name: each.shape for name, each in given[0].items()}
    for number, update in enumerate(given):
        other = {name: each.shape for name, each in update.items()}
        if other != shapes:
            raise ConfigError(f"update 0 holds {shapes}, and update {number} holds {other}")
    manifest = Manifest(tuple(Tensor(name, shape) for name, shape in shapes.items()))
    flat = [np.concatenate([each[name].ravel() for name in shapes]) for each in given]
    return _as_matrix(flat), manifest


def _by_name(vector: Float32, manifest: Manifest) -> dict[str, Float32]:
    """A vector (d,) as the arrays that it consists of."""
    ends = np.cumsum([math.prod(tensor.shape) for tensor in manifest.tensors])
    parts = zip(manifest.tensors, np.split(vector, ends[:-1]), strict=True)
    return {tensor.name: part.reshape(tensor.shape) for tensor, part in parts}


def _as_matrix(updates: Any) -> Float32:
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


def _result(proposed: Proposed, names: list[str], log: list[Event]) -> RoundResult:
    row_of = {name: row for row, name in enumerate(names)}
    selected = [row_of[name] for name in proposed.selected]
    weights = np.zeros(len(names))
    weights[selected] = proposed.weights
    rejections = (events.ClientRejected(name, reason) for name, reason in proposed.rejected.items())
    receipt = proposed.receipt
    done = events.RoundPublished(receipt.number, receipt.participants, receipt.kept, receipt.note)
    return RoundResult(
        aggregate=proposed.aggregate,
        selected=tuple(selected),
        rejected={row_of[name]: reason for name, reason in proposed.rejected.items()},
        receipt=receipt,
        weights=weights,
        distance_error=proposed.distance_error,
        events=(*log, *rejections, done),
    )

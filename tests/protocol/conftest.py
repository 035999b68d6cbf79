"""One federation in one process, driven message by message.

`simulate(...)` gives a Simulation. It opens a Round, which a test sends messages to, good and bad;
an Attempt is the part that workers have in it. Whatever crosses a trust boundary passes through its
encoding. Only this file knows the order in which the roles are driven.
"""

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ostraka.arrays import Buffer
from ostraka.attestation.claims import in_process
from ostraka.config import Federation, Manifest, Member, Span, Terms, spans_from
from ostraka.core import rules
from ostraka.crypto import hpke, updates
from ostraka.crypto.aead import nonce
from ostraka.crypto.identity import Identity
from ostraka.crypto.stream import SecretStream
from ostraka.encoding import UNSIGNED, decode, encode
from ostraka.errors import OpenError, Rejection, UpdateRejected
from ostraka.events import Event
from ostraka.messages import (
    Abandon,
    Answer,
    Certificate,
    Certified,
    ChannelAccept,
    Confirmation,
    Proposal,
    Receipt,
    RoundOffer,
    ShareTile,
    UpdateHeader,
    UpdateTile,
    Vote,
)
from ostraka.protocol.client import Client, Joined
from ostraka.protocol.confirm import Ballot, confirm, outcome_digest
from ostraka.protocol.enclave import (
    Cohort,
    Dispute,
    Inside,
    Intake,
    Measured,
    Memory,
    Offload,
    Proposed,
    Threads,
    advance,
    combine,
    decide,
    gather,
    propose,
)
from ostraka.protocol.host import Host
from ostraka.protocol.local import LocalFederation

MASKINGS = ("none", "gaussian", "exact")
DEFAULT = "arc+nnm+geometric-median"
# How few rows each of these stands on when f may be Byzantine.
DEFENCES = {
    DEFAULT: lambda f: 2 * f + 2,
    "multi-krum": lambda f: 2 * f + 3,
    "mean": lambda f: f + 2,
    "nnm+mean": lambda f: 2 * f + 2,
}


@pytest.fixture(params=MASKINGS, scope="session")
def masking(request) -> str:
    """Every way in which distances are measured."""
    return request.param


@pytest.fixture(params=[name for name in MASKINGS if name != "none"], scope="session")
def offloaded(request) -> str:
    """Every masking that has workers."""
    return request.param


@pytest.fixture(params=DEFENCES, scope="session")
def defence(request) -> str:
    """The default, the paper's rule, and two simple ones."""
    return request.param


@pytest.fixture
def least(defence) -> Callable[[int], int]:
    """How few rows this defence stands on, by f."""
    return DEFENCES[defence]


@pytest.fixture
def simulate() -> "type[Simulation]":
    return Simulation


# The float64 reference. It is written from the laws and the papers, works on rows instead of inner
# products, and uses nothing of the package. What chooses rows also says how large an error of all
# squared distances would have to be to change the choice.


def norms_of(rows: np.ndarray) -> np.ndarray:
    return np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1))


def clip(rows: np.ndarray, stated: Iterable[float]) -> np.ndarray:
    """rows (n, d), each scaled down to 4 x the median of the stated norms, up to a power of two."""
    median = max(float(np.median(list(stated))), 2.0**-128)  # no limit is below float32's range
    limit = np.exp2(np.ceil(np.log2(4 * median)))
    long = np.maximum(norms_of(rows), limit)
    return rows * (limit / long)[:, None]


def krum_scores(rows: np.ndarray, f: int) -> np.ndarray:
    """The sum of the n - f - 2 smallest squared distances to others, differences before squares."""
    n = len(rows)
    squares = [np.square(rows - row).sum(axis=1) for row in rows]
    return np.array([np.sort(np.delete(squares[i], i))[: n - f - 2].sum() for i in range(n)])


def lowest(scores: np.ndarray, k: int) -> tuple[int, ...]:
    """The k rows of lowest score. Of equal scores the lower row wins."""
    return tuple(sorted(sorted(range(len(scores)), key=lambda row: (scores[row], row))[:k]))


def shortened(rows: np.ndarray, f: int) -> tuple[np.ndarray, float]:
    """arc: the matrix that shortens the floor(2f (n - f)/n) longest rows to the next length."""
    lengths = norms_of(rows)
    longest = np.sort(lengths)[len(rows) - 1 - 2 * f * (len(rows) - f) // len(rows)]
    return np.diag([longest / each if each > longest else 1.0 for each in lengths]), np.inf


def mixed(rows: np.ndarray, f: int) -> tuple[np.ndarray, float]:
    """nnm: the matrix that makes each row the mean of the n - f nearest to it, itself first."""
    n, apart = len(rows), np.inf
    matrix = np.zeros((n, n))
    for i in range(n):
        squares = np.square(rows - rows[i]).sum(axis=1)
        nearest = sorted(range(n), key=lambda j: (j != i, squares[j], j))
        matrix[i, nearest[: n - f]] = 1 / (n - f)
        if f:
            apart = min(apart, squares[nearest[n - f]] - squares[nearest[n - f - 1]])
    # Two distances may move towards each other, and an error grows fourfold if rows are shortened.
    return matrix, apart / 8


def kept_by_krum(rows: np.ndarray, f: int, k: int) -> tuple[np.ndarray, float]:
    """The weights of the k rows of lowest score."""
    n = len(rows)
    ordered, kept = np.sort(scores := krum_scores(rows, f)), lowest(scores, k)
    weights = np.zeros(n)
    weights[list(kept)] = 1 / k
    return weights, (ordered[k] - ordered[k - 1]) / undecided(n, f, 1.0) if k < n else np.inf


def geometric_median(rows: np.ndarray) -> tuple[np.ndarray, float]:
    """The weights after 100 of Weiszfeld's steps from zero."""
    point, floor = np.zeros(rows.shape[1]), max(1e-5 * norms_of(rows).max(), 1e-150)
    for _ in range(100):
        nearness = 1 / np.maximum(norms_of(rows - point), floor)
        weights = nearness / nearness.sum()
        point = weights @ rows
    return weights, np.inf


def weights_of(rows: np.ndarray, f: int, defence: str, k: int | None) -> tuple[np.ndarray, float]:
    """The weights (n,) of rows (n, d) by a defence of which no weight needs the cap."""
    n = len(rows)
    *pre, rule = defence.split("+")
    matrix, decided = np.eye(n), np.inf
    for step in pre:
        made, error = {"arc": shortened, "nnm": mixed}[step](matrix @ rows, f)
        matrix, decided = made @ matrix, min(decided, error)
    match rule:
        case "mean":
            weights, error = np.full(n, 1 / n), np.inf
        case "multi-krum":
            weights, error = kept_by_krum(matrix @ rows, f, n - f if k is None else min(k, n - f))
        case "geometric-median":
            weights, error = geometric_median(matrix @ rows)
    final = matrix.T @ weights
    assert final.max() <= (1 + 1e-9) / (f + 2), "the cap would matter"
    return final, min(decided, error / 2 ** len(pre))


def undecided(n: int, f: int, distance_error: float) -> float:
    """The largest gap between two scores that errors of the distances can bridge.

    The j-th smallest of some numbers moves by no more than they do, so a score of n - f - 2 terms
    is off by at most (n - f - 2) errors, and two scores may move towards each other.
    """
    return 2 * (n - f - 2) * distance_error


def assert_mean(aggregate: np.ndarray, rows: np.ndarray, weights: np.ndarray | None = None) -> None:
    """aggregate is the mean of rows to 1e-6 relative; to the largest of them where they cancel."""
    assert aggregate.dtype == np.float32
    atol = 1e-14 * float(np.abs(rows).max()) + 2.0**-150  # half the least float32
    mean = rows.mean(axis=0) if weights is None else weights @ rows
    np.testing.assert_allclose(aggregate, mean, rtol=1e-6, atol=atol)


@pytest.fixture(scope="session")
def reference() -> SimpleNamespace:
    return SimpleNamespace(
        norms=norms_of,
        clip=clip,
        scores=krum_scores,
        lowest=lowest,
        undecided=undecided,
        weights=weights_of,
        assert_mean=assert_mean,
    )


def wire(message: Any) -> Any:
    """A message as the other end decodes it."""
    return decode(type(message), encode(message))


class Simulation:
    """Everybody in a federation, their secrets included.

    defence: pre-aggregations and a rule, with options in brackets. k: how many rows multi-krum
    keeps. budget: bytes of memory for rows; with 0, all of them are spooled. shards: among how many
    the values of a row are divided. spares: workers beyond those of the terms.
    """

    def __init__(
        self,
        *,
        n: int = 7,
        f: int = 1,
        d: int = 50,
        tile: int = 16,
        masking: str = "none",
        rows: np.ndarray | None = None,
        seed: int = 0,
        threads: int = 1,
        witnesses: int = 0,
        defence: str = DEFAULT,
        k: int | None = None,
        budget: int = 2**62,
        shards: int = 1,
        spares: int = 0,
        **terms: Any,
    ) -> None:
        self.budget = budget
        self.drawn: list[bytes] = []
        self.threads = Threads(threads)
        self._stream = SecretStream(seed.to_bytes(32, "big"))
        if rows is None:
            rows = self.updates(n, d, seed)
        self.rows = rows
        composition = rules.parse(defence, None if k is None else rules.Options(k=k))
        self.terms = Terms(
            Manifest.flat(rows.shape[1]),
            f=f,
            rule=composition.name,
            pre=composition.pre,
            options=composition.options,
            masking=masking,
            tile=tile,
            **terms,
        )
        self.names = [f"client-{row}" for row in range(len(rows))]
        self.identities = [Identity.generate(self.entropy) for _ in self.names]
        self.stranger = Identity.generate(self.entropy)
        roster = [
            Member(name, identity.public)
            for name, identity in zip(self.names, self.identities, strict=True)
        ]
        onlookers = {f"witness-{i}": Identity.generate(self.entropy) for i in range(witnesses)}
        local = LocalFederation.found(
            self.terms,
            roster,
            witnesses=[Member(name, each.public) for name, each in onlookers.items()],
            entropy=self.entropy,
            shards=shards,
            spares=spares,
        )
        self.local = local
        self.federation, self.enclave = local.federation, local.enclave
        self.authority: Identity = local.authority
        self.workers: list[Any] = list(local.workers.values())
        self.clients = [self.client(row) for row in range(len(rows))]
        self.witnesses = [
            Client(name, each, self.federation, self.enclave.receipt_key)
            for name, each in onlookers.items()
        ]
        self.states = {0: self.enclave._state}  # the model after each round

    @staticmethod
    def updates(n: int, d: int, seed: int = 0) -> np.ndarray:
        """Rows (n, d) about a few directions, so that some are clearly nearer than others."""
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(n, 5)) @ rng.normal(size=(5, d)) + 0.3 * rng.normal(size=(n, d))
        return rows.astype(np.float32)

    def entropy(self, n: int) -> bytes:
        """The same bytes in every run. They are recorded: a test may look for them elsewhere."""
        self.drawn.append(self._stream.bytes(n))
        return self.drawn[-1]

    def client(self, row: int) -> Client:
        """A client that has followed no round yet."""
        return Client(
            self.names[row],
            self.identities[row],
            self.federation,
            self.enclave.receipt_key,
            entropy=self.entropy,
        )

    def open(self) -> "Round":
        return Round(self)

    def join(self, client: Client, offer: RoundOffer) -> Joined:
        return client.join(offer, in_process(offer, self.enclave.receipt_key))

    def restart(self, *receipts: Receipt) -> None:
        """The enclave as it was when it had signed these, and no more."""
        head = receipts[-1] if receipts else None
        self.enclave._continue(head, self.states[len(receipts)], self.federation)

    def ballot(self, proposed: Proposed, but: Iterable[str] = ()) -> Ballot:
        """All who have a vote, but these, confirm an outcome."""
        ballot = self.enclave.ballot(proposed.pending)
        asked = ballot.awaited - set(but)
        for voters in (self.clients, self.witnesses):
            for place, voter in enumerate(voters):
                if voter.name in asked:
                    voters[place] = voter.vote(wire(ballot.proposal))
                    ballot.add(wire(voters[place].confirmation()))
        return ballot

    def confirm(self, proposed: Proposed, but: Iterable[str] = ()) -> Certified:
        """All who have a vote, but these, confirm an outcome, and the enclave releases it."""
        pending = proposed.pending
        certificate = self.ballot(proposed, but).certificate(pending.salt)
        return wire(Certified(pending.receipt, certificate))

    def certify(
        self, receipt: Receipt, electors: Federation | None = None, *, by: Iterable[str] = ()
    ) -> Certified:
        """Any receipt, signed by the enclave and confirmed by these clients, who remember nothing.

        electors: who may confirm it. by: all of them unless given.
        """
        electors = electors or self.federation
        receipt, salt = self.sign(receipt), self.entropy(32)
        proposal = self.sign(
            Proposal(
                electors.id,
                receipt.number,
                receipt.previous,
                outcome_digest(salt, receipt),
                receipt.cohort,
                UNSIGNED,
            )
        )
        keys = dict(zip(self.names, self.identities, strict=True))
        names = tuple(by) or tuple(member.name for member in electors.clients)
        votes = (
            confirm(proposal, electors.id, receipt.number, voter=name, identity=keys[name])
            for name in names
        )
        kept = tuple(Vote(vote.voter, vote.signature) for vote in votes)
        return wire(Certified(receipt, Certificate(proposal, salt, kept)))

    def votes(self, rows: Iterable[int]) -> list[Confirmation]:
        """What these clients show when the open number is to be abandoned: their vote, or none."""
        for row in rows:
            client = self.clients[row]
            self.clients[row] = client.vote_for_none(client.next_number)
        return [wire(self.clients[row].confirmation()) for row in rows]

    def abandon(self, votes: Iterable[Confirmation] = (), **changes: Any) -> Abandon:
        """The authority gives up the open number."""
        enclave = self.enclave
        abandon = Abandon(
            number=enclave._publication.number,
            previous=enclave._previous,
            electors=enclave._electors,
            model=enclave.model,
            votes=tuple(votes),
            signature=UNSIGNED,
        )
        return wire(self.authority.sign(replace(abandon, **changes)))

    def sign(self, message: Any) -> Any:
        """By the enclave itself, which then is as false as the message."""
        return self.enclave._identity.sign(message)

    def follow(self, proposed: Proposed) -> Certified:
        """All confirm; the enclave and all clients go on after a round."""
        certified = self.confirm(proposed)
        self.states[certified.receipt.number] = proposed.state
        self.enclave.follow(certified, None if self.local.shards else proposed.state)
        for each, part in zip(self.local.shards, proposed.slices, strict=False):
            each.shard.state = part.state
        self.clients = [client.follow(certified) for client in self.clients]
        self.witnesses = [witness.follow(certified) for witness in self.witnesses]
        return certified


@dataclass
class Forgery:
    """An upload whose client keeps its key and says what it likes."""

    header: UpdateHeader
    tiles: tuple[UpdateTile, ...]
    norm: float
    key: bytes
    spans: tuple[Span, ...]

    def tile(self, index: int, values: np.ndarray) -> UpdateTile:
        """Another tile that opens in the same place of the same upload."""
        key = updates.UploadKey(self.key, updates.tile_context(self.header))
        span = next(each for each in reversed(self.spans) if each.first <= index)
        sealed = AESGCM(key.of(span)).encrypt(nonce(index), values.tobytes(), key.bound)
        return UpdateTile(self.header.upload_id, index, sealed)


class HostSpool:
    """Where the enclave puts sealed tiles for which it has no memory: the round's `spool`.

    first: the number of a shard's first tile.
    """

    def __init__(self, round_: "Round", first: int = 0) -> None:
        self._round = round_
        self._first = first

    def clear(self) -> None:
        """A round has a spool of its own."""

    def write(self, row: int, index: int, ciphertext: Buffer) -> None:
        """The round notes what arrives, whether it is spooled or not."""

    def read(self, row: int, index: int, start: int, size: int) -> bytes:
        tile = self._first + index
        self._round.reads.append((self._round.name(row), tile))
        return self._round.spool[self._round.upload(row), tile][start : start + size]


class Round:
    """One round, driven as a host would. `spool` is the host's: a test may alter what is there, and
    what the enclave has in memory stays as it is."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.terms = simulation.terms
        self.spool: dict[tuple[tuple[str, bytes], int], bytes] = {}
        self.reads: list[tuple[str, int]] = []  # of the spool: the client, and the tile
        self.intake = self._open()
        self.offer = wire(self.intake.offer)
        self.norms: dict[tuple[str, bytes], float] = {}  # as stated, by upload
        self.senders: dict[bytes, str] = {}  # of uploads
        self.changed: list[UpdateRejected] = []
        self.told: list[Event] = []  # what an operator sees
        self.cohort: Cohort
        self.measured: Measured
        self._host: Host | None = None

    def _open(self) -> Intake:
        simulation, local = self.simulation, self.simulation.local
        if not local.shards:
            return simulation.enclave.open_round(Memory(simulation.budget), HostSpool(self))
        for each in local.shards:
            each.memory = Memory(simulation.budget)
            each._spool = HostSpool(self, each.shard.span.first)  # type: ignore[assignment]
        local.open()
        return local.intake

    def name(self, row: int) -> str:
        return self.simulation.names[row]

    def seal(
        self,
        row: int,
        update: np.ndarray | None = None,
        metrics: dict[str, float] | None = None,
    ) -> updates.SealedUpdate:
        """An honest client's upload."""
        update = self.simulation.rows[row] if update is None else update
        joined = self.simulation.join(self.simulation.clients[row], self.offer)
        sealed = joined.seal(update, metrics).sealed
        self.note(sealed.header, float(norms_of(update[None])[0]))
        return sealed

    def forge(
        self,
        row: int,
        update: np.ndarray | None = None,
        *,
        norm: float | None = None,
        step: float = 0.0,
        report: bytes | None = None,
        to: bytes | None = None,
        **fields: Any,
    ) -> Forgery:
        """An upload that its client signed, with any norm, step, report and fields, to any key.

        update: values of any format.
        """
        terms, identity = self.terms, self.simulation.identities[row]
        update = self.simulation.rows[row] if update is None else update
        norm = float(norms_of(update[None])[0]) if norm is None else norm
        key = self.simulation.entropy(32)
        header = UpdateHeader(
            federation=self.offer.federation,
            round_id=self.offer.round_id,
            round_key=hpke.fingerprint(self.offer.key),
            client=self.name(row),
            upload_id=self.simulation.entropy(32),
            manifest=terms.manifest.digest(),
            dimension=terms.dimension,
            tile=terms.tile,
            tiles=terms.tiling.count,
            sealed_key=b"",
            signature=UNSIGNED,
        )
        sealed_key = fields.pop("sealed_key", None)
        header = replace(header, **fields)
        if sealed_key is None:
            reported = terms.asked.write(None) if report is None else report
            secret = struct.pack(">32sdd", key, norm, step) + reported
            sealed_key = hpke.seal(to or self.offer.key, secret, info=updates.context(header))
        signed = identity.sign(replace(header, sealed_key=sealed_key))
        spans = spans_from(terms.tiling, self.offer.shards)
        forgery = Forgery(signed, (), norm, key, spans)
        forgery.tiles = tuple(
            forgery.tile(index, update[terms.tiling.part(index)])
            for index in range(terms.tiling.count)
        )
        self.note(header, norm)
        return forgery

    def note(self, header: UpdateHeader, norm: float) -> None:
        """Remember what this upload states, and whose it is."""
        self.norms[header.client, header.upload_id] = norm
        self.senders[header.upload_id] = header.client

    def accept(self, header: UpdateHeader) -> None:
        self.intake.accept(wire(header))

    def accept_tile(self, tile: UpdateTile, *, client: str | None = None) -> None:
        """Take a tile from this client; unless given, from the one that sealed its upload."""
        tile = wire(tile)
        client = client or self.senders.get(tile.upload_id, self.name(0))
        self.intake.take(client, tile)
        self.spool[(client, tile.upload_id), tile.index] = bytes(tile.ciphertext)

    def send(self, upload: updates.SealedUpdate | Forgery) -> None:
        """All of it, up to a tile that is refused."""
        self.accept(upload.header)
        with contextlib.suppress(UpdateRejected, OpenError):
            for tile in upload.tiles:
                self.accept_tile(tile, client=upload.header.client)

    def send_all(self, *, but: Iterable[int] = ()) -> None:
        """The honest uploads of all clients but these."""
        for row in sorted(set(range(len(self.simulation.rows))) - set(but)):
            self.send(self.seal(row))

    def close(self) -> None:
        self.cohort = self.intake.close()

    def upload(self, row: int) -> tuple[str, bytes]:
        """A client, and the id of its newest upload."""
        name = self.name(row)
        return name, self.intake._uploads[name].upload_id

    @property
    def uploads(self) -> tuple[tuple[str, bytes], ...]:
        """The client and upload id of each row of the cohort."""
        return tuple((row.client, row.upload_id) for row in self.cohort.rows)

    def host(self) -> Host:
        """The real driver of the steps behind the intake, with no worker but those of shards."""
        local, threads, tell = self.simulation.local, self.simulation.threads, self.told.append
        if not local.shards:
            return Host(threads, {}, tell)
        if self._host is None:  # A shard closes its part once.
            shards = [each.close(self.cohort, threads, tell) for each in local.shards]
            self._host = Host(threads, local.workers, tell, shards)
        return self._host

    def offload(self) -> "Attempt":
        return Attempt(self)

    def measure(self) -> None:
        """The first pass, by workers or inside; anew without a row that has changed."""
        for _ in range(len(self.cohort.rows) + 1):
            with contextlib.suppress(UpdateRejected):
                self.measured = self.try_to_measure()
                return

    def try_to_measure(self) -> Measured:
        if self.simulation.local.shards:
            return self.host().measure(self.cohort)
        if self.terms.inside:
            return gather(self.cohort, [Inside(self.cohort, self.simulation.threads).measure()])
        attempt = self.offload()
        attempt.connect(attempt.accepts())
        attempt.encode()
        return attempt.decode(attempt.answers())

    def average(self) -> Proposed:
        """The second pass, begun again whenever a row is found changed; `changed` lists those."""
        if self.simulation.local.shards:
            return self.host().finish(self.cohort, self.measured)
        while True:
            try:
                return self.try_to_average()
            except UpdateRejected as rejected:
                if rejected.client in self.cohort.standing:
                    raise  # It was not recorded, and this would never end.
                self.changed.append(rejected)

    def try_to_average(self, measured: Measured | None = None) -> Proposed:
        """Decide, combine and propose. Raises UpdateRejected if a row is found changed."""
        measured = measured or self.measured
        plan = decide(self.cohort, measured)
        aggregate = combine(self.cohort, measured.scales, plan, self.simulation.threads)
        outcome = advance(self.cohort.context, aggregate)
        proposed = propose(self.cohort, measured, plan, [outcome.leaves])
        return replace(proposed, slices=(outcome,))

    def finish(self) -> Proposed:
        self.close()
        self.measure()
        return self.average()

    def assert_result(
        self, published: Proposed, rejected: dict[int, Rejection], *, absent: Iterable[int] = ()
    ) -> None:
        """The outcome is the reference's on the rows that neither were rejected nor stayed away."""
        names = self.simulation.names
        assert published.rejected == {names[row]: reason for row, reason in rejected.items()}
        left = [row for row in range(len(names)) if row not in {*rejected, *absent}]
        n, f = len(left), self.terms.f - sum(reason.provable for reason in rejected.values())

        stated = [self.norms[upload] for upload in self.uploads]
        rows = clip(self.simulation.rows[left], stated)
        composition, options = self.terms.composition, self.terms.options
        weights, decided = weights_of(rows, f, composition.plain, options.k)
        assert decided > published.distance_error, "pick rows that are clearly apart"

        kept = np.flatnonzero(weights)
        assert published.selected == tuple(names[left[place]] for place in kept)
        # Weights that depend on distances are as exact as those, in relation to their size.
        typical = np.median(np.square(rows[:, None] - rows).sum(axis=2))
        error = 1e-9 + published.distance_error / typical if "median" in self.terms.rule else 1e-12
        np.testing.assert_allclose(published.weights, weights[kept], rtol=0, atol=error)
        assert_mean(published.aggregate, rows[kept], np.array(published.weights))
        receipt = published.receipt
        assert (receipt.participants, receipt.kept) == (n, len(kept))
        assert receipt.rule == str(composition)
        assert {(each.client, each.reason) for each in receipt.rejected} == {
            (names[row], reason) for row, reason in rejected.items()
        }


class Attempt:
    """What the workers do for a round."""

    def __init__(self, round_: Round) -> None:
        self.round = round_
        self.connecting = Offload(round_.cohort, None, round_.simulation.threads)
        self.offers = [wire(offer) for offer in self.connecting.offers]
        self.computing: list[Any] = []

    def accepts(self) -> list[ChannelAccept]:
        joined = [
            worker.accept(offer)
            for worker, offer in zip(self.round.simulation.workers, self.offers, strict=False)
        ]
        self.computing = [computing for computing, _ in joined]
        return [wire(accept) for _, accept in joined]

    def connect(self, accepts: list[ChannelAccept]) -> None:
        self.masking = self.connecting.connect(accepts)
        self.seed = self.masking.seed()

    def shares(self) -> Iterator[list[ShareTile]]:
        """Mask tile after tile: one share for each worker that gets any."""
        for shares in self.masking.encode():
            yield [wire(share) for share in shares]

    def encode(self) -> None:
        """Mask everything and hand the workers their shares, or the seed."""
        if self.seed is not None:
            self.computing[-1].add_seed(wire(self.seed))
        for shares in self.shares():
            for computing, share in zip(self.computing, shares, strict=False):
                computing.add(share)

    def answers(self) -> list[Answer]:
        return [wire(computing.answer()) for computing in self.computing]

    def decode(self, answers: list[Answer]) -> Measured:
        """Answers that contradict what the enclave knows are settled at once: WorkerLied."""
        outcome = self.masking.decode(answers)
        if isinstance(outcome, Dispute):
            outcome.settle()
        return gather(self.round.cohort, [outcome])

    def told(self, worker: int) -> np.ndarray:
        """The numbers in one worker's honest answer."""
        computing = self.computing[worker]
        channel = self.masking._channels[worker]
        raw = channel.open_answer(computing.answer().ciphertext)
        return np.frombuffer(raw, self.number_type()).copy()

    def number_type(self) -> str:
        return {"gaussian": "<f8", "exact": "<u4"}[self.round.terms.masking]

    def lie(self, worker: int, numbers: np.ndarray) -> Answer:
        """An authentic answer of one worker that holds any numbers at all."""
        raw = np.asarray(numbers, self.number_type()).tobytes()
        sealed = self.computing[worker]._channel.seal_answer(raw)
        return Answer(self.offers[worker].attempt_id, sealed)

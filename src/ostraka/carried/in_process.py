"""An enclave in the strategy's own process, with workers in it, for simulations.

It protects nobody: whoever runs the strategy can read it. It enrols every node that comes, with
the key that the node brings, and it dies with its process.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ostraka.arrays import Buffer, Float32
from ostraka.attestation.simulation import UnsafeSimulatedPlatform
from ostraka.carried.enclave import Head, Outcome
from ostraka.config import Federation, Manifest, Member, Terms, default_tile
from ostraka.core import optimiser
from ostraka.core.optimiser import ServerState
from ostraka.crypto.identity import Identity, check_signature
from ostraka.crypto.updates import SealedUpdate
from ostraka.enclave import measurement
from ostraka.enclave.platform.simulated import UnsafeSimulatedProvider
from ostraka.encoding import UNSIGNED, encode
from ostraka.errors import LocalProtocolError, NotEnrolled, OpenError
from ostraka.events import Event
from ostraka.flower.messages import Hello, Proof
from ostraka.messages import SIMULATION, Charter, Introduction, Receipt, RoundOffer, vector_digest
from ostraka.protocol import enclave as roles
from ostraka.protocol.host import Host, Prepared
from ostraka.protocol.worker import Worker
from ostraka.transport import ostraka_pb2 as wire

_SEED_BYTES = 32
_WORKER = "worker-"  # begins the names of workers, and of no node
_AN_HOUR = 3600  # for clocks that differ


@dataclass(frozen=True)
class FoundingTerms:
    """What a federation is founded on, besides its model. See `config.Terms`."""

    f: int
    k: int | None = None
    masking: str = "exact"
    workers: int = 2
    disclose_selection: bool = False

    def __post_init__(self) -> None:
        self.config(Manifest.flat(1), 2 * self.f + 3)  # refuses numbers that cannot work

    def config(self, manifest: Manifest, clients: int) -> Terms:
        return Terms(
            manifest,
            f=self.f,
            k=self.k,
            masking=self.masking,
            workers=self.workers,
            tile=default_tile(clients, manifest.dimension),
            disclose_selection=self.disclose_selection,
        )


@dataclass
class _Federation:
    """The enclave, its workers, and what it has published."""

    enclave: roles.Enclave
    workers: dict[str, Worker]
    charters: list[Charter]
    receipts: list[Receipt] = field(default_factory=list)

    @property
    def current(self) -> Federation:
        return self.charters[-1].federation


@dataclass
class _Round:
    """An open round, and its ciphertext: upload by upload, tile by tile."""

    collecting: roles.Collecting
    tiles: dict[bytes, dict[int, Buffer]] = field(default_factory=dict)

    def take(self, sealed: SealedUpdate) -> None:
        self.collecting.accept(sealed.header)
        kept: dict[int, Buffer] = {}
        self.tiles[sealed.header.upload_id] = kept
        for tile in sealed.tiles:
            self.collecting.require_opens(tile)
            self.collecting.accept_tile(tile)
            kept[tile.index] = tile.ciphertext

    def passes(self, cohort: roles.Cohort, count: int) -> Iterator[list[Buffer]]:
        for index in range(count):
            yield [self.tiles[upload][index] for upload in cohort.uploads]


class UnsafeInProcessEnclave:
    """Founded in the first round, with whoever comes to it.

    newcomers: whether nodes that come later are enrolled, too. tell: takes what an operator may
    see.
    """

    def __init__(
        self,
        terms: FoundingTerms,
        *,
        newcomers: bool = True,
        tell: Callable[[Event], None] | None = None,
    ) -> None:
        self._terms = terms
        self._newcomers = newcomers
        self._tell = tell or (lambda event: None)
        self._authority = Identity.generate()
        platform = UnsafeSimulatedPlatform(
            os.urandom(_SEED_BYTES), issued=int(time.time()) - _AN_HOUR
        )
        self._collateral = platform.collateral()
        self._provider = UnsafeSimulatedProvider(platform, measurement.measure().digest)
        self._manifest: Manifest | None = None
        self._state: ServerState | None = None
        self._federation: _Federation | None = None
        self._round: _Round | None = None

    def start(self, manifest: Manifest, model: Float32) -> Head:
        if self._manifest is None or self._state is None:
            self._manifest, self._state = manifest, optimiser.start(model, optimiser.FEDAVG)
        number = len(self._federation.receipts) if self._federation else 0
        return Head(number, self._manifest, self._state.model, self._terms.f, self._terms.k)

    def open(self, hellos: Sequence[Hello]) -> None:
        members = _members(hellos)
        if self._federation is None:
            self._federation = self._found(members)
        elif self._newcomers:
            self._enrol(members)
        self._round = _Round(self._federation.enclave.open_round())

    def introduce(self, hello: Hello, *, seconds: float | None = None) -> Proof:
        federation, collecting = self._founded, self._open_round.collecting
        keys = {member.name: member.key for member in federation.current.clients}
        challenge = hello.challenge
        if challenge.client not in keys:
            raise NotEnrolled(challenge.client)
        check_signature(challenge, keys[challenge.client])
        bound = collecting.binding(challenge.nonce)
        evidence = self._provider.evidence(bound.report_data())
        introduction = Introduction(collecting.offer, bound.receipt_key, evidence)
        links = () if hello.after is None else self.links(hello.after)
        return Proof(federation.charters[-1], introduction, links, self._collateral)

    def deliver(self, sealed: SealedUpdate, *, seconds: float | None = None) -> None:
        self._open_round.take(sealed)

    def finish(self, offer: RoundOffer, *, seconds: float) -> Outcome:
        """The whole round, at once."""
        federation, current = self._founded, self._open_round
        self._round = None
        terms = federation.current.terms
        cohort = current.collecting.close()
        host = Host(
            terms=terms,
            lanes=roles.Lanes(),
            tiles=lambda: current.passes(cohort, terms.tiling.count),
            workers=federation.workers,
            prepare=lambda: Prepared(federation.enclave),
            tell=self._tell,
        )
        published = host.average(host.measure(cohort))
        federation.enclave.follow(published.receipt, published.state)
        federation.receipts.append(published.receipt)
        self._state = published.state
        return Outcome(published.receipt, published.state.model)

    def links(self, after: int) -> tuple[bytes, ...]:
        """Each charter comes before the first receipt that is under it; the newest one is last."""
        charters = list(self._founded.charters)
        links: list[wire.ChainLink] = []
        for receipt in self._founded.receipts[after:]:
            while charters and charters[0].federation.revision <= receipt.revision:
                links.append(wire.ChainLink(charter=encode(charters.pop(0))))
            links.append(wire.ChainLink(receipt=encode(receipt)))
        links += [wire.ChainLink(charter=encode(charter)) for charter in charters]
        return tuple(link.SerializeToString() for link in links)

    def close(self) -> None:
        """It dies with its process."""

    def _found(self, members: list[Member]) -> _Federation:
        """FoundingTerms, roster and workers. Raises ConfigError if so many nodes are too few."""
        if self._manifest is None or self._state is None:
            raise LocalProtocolError("an enclave is started before it opens a round")
        terms = self._terms.config(self._manifest, len(members))
        count = 0 if terms.inside else terms.workers
        staff = {f"{_WORKER}{number}": Identity.generate() for number in range(1, count + 1)}
        federation = Federation(
            terms,
            tuple(members),
            tuple(Member(name, identity.public) for name, identity in staff.items()),
            self._authority.public,
            initial=vector_digest(self._state.model),
        )
        enclave = roles.Enclave(
            federation, Identity.generate(), state=self._state, evidence=SIMULATION
        )
        workers = {
            name: Worker(each, receipt_key=enclave.receipt_key) for name, each in staff.items()
        }
        return _Federation(enclave, workers, [self._sign(federation)])

    def _enrol(self, members: list[Member]) -> None:
        """Those that are not enrolled yet, in a new revision. A name keeps its first key."""
        founded, current = self._founded, self._founded.current
        known = {field for member in current.clients for field in (member.name, member.key)}
        new = tuple(each for each in members if not known & {each.name, each.key})
        if new:
            clients = current.clients + new
            terms = replace(current.terms, tile=default_tile(len(clients), current.terms.dimension))
            charter = self._sign(
                replace(current, terms=terms, clients=clients, revision=current.revision + 1)
            )
            founded.enclave.adopt(charter)
            founded.charters.append(charter)

    def _sign(self, federation: Federation) -> Charter:
        return self._authority.sign(Charter(federation, UNSIGNED))

    @property
    def _founded(self) -> _Federation:
        if self._federation is None:
            raise LocalProtocolError("the federation is founded in its first round")
        return self._federation

    @property
    def _open_round(self) -> _Round:
        if self._round is None:
            raise LocalProtocolError("no round is open")
        return self._round


def _members(hellos: Sequence[Hello]) -> list[Member]:
    """Nodes that sign with the key they bring. A name or a key that two claim is nobody's."""
    claims = [Member(hello.challenge.client, hello.key) for hello in hellos if _is_signed(hello)]
    names = Counter(claim.name for claim in claims)
    keys = Counter(claim.key for claim in claims)
    return [
        claim
        for claim in claims
        if names[claim.name] == keys[claim.key] == 1 and not claim.name.startswith(_WORKER)
    ]


def _is_signed(hello: Hello) -> bool:
    try:
        check_signature(hello.challenge, hello.key)
    except OpenError:
        return False
    return True

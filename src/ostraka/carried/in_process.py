"""An enclave and its workers in the relay's own process, for simulations.

It protects nothing: the operator of the process can read it. It enrols every node that greets it,
with the key that the node brings, and it ends with its process.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ostraka.arrays import Float32
from ostraka.attestation.claims import KeyBinding
from ostraka.attestation.simulation import UnsafeSimulatedPlatform
from ostraka.carried.messages import Hello, KeyProof, Proof
from ostraka.carried.relay import Head, Outcome, PublishedModel
from ostraka.client.attesting import Unconfirmed
from ostraka.config import DEFAULT_MOMENTUM, Manifest, Member, Terms, default_tile
from ostraka.core import optimiser, rules, uploads
from ostraka.core.optimiser import ServerState
from ostraka.crypto.identity import check_signature
from ostraka.crypto.updates import SealedUpdate
from ostraka.enclave import measurement
from ostraka.enclave.platform.simulated import UnsafeSimulatedProvider
from ostraka.errors import LocalProtocolError, NotEnrolled, OpenError
from ostraka.events import CopyProved, Event
from ostraka.merkle import path_to
from ostraka.messages import (
    SIMULATION,
    Confirmation,
    Introduction,
    Proposal,
    chain,
    milestones,
)
from ostraka.protocol.local import WORKER, LocalFederation
from ostraka.transport import chain_link

_SEED_BYTES = 32
_AN_HOUR = 3600  # in case clocks differ
_USUAL = rules.compose(rules.DEFAULT, rules.DEFAULT_PRE)


@dataclass(frozen=True)
class FoundingTerms:
    """The terms of a federation to be founded, without its model. See `config.Terms`."""

    f: int
    composition: rules.Composition = _USUAL
    client_momentum: float = DEFAULT_MOMENTUM
    masking: str = "exact"
    workers: int = 2
    disclose_selection: bool = False
    disclose_values: bool = False
    confirm: str = "clients"
    upload: str = uploads.DEFAULT
    report_metrics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.terms(Manifest.flat(1), clients=1)  # refuses numbers that cannot work

    def terms(self, manifest: Manifest, clients: int) -> Terms:
        return Terms(
            manifest,
            f=self.f,
            rule=self.composition.name,
            pre=self.composition.pre,
            options=self.composition.options,
            client_momentum=self.client_momentum,
            masking=self.masking,
            workers=self.workers,
            tile=default_tile(manifest.dimension),
            disclose_selection=self.disclose_selection,
            disclose_values=self.disclose_values,
            confirm=self.confirm,
            upload=self.upload,
            report_metrics=self.report_metrics,
        )


class UnsafeInProcessEnclave:
    """An enclave that founds its federation in the first round, with the nodes that come.

    newcomers: whether nodes that come later are enrolled too. tell: takes events for the operator.
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
        platform = UnsafeSimulatedPlatform(
            os.urandom(_SEED_BYTES), issued=int(time.time()) - _AN_HOUR
        )
        self._collateral = platform.collateral()
        self._provider = UnsafeSimulatedProvider(platform, measurement.measure().digest)
        self._manifest: Manifest | None = None
        self._state: ServerState | None = None
        self._federation: LocalFederation | None = None
        self._proposed = False

    def start(self, manifest: Manifest, model: Float32) -> Head:
        if self._manifest is None or self._state is None:
            self._manifest, self._state = manifest, optimiser.start(model, optimiser.FEDAVG)
        number = len(self._federation.published) if self._federation else 0
        terms = self._terms.terms(self._manifest, clients=1)
        return Head.at(number, terms, self._state.model)

    def open(self, hellos: Sequence[Hello]) -> None:
        if self._proposed:
            raise Unconfirmed("an outcome waits to be confirmed")
        members = _members(hellos)
        if self._federation is None:
            self._federation = self._found(members)
        elif self._newcomers:
            self._enrol(members)
        self._federation.open()

    def introduce(self, hello: Hello, *, seconds: float | None = None) -> Proof:
        self._require_enrolled(hello)
        federation, intake = self._founded, self._founded.intake
        bound = intake.binding(hello.challenge.nonce)
        evidence = self._provider.evidence(bound.report_data())
        introduction = Introduction(intake.offer, bound.receipt_key, evidence)
        links = self.links(hello.after)
        return Proof(federation.charters[-1], introduction, links, self._collateral)

    def prove(self, hello: Hello, *, seconds: float | None = None) -> KeyProof:
        self._require_enrolled(hello)
        founded = self._founded
        key = founded.enclave.receipt_key
        bound = KeyBinding(hello.challenge.nonce, key, founded.federation.digest())
        evidence = self._provider.evidence(bound.report_data())
        return KeyProof(founded.charters[-1], key, evidence, self._collateral)

    def deliver(self, sealed: SealedUpdate, *, seconds: float | None = None) -> None:
        self._founded.take(sealed)

    def outcome(self, *, seconds: float) -> Outcome:
        """Run all steps of the round, once, and release its outcome when it is confirmed."""
        founded = self._founded
        if not self._proposed:
            founded.finish()
            self._proposed = True
        if not founded.ballot.confirmed:
            return founded.ballot
        proposed, certified = founded.release()
        self._state, self._proposed = proposed.state, False
        return PublishedModel(certified.receipt, proposed.state.model)

    def path(self, leaf: bytes, *, seconds: float | None = None) -> tuple[bytes, ...] | None:
        return path_to(self._founded.proposed.pending.leaves, leaf)

    def confirm(self, confirmation: Confirmation, *, seconds: float | None = None) -> None:
        self._founded.confirm(confirmation)

    def remind(self, proposal: Proposal, *, seconds: float | None = None) -> None:
        check_signature(proposal, self._founded.enclave.receipt_key)
        self._tell(CopyProved(proposal.number))

    def links(self, after: int | None, *, seconds: float | None = None) -> tuple[bytes, ...]:
        founded = self._founded
        links = (
            chain(founded.charters, milestones(founded.published))
            if after is None
            else founded.links(after)
        )
        return tuple(chain_link(each).SerializeToString() for each in links)

    def close(self) -> None:
        """Do nothing: the enclave ends with its process."""

    def _found(self, members: list[Member]) -> LocalFederation:
        """Found the federation with these members. Raises ConfigError if they are too few."""
        if self._manifest is None or self._state is None:
            raise LocalProtocolError("an enclave is started before it opens a round")
        return LocalFederation.found(
            self._terms.terms(self._manifest, len(members)),
            members,
            entropy=os.urandom,
            state=self._state,
            evidence=SIMULATION,
            tell=self._tell,
        )

    def _enrol(self, members: list[Member]) -> None:
        """Enrol new members in a new revision. A name keeps its first key."""
        current = self._founded.federation
        known = {field for member in current.clients for field in (member.name, member.key)}
        new = tuple(each for each in members if not known & {each.name, each.key})
        if new:
            clients = current.clients + new
            tile = default_tile(current.terms.dimension)
            self._founded.revise(replace(current.terms, tile=tile), clients)

    def _require_enrolled(self, hello: Hello) -> None:
        """Raises NotEnrolled or OpenError."""
        keys = {member.name: member.key for member in self._founded.federation.clients}
        challenge = hello.challenge
        if challenge.client not in keys:
            raise NotEnrolled(challenge.client)
        check_signature(challenge, keys[challenge.client])

    @property
    def _founded(self) -> LocalFederation:
        if self._federation is None:
            raise LocalProtocolError("the federation is founded in its first round")
        return self._federation


def _members(hellos: Sequence[Hello]) -> list[Member]:
    """Take nodes that sign with their own key. If two claim a name or a key, neither gets it."""
    claims = [Member(hello.challenge.client, hello.key) for hello in hellos if _is_signed(hello)]
    names = Counter(claim.name for claim in claims)
    keys = Counter(claim.key for claim in claims)
    return [
        claim
        for claim in claims
        if names[claim.name] == keys[claim.key] == 1 and not claim.name.startswith(WORKER)
    ]


def _is_signed(hello: Hello) -> bool:
    try:
        check_signature(hello.challenge, hello.key)
    except OpenError:
        return False
    return True

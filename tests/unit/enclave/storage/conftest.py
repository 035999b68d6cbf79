"""A small federation, and enclaves whose lives can be written down."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostraka import merkle
from ostraka.config import Federation, Manifest, Member, Tensor, Terms
from ostraka.core.optimiser import ServerState
from ostraka.crypto.identity import Identity
from ostraka.crypto.sealing import Sealer
from ostraka.enclave.storage.state import EnclaveState, Estate
from ostraka.encoding import UNSIGNED, digest
from ostraka.messages import (
    Abandon,
    Certified,
    Charter,
    Proposal,
    Receipt,
    genesis,
    vector_digest,
)
from ostraka.protocol.confirm import Ballot, confirm, outcome_digest
from ostraka.protocol.enclave import Pending

AUTHORITY = Identity(b"a" * 32)
CLIENTS = {name: Identity(name.encode() * 32) for name in "bcd"}
LEAVES = tuple(name.encode() * 32 for name in "bcd")
MANIFEST = Manifest((Tensor("weight", (2, 2)), Tensor("bias", (1,))))


@dataclass
class Life:
    """Everything that a test of sealed state needs, in one folder."""

    root: Path

    def charter(self, revision=1, successors=(), authority=AUTHORITY, **terms) -> Charter:
        members = tuple(Member(name, each.public) for name, each in CLIENTS.items())
        agreed = Terms(**{"manifest": MANIFEST, "f": 0, "distances": "inside", **terms})
        federation = Federation(
            terms=agreed,
            clients=members,
            workers=(),
            authority=AUTHORITY.public,
            id=b"i" * 32,
            revision=revision,
            successors=successors,
            initial=vector_digest(self.state_of(0).model),
        )
        return authority.sign(Charter(federation, UNSIGNED))

    def sealer(self, name="enclave", key=b"k" * 32) -> Sealer:
        return Sealer(key, name.encode().ljust(32, b"."))

    def open(self, folder="state", sealer=None, **options) -> EnclaveState:
        return EnclaveState.open(self.root / folder, sealer or self.sealer(), **options)

    def founded(self, folder="state", sealer=None, charter=None, **options) -> EnclaveState:
        state = self.open(folder, sealer, **options)
        state.found(charter or self.charter(), self.state_of(0))
        return state

    def state_of(self, number, moments=1) -> ServerState:
        model = np.arange(5, dtype="<f4") + np.float32(number)
        return ServerState(model, tuple(np.full(5, number + 0.5) for _ in range(moments)))

    def receipt(self, state: EnclaveState, after: ServerState, **changes: Any) -> Receipt:
        """For the next round, signed by the enclave itself."""
        assert state._identity is not None
        head = state.head
        plain = Receipt(
            number=head.number + 1 if head else 1,
            round_id=bytes(32),
            previous=digest(head) if head else genesis(state.charters[0].federation),
            federation=state.federation.digest(),
            revision=state.federation.revision,
            evidence="simulation",
            failure="",
            aggregate=bytes(32),
            model=vector_digest(after.model),
            cohort=merkle.root(LEAVES),
            participants=3,
            kept=3,
            rejected=(),
            commitment=bytes(32),
            disclosed=False,
            selected=(),
            rule="arc+nnm+geometric-median",
            note="",
            masking="none",
            distances="inside",
            cautions=(),
            metrics=None,
            signature=UNSIGNED,
        )
        return state._identity.sign(replace(plain, **changes))

    def pending(self, state: EnclaveState, receipt: Receipt, salt: bytes = b"s" * 32) -> Pending:
        """An outcome as the enclave proposes it."""
        assert state._identity is not None
        proposal = Proposal(
            federation=state.federation.id,
            number=receipt.number,
            previous=receipt.previous,
            outcome=outcome_digest(salt, receipt),
            cohort=receipt.cohort,
            signature=UNSIGNED,
        )
        return Pending(state._identity.sign(proposal), receipt, salt, LEAVES)

    def certified(self, pending: Pending, electors: Federation, voters: str = "bcd") -> Certified:
        """Confirmed by these clients."""
        ballot = Ballot(pending.proposal, electors)
        for name in voters:
            ballot.add(
                confirm(
                    pending.proposal,
                    electors.id,
                    pending.receipt.number,
                    voter=name,
                    identity=CLIENTS[name],
                )
            )
        return Certified(pending.receipt, ballot.certificate(pending.salt))

    def hold(self, state: EnclaveState, **changes: Any) -> Pending:
        """Make the next outcome pending."""
        after = self.state_of((state.head.number if state.head else 0) + 1)
        pending = self.pending(state, self.receipt(state, after, **changes))
        state.hold(pending, after)
        return pending

    def release(self, state: EnclaveState) -> Certified:
        """Publish what is pending."""
        assert state.pending is not None
        certified = self.certified(state.pending[0], state.electors)
        state.publish(certified)
        return certified

    def abandon(self, charter: Charter, number: int = 3, **changes: Any) -> Abandon:
        """By the word of the authority, who has lost an enclave."""
        plain = Abandon(
            number=number,
            previous=b"p" * 32,
            electors=charter.federation,
            model=vector_digest(self.state_of(number).model),
            votes=(),
            signature=UNSIGNED,
        )
        return AUTHORITY.sign(replace(plain, **changes))

    def estate(self, state: EnclaveState, to: bytes, key: bytes = bytes(32)) -> Estate:
        """What would be handed over, and the state is retired."""
        taken: list[Estate] = []

        def seal(estate: Estate) -> bytes:
            taken.append(estate)
            return b""

        state.hand_over(to, key, seal)
        return taken[0]

    def publish(self, state: EnclaveState, rounds: int = 1) -> None:
        for _ in range(rounds):
            self.hold(state)
            self.release(state)


@pytest.fixture
def life(tmp_path) -> Life:
    return Life(tmp_path)

"""A small federation, and enclaves whose lives can be written down."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from ostraka.config import Federation, Manifest, Member, Tensor, Terms
from ostraka.core.optimiser import ServerState
from ostraka.crypto.identity import Identity
from ostraka.crypto.sealing import Sealer
from ostraka.enclave.storage.state import EnclaveState, Estate
from ostraka.encoding import UNSIGNED, digest
from ostraka.messages import Charter, Receipt, vector_digest

AUTHORITY = Identity(b"a" * 32)
MANIFEST = Manifest((Tensor("weight", (2, 2)), Tensor("bias", (1,))))


@dataclass
class Life:
    """Everything that a test of sealed state needs, in one folder."""

    root: Path

    def charter(self, revision=1, successors=(), authority=AUTHORITY, **terms) -> Charter:
        members = tuple(Member(name, bytes([at]) * 32) for at, name in enumerate("abc"))
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

    def receipt(self, state: EnclaveState, after: ServerState, **changes) -> Receipt:
        """For the next round, signed by the enclave itself."""
        assert state._identity is not None
        plain = Receipt(
            number=len(state.receipts()) + 1,
            round_id=bytes(32),
            previous=digest(state.head) if state.head else bytes(32),
            federation=state.federation.digest(),
            revision=state.federation.revision,
            evidence="simulation",
            aggregate=bytes(32),
            model=vector_digest(after.model),
            participants=3,
            kept=3,
            rejected=(),
            commitment=bytes(32),
            disclosed=False,
            selected=(),
            rule="multi-krum",
            masking="none",
            distances="inside",
            cautions=(),
            signature=UNSIGNED,
        )
        return state._identity.sign(replace(plain, **changes))

    def estate(self, state: EnclaveState, to: bytes, key: bytes = bytes(32)) -> Estate:
        """What would be handed over, and the state is retired."""
        taken: list[Estate] = []

        def seal(estate: Estate) -> bytes:
            taken.append(estate)
            return b""

        state.hand_over(to, key, seal)
        return taken[0]

    def publish(self, state: EnclaveState, rounds=1) -> None:
        for _ in range(rounds):
            model = self.state_of(len(state.receipts()) + 1)
            state.publish(self.receipt(state, model), model)


@pytest.fixture
def life(tmp_path) -> Life:
    return Life(tmp_path)

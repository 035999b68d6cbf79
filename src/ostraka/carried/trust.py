"""What a node accepts as an enclave: what its policy lists, or for a trial whatever comes first."""

import hashlib
import time
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from flwr.app import Context

from ostraka.attestation.policy import FederationPolicy, Policy, SimulationPolicy
from ostraka.attestation.verify import Circumstances
from ostraka.carried.node_state import scratch
from ostraka.client import attesting
from ostraka.client.attesting import Verifier
from ostraka.config import MASKINGS
from ostraka.enclave import measurement
from ostraka.flower.messages import Proof
from ostraka.messages import SIMULATION, Charter, Evidence

_ROOT = "root"


class Standards(Protocol):
    """Policy and circumstances. Both may raise AttestationRefused or ConfigError."""

    def policy(self, charter: Charter, evidence: Evidence | None = None) -> Policy: ...
    def circumstances(self, proof: Proof) -> Circumstances: ...


@dataclass(frozen=True)
class Listed:
    """What the policy of the node's owner lists, and nothing else."""

    who: Verifier

    def policy(self, charter: Charter, evidence: Evidence | None = None) -> Policy:
        return self.who.policy

    def circumstances(self, proof: Proof) -> Circumstances:
        return attesting.circumstances(self.who, proof.introduction.evidence)


@dataclass(frozen=True)
class UnsafeFirstSeen:
    """Trusts the first simulated platform and the first authority that it sees, for one run.

    Nobody is protected by that. It runs every step of the protocol on one machine, with nothing to
    set up; and whoever changes the enclave in the middle of the run is noticed all the same.
    held: the charter that was agreed to, None before the enclave was met.
    """

    context: Context
    held: Charter | None

    def policy(self, charter: Charter, evidence: Evidence | None = None) -> Policy:
        first = (self.held or charter).federation
        federation = FederationPolicy(
            authority=first.authority,
            workers=tuple(worker.key for worker in first.workers),
            maskings=MASKINGS,
        )
        simulation = SimulationPolicy(root=self._root(evidence), mrenclave=(_own_code(),))
        return Policy(
            evidence=(SIMULATION,),
            federation=federation,
            unsafe_simulation=True,
            simulation=simulation,
        )

    def circumstances(self, proof: Proof) -> Circumstances:
        return Circumstances(
            now=int(time.time()), collateral=proof.collateral, unsafe_simulation=True
        )

    def _root(self, evidence: Evidence | None) -> tuple[bytes, ...]:
        record = scratch(self.context)
        if self.held is None and evidence is not None and evidence.endorsements:
            record[_ROOT] = hashlib.sha256(evidence.endorsements[0]).digest()
        root = record.get(_ROOT)
        return (root,) if isinstance(root, bytes) else ()


@cache
def _own_code() -> bytes:
    return measurement.measure().digest

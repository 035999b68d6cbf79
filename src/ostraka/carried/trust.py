"""What a node accepts as an enclave: what its policy lists or, in a trial, the first it sees."""

import time
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from ostraka.attestation.policy import FederationPolicy, Policy
from ostraka.attestation.simulation import SimulationPolicy, root_key
from ostraka.attestation.verify import Circumstances
from ostraka.carried.node_state import Scratch
from ostraka.client import attesting
from ostraka.client.attesting import Verifier
from ostraka.config import CONFIRMS, MASKINGS
from ostraka.core.metrics import NAMES
from ostraka.enclave import measurement
from ostraka.messages import SIMULATION, Charter, Evidence

_ROOT = "root"


class Standards(Protocol):
    """A policy, and the circumstances in which to verify evidence by it.

    collateral: what came with the evidence, of a simulated platform only. Both raise
    AttestationRefused or ConfigError.
    """

    def policy(self, charter: Charter, evidence: Evidence | None = None) -> Policy: ...
    def circumstances(self, evidence: Evidence, collateral: bytes) -> Circumstances: ...


@dataclass(frozen=True)
class Listed:
    """Accepts what the policy of the node's owner lists, and nothing else."""

    who: Verifier

    def policy(self, charter: Charter, evidence: Evidence | None = None) -> Policy:
        return self.who.policy

    def circumstances(self, evidence: Evidence, collateral: bytes) -> Circumstances:
        return attesting.circumstances(self.who, evidence)


@dataclass(frozen=True)
class UnsafeFirstSeen:
    """Trusts the first simulated platform and the first authority that it sees, for one run.

    This protects nothing. It runs every step of the protocol on one machine without any set-up, and
    still notices an enclave that is exchanged in the middle of the run. held: the charter that the
    node has agreed to, None before it has met the enclave.
    """

    scratch: Scratch = field(repr=False)
    held: Charter | None

    def policy(self, charter: Charter, evidence: Evidence | None = None) -> Policy:
        first = (self.held or charter).federation
        federation = FederationPolicy(
            authority=first.authority,
            id=first.id,
            workers=tuple(worker.key for worker in first.workers),
            shard_policies=(first.shard_policy_digest,),
            maskings=MASKINGS,
            confirms=CONFIRMS,
            rules=(str(first.terms.composition),),
            disclose_values=True,
            report_metrics=NAMES,
        )
        simulation = SimulationPolicy(root=self._root(evidence), mrenclave=(_own_code(),))
        return Policy(
            evidence=(SIMULATION,),
            federation=federation,
            unsafe_simulation=True,
            tees=(simulation,),
        )

    def circumstances(self, evidence: Evidence, collateral: bytes) -> Circumstances:
        return Circumstances(
            now=int(time.time()),
            collateral={"collateral": collateral},
            unsafe_simulation=True,
        )

    def _root(self, evidence: Evidence | None) -> tuple[bytes, ...]:
        """Pin the key of the first evidence's root."""
        if self.held is None and evidence is not None and evidence.endorsements:
            self.scratch[_ROOT] = root_key(evidence.endorsements[0])
        root = self.scratch.get(_ROOT)
        return (root,) if isinstance(root, bytes) else ()


@cache
def _own_code() -> bytes:
    return measurement.measure().digest

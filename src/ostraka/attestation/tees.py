"""The table of TEEs: for each kind of evidence its policy, its reader and its verifier.

To add a TEE, write its module in this package and add a row to `TEES`. Where an enclave gets its
evidence and its sealing key from is in `ostraka.enclave.platform.choose`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from ostraka.attestation import dcap, nitro, simulation, snp
from ostraka.attestation.claims import Claims, Collateral
from ostraka.attestation.dcap import SgxPolicy, TdxPolicy
from ostraka.attestation.nitro import NitroPolicy
from ostraka.attestation.simulation import SimulationPolicy
from ostraka.attestation.snp import SnpPolicy
from ostraka.errors import AttestationRefused, Refusal
from ostraka.messages import SIMULATION, Evidence

PolicyOf = TypeVar("PolicyOf")
_Checked_contra = TypeVar("_Checked_contra", contravariant=True)


class Verify(Protocol[_Checked_contra]):
    """Returns what evidence proves about code that the policy lists. Raises AttestationRefused.

    collateral: the bytes behind those of the policy's sources that are given. now: seconds since
    1970. skew: the seconds that clocks may differ by. The caller compares the report data.
    """

    def __call__(
        self,
        evidence: Evidence,
        *,
        policy: _Checked_contra,
        collateral: Collateral,
        now: int,
        skew: int,
    ) -> Claims: ...


@dataclass(frozen=True)
class Tee(Generic[PolicyOf]):
    """One kind of evidence.

    title: what it is evidence of, for people. policy: what a client accepts of it, which is the
    table of this kind in a policy file. read: what the evidence says, unchecked. sources: the
    policy's fields that name where further signed data comes from, if the verifier needs any.
    """

    kind: str
    title: str
    policy: type[PolicyOf]
    read: Callable[[Evidence], Claims]
    verify: Verify[PolicyOf]
    sources: tuple[str, ...] = ()


TEES: tuple[Tee[Any], ...] = (
    Tee[SgxPolicy](
        kind="sgx",
        title="an SGX enclave (DCAP quote)",
        policy=SgxPolicy,
        read=dcap.read,
        verify=dcap.verify,
        sources=("collateral",),
    ),
    Tee[TdxPolicy](
        kind="tdx",
        title="a TDX virtual machine (DCAP quote)",
        policy=TdxPolicy,
        read=dcap.read,
        verify=dcap.verify,
        sources=("collateral",),
    ),
    Tee[SnpPolicy](
        kind="snp",
        title="an SEV-SNP virtual machine (report)",
        policy=SnpPolicy,
        read=snp.read,
        verify=snp.verify,
        sources=("certificates", "crl"),
    ),
    Tee[NitroPolicy](
        kind="nitro",
        title="a Nitro enclave (attestation document)",
        policy=NitroPolicy,
        read=nitro.read,
        verify=nitro.verify,
    ),
    Tee[SimulationPolicy](
        kind=SIMULATION,
        title="a SIMULATED enclave, which proves nothing",
        policy=SimulationPolicy,
        read=dcap.read,
        verify=simulation.verify,
        sources=("collateral",),
    ),
)

KINDS = tuple(tee.kind for tee in TEES)


def find(kind: str) -> Tee[Any]:
    """Returns the row of this kind. Raises AttestationRefused if there is none."""
    for tee in TEES:
        if tee.kind == kind:
            return tee
    raise AttestationRefused(Refusal.KIND, repr(kind))


def words(claims: Claims) -> list[tuple[str, str]]:
    """What evidence says, for people: each a name and a text."""
    return [
        ("evidence of", find(claims.kind).title),
        *((name, value.hex()) for name, value in claims.measurements),
        ("report data", claims.report_data.hex()),
        ("debug", "YES: its host can read it" if claims.debug else "no"),
        *((name.replace("_", " "), text or "-") for name, text in claims.facts),
        ("code id", claims.code_id.hex()),
    ]

"""Whether to trust an enclave: the whole decision, in numbered steps. No I/O, no clock."""

from dataclasses import dataclass
from secrets import compare_digest

from ostraka.attestation import dcap, nitro, simulation, snp
from ostraka.attestation.claims import Attested, Binding, Claims
from ostraka.attestation.policy import Policy
from ostraka.config import Federation
from ostraka.crypto.identity import check_signature
from ostraka.errors import AttestationRefused, OpenError, Refusal
from ostraka.messages import SIMULATION, Charter, Evidence, Introduction


@dataclass(frozen=True)
class Circumstances:
    """What a verification needs from outside, gathered by whoever may do I/O.

    now: seconds since 1970. collateral: the bytes behind the policy's `collateral` for this kind of
    evidence, or its `certificates`. unsafe_simulation: the caller asked for simulated enclaves.
    """

    now: int
    collateral: bytes | None = None
    unsafe_simulation: bool = False


def verify_charter(charter: Charter, policy: Policy) -> Federation:
    """The federation that the policy's authority signed. Raises AttestationRefused."""
    pinned, federation = policy.federation, charter.federation

    # 1. The authority that the policy names has signed these rules and this roster.
    if pinned.authority is None:
        line = f'authority = "{federation.authority.hex()}"'
        raise AttestationRefused(
            Refusal.AUTHORITY, f"the policy names none; to trust this one, add: {line}"
        )
    if federation.authority != pinned.authority:
        raise AttestationRefused(Refusal.AUTHORITY, f"got {federation.authority.hex()}")
    try:
        check_signature(charter, pinned.authority)
    except OpenError:
        raise AttestationRefused(Refusal.AUTHORITY, "its signature is false") from None

    # 2. Every worker that could get a share is one that the policy pins.
    for worker in federation.workers:
        if worker.key not in pinned.workers:
            raise AttestationRefused(
                Refusal.WORKERS,
                f"{worker.name!r}; to trust it, add {worker.key.hex()} to workers",
            )

    # 3. Nobody but code that the policy pins can inherit the key that signs receipts.
    for successor in federation.successors:
        if successor not in pinned.successors:
            raise AttestationRefused(
                Refusal.SUCCESSOR, f"to agree to it, add {successor.hex()} to successors"
            )

    # 4. Updates are hidden in a way that the policy allows.
    if federation.terms.masking not in pinned.maskings:
        allowed = ", ".join(pinned.maskings) or "none at all"
        raise AttestationRefused(Refusal.MASKING, f"{federation.terms.masking}; allowed: {allowed}")
    return federation


def verify(
    introduction: Introduction,
    *,
    nonce: bytes,
    federation: Federation,
    policy: Policy,
    circumstances: Circumstances,
) -> Attested:
    """The enclave behind an introduction, proved. Raises AttestationRefused.

    nonce: what this client challenged with. federation: what `verify_charter` returned.
    """
    expected = Binding(nonce, introduction.offer.key, introduction.receipt_key, federation.digest())

    # 1 to 4. The platform vouches for the code, and the policy lists both.
    claims = verify_evidence(introduction.evidence, policy, circumstances)

    # 5. The evidence answers this challenge, for these keys and these rules.
    require_bound(claims, expected)
    return Attested(
        round_key=expected.round_key,
        receipt_key=expected.receipt_key,
        federation=expected.federation,
        kind=claims.kind,
        code_id=claims.code_id,
    )


def verify_evidence(evidence: Evidence, policy: Policy, circumstances: Circumstances) -> Claims:
    """What a platform proves about some code that the policy lists. Raises AttestationRefused.

    Whatever the evidence is bound to is for the caller to compare (`require_bound`).
    """
    # 1. The policy accepts this kind of evidence at all; simulation only if the caller does, too.
    if evidence.kind == SIMULATION:
        _require_simulation(policy, circumstances)
    if evidence.kind not in policy.evidence:
        allowed = ", ".join(policy.evidence) or "none at all"
        raise AttestationRefused(Refusal.KIND, f"{evidence.kind!r}; allowed: {allowed}")

    # 2 to 4. Certificates to the pinned root, signature, platform, debug, measurements, versions.
    now, skew = circumstances.now, policy.clock_skew
    match evidence.kind:
        case "sgx":
            return dcap.verify(
                "sgx",
                evidence.document,
                collateral=circumstances.collateral,
                policy=policy.sgx,
                now=now,
                skew=skew,
            )
        case "tdx":
            return dcap.verify(
                "tdx",
                evidence.document,
                collateral=circumstances.collateral,
                policy=policy.tdx,
                now=now,
                skew=skew,
            )
        case "snp":
            return snp.verify(
                evidence.document,
                evidence.endorsements,
                certificates=circumstances.collateral,
                policy=policy.snp,
                now=now,
                skew=skew,
            )
        case "nitro":
            return nitro.verify(evidence.document, policy=policy.nitro, now=now, skew=skew)
        case "simulation":
            return simulation.verify(
                evidence.document,
                evidence.endorsements,
                collateral=circumstances.collateral,
                policy=policy.simulation,
                now=now,
                skew=skew,
            )
    raise AttestationRefused(Refusal.KIND, repr(evidence.kind))


def read(evidence: Evidence) -> Claims:
    """What evidence says, verified or not. Raises AttestationRefused where it cannot be read."""
    match evidence.kind:
        case "sgx" | "tdx" | "simulation":
            return dcap.read(evidence.kind, evidence.document)
        case "snp":
            return snp.read(evidence.document)
        case "nitro":
            return nitro.read(evidence.document)
    raise AttestationRefused(Refusal.KIND, repr(evidence.kind))


def require_bound(claims: Claims, expected: Binding) -> None:
    """Raises AttestationRefused unless the evidence is about exactly this."""
    if not compare_digest(claims.report_data, expected.report_data()):
        raise AttestationRefused(Refusal.BINDING)


def _require_simulation(policy: Policy, circumstances: Circumstances) -> None:
    if not policy.unsafe_simulation:
        raise AttestationRefused(Refusal.SIMULATION_POLICY, "unsafe_simulation = true is not in it")
    if not circumstances.unsafe_simulation:
        raise AttestationRefused(Refusal.SIMULATION_FLAG)

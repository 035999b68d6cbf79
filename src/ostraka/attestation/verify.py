"""Decides whether to trust an enclave, in numbered steps, without I/O and without a clock."""

import json
from dataclasses import dataclass, field
from secrets import compare_digest

from ostraka.attestation import tees
from ostraka.attestation.claims import (
    Attested,
    Binding,
    Claims,
    Collateral,
    DeputyBinding,
    KeyBinding,
)
from ostraka.attestation.policy import FederationPolicy, Policy, toml_line
from ostraka.config import Federation, Terms
from ostraka.crypto.identity import check_signature
from ostraka.errors import AttestationRefused, OpenError, Refusal
from ostraka.messages import SIMULATION, Charter, Deputy, Evidence, Introduction

_SIMULATE = (
    "to try things out, give --unsafe-simulation, or unsafe_simulation=True in Python; its host "
    "can read all updates"
)


@dataclass(frozen=True)
class Circumstances:
    """What a verification needs from outside. The caller gathers it, because this does no I/O.

    now: seconds since 1970. collateral: the bytes behind what the policy names for this kind of
    evidence. unsafe_simulation: the caller asked for simulated enclaves.
    """

    now: int
    collateral: Collateral = field(default_factory=dict)
    unsafe_simulation: bool = False


def verify_charter(charter: Charter, policy: Policy, now: int | None = None) -> Federation:
    """Returns the federation that the policy's authority signed. Raises AttestationRefused.

    now: seconds since 1970, to refuse a charter that has expired; None for one of the past.
    """
    pinned, federation = policy.federation, charter.federation

    # 1. The authority that the policy names has signed these terms and this roster.
    if pinned.authority is None:
        line = f'authority = "{federation.authority.hex()}"'
        raise AttestationRefused(
            Refusal.AUTHORITY, f"the policy names none; to trust this one, add: {line}"
        )
    if federation.authority != pinned.authority:
        raise _other(Refusal.AUTHORITY, federation.authority, pinned.authority)
    try:
        check_signature(charter, pinned.authority)
    except OpenError:
        raise AttestationRefused(Refusal.AUTHORITY, "its signature is false") from None

    # 2. It is the very federation that the policy names, and not another of this authority.
    if pinned.id is None:
        line = f'id = "{federation.id.hex()}"'
        raise AttestationRefused(
            Refusal.FEDERATION, f"the policy names none; to trust this one, add: {line}"
        )
    if federation.id != pinned.id:
        raise _other(Refusal.FEDERATION, federation.id, pinned.id)

    # 3. Nobody has withheld the next revision for longer than the authority allows.
    last = federation.expires
    if now is not None and last is not None and now > last + policy.clock_skew:
        raise AttestationRefused(Refusal.EXPIRED, f"revision {federation.revision}")

    # 4. Every worker that could get a share is one that the policy pins.
    for worker in federation.workers:
        if worker.key not in pinned.workers:
            raise AttestationRefused(
                Refusal.WORKERS,
                f"{worker.name!r}; to trust it, add {worker.key.hex()} to workers",
            )

    # 5. Only code that the policy pins can inherit the key that signs receipts.
    for successor in federation.successors:
        if successor not in pinned.successors:
            raise AttestationRefused(
                Refusal.SUCCESSOR, f"to agree to it, add {successor.hex()} to successors"
            )

    # 6. Shards, each of which reads its columns, prove themselves by a policy that this one pins.
    require_shards(federation, pinned)

    # 7. Updates are hidden in a way that the policy allows.
    if federation.terms.masking not in pinned.maskings:
        allowed = ", ".join(pinned.maskings) or "none at all"
        raise AttestationRefused(Refusal.MASKING, f"{federation.terms.masking}; allowed: {allowed}")

    # 8. Updates are aggregated by a rule that the policy allows, with the options that it states.
    require_rule(federation.terms, pinned)

    # 9. Nothing is published of what clients report that the policy does not allow.
    require_metrics(federation.terms, pinned)

    # 10. Outcomes are confirmed by whom the policy allows, and by the witnesses that it pins.
    require_confirmed(federation, pinned)
    return federation


def require_shards(federation: Federation, pinned: FederationPolicy) -> None:
    """Raises AttestationRefused unless the policy pins what any shards are held to."""
    if federation.shard_policy and federation.shard_policy_digest not in pinned.shard_policies:
        line = toml_line("shard_policies", (*pinned.shard_policies, federation.shard_policy_digest))
        raise AttestationRefused(
            Refusal.SHARDS,
            "read the file that its authority has signed (the digest is its sha256sum); if you "
            f"decide to accept it, write under [federation]: {line}",
        )


def require_rule(terms: Terms, pinned: FederationPolicy) -> None:
    """Raises AttestationRefused unless the policy allows the terms' rule and what it discloses."""
    rule = str(terms.composition)
    if pinned.rules is not None and rule not in pinned.rules:
        listed = json.dumps([*pinned.rules, rule])
        raise AttestationRefused(
            Refusal.RULE,
            f"{rule}; if you decide to accept it, write under [federation]: rules = {listed}",
        )
    if terms.disclose_values and not pinned.disclose_values:
        raise AttestationRefused(
            Refusal.DISCLOSURE,
            f"{rule}; if you decide to accept it, write under [federation]: disclose_values = true",
        )


def require_metrics(terms: Terms, pinned: FederationPolicy) -> None:
    """Raises AttestationRefused unless the policy allows all metrics that the terms name."""
    if more := [name for name in terms.report_metrics if name not in pinned.report_metrics]:
        listed = json.dumps([*pinned.report_metrics, *more])
        raise AttestationRefused(
            Refusal.METRICS,
            f"{', '.join(more)}; if you decide to accept it, write under [federation]: "
            f"report_metrics = {listed}",
        )


def require_confirmed(federation: Federation, pinned: FederationPolicy) -> None:
    """Raises AttestationRefused unless the policy allows that these confirm outcomes."""
    confirm = federation.terms.confirm
    if confirm not in pinned.confirms:
        allowed = ", ".join(pinned.confirms) or "none at all"
        raise AttestationRefused(Refusal.CONFIRM, f"confirm = {confirm!r}; allowed: {allowed}")
    if pinned.witnesses and not federation.witnesses:
        raise AttestationRefused(Refusal.WITNESSES, "the federation has none")
    for witness in federation.witnesses:
        if witness.key not in pinned.witnesses:
            raise AttestationRefused(
                Refusal.WITNESSES,
                f"{witness.name!r}; to trust it, add {witness.key.hex()} to witnesses",
            )


def verify(
    introduction: Introduction,
    *,
    nonce: bytes,
    federation: Federation,
    policy: Policy,
    circumstances: Circumstances,
) -> Attested:
    """Returns the enclave behind an introduction, proved. Raises AttestationRefused.

    nonce: what this client challenged with. federation: what `verify_charter` returned.
    """
    expected = Binding(nonce, introduction.offer.key, introduction.receipt_key, federation.digest())

    # 1 to 4. The platform vouches for the code, and the policy lists both.
    claims = verify_evidence(introduction.evidence, policy, circumstances)

    # 5. The evidence answers this challenge, for these keys and this federation.
    require_bound(claims, expected)
    return Attested(
        round_key=expected.round_key,
        receipt_key=expected.receipt_key,
        federation=expected.federation,
        kind=claims.kind,
        code_id=claims.code_id,
    )


def verify_evidence(evidence: Evidence, policy: Policy, circumstances: Circumstances) -> Claims:
    """Returns what a platform proves about code that the policy lists. Raises AttestationRefused.

    The caller compares what the evidence is bound to (`require_bound`).
    """
    # 1. The policy accepts this kind of evidence at all; simulation only if the caller does, too.
    if evidence.kind == SIMULATION:
        _require_simulation(policy, circumstances)
    if evidence.kind not in policy.evidence:
        allowed = ", ".join(policy.evidence) or "none at all"
        raise AttestationRefused(Refusal.KIND, f"{evidence.kind!r}; allowed: {allowed}")

    # 2 to 4. Certificates to the pinned root, signature, platform, debug, measurements, versions.
    tee = tees.find(evidence.kind)
    return tee.verify(
        evidence,
        policy=policy.of(tee.policy),
        collateral=circumstances.collateral,
        now=circumstances.now,
        skew=policy.clock_skew,
    )


def read(evidence: Evidence) -> Claims:
    """Reads what evidence says, verified or not. Raises AttestationRefused if that fails."""
    return tees.find(evidence.kind).read(evidence)


def require_bound(claims: Claims, expected: Binding | KeyBinding | DeputyBinding) -> None:
    """Raises AttestationRefused unless the evidence is about exactly this."""
    if not compare_digest(claims.report_data, expected.report_data()):
        raise AttestationRefused(Refusal.BINDING)


def require_deputy(deputy: Deputy, *, receipt_key: bytes, federation: bytes) -> None:
    """Raises OpenError unless the holder of the receipt key deputed this shard.

    federation: the federation id.
    """
    check_signature(deputy, receipt_key)
    if deputy.federation != federation:
        raise OpenError("Deputy")


def _other(reason: Refusal, got: bytes, expected: bytes) -> AttestationRefused:
    return AttestationRefused(
        reason,
        f"got {got.hex()}, and the policy expects {expected.hex()}: is this the address of that "
        "federation, and the policy that its operator gave you?",
    )


def _require_simulation(policy: Policy, circumstances: Circumstances) -> None:
    if not policy.unsafe_simulation:
        raise AttestationRefused(Refusal.SIMULATION_POLICY, "unsafe_simulation = true is not in it")
    if not circumstances.unsafe_simulation:
        raise AttestationRefused(Refusal.SIMULATION_FLAG, _SIMULATE)

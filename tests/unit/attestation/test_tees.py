"""The table of TEEs: verifying, reading, collateral and policies go through its rows."""

from dataclasses import dataclass, fields

import pytest

from ostraka.attestation import tees
from ostraka.attestation.claims import Claims
from ostraka.attestation.dcap import SgxPolicy, TdxPolicy
from ostraka.attestation.policy import Policy
from ostraka.attestation.simulation import SimulationPolicy
from ostraka.attestation.tees import KINDS, TEES, Tee, find
from ostraka.attestation.verify import Circumstances, read, verify_evidence
from ostraka.errors import AttestationRefused, ConfigError, Refusal
from ostraka.messages import Evidence
from ostraka.transport import collateral

AT = Circumstances(now=0, collateral={"source": b"said by the maker"})


@dataclass(frozen=True)
class QuillPolicy:
    """What a client accepts of a TEE that only this test knows."""

    nib: tuple[bytes, ...] = ()
    source: str | None = None
    other: str | None = None


def quill_claims(evidence: Evidence) -> Claims:
    return Claims("quill", (("nib", evidence.document),), report_data=b"r" * 64, debug=False)


def quill_verify(evidence, *, policy, collateral, now, skew):
    if evidence.document not in policy.nib or collateral != AT.collateral:
        raise AttestationRefused(Refusal.MEASUREMENT)
    assert (now, skew) == (0, 7)
    return quill_claims(evidence)


@pytest.fixture
def quill(monkeypatch):
    """Adds the row, which is all that it takes."""
    row = Tee[QuillPolicy](
        kind="quill",
        title="a quill",
        policy=QuillPolicy,
        read=quill_claims,
        verify=quill_verify,
        sources=("source", "other"),
    )
    monkeypatch.setattr(tees, "TEES", (*TEES, row))
    return row


def policy(**settings) -> Policy:
    return Policy(evidence=("quill",), clock_skew=7, tees=(QuillPolicy(**settings),))


@pytest.mark.usefixtures("quill")
def test_a_new_tee_is_one_row(tmp_path):
    evidence = Evidence("quill", b"steel", ())
    assert read(evidence).measurement("nib") == b"steel"
    assert verify_evidence(evidence, policy(nib=(b"steel",)), AT).kind == "quill"
    for refused in (policy(nib=(b"goose",)), policy(), Policy(evidence=("quill",))):
        with pytest.raises(AttestationRefused):
            verify_evidence(evidence, refused, AT)
    (tmp_path / "said").write_bytes(b"said by the maker")
    beside = tmp_path / "policy.toml"
    assert collateral.for_evidence(evidence, policy(source="said"), beside=beside) == AT.collateral
    both = collateral.for_evidence(evidence, policy(source="said", other="said"), beside=beside)
    assert both == {**AT.collateral, "other": b"said by the maker"}
    assert collateral.for_evidence(evidence, policy(), beside=beside) == {}


def test_a_kind_without_a_row_is_refused(tmp_path):
    evidence = Evidence("quill", b"steel", ())
    steps = {
        "reading": lambda: read(evidence),
        "verifying": lambda: verify_evidence(evidence, policy(nib=(b"steel",)), AT),
        "collateral": lambda: collateral.for_evidence(evidence, policy(), beside=tmp_path),
    }
    for step in steps.values():
        with pytest.raises(AttestationRefused, match="'quill'") as refused:
            step()
        assert refused.value.reason is Refusal.KIND


def test_every_kind_has_one_row_and_a_policy_of_its_own():
    assert KINDS == ("sgx", "tdx", "snp", "nitro", "simulation")
    assert len({tee.policy for tee in TEES}) == len(TEES)
    assert [find(kind).kind for kind in KINDS] == list(KINDS)


@pytest.mark.parametrize("tee", TEES, ids=KINDS)
def test_an_empty_policy_lists_nothing_and_names_no_collateral(tee):
    empty = tee.policy()
    assert not any(getattr(empty, each.name) for each in fields(empty))
    assert all(getattr(empty, source) is None for source in tee.sources)
    assert Policy().of(tee.policy) == empty


def test_one_tee_s_policy_never_stands_in_for_another_s():
    simulated = SimulationPolicy(root=(b"r" * 32,), mrenclave=(b"e" * 32,))
    mixed = Policy(tees=(simulated, TdxPolicy(mrtd=(b"m" * 48,))))
    assert mixed.of(SgxPolicy) == SgxPolicy()
    assert mixed.of(SimulationPolicy) == simulated


def test_a_policy_has_one_part_for_each_tee():
    with pytest.raises(ConfigError, match="at most one part"):
        Policy(tees=(SgxPolicy(), SgxPolicy(min_isv_svn=1)))

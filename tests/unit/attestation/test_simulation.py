import hashlib
import json
import tomllib
from dataclasses import replace
from typing import Any

import dcap_qvl
import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from ostraka.attestation import dcap, simulation
from ostraka.attestation.dcap import SgxPolicy
from ostraka.attestation.simulation import SimulationPolicy, UnsafeSimulatedPlatform
from ostraka.errors import AttestationRefused, LocalProtocolError, Refusal
from ostraka.messages import Evidence

DAY = 86_400
NOW = 1_800_000_000
SEED = hashlib.sha256(b"a seed").digest()
PLATFORM = UnsafeSimulatedPlatform(SEED, issued=NOW)
MRENCLAVE, DATA = b"e" * 32, bytes(range(64))
POLICY = SimulationPolicy(root=(PLATFORM.root_digest,), mrenclave=(MRENCLAVE,))


def evidence(platform: UnsafeSimulatedPlatform = PLATFORM, **changes: Any) -> dict[str, Any]:
    good: dict[str, Any] = {
        "document": platform.quote(DATA, mrenclave=MRENCLAVE),
        "endorsements": (platform.root_der,),
        "collateral": platform.collateral(),
        "policy": POLICY,
        "now": NOW,
        "skew": 0,
    }
    return good | changes


def verify(arguments: dict[str, Any]):
    evidence = Evidence("simulation", arguments["document"], arguments["endorsements"])
    settings = {name: arguments[name] for name in ("policy", "now", "skew")}
    said = arguments["collateral"]
    given = {} if said is None else {"collateral": said}
    return simulation.verify(evidence, collateral=given, **settings)


def refusal(arguments: dict[str, Any]) -> AttestationRefused:
    with pytest.raises(AttestationRefused) as caught:
        verify(arguments)
    return caught.value


def test_simulated_evidence_is_accepted_under_the_root_that_the_policy_names():
    claims = verify(evidence())
    assert claims.kind == "simulation"
    assert claims.report_data == DATA
    assert claims.measurement("mrenclave") == MRENCLAVE
    assert claims.code_id != replace(claims, kind="sgx").code_id


REFUSALS: dict[str, tuple[dict[str, Any], Refusal]] = {
    "a policy that names no root": ({"policy": replace(POLICY, root=())}, Refusal.ROOT),
    "a policy that names another root": ({"policy": replace(POLICY, root=(SEED,))}, Refusal.ROOT),
    "no root at all": ({"endorsements": ()}, Refusal.ROOT),
    "something else in the root's place": ({"endorsements": (b"root",)}, Refusal.ROOT),
    "something else in the root's place, and the policy names it": (
        {
            "endorsements": (b"root",),
            "policy": replace(POLICY, root=(hashlib.sha256(b"root").digest(),)),
        },
        Refusal.ROOT,
    ),
    "another platform's quote": (
        {"document": replace(PLATFORM, seed=bytes(32)).quote(DATA, mrenclave=MRENCLAVE)},
        Refusal.ROOT,
    ),
    "no collateral": ({"collateral": None}, Refusal.COLLATERAL),
    "a debug enclave": (
        {"document": PLATFORM.quote(DATA, mrenclave=MRENCLAVE, debug=True)},
        Refusal.DEBUG,
    ),
    "a revoked platform": (
        {"collateral": replace(PLATFORM, revoked=("pck",)).collateral()},
        Refusal.REVOKED,
    ),
    "a platform out of date": (
        {"collateral": replace(PLATFORM, status="OutOfDate").collateral()},
        Refusal.TCB,
    ),
    "a platform that has expired": ({"now": NOW + 11 * 366 * DAY}, Refusal.VALIDITY),
    "other code": ({"document": PLATFORM.quote(DATA, mrenclave=DATA[:32])}, Refusal.MEASUREMENT),
    "a policy that lists no code": ({"policy": replace(POLICY, mrenclave=())}, Refusal.MEASUREMENT),
    "an old version": ({"policy": replace(POLICY, min_isv_svn=2)}, Refusal.VERSION),
    "a simulated domain": (
        {"document": PLATFORM.td_quote(DATA, mrtd=bytes(48))},
        Refusal.MALFORMED,
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_it_is_refused_for_the_right_reason(what):
    changes, reason = REFUSALS[what]
    assert refusal(evidence(**changes)).reason is reason


def test_the_advice_about_the_root_can_be_pasted():
    policy = replace(POLICY, root=(SEED,))
    advice = str(refusal(evidence(policy=policy))).split("write under [simulation]:")[1]
    roots = tuple(map(bytes.fromhex, tomllib.loads(advice)["root"]))
    assert roots == (SEED, PLATFORM.root_digest)
    verify(evidence(policy=replace(policy, root=roots)))


def test_a_simulation_never_passes_for_the_real_thing():
    good = evidence()
    policy = SgxPolicy(mrenclave=(MRENCLAVE,), allow=dcap.ALLOWANCES)
    with pytest.raises(AttestationRefused) as caught:
        dcap.verify(
            Evidence("sgx", good["document"], ()),
            collateral={"collateral": good["collateral"]},
            policy=policy,
            now=NOW,
            skew=0,
        )
    assert caught.value.reason is Refusal.ROOT


def test_every_name_in_its_certificates_says_what_it_is():
    collateral = json.loads(PLATFORM.collateral())
    chains = (
        dcap_qvl.parse_quote(evidence()["document"]).cert_chain_pem_bytes(),
        collateral["tcb_info_issuer_chain"].encode(),
        collateral["pck_crl_issuer_chain"].encode(),
    )
    certificates = [each for chain in chains for each in x509.load_pem_x509_certificates(chain)]
    assert len(certificates) == 3 + 2 + 2
    for each in certificates:
        for name in (each.subject, each.issuer):
            assert "SIMULATION" in name.rfc4514_string()
            assert "NOT A TEE" in name.rfc4514_string()


def test_a_platform_that_comes_back_from_its_seed_is_the_same():
    again = UnsafeSimulatedPlatform(SEED, issued=NOW)
    assert again is not PLATFORM
    assert again.root_der == PLATFORM.root_der
    assert again.collateral() == PLATFORM.collateral()
    assert again.td_collateral() == PLATFORM.td_collateral()
    assert again.quote(DATA, mrenclave=MRENCLAVE) == PLATFORM.quote(DATA, mrenclave=MRENCLAVE)
    assert again.td_quote(DATA, mrtd=bytes(48)) == PLATFORM.td_quote(DATA, mrtd=bytes(48))


def test_its_root_does_not_change_with_the_release():
    """Policies name it, and collateral of an earlier release must still fit."""
    digest = "a8a37717493b1f1e639de114e1386b138f4d0847dc8ad5756071c66a66a625ce"
    assert PLATFORM.root_digest.hex() == digest


def test_what_it_says_does_not_change_with_the_release():
    """Each byte follows from the seed, so a saved platform and its old collateral fit together."""
    platform = replace(PLATFORM, collateral_lifetime=DAY, revoked=("pck", "tcb-signing"))
    said = {
        "quote": platform.quote(DATA, mrenclave=MRENCLAVE, isv_prod_id=7, debug=True),
        "TD quote": platform.td_quote(DATA, mrtd=bytes(range(48)), debug=True),
        "collateral": platform.collateral(),
        "TD collateral": platform.td_collateral(),
    }
    assert {name: hashlib.sha256(each).hexdigest()[:32] for name, each in said.items()} == {
        "quote": "c4b963ced6566f726cb548b509eb413d",
        "TD quote": "eb1b122bb64bd86342cb6725976dcea3",
        "collateral": "332ef3843ff9bdff88280d551749f63d",
        "TD collateral": "f83d9d5cbfc0a2f979387f4d13072bfa",
    }


def test_another_platform_has_another_root():
    assert replace(PLATFORM, seed=bytes(32)).root_digest != PLATFORM.root_digest


@pytest.mark.parametrize("change", [{"issued": NOW + 1}, {"lifetime": DAY}])
def test_a_root_that_is_issued_again_keeps_its_name(change):
    other: UnsafeSimulatedPlatform = replace(PLATFORM, **change)
    assert other.root_der != PLATFORM.root_der
    assert other.root_digest == PLATFORM.root_digest


def test_what_is_said_of_a_platform_does_not_change_its_root():
    other = replace(
        PLATFORM,
        collateral_lifetime=DAY,
        properties=dcap.PROPERTIES,
        status="OutOfDate",
        qe_status="OutOfDate",
        revoked=("pck",),
    )
    assert other.root_der == PLATFORM.root_der


def test_its_secrets_do_not_print():
    PLATFORM.quote(DATA, mrenclave=MRENCLAVE)
    held = [repr(each) for each in (PLATFORM, *vars(PLATFORM).values()) if each is not SEED]
    scalar = PLATFORM._root.key.private.private_numbers().private_value
    for shown in held:
        assert SEED.hex() not in shown
        assert repr(SEED)[2:-1] not in shown
        assert str(scalar) not in shown
    assert "<secret>" in repr(PLATFORM._root)


def test_all_keys_differ():
    issuers = (PLATFORM._root, PLATFORM._ca, PLATFORM._pck, PLATFORM._tcb)
    keys = {each.key.public for each in issuers} | {PLATFORM._attestation_key.public}
    assert len(keys) == 5


def test_the_platform_certificate_says_what_intels_would():
    quote = dcap_qvl.parse_quote(PLATFORM.quote(DATA, mrenclave=MRENCLAVE))
    extension = quote.pck_extension()
    assert extension.fmspc.hex() == quote.fmspc().lower() == "51d000000000"
    assert extension.cpu_svn == bytes([2] * 16)
    assert extension.pce_svn == 11
    assert extension.sgx_type == 1
    assert extension.ppid == extension.platform_instance_id == bytes(16)


@pytest.mark.parametrize("name", dcap.PROPERTIES)
def test_a_property_is_written_where_intel_writes_it(name):
    arc = dcap.PROPERTIES.index(name) + 1
    for properties, flag in ((), b"\0"), ((name,), b"\xff"):
        document = replace(PLATFORM, properties=properties).quote(DATA, mrenclave=MRENCLAVE)
        extension = dcap_qvl.parse_quote(document).pck_extension()
        assert extension.get_value(f"1.2.840.113741.1.13.1.7.{arc}") == flag


@given(st.integers(0, 2**16 - 1), st.integers(0, 2**16 - 1), st.booleans())
def test_a_quote_says_what_it_was_told(product, version, debug):
    document = PLATFORM.quote(
        DATA,
        mrenclave=MRENCLAVE,
        mrsigner=b"i" * 32,
        isv_prod_id=product,
        isv_svn=version,
        debug=debug,
    )
    claims = dcap.read(Evidence("simulation", document, ()))
    assert claims.measurements == (("mrenclave", MRENCLAVE), ("mrsigner", b"i" * 32))
    facts = dict(claims.facts)
    assert (facts["isv_prod_id"], facts["isv_svn"]) == (str(product), str(version))
    assert claims.debug == debug


def test_fields_of_another_length_are_our_own_fault():
    for data, enclave in ((DATA[:-1], MRENCLAVE), (DATA, MRENCLAVE[:-1])):
        with pytest.raises(LocalProtocolError, match=r"bytes of a quote got (63|31)"):
            PLATFORM.quote(data, mrenclave=enclave)
    with pytest.raises(LocalProtocolError, match="48 bytes"):
        PLATFORM.td_quote(DATA, mrtd=bytes(32))

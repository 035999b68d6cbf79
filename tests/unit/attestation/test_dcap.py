"""Synthetic quotes reach every branch; recorded ones show that the branches are the real ones."""

import json
import re
import struct
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from ostraka.attestation import dcap, simulation
from ostraka.attestation.claims import Claims
from ostraka.attestation.dcap import SgxPolicy, TdxPolicy
from ostraka.attestation.simulation import SimulationPolicy, UnsafeSimulatedPlatform
from ostraka.errors import AttestationRefused, ConfigError, Refusal
from ostraka.messages import Evidence

DAY = 86_400
NOW = 1_800_000_000
ISSUED, EXPIRES = NOW - DAY, NOW + 30 * DAY
PLATFORM = UnsafeSimulatedPlatform(b"s" * 32, issued=ISSUED, collateral_lifetime=EXPIRES - ISSUED)
STRANGER = replace(PLATFORM, seed=b"t" * 32)

DATA = bytes(range(64))
MRENCLAVE, MRSIGNER = b"e" * 32, b"i" * 32
MRTD, RTMRS = b"f" * 48, (b"0" * 48, b"1" * 48, b"2" * 48, b"3" * 48)
QUIET = (*RTMRS[:3], bytes(48))  # nothing was measured after the start
ENCLAVE: dict[str, Any] = {
    "mrenclave": MRENCLAVE,
    "mrsigner": MRSIGNER,
    "isv_prod_id": 7,
    "isv_svn": 3,
}
DOMAIN: dict[str, Any] = {"mrtd": MRTD, "rtmrs": RTMRS}
SGX = SgxPolicy(mrenclave=(MRENCLAVE,))
BY_SIGNER = SgxPolicy(mrsigner=(MRSIGNER,), isv_prod_id=7, min_isv_svn=3)
TDX = TdxPolicy((MRTD,), (RTMRS[0],), (RTMRS[1],), (RTMRS[2],), (RTMRS[3],))


def sgx(platform: UnsafeSimulatedPlatform = PLATFORM, **changes: Any) -> dict[str, Any]:
    """The arguments of a verification that succeeds, but for what is changed."""
    enclave = {name: changes.pop(name) for name in [*ENCLAVE, "debug"] if name in changes}
    good: dict[str, Any] = {
        "kind": "sgx",
        "document": platform.quote(DATA, **(ENCLAVE | enclave)),
        "collateral": platform.collateral(),
        "policy": SGX,
        "now": NOW,
        "skew": 0,
        "root": platform.root_der,
    }
    return good | changes


def tdx(platform: UnsafeSimulatedPlatform = PLATFORM, **changes: Any) -> dict[str, Any]:
    domain = {name: changes.pop(name) for name in [*DOMAIN, "debug"] if name in changes}
    good: dict[str, Any] = {
        "kind": "tdx",
        "document": platform.td_quote(DATA, **(DOMAIN | domain)),
        "collateral": platform.td_collateral(),
        "policy": TDX,
    }
    return sgx(platform) | good | changes


def evidence(arguments: dict[str, Any]) -> Evidence:
    return Evidence(arguments["kind"], arguments["document"], ())


def verify(arguments: dict[str, Any]):
    settings = {name: arguments[name] for name in arguments if name not in ("kind", "document")}
    said = settings.pop("collateral")
    given = {} if said is None else {"collateral": said}
    return dcap.verify(evidence(arguments), collateral=given, **settings)


def read(kind: str, document: bytes) -> Claims:
    return dcap.read(Evidence(kind, document, ()))


def refusal(arguments: dict[str, Any]) -> AttestationRefused:
    with pytest.raises(AttestationRefused) as caught:
        verify(arguments)
    return caught.value


def flipped(document: bytes, at: int, bit: int = 0) -> bytes:
    return document[:at] + bytes([document[at] ^ 1 << bit]) + document[at + 1 :]


def flip(at: int, make: Callable[..., dict[str, Any]] = sgx) -> dict[str, Any]:
    arguments = make()
    return arguments | {"document": flipped(arguments["document"], at)}


def made_with(make: Callable[[], Any], **constants: Any) -> Any:
    """What a platform makes that differs from ours in some constant."""
    with mock.patch.multiple(simulation, **constants):
        return make()


def mixed(*names: str, other: bytes | None = None, **values: str) -> bytes:
    """Our collateral, with some parts from elsewhere."""
    collateral = json.loads(PLATFORM.collateral())
    source = json.loads(STRANGER.collateral() if other is None else other)
    return json.dumps(collateral | {name: source[name] for name in names} | values).encode()


def signed(part: str, platform: UnsafeSimulatedPlatform = PLATFORM, td=False, **changes) -> bytes:
    """Collateral in which Intel itself says something else."""
    collateral = json.loads(platform.td_collateral() if td else platform.collateral())
    text = json.dumps(json.loads(collateral[part]) | changes)
    signature = platform._tcb.key.sign(text.encode()).hex()
    return json.dumps(collateral | {part: text, f"{part}_signature": signature}).encode()


def expired(*names: str) -> bytes:
    """Collateral that is good for long, but for some parts."""
    return mixed(*names, other=replace(PLATFORM, collateral_lifetime=DAY // 2).collateral())


def certificates_from(start: int) -> dict[str, Any]:
    """A platform whose certificates begin later than what is said of it."""
    platform = replace(PLATFORM, issued=start)
    early = {"issueDate": "2020-01-01T00:00:00Z"}
    collateral = json.loads(signed("tcb_info", platform, **early))
    identity = json.loads(signed("qe_identity", platform, **early))
    names = ("qe_identity", "qe_identity_signature")
    both = collateral | {name: identity[name] for name in names}
    return sgx(platform, collateral=json.dumps(both).encode())


def with_chain(pem: bytes) -> bytes:
    """A quote with another certificate chain inside."""
    document = sgx()["document"]
    body = document[436:1048] + struct.pack("<I", len(pem)) + pem
    return document[:432] + struct.pack("<I", len(body)) + body


def enclave_in_version_4() -> bytes:
    """An SGX report in the envelope of TDX."""
    signed = simulation._header(4, 0) + sgx()["document"][48:432]
    certification = struct.pack("<H", 6) + simulation._counted(PLATFORM._qe_certification(0))
    return signed + simulation._counted(PLATFORM._signature(signed) + certification)


def domain_in_version_3() -> bytes:
    """A TD report in the envelope of SGX."""
    signed = simulation._header(3, 0x81) + tdx()["document"][48:632]
    certification = PLATFORM._qe_certification(0x81)
    return signed + simulation._counted(PLATFORM._signature(signed) + certification)


def td_attributes(bits: int) -> dict[str, Any]:
    return made_with(tdx, _TD_SEPT_VE_DISABLE=bits)


def is_(status: str) -> dict[str, Any]:
    return sgx(replace(PLATFORM, status=status))


def has(name: str) -> dict[str, Any]:
    return sgx(replace(PLATFORM, properties=(name,)))


def with_revoked(name: str) -> dict[str, Any]:
    return sgx(replace(PLATFORM, revoked=(name,)))


REFUSALS: dict[str, tuple[Callable[[], dict[str, Any]], Refusal]] = {
    # Step 1, the document.
    "nothing at all": (lambda: sgx(document=b""), Refusal.MALFORMED),
    "half a quote": (lambda: sgx(document=sgx()["document"][:2000]), Refusal.MALFORMED),
    "a TDX quote that is called SGX": (lambda: tdx(kind="sgx"), Refusal.MALFORMED),
    "an SGX quote that is called TDX": (lambda: sgx(kind="tdx"), Refusal.MALFORMED),
    "an SGX quote of version 4": (
        lambda: sgx(document=enclave_in_version_4()),
        Refusal.MALFORMED,
    ),
    "an SGX quote of version 4 that is called TDX": (
        lambda: tdx(document=enclave_in_version_4()),
        Refusal.MALFORMED,
    ),
    "a TDX quote of version 3": (lambda: tdx(document=domain_in_version_3()), Refusal.MALFORMED),
    "a TDX quote of version 3 that is called SGX": (
        lambda: sgx(document=domain_in_version_3()),
        Refusal.MALFORMED,
    ),
    "a quote of version 2": (lambda: flip(0), Refusal.MALFORMED),
    "a quote of an unknown TEE": (lambda: flip(4), Refusal.MALFORMED),
    "an attestation key of another type": (lambda: flip(2), Refusal.MALFORMED),
    "no certificate chain": (lambda: sgx(document=with_chain(b"")), Refusal.MALFORMED),
    "a chain that is not PEM": (lambda: flip(1100), Refusal.MALFORMED),
    "a chain of another form": (lambda: flip(1046), Refusal.MALFORMED),
    "a platform certificate that is none": (
        lambda: sgx(
            document=with_chain(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        ),
        Refusal.MALFORMED,
    ),
    "authentication data of another length": (
        lambda: made_with(sgx, _QE_AUTH_DATA=bytes(31)),
        Refusal.MALFORMED,
    ),
    # Step 2, collateral at hand.
    "no collateral": (lambda: sgx(collateral=None), Refusal.COLLATERAL),
    "collateral that is not text": (lambda: sgx(collateral=b"\xff"), Refusal.COLLATERAL),
    "collateral that is not JSON": (lambda: sgx(collateral=b"{"), Refusal.COLLATERAL),
    "collateral with nothing in it": (lambda: sgx(collateral=b"{}"), Refusal.COLLATERAL),
    # Step 3, collateral that fits.
    "collateral for TDX, a quote of SGX": (
        lambda: sgx(collateral=PLATFORM.td_collateral()),
        Refusal.COLLATERAL,
    ),
    "collateral for SGX, a quote of TDX": (
        lambda: tdx(collateral=PLATFORM.collateral()),
        Refusal.COLLATERAL,
    ),
    "collateral for another model": (
        lambda: sgx(collateral=made_with(PLATFORM.collateral, _FMSPC=bytes(6))),
        Refusal.COLLATERAL,
    ),
    "TCB info with a false signature": (
        lambda: sgx(collateral=mixed(tcb_info_signature="11" * 64)),
        Refusal.COLLATERAL,
    ),
    "TCB info with half a signature": (
        lambda: sgx(collateral=mixed(tcb_info_signature="11" * 32)),
        Refusal.COLLATERAL,
    ),
    "a quoting enclave's identity with a false signature": (
        lambda: sgx(collateral=mixed(qe_identity_signature="11" * 64)),
        Refusal.COLLATERAL,
    ),
    "no revocation list of the platforms": (
        lambda: sgx(collateral=mixed(pck_crl="")),
        Refusal.COLLATERAL,
    ),
    "no revocation list of the root": (
        lambda: sgx(collateral=mixed(root_ca_crl="")),
        Refusal.COLLATERAL,
    ),
    "a revocation list that a stranger signed": (
        lambda: sgx(collateral=mixed("pck_crl")),
        Refusal.COLLATERAL,
    ),
    "a revocation list of other certificates": (
        lambda: sgx(
            collateral=mixed(pck_crl=json.loads(PLATFORM.collateral())["root_ca_crl"]),
        ),
        Refusal.COLLATERAL,
    ),
    # Step 3, the root.
    "everything under a stranger's root": (
        lambda: sgx(STRANGER, root=PLATFORM.root_der),
        Refusal.ROOT,
    ),
    "a simulation under Intel's root": (lambda: sgx(root=None), Refusal.ROOT),
    "a stranger's quote with our collateral": (
        lambda: sgx(document=sgx(STRANGER)["document"]),
        Refusal.ROOT,
    ),
    "TCB info whose signer a stranger certified": (
        lambda: sgx(collateral=mixed("tcb_info_issuer_chain")),
        Refusal.ROOT,
    ),
    "a root that is no certificate": (lambda: sgx(root=b"root"), Refusal.ROOT),
    "a root that another one issued": (
        lambda: sgx(root=PLATFORM._ca_certificate.public_bytes(Encoding.DER)),
        Refusal.ROOT,
    ),
    # Step 3, signatures.
    "another header": (lambda: flip(8), Refusal.SIGNATURE),
    "another measurement": (lambda: flip(48 + 64), Refusal.SIGNATURE),
    "other report data": (lambda: flip(48 + 320), Refusal.SIGNATURE),
    "another signature of the quote": (lambda: flip(436), Refusal.SIGNATURE),
    "a quote that another key signed": (
        lambda: sgx(
            document=sgx()["document"][:436]
            + STRANGER._signature(sgx()["document"][:432])
            + sgx()["document"][564:]
        ),
        Refusal.SIGNATURE,
    ),
    "another report of the quoting enclave": (lambda: flip(564), Refusal.SIGNATURE),
    "another maker of the quoting enclave": (lambda: flip(12), Refusal.SIGNATURE),
    "a quoting enclave of another signer": (
        lambda: sgx(collateral=signed("qe_identity", mrsigner="11" * 32)),
        Refusal.SIGNATURE,
    ),
    "a quoting enclave that is another product": (
        lambda: sgx(collateral=signed("qe_identity", isvprodid=9)),
        Refusal.SIGNATURE,
    ),
    "a quoting enclave with other attributes": (
        lambda: sgx(collateral=signed("qe_identity", attributes="11" * 16)),
        Refusal.SIGNATURE,
    ),
    "a quoting enclave that saves more of its state": (
        lambda: sgx(collateral=signed("qe_identity", miscselect="11" * 4)),
        Refusal.SIGNATURE,
    ),
    "a quoting enclave that can be debugged": (
        lambda: made_with(sgx, _BITS64=0x04 | 0x02),
        Refusal.SIGNATURE,
    ),
    # Step 3, validity.
    "collateral from the future": (lambda: sgx(now=ISSUED - 1), Refusal.VALIDITY),
    "collateral of yesterday": (lambda: sgx(now=EXPIRES), Refusal.VALIDITY),
    "TCB info of yesterday": (
        lambda: sgx(collateral=expired("tcb_info", "tcb_info_signature")),
        Refusal.VALIDITY,
    ),
    "a quoting enclave's identity of yesterday": (
        lambda: sgx(collateral=expired("qe_identity", "qe_identity_signature")),
        Refusal.VALIDITY,
    ),
    "the root's revocation list of yesterday": (
        lambda: sgx(collateral=expired("root_ca_crl")),
        Refusal.VALIDITY,
    ),
    "the platforms' revocation list of yesterday": (
        lambda: sgx(collateral=expired("pck_crl")),
        Refusal.VALIDITY,
    ),
    "certificates of yesterday": (
        lambda: sgx(replace(PLATFORM, lifetime=DAY // 2)),
        Refusal.VALIDITY,
    ),
    "certificates of tomorrow": (lambda: certificates_from(NOW + DAY), Refusal.VALIDITY),
    # Step 3, revocation.
    "a revoked platform": (lambda: with_revoked("pck"), Refusal.REVOKED),
    "a revoked intermediate": (lambda: with_revoked("pck-ca"), Refusal.REVOKED),
    "a revoked signer of collateral": (lambda: with_revoked("tcb-signing"), Refusal.REVOKED),
    "a revoked root": (lambda: with_revoked("root"), Refusal.REVOKED),
    "a revoked TCB": (lambda: is_("Revoked"), Refusal.REVOKED),
    "a revoked TCB, whatever is allowed": (
        lambda: is_("Revoked") | {"policy": replace(SGX, allow=dcap.ALLOWANCES)},
        Refusal.REVOKED,
    ),
    "a revoked quoting enclave": (
        lambda: sgx(replace(PLATFORM, qe_status="Revoked")),
        Refusal.REVOKED,
    ),
    # Step 3, the platform's state.
    "a platform that is out of date": (lambda: is_("OutOfDate"), Refusal.TCB),
    "a platform of a status that we do not know": (lambda: is_("TDRelaunchAdvised"), Refusal.TCB),
    "a platform below every known level": (
        lambda: sgx(collateral=made_with(PLATFORM.collateral, _SVNS=bytes([3] * 16))),
        Refusal.TCB,
    ),
    "a quoting enclave that is out of date": (
        lambda: sgx(replace(PLATFORM, qe_status="OutOfDate")),
        Refusal.TCB,
    ),
    "a quoting enclave out of date, where the platform may be misconfigured": (
        lambda: sgx(
            replace(PLATFORM, qe_status="OutOfDate"), policy=replace(SGX, allow=dcap.STATUSES[:3])
        ),
        Refusal.TCB,
    ),
    "a quoting enclave of a status that the library lets pass": (
        lambda: sgx(replace(PLATFORM, qe_status="ConfigurationNeeded")),
        Refusal.TCB,
    ),
    "a quoting enclave below every known level": (
        lambda: sgx(collateral=made_with(PLATFORM.collateral, _QE_SVN=9)),
        Refusal.TCB,
    ),
    "a TDX module below every known level": (
        lambda: tdx(collateral=made_with(PLATFORM.td_collateral, _TD_SVNS=bytes([9] * 16))),
        Refusal.TCB,
    ),
    "a TDX module of another signer": (
        lambda: tdx(
            collateral=signed(
                "tcb_info",
                td=True,
                tdxModule={
                    "mrsigner": "11" * 48,
                    "attributes": "00" * 8,
                    "attributesMask": "ff" * 8,
                },
            )
        ),
        Refusal.TCB,
    ),
    "a platform that may grow": (lambda: has("dynamic-platform"), Refusal.PLATFORM),
    "a platform that caches keys": (lambda: has("cached-keys"), Refusal.PLATFORM),
    "a platform whose threads share a core": (lambda: has("smt"), Refusal.PLATFORM),
    "a TDX platform whose threads share a core": (
        lambda: tdx(replace(PLATFORM, properties=("smt",))),
        Refusal.PLATFORM,
    ),
    "a domain whose host may take its pages away": (lambda: td_attributes(0), Refusal.PLATFORM),
    "a domain that can be profiled": (
        lambda: td_attributes(1 << 28 | 1 << 4),
        Refusal.PLATFORM,
    ),
    "a domain that can be moved": (lambda: td_attributes(1 << 28 | 1 << 29), Refusal.PLATFORM),
    "a domain with attributes that nobody knows": (
        lambda: td_attributes(1 << 28 | 1 << 1),
        Refusal.PLATFORM,
    ),
    # Step 4, debugging.
    "a debug enclave": (lambda: sgx(debug=True), Refusal.DEBUG),
    "a debug domain": (lambda: tdx(debug=True), Refusal.DEBUG),
    # Step 5, the code.
    "a policy that lists nothing": (lambda: sgx(policy=SgxPolicy()), Refusal.MEASUREMENT),
    "another enclave": (lambda: sgx(mrenclave=b"x" * 32), Refusal.MEASUREMENT),
    "another signer": (
        lambda: sgx(mrsigner=b"x" * 32, policy=BY_SIGNER),
        Refusal.MEASUREMENT,
    ),
    "the right enclave of another signer": (
        lambda: sgx(mrsigner=b"x" * 32, policy=replace(SGX, mrsigner=(MRSIGNER,))),
        Refusal.MEASUREMENT,
    ),
    "another enclave of the right signer": (
        lambda: sgx(mrenclave=b"x" * 32, policy=replace(SGX, mrsigner=(MRSIGNER,))),
        Refusal.MEASUREMENT,
    ),
    "a signer without a product": (
        lambda: sgx(policy=replace(BY_SIGNER, isv_prod_id=None)),
        Refusal.MEASUREMENT,
    ),
    "another product of the right signer": (
        lambda: sgx(policy=BY_SIGNER, isv_prod_id=8),
        Refusal.MEASUREMENT,
    ),
    "product 0, where the policy wants 7": (
        lambda: sgx(policy=BY_SIGNER, isv_prod_id=0),
        Refusal.MEASUREMENT,
    ),
    "product 7, where the policy wants 0": (
        lambda: sgx(policy=replace(BY_SIGNER, isv_prod_id=0)),
        Refusal.MEASUREMENT,
    ),
    "the right enclave as another product": (
        lambda: sgx(policy=replace(SGX, isv_prod_id=8)),
        Refusal.MEASUREMENT,
    ),
    "a TDX policy that lists nothing": (lambda: tdx(policy=TdxPolicy()), Refusal.MEASUREMENT),
    "a TDX policy that lists the firmware only": (
        lambda: tdx(policy=TdxPolicy(mrtd=(MRTD,))),
        Refusal.MEASUREMENT,
    ),
    "a TDX policy without firmware": (
        lambda: tdx(policy=replace(TDX, mrtd=())),
        Refusal.MEASUREMENT,
    ),
    "a TDX policy without a kernel": (
        lambda: tdx(policy=replace(TDX, rtmr1=())),
        Refusal.MEASUREMENT,
    ),
    "a TDX policy without an application": (
        lambda: tdx(policy=replace(TDX, rtmr2=())),
        Refusal.MEASUREMENT,
    ),
    "a TDX policy that does not say what the firmware was configured with": (
        lambda: tdx(policy=replace(TDX, rtmr0=())),
        Refusal.MEASUREMENT,
    ),
    "the same, where something else is waived": (
        lambda: tdx(policy=replace(TDX, rtmr0=(), rtmr3=(), allow=("any-rtmr3",))),
        Refusal.MEASUREMENT,
    ),
    "a TDX policy that does not say what was measured after the start": (
        lambda: tdx(policy=replace(TDX, rtmr3=())),
        Refusal.MEASUREMENT,
    ),
    "something measured after the start, where the policy lists nothing": (
        lambda: tdx(policy=replace(TDX, rtmr3=(bytes(48),))),
        Refusal.MEASUREMENT,
    ),
    "other firmware": (lambda: tdx(mrtd=b"x" * 48), Refusal.MEASUREMENT),
    "another kernel": (
        lambda: tdx(rtmrs=(RTMRS[0], b"x" * 48, *RTMRS[2:])),
        Refusal.MEASUREMENT,
    ),
    "another application": (
        lambda: tdx(rtmrs=(*RTMRS[:2], b"x" * 48, RTMRS[3])),
        Refusal.MEASUREMENT,
    ),
    "another machine, where the policy lists one": (
        lambda: tdx(policy=replace(TDX, rtmr0=(b"x" * 48,))),
        Refusal.MEASUREMENT,
    ),
    "another runtime, where the policy lists one": (
        lambda: tdx(policy=replace(TDX, rtmr3=(b"x" * 48,))),
        Refusal.MEASUREMENT,
    ),
    # Step 6, its version.
    "a signer without a lowest version": (
        lambda: sgx(policy=replace(BY_SIGNER, min_isv_svn=None)),
        Refusal.VERSION,
    ),
    "a version that is too old": (
        lambda: sgx(policy=replace(SGX, min_isv_svn=4)),
        Refusal.VERSION,
    ),
    "a signer's version that is too old": (
        lambda: sgx(policy=replace(BY_SIGNER, min_isv_svn=4)),
        Refusal.VERSION,
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_it_is_refused_for_the_right_reason(what):
    make, reason = REFUSALS[what]
    assert refusal(make()).reason is reason


ACCEPTED: dict[str, Callable[[], dict[str, Any]]] = {
    "a listed enclave": sgx,
    "a listed domain": tdx,
    "one of several enclaves": lambda: sgx(policy=SgxPolicy(mrenclave=(bytes(32), MRENCLAVE))),
    "a product of a listed signer": lambda: sgx(policy=BY_SIGNER),
    "both listed": lambda: sgx(policy=replace(BY_SIGNER, mrenclave=(MRENCLAVE,))),
    "just the version asked for": lambda: sgx(policy=replace(SGX, min_isv_svn=3)),
    "every version of a listed signer": lambda: sgx(
        policy=replace(BY_SIGNER, min_isv_svn=0), isv_svn=0
    ),
    "a domain whose host may configure the firmware": lambda: tdx(
        policy=replace(TDX, rtmr0=(), allow=("any-rtmr0",))
    ),
    "a domain that may measure what it likes": lambda: tdx(
        policy=replace(TDX, rtmr3=(), allow=("any-rtmr3",))
    ),
    "a domain that has measured nothing": lambda: tdx(policy=replace(TDX, rtmr3=()), rtmrs=QUIET),
    "the same, and that is listed": lambda: tdx(
        policy=replace(TDX, rtmr3=(bytes(48),)), rtmrs=QUIET
    ),
    "bytes behind the quote, which the kernel pads": lambda: sgx(
        document=sgx()["document"] + bytes(71)
    ),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_it_is_accepted(what):
    verify(ACCEPTED[what]())


def test_the_claims_of_an_enclave():
    claims = verify(sgx())
    assert claims.kind == "sgx"
    assert dict(claims.measurements) == {"mrenclave": MRENCLAVE, "mrsigner": MRSIGNER}
    assert (claims.report_data, claims.debug) == (DATA, False)
    facts = dict(claims.facts)
    assert (facts["isv_prod_id"], facts["isv_svn"]) == ("7", "3")
    assert (facts["tcb_status"], facts["advisories"]) == ("UpToDate", "")
    assert facts["fmspc"] == "51d000000000"


def test_the_claims_of_a_domain():
    claims = verify(tdx())
    assert claims.kind == "tdx"
    names = ("mrtd", "rtmr0", "rtmr1", "rtmr2", "rtmr3")
    assert claims.measurements == tuple(zip(names, (MRTD, *RTMRS), strict=True))
    assert (claims.report_data, claims.debug) == (DATA, False)


def test_reading_says_what_verifying_finds():
    for arguments in (sgx(), tdx()):
        claims = dcap.read(evidence(arguments))
        verified = verify(arguments)
        assert replace(verified, facts=claims.facts) == claims
        assert set(claims.facts) < set(verified.facts)


def test_reading_a_debug_enclave_says_so():
    for arguments in (sgx(debug=True), tdx(debug=True)):
        assert dcap.read(evidence(arguments)).debug


def test_debug_is_refused_even_if_the_library_lets_it_pass():
    with mock.patch.object(dcap.Examination, "check_at", return_value=()):
        for arguments in (sgx(debug=True), tdx(debug=True)):
            assert refusal(arguments).reason is Refusal.DEBUG


def test_every_known_text_of_the_library_still_occurs():
    """If a row is missing here, the library words that failure differently now."""
    texts = [str(refusal(make())) for make, _ in REFUSALS.values()]
    met = [next((row for row in dcap._REASONS if row[0] in text), None) for text in texts]
    assert set(met) - {None} == set(dcap._REASONS)


def test_a_text_that_nobody_knows_is_a_refusal():
    assert dcap._reason("Verification failed: words of a later version") is Refusal.COLLATERAL


@pytest.mark.parametrize("status", dcap.STATUSES)
def test_a_status_is_accepted_if_it_is_named(status):
    platform = replace(PLATFORM, status=status)
    others = tuple(name for name in dcap.ALLOWANCES if name != status)
    assert refusal(sgx(platform)).reason is Refusal.TCB
    assert refusal(sgx(platform, policy=replace(SGX, allow=others))).reason is Refusal.TCB
    claims = verify(sgx(platform, policy=replace(SGX, allow=(status,))))
    assert dict(claims.facts)["tcb_status"] == status


def test_a_quoting_enclave_that_is_out_of_date_is_accepted_if_that_is_named():
    platform = replace(PLATFORM, qe_status="OutOfDate")
    verify(sgx(platform, policy=replace(SGX, allow=("OutOfDate",))))


@pytest.mark.parametrize("name", dcap.PROPERTIES)
@pytest.mark.parametrize("make", [sgx, tdx])
def test_a_property_is_accepted_if_it_is_named(make, name):
    platform, policy = replace(PLATFORM, properties=(name,)), make()["policy"]
    others = tuple(other for other in dcap.ALLOWANCES if other != name)
    assert refusal(make(platform, policy=replace(policy, allow=others))).reason is Refusal.PLATFORM
    verify(make(platform, policy=replace(policy, allow=(name,))))


def test_only_allowances_that_exist_can_be_named():
    for policy in (SgxPolicy, TdxPolicy, SimulationPolicy):
        policy(allow=dcap.ALLOWANCES)
        for name in ("Revoked", "UpToDate", "outofdate", "debug", ""):
            with pytest.raises(ConfigError, match=r"SWHardeningNeeded.*smt"):
                policy(allow=("smt", name))


def test_only_a_tdx_policy_has_registers_to_waive():
    TdxPolicy(allow=(*dcap.ALLOWANCES, *dcap.WAIVERS.values()))
    for policy in (SgxPolicy, SimulationPolicy):
        with pytest.raises(ConfigError, match="cannot allow any-rtmr0; one of"):
            policy(allow=("any-rtmr0",))
    for name in ("any-mrtd", "any-rtmr1", "any-rtmr2", "rtmr0"):
        with pytest.raises(ConfigError, match=f"cannot allow {name}; one of .*any-rtmr0"):
            TdxPolicy(allow=(name,))


@pytest.mark.parametrize("name", dcap.WAIVERS)
def test_what_is_listed_is_not_waived_as_well(name):
    listed: dict[str, Any] = {name: (MRTD,)}
    with pytest.raises(ConfigError, match=f"lists {name}, and allows any-{name}"):
        TdxPolicy(allow=(f"any-{name}",), **listed)


def test_the_advice_names_what_can_be_waived():
    unstated = str(refusal(tdx(policy=replace(TDX, rtmr0=()))))
    assert f'write under [tdx]: rtmr0 = ["{RTMRS[0].hex()}"]' in unstated
    assert unstated.endswith('\n# or, to accept any rtmr0, add to allow: "any-rtmr0"')
    assert str(refusal(tdx(policy=TdxPolicy()))).count("\n# or, to accept any rtmr") == 2
    for policy in (replace(TDX, mrtd=()), replace(TDX, rtmr0=(MRTD,))):
        assert "# or" not in str(refusal(tdx(policy=policy)))


@pytest.mark.parametrize(
    ("now", "off"), [(EXPIRES + 49, 50), (ISSUED - 50, 50), (EXPIRES, 1), (ISSUED - 1, 1)]
)
def test_clocks_may_differ_by_the_skew_and_no_more(now, off):
    verify(sgx(now=now, skew=off))
    verify(sgx(now=now, skew=off + 100))
    late = refusal(sgx(now=now, skew=off - 1))
    assert late.reason is Refusal.VALIDITY
    assert ("future" in str(late)) == (now < NOW)


def test_a_skew_forgives_nothing_but_the_time():
    platform = replace(PLATFORM, status="OutOfDate")
    assert refusal(sgx(platform, now=EXPIRES + 49, skew=0)).reason is Refusal.VALIDITY
    assert refusal(sgx(platform, now=EXPIRES + 49, skew=50)).reason is Refusal.TCB


def test_a_skew_may_reach_behind_1970():
    assert refusal(sgx(now=10, skew=300)).reason is Refusal.VALIDITY


@pytest.mark.parametrize(
    ("make", "policy"),
    [(sgx, SgxPolicy()), (sgx, SgxPolicy(mrenclave=(bytes(32),))), (tdx, TdxPolicy())],
)
def test_the_advice_can_be_pasted(make, policy):
    arguments = make(policy=policy)
    advice = str(refusal(arguments)).split(f"write under [{arguments['kind']}]:")[1]
    lists = {name: tuple(map(bytes.fromhex, v)) for name, v in tomllib.loads(advice).items()}
    verify(arguments | {"policy": replace(policy, **lists)})


def test_the_advice_for_a_signer_can_be_pasted():
    policy = SgxPolicy(mrsigner=(MRSIGNER,))
    for stated in ("isv_prod_id", "min_isv_svn"):
        advice = tomllib.loads(str(refusal(sgx(policy=policy))).split("write under [sgx]:")[1])
        assert list(advice) == [stated]
        policy = replace(policy, **advice)
    verify(sgx(policy=policy))


def test_what_a_peer_wrote_moves_no_cursor_and_fills_no_screen():
    status = "\x1b[2J\u202e" + "x" * 5000
    shown = str(refusal(sgx(replace(PLATFORM, status=status))))
    assert "xxx" in shown
    assert shown.isprintable()
    assert len(shown) < 500


# Recorded quotes.

SGX_ALLOW = ("ConfigurationAndSWHardeningNeeded",)
TDX_ALLOW = ("dynamic-platform", "cached-keys", "smt")
RECORDED = 1_750_500_000  # 2025-06-21


def recorded(vector, kind: str) -> dict[str, Any]:
    document = vector(f"dcap/{kind}_quote")
    lists: dict[str, Any] = {name: (value,) for name, value in read(kind, document).measurements}
    policy: Any = SgxPolicy(allow=SGX_ALLOW) if kind == "sgx" else TdxPolicy(allow=TDX_ALLOW)
    return {
        "kind": kind,
        "document": document,
        "collateral": vector(f"dcap/{kind}_quote_collateral.json"),
        "policy": replace(policy, **lists),
        "now": RECORDED,
        "skew": 0,
    }


def test_a_recorded_sgx_quote(vector):
    claims = verify(recorded(vector, "sgx"))
    assert claims.measurement("mrenclave").hex().startswith("33d8736db756ed49")
    assert claims.measurement("mrsigner").hex().startswith("815f42f11cf64430")
    assert claims.report_data == b"Hello, world!".ljust(64, b"\0")
    assert dict(claims.facts)["advisories"] == "INTEL-SA-00289, INTEL-SA-00615"


def test_a_recorded_tdx_quote(vector):
    claims = verify(recorded(vector, "tdx"))
    assert claims.measurement("mrtd").hex().startswith("91eb2b44d141d4ec")
    assert claims.measurement("rtmr2").hex().startswith("d833feef2cd94514")
    assert claims.report_data.hex().startswith("9a9d48e7f6799642")


@pytest.mark.parametrize(("kind", "needed"), [("sgx", SGX_ALLOW), ("tdx", TDX_ALLOW)])
def test_a_recorded_quote_needs_every_allowance(vector, kind, needed):
    good = recorded(vector, kind)
    for name in needed:
        allow = tuple(other for other in dcap.ALLOWANCES if other != name)
        refused = refusal(good | {"policy": replace(good["policy"], allow=allow)})
        assert refused.reason is (Refusal.TCB if kind == "sgx" else Refusal.PLATFORM)


@pytest.mark.parametrize("kind", ["sgx", "tdx"])
def test_a_recorded_quote_is_of_its_time_and_its_root(vector, kind):
    good = recorded(vector, kind)
    for now in (RECORDED - 10 * DAY, RECORDED + 60 * DAY):
        assert refusal(good | {"now": now}).reason is Refusal.VALIDITY
    assert refusal(good | {"root": PLATFORM.root_der}).reason is Refusal.ROOT
    assert refusal(good | {"kind": "tdx" if kind == "sgx" else "sgx"}).reason is Refusal.MALFORMED
    assert refusal(good | {"policy": type(good["policy"])(allow=good["policy"].allow)}).reason is (
        Refusal.MEASUREMENT
    )


def indifferent(document: bytes) -> set[int]:
    """The places in a quote where a change may make no difference, since nobody relies on them.

    The chain ends with a copy of the root, but the root that counts is pinned. PEM's line breaks
    carry nothing. Lengths that still lead past what is needed, the type of the outer envelope of
    TDX, and padding are not signed and say nothing.
    """
    start = document.index(b"-----BEGIN")
    root = [m.end() for m in re.finditer(b"-----END CERTIFICATE-----", document)][1]
    breaks = {at for at in range(start, root) if document[at] == ord("\n")}
    lengths = {*range(start - 4, start)}
    if document[0] == 4:
        lengths |= {*range(632, 636), *range(764, 770)}
    return breaks | lengths | {*range(root, len(document))}


def sweep(good: dict[str, Any], places) -> None:
    """A flipped bit is refused, or else is one of those that make no difference to anything."""
    document, claims = good["document"], verify(good)
    spared = indifferent(document)
    for at in places:
        changed = good | {"document": flipped(document, at, bit=at % 8)}
        if at not in spared:
            assert refusal(changed).reason is not Refusal.MEASUREMENT, at
            continue
        try:
            same = verify(changed)
        except AttestationRefused:
            continue
        assert same == claims, at


@pytest.mark.parametrize("kind", ["sgx", "tdx"])
def test_every_so_many_bytes_of_a_recorded_quote_matter(vector, kind):
    good = recorded(vector, kind)
    sweep(good, range(0, len(good["document"]), 19))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sgx", "tdx"])
def test_every_byte_of_a_recorded_quote_matters(vector, kind, scale):
    good = recorded(vector, kind)
    sweep(good, range(0, len(good["document"]), scale(5, 1)))  # 4 would skip bits: see `sweep`


@pytest.mark.parametrize("make", [sgx, tdx])
def test_every_so_many_bytes_of_a_synthetic_quote_matter(make):
    sweep(make(), range(0, len(make()["document"]), 19))


@pytest.mark.parametrize("make", [sgx, tdx])
def test_every_byte_that_is_signed_matters(make):
    """Header and report are signed, and no change to them may be taken for anything else."""
    good = make()
    for at in range(48, 432 if good["kind"] == "sgx" else 632, 3):
        changed = good | {"document": flipped(good["document"], at, bit=at % 8)}
        assert refusal(changed).reason is Refusal.SIGNATURE


# Whatever a peer sends.

QUOTES = {"sgx": sgx()["document"], "tdx": tdx()["document"], "simulation": sgx()["document"]}
COLLATERAL = PLATFORM.collateral()


@st.composite
def spoilt(draw, original: bytes) -> bytes:
    """Some bytes changed, cut out or put in."""
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        cut = draw(st.sampled_from([0, 1, 4, 500]))
        data[at : at + cut] = draw(st.binary(max_size=6))
    return bytes(data)


def assert_only_refusals(arguments: dict[str, Any]) -> None:
    try:
        claims = verify(arguments)
    except AttestationRefused:
        return
    assert claims.measurements == read(claims.kind, sgx()["document"]).measurements


@given(st.sampled_from(sorted(QUOTES)), st.binary(max_size=2000))
def test_reading_any_bytes_raises_nothing_but_a_refusal(kind, data):
    with pytest.raises(AttestationRefused) as caught:
        read(kind, data)
    assert caught.value.reason is Refusal.MALFORMED


@given(st.data(), st.sampled_from(sorted(QUOTES)))
def test_reading_a_spoilt_quote_raises_nothing_but_a_refusal(data, kind):
    document = data.draw(spoilt(QUOTES[kind]))
    with suppress(AttestationRefused):
        assert len(read(kind, document).report_data) == 64


@given(spoilt(QUOTES["sgx"]))
def test_verifying_a_spoilt_quote_raises_nothing_but_a_refusal(document):
    assert_only_refusals(sgx(document=document))


@given(spoilt(COLLATERAL))
def test_verifying_with_spoilt_collateral_raises_nothing_but_a_refusal(collateral):
    assert_only_refusals(sgx(collateral=collateral))


@given(st.data(), st.sampled_from(sorted(json.loads(COLLATERAL))))
def test_verifying_with_a_spoilt_part_raises_nothing_but_a_refusal(data, name):
    part = data.draw(spoilt(json.loads(COLLATERAL)[name].encode()))
    assert_only_refusals(sgx(collateral=mixed(**{name: part.decode("latin-1")})))

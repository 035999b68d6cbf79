"""Evidence whose bytes were changed on the way and which verifies as before: it has no other name.

Who carries a quote can write it in many ways. So a cache, a pin or a memory that knew evidence by
its bytes could be made to miss, to fill up, or to keep out what it holds.
"""

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from ostraka.attestation import dcap
from ostraka.attestation.claims import Binding
from ostraka.attestation.dcap import SgxPolicy, TdxPolicy
from ostraka.attestation.policy import Policy
from ostraka.attestation.simulation import SimulationPolicy, UnsafeSimulatedPlatform
from ostraka.attestation.verify import Circumstances, verify, verify_evidence
from ostraka.carried.trust import UnsafeFirstSeen
from ostraka.config import Federation, Manifest, Member, Terms
from ostraka.crypto.identity import Identity
from ostraka.enclave import measurement
from ostraka.encoding import UNSIGNED, decode, encode
from ostraka.errors import AttestationRefused, Refusal
from ostraka.messages import Charter, Evidence, Introduction, RoundOffer

NOW, NONCE = 1_800_000_000, b"n" * 32
PLATFORM = UnsafeSimulatedPlatform(b"p" * 32, issued=NOW - 1000)
MRENCLAVE = b"e" * 32
AUTHORITY = Identity(b"a" * 32)
FEDERATION = Federation(
    Terms(Manifest.flat(8), f=0),
    tuple(Member(f"client-{i}", Identity(bytes([i]) * 32).public) for i in range(1, 6)),
    tuple(Member(f"worker-{i}", Identity(bytes([i]) * 32).public) for i in range(6, 8)),
    AUTHORITY.public,
    b"i" * 32,
)
OFFER = RoundOffer(
    1, bytes(32), FEDERATION.digest(), bytes(32), bytes(32), bytes(1216), (0,), UNSIGNED
)
RECEIPT_KEY = b"r" * 32
POLICY = Policy(
    evidence=("simulation",),
    unsafe_simulation=True,
    tees=(SimulationPolicy(root=(PLATFORM.root_digest,), mrenclave=(MRENCLAVE,)),),
)
CIRCUMSTANCES = Circumstances(NOW, {"collateral": PLATFORM.collateral()}, unsafe_simulation=True)
QUOTE = PLATFORM.quote(
    Binding(NONCE, OFFER.key, RECEIPT_KEY, FEDERATION.digest()).report_data(), mrenclave=MRENCLAVE
)

_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256
_BODY = {3: 48 + 384, 4: 48 + 584}  # a quote's header and report, by its version


def padded(quote: bytes) -> bytes:
    """With bytes behind it, as the kernel hands it over."""
    return quote + b"whatever"


def other_signature(quote: bytes) -> bytes:
    """With n - s in place of s: both are signatures of the same report by the same key."""
    at = _body(quote) + 4 + 32
    s = int.from_bytes(quote[at : at + 32], "big")
    return quote[:at] + (_ORDER - s).to_bytes(32, "big") + quote[at + 32 :]


def other_armour(quote: bytes) -> bytes:
    """With words before the certificates, which are PEM."""
    words = b"Somebody's certificates:\n"
    start, body = quote.index(b"-----BEGIN"), _body(quote)
    counted = [body, start - 4]
    if quote[0] == 4:
        counted.append(
            body + 4 + 64 + 64 + 2
        )  # the quoting enclave's part, around its certificates
    changed = bytearray(quote[:start] + words + quote[start:])
    for at in counted:
        (size,) = struct.unpack_from("<I", changed, at)
        struct.pack_into("<I", changed, at, size + len(words))
    return bytes(changed)


def _body(quote: bytes) -> int:
    return _BODY[int.from_bytes(quote[:2], "little")]


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "bytes behind it": padded,
    "another signature": other_signature,
    "words among its certificates": other_armour,
    "all of that": lambda quote: padded(other_signature(other_armour(quote))),
}


def other_root(certificate: bytes) -> bytes:
    """The root's certificate with the other form of its own signature."""
    signature = x509.load_der_x509_certificate(certificate).signature
    r, s = decode_dss_signature(signature)
    changed = bytearray(certificate[: -len(signature)] + encode_dss_signature(r, _ORDER - s))
    longer = len(changed) - len(certificate)
    changed[len(certificate) - len(signature) - 2] += longer  # the length of the BIT STRING
    struct.pack_into(">H", changed, 2, struct.unpack_from(">H", changed, 2)[0] + longer)
    return bytes(changed)


OTHER_ROOT = other_root(PLATFORM.root_der)


def introduction(quote: bytes, root: bytes = PLATFORM.root_der) -> Introduction:
    whole = Introduction(OFFER, RECEIPT_KEY, Evidence("simulation", quote, (root,)))
    return decode(Introduction, encode(whole))


def attested(quote: bytes, root: bytes = PLATFORM.root_der):
    return verify(
        introduction(quote, root),
        nonce=NONCE,
        federation=FEDERATION,
        policy=POLICY,
        circumstances=CIRCUMSTANCES,
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_quote_in_another_form_proves_the_same_enclave(form):
    other = FORMS[form](QUOTE)
    assert other != QUOTE
    assert attested(other) == attested(QUOTE)


def test_a_root_in_another_form_is_the_same_platform():
    assert PLATFORM.root_der != OTHER_ROOT
    assert attested(QUOTE, OTHER_ROOT) == attested(QUOTE)


def test_a_root_that_its_own_key_has_not_signed_is_no_form_of_it():
    spoilt = PLATFORM.root_der[:-1] + bytes([PLATFORM.root_der[-1] ^ 1])
    with pytest.raises(AttestationRefused, match="no self-signed certificate") as refused:
        attested(QUOTE, spoilt)
    assert refused.value.reason is Refusal.ROOT


def test_a_node_that_trusts_the_first_it_sees_knows_it_again_in_another_form():
    code = measurement.measure().digest
    charter = AUTHORITY.sign(Charter(FEDERATION, UNSIGNED))
    scratch: dict[str, object] = {}
    quote = PLATFORM.quote(bytes(64), mrenclave=code)
    forms = [(OTHER_ROOT, other_armour(quote)), (PLATFORM.root_der, quote)]
    for held, (root, document) in zip((None, charter), forms, strict=True):
        shown = introduction(document, root)
        standards = UnsafeFirstSeen(scratch, held)
        policy = standards.policy(charter, shown.evidence)
        brought = standards.circumstances(shown.evidence, PLATFORM.collateral())
        at = Circumstances(NOW, brought.collateral, unsafe_simulation=True)
        assert verify_evidence(shown.evidence, policy, at).measurement("mrenclave") == code
    assert scratch == {"root": PLATFORM.root_digest}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["sgx", "tdx"])
def test_a_recorded_quote_has_other_forms_too(vector, kind, form):
    quote = vector(f"dcap/{kind}_quote")
    allowed: dict[str, SgxPolicy | TdxPolicy] = {
        "sgx": SgxPolicy(allow=("ConfigurationAndSWHardeningNeeded",)),
        "tdx": TdxPolicy(allow=dcap.PROPERTIES),
    }
    measured = dcap.read(Evidence(kind, quote, ())).measurements
    listed: dict[str, Any] = {name: (value,) for name, value in measured}
    policy = replace(allowed[kind], **listed)

    def claims(document: bytes):
        return dcap.verify(
            Evidence(kind, document, ()),
            policy=policy,
            collateral={"collateral": vector(f"dcap/{kind}_quote_collateral.json")},
            now=1_750_500_000,
            skew=0,
        )

    other = FORMS[form](quote)
    assert other != quote
    assert claims(other) == claims(quote)
    assert claims(other).code_id == claims(quote).code_id


def test_evidence_and_what_holds_it_cannot_be_a_key():
    shown = introduction(QUOTE)
    assert shown == introduction(QUOTE)
    for each in (shown.evidence, shown):
        with pytest.raises(TypeError, match="unhashable type: 'Evidence'"):
            hash(each)

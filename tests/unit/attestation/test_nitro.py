"""Documents under a root that is made here, and a recorded one under AWS's."""

import datetime
import hashlib
import tracemalloc
from functools import cache
from pathlib import Path
from typing import Any

import cbor2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from ostraka.attestation import nitro
from ostraka.attestation.nitro import NitroPolicy
from ostraka.errors import AttestationRefused, Refusal
from ostraka.messages import Evidence

NOW, SKEW = 1_700_000_000, 300
HOUR = 3600
DATA = b"d" * 64
ES384 = cbor2.dumps({1: -35})


def pcr(index):
    return hashlib.sha384(bytes([index])).digest()


PCRS = {index: pcr(index) if index in (0, 1, 2, 3, 4, 8) else bytes(48) for index in range(16)}
POLICY = NitroPolicy(pcr0=(b"x" * 48, pcr(0)))


# The vendor: a root, authorities for a region and an instance, and the enclave's certificate.


@cache
def key(name, curve=ec.SECP384R1):
    return ec.generate_private_key(curve())


def day(seconds):
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def subject(name):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def certify(name, issuer, extensions, *, start=-HOUR, end=HOUR, **more):
    public = more.get("public") or key(name).public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject(name))
        .issuer_name(subject(issuer))
        .public_key(public)
        .serial_number(1)
        .not_valid_before(day(NOW + start))
        .not_valid_after(day(NOW + end))
    )
    for extension, critical in (*extensions, *more.get("extra", ())):
        builder = builder.add_extension(extension, critical)
    signer = more.get("signer") or key(issuer)
    return builder.sign(signer, more.get("digest", SHA384())).public_bytes(Encoding.DER)


def usage(*, sign=False, issue=False):
    return x509.KeyUsage(
        digital_signature=sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=issue,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def authority(name, issuer, *, length=None, ca=True, issue=True, **more):
    basic = x509.BasicConstraints(ca=ca, path_length=length)
    return certify(name, issuer, [(basic, True), (usage(issue=issue), True)], **more)


def leaf(issuer="instance", *, ca=False, sign=True, **more):
    basic = x509.BasicConstraints(ca=ca, path_length=None)
    return certify("enclave", issuer, [(basic, True), (usage(sign=sign), False)], **more)


ROOT, REGION = authority("root", "root"), authority("region", "root", length=1)
INSTANCE, LEAF = authority("instance", "region", length=0), leaf()
PIN = hashlib.sha256(ROOT).digest()
UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")


# The enclave: a document, signed by its key.


def payload(**changes):
    fields = {
        "module_id": "i-1234-enc5678",
        "digest": "SHA384",
        "timestamp": NOW * 1000,
        "pcrs": PCRS,
        "certificate": LEAF,
        "cabundle": [ROOT, REGION, INSTANCE],
        "public_key": None,
        "user_data": DATA,
        "nonce": None,
    }
    return {name: value for name, value in (fields | changes).items() if value is not ...}


def seal(encoded, *, protected=ES384, signer=None, unprotected=None):
    signed = cbor2.dumps(["Signature1", protected, b"", encoded])
    pair = decode_dss_signature((signer or key("enclave")).sign(signed, ec.ECDSA(SHA384())))
    signature = b"".join(number.to_bytes(48, "big") for number in pair)
    return cbor2.dumps([protected, unprotected or {}, encoded, signature])


def document(**changes):
    return seal(cbor2.dumps(payload(**changes)))


def verify(data=None, **changes):
    settings: dict[str, Any] = {"policy": POLICY, "now": NOW, "skew": SKEW, "root": PIN}
    return nitro.verify(evidence(document() if data is None else data), **(settings | changes))


def evidence(data):
    return Evidence("nitro", data, ())


def read(data):
    return nitro.read(evidence(data))


def with_pcrs(**changes):
    return document(pcrs=PCRS | {int(name[3:]): value for name, value in changes.items()})


def parts(data=None):
    return cbor2.loads(data or document())


def changed(data, at, mask=1):
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


# What is accepted.


def test_a_document_is_proved_and_says_what_was_measured():
    claims = verify()
    assert claims.kind == "nitro"
    assert claims.measurements == tuple((f"pcr{index}", pcr(index)) for index in (0, 1, 2, 3, 4, 8))
    assert claims.report_data == DATA
    assert not claims.debug


@pytest.mark.parametrize("index", [0, 1, 2, 3, 4, 8])
def test_the_same_code_under_another_role_or_on_another_instance_has_the_same_id(index):
    other = read(document(pcrs=PCRS | {index: pcr(99)}))
    assert (other.code_id == read(document()).code_id) == (index in (3, 4))


def test_a_person_can_read_the_rest():
    facts = dict(read(document(nonce=b"\1", public_key=b"\2", pcrs=PCRS | {9: pcr(9)})).facts)
    assert facts == {
        "module id": "i-1234-enc5678",
        "timestamp": f"{NOW} s since 1970",
        "pcr9": pcr(9).hex(),
        "nonce": "01",
        "public key": "02",
    }


def test_reading_proves_nothing_and_shows_a_debug_enclave():
    zeros = dict.fromkeys(range(16), bytes(48))
    assert read(seal(cbor2.dumps(payload(pcrs=zeros)), signer=key("another"))).debug


@pytest.mark.parametrize("user_data", [None, b"", b"short", ...])
def test_reading_takes_user_data_as_it_is(user_data):
    """Whoever compares it finds that it is not what it must be."""
    expected = user_data if isinstance(user_data, bytes) else b""
    assert read(document(user_data=user_data)).report_data == expected


ACCEPTED = {
    "every list of the policy": lambda: verify(
        policy=NitroPolicy(**{f"pcr{index}": (pcr(index),) for index in (0, 1, 2, 3, 4, 8)})
    ),
    "a document without PCRs that nobody lists": lambda: verify(
        document(pcrs={index: pcr(index) for index in range(3)})
    ),
    "one of the image's PCRs that is zero": lambda: verify(with_pcrs(pcr2=bytes(48))),
    "fields that are left out": lambda: verify(document(nonce=..., public_key=...)),
    "fields that nobody knows": lambda: verify(document(more={"a": [1, None]})),
    "no authorities but the root": lambda: verify(
        document(certificate=leaf("root"), cabundle=[ROOT])
    ),
    "certificates that ended within the clocks' skew": lambda: verify(
        document(certificate=leaf(end=-SKEW))
    ),
    "certificates that will start within the clocks' skew": lambda: verify(
        document(certificate=leaf(start=SKEW))
    ),
    "a document of the enclave's clock, which is ahead": lambda: verify(
        document(timestamp=(NOW + SKEW) * 1000)
    ),
    "a document that was long under way": lambda: verify(
        document(timestamp=(NOW - SKEW - nitro.PROMPT) * 1000)
    ),
    "an extension that is not critical": lambda: verify(
        document(certificate=leaf(extra=[(UNKNOWN, False)]))
    ),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_accepted(what):
    assert ACCEPTED[what]().report_data == DATA


# What is refused. Every line changes one thing of what is accepted.


def altered(at, value):
    """A document with one of its four parts replaced, unsigned as COSE has it."""
    return cbor2.dumps([*parts()[:at], value, *parts()[at + 1 :]])


def cabundle(*certificates, **changes):
    return document(cabundle=list(certificates), **changes)


MALFORMED = {
    "nothing at all": lambda: b"",
    "a document that is a byte short": lambda: document()[:-1],
    "a document with a byte to spare": lambda: document() + b"\0",
    "a document of more bytes than there can be": lambda: document(more=bytes(1 << 14)),
    "a document with a tag": lambda: b"\xd2" + document(),
    "a document of three parts": lambda: cbor2.dumps(parts()[:3]),
    "a document of five parts": lambda: cbor2.dumps([*parts(), b""]),
    "a document that is a map": lambda: cbor2.dumps(dict(enumerate(parts()))),
    "a list of no fixed length": lambda: b"\x9f" + document()[1:] + b"\xff",
    "a length that is longer than needed": lambda: b"\x98\x04" + document()[1:],
    "a header in the clear": lambda: altered(1, {4: b"key"}),
    "a header that is a list": lambda: altered(1, []),
    "another algorithm": lambda: seal(cbor2.dumps(payload()), protected=cbor2.dumps({1: -7})),
    "no algorithm": lambda: seal(cbor2.dumps(payload()), protected=b""),
    "an algorithm that is almost a number": lambda: seal(
        cbor2.dumps(payload()), protected=cbor2.dumps({1: -35.0})
    ),
    "a second header": lambda: seal(
        cbor2.dumps(payload()), protected=cbor2.dumps({1: -35, 4: b""})
    ),
    "a signature that is a byte short": lambda: altered(3, bytes(95)),
    "a signature as DER": lambda: altered(3, b"\x30" * 104),
    "a payload that is a list": lambda: seal(cbor2.dumps(list(payload().values()))),
    "a payload that is no CBOR": lambda: seal(b"\xff"),
    "a payload with a byte to spare": lambda: seal(cbor2.dumps(payload()) + b"\0"),
    "a field twice": lambda: seal(
        b"\xaa" + cbor2.dumps(payload())[1:] + cbor2.dumps("nonce") + cbor2.dumps(b"2")
    ),
    "a date in a payload": lambda: document(more=datetime.datetime.now(datetime.UTC)),
    "a number of any size in a payload": lambda: document(more=1 << 100),
    "a value that is shared": lambda: seal(
        b"\xaa" + cbor2.dumps(payload())[1:] + cbor2.dumps("more") + b"\xd8\x1c\x80"
    ),
    "values in values in values": lambda: document(more=[[[[[]]]]]),
    "digests of another length": lambda: document(digest="SHA256"),
    "no kind of digest": lambda: document(digest=...),
    "no module": lambda: document(module_id=...),
    "a module of bytes": lambda: document(module_id=b"i-1234"),
    "a module that writes to the terminal": lambda: document(module_id="\x1b[2J"),
    "a time before there were enclaves": lambda: document(timestamp=0),
    "a time before 1970": lambda: document(timestamp=-1),
    "a time that is true": lambda: document(timestamp=True),
    "a time with a fraction": lambda: document(timestamp=float(NOW * 1000)),
    "no PCRs": lambda: document(pcrs=...),
    "an empty map of PCRs": lambda: document(pcrs={}),
    "PCRs without the image": lambda: document(pcrs={index: pcr(index) for index in (1, 2, 3)}),
    "PCRs of a TPM": lambda: document(pcrs=..., nitrotpm_pcrs=PCRS),
    "a PCR of another length": lambda: with_pcrs(pcr1=bytes(32)),
    "a PCR of text": lambda: with_pcrs(pcr1="x" * 48),
    "a PCR of a number too high": lambda: document(pcrs=PCRS | {32: bytes(48)}),
    "a PCR of a negative number": lambda: document(pcrs=PCRS | {-1: bytes(48)}),
    "a PCR of the number true": lambda: document(pcrs={0: pcr(0), True: pcr(1), 2: pcr(2)}),
    "a PCR by name": lambda: document(pcrs=PCRS | {"pcr0": pcr(0)}),
    "user data that are text": lambda: document(user_data="d" * 64),
    "user data that are undefined": lambda: document(user_data=cbor2.undefined),
    "a nonce that is a number": lambda: document(nonce=1),
    "a public key that is a list": lambda: document(public_key=[]),
    "no certificate": lambda: document(certificate=...),
    "an empty certificate": lambda: document(certificate=b""),
    "a certificate that is none": lambda: document(certificate=b"\x30\x00"),
    "no authorities": lambda: document(cabundle=...),
    "an empty list of authorities": lambda: document(cabundle=[]),
    "an authority that is text": lambda: cabundle("root"),
    "an authority that is none": lambda: cabundle(ROOT, b"\x30\x00", INSTANCE),
    "more authorities than anybody needs": lambda: cabundle(ROOT, *[REGION] * 7, INSTANCE),
}

REFUSED = {
    "a root that is not pinned": (
        lambda: verify(root=bytes(32)),
        Refusal.ROOT,
        "end at 'CN=root'",
    ),
    "AWS's root, where another stands in the document": (
        lambda: verify(root=nitro.AWS_ROOT),
        Refusal.ROOT,
        "end at 'CN=root'",
    ),
    "an impostor with the root's name": (
        lambda: verify(
            cabundle(authority("root", "root", public=key("impostor").public_key()), REGION)
        ),
        Refusal.ROOT,
        "end at 'CN=root'",
    ),
    "authorities in the wrong order": (
        lambda: verify(cabundle(ROOT, INSTANCE, REGION)),
        Refusal.ROOT,
        "has not issued",
    ),
    "the root last": (
        lambda: verify(cabundle(INSTANCE, REGION, ROOT)),
        Refusal.ROOT,
        "end at 'CN=instance'",
    ),
    "a missing link": (
        lambda: verify(cabundle(ROOT, INSTANCE)),
        Refusal.ROOT,
        "'CN=root' has not issued 'CN=instance'",
    ),
    "a link of somebody else with the right name": (
        lambda: verify(
            cabundle(ROOT, authority("region", "root", signer=key("impostor")), INSTANCE)
        ),
        Refusal.ROOT,
        "'CN=root' has not issued 'CN=region'",
    ),
    "a certificate of somebody else": (
        lambda: verify(document(certificate=leaf(signer=key("impostor")))),
        Refusal.ROOT,
        "'CN=instance' has not issued 'CN=enclave'",
    ),
    "a certificate by another enclave's": (
        lambda: verify(
            document(certificate=leaf("enclave"), cabundle=[ROOT, REGION, INSTANCE, LEAF])
        ),
        Refusal.ROOT,
        "'CN=enclave' may not issue 'CN=enclave'",
    ),
    "an authority that is none": (
        lambda: verify(cabundle(ROOT, REGION, authority("instance", "region", ca=False))),
        Refusal.ROOT,
        "'CN=instance' may not issue",
    ),
    "an authority that may not issue": (
        lambda: verify(cabundle(ROOT, REGION, authority("instance", "region", issue=False))),
        Refusal.ROOT,
        "'CN=instance' may not issue",
    ),
    "an authority that says nothing of what it may": (
        lambda: verify(cabundle(ROOT, REGION, certify("instance", "region", []))),
        Refusal.ROOT,
        "'CN=instance' may not issue",
    ),
    "an authority that says nothing of its key's use": (
        lambda: verify(
            cabundle(
                ROOT,
                REGION,
                certify(
                    "instance",
                    "region",
                    [(x509.BasicConstraints(ca=True, path_length=None), True)],
                ),
            )
        ),
        Refusal.ROOT,
        "'CN=instance' may not issue",
    ),
    "a chain that is longer than an authority allows": (
        lambda: verify(cabundle(ROOT, authority("region", "root", length=0), INSTANCE)),
        Refusal.ROOT,
        "'CN=region' may not issue 'CN=instance'",
    ),
    "an authority's certificate in place of the enclave's": (
        lambda: verify(document(certificate=leaf(ca=True))),
        Refusal.ROOT,
        "'CN=enclave' may not sign",
    ),
    "a certificate whose key is not for signatures": (
        lambda: verify(document(certificate=leaf(sign=False))),
        Refusal.ROOT,
        "'CN=enclave' may not sign",
    ),
    "a certificate that says nothing of its key's use": (
        lambda: verify(document(certificate=certify("enclave", "instance", []))),
        Refusal.ROOT,
        "'CN=enclave' may not sign",
    ),
    "a certificate with a condition that nobody knows": (
        lambda: verify(document(certificate=leaf(extra=[(UNKNOWN, True)]))),
        Refusal.ROOT,
        "critical extension",
    ),
    "an authority with a condition that nobody knows": (
        lambda: verify(
            cabundle(ROOT, authority("region", "root", extra=[(UNKNOWN, True)]), INSTANCE)
        ),
        Refusal.ROOT,
        "critical extension",
    ),
    "a certificate signed over a weaker digest": (
        lambda: verify(document(certificate=leaf(digest=SHA256()))),
        Refusal.ROOT,
        "has not issued",
    ),
    "a certificate that has ended": (
        lambda: verify(document(certificate=leaf(end=-SKEW - 1))),
        Refusal.VALIDITY,
        "'CN=enclave' is valid from",
    ),
    "a certificate of tomorrow": (
        lambda: verify(document(certificate=leaf(start=SKEW + 1))),
        Refusal.VALIDITY,
        "'CN=enclave' is valid from",
    ),
    "an authority that has ended": (
        lambda: verify(
            cabundle(ROOT, REGION, authority("instance", "region", length=0, end=-SKEW - 1))
        ),
        Refusal.VALIDITY,
        "'CN=instance' is valid from",
    ),
    "a root that has ended": (
        lambda: verify(
            cabundle(old := authority("root", "root", end=-SKEW - 1), REGION, INSTANCE),
            root=hashlib.sha256(old).digest(),
        ),
        Refusal.VALIDITY,
        "'CN=root' is valid from",
    ),
    "a document that another key signed": (
        lambda: verify(seal(cbor2.dumps(payload()), signer=key("another"))),
        Refusal.SIGNATURE,
        "",
    ),
    "another challenge under the same signature": (
        lambda: verify(altered(2, cbor2.dumps(payload(user_data=b"e" * 64)))),
        Refusal.SIGNATURE,
        "",
    ),
    "another image under the same signature": (
        lambda: verify(altered(2, cbor2.dumps(payload(pcrs=PCRS | {0: pcr(9)})))),
        Refusal.SIGNATURE,
        "",
    ),
    "a signature of zeros": (lambda: verify(altered(3, bytes(96))), Refusal.SIGNATURE, ""),
    "a key on another curve": (
        lambda: verify(document(certificate=leaf(public=key("small", ec.SECP256R1).public_key()))),
        Refusal.SIGNATURE,
        "not for ES384",
    ),
    "a key of another kind": (
        lambda: verify(
            document(certificate=leaf(public=ed25519.Ed25519PrivateKey.generate().public_key()))
        ),
        Refusal.SIGNATURE,
        "not for ES384",
    ),
    "a document that was made for an earlier challenge": (
        lambda: verify(document(timestamp=(NOW - SKEW - nitro.PROMPT - 1) * 1000)),
        Refusal.VALIDITY,
        "it is 601 s old",
    ),
    "a document of tomorrow": (
        lambda: verify(document(timestamp=(NOW + SKEW + 1) * 1000)),
        Refusal.VALIDITY,
        "it is -301 s old",
    ),
    "a document of the end of time": (
        lambda: verify(document(timestamp=(1 << 64) - 1)),
        Refusal.VALIDITY,
        "old",
    ),
    "a debug enclave": (
        lambda: verify(document(pcrs=dict.fromkeys(range(16), bytes(48)))),
        Refusal.DEBUG,
        "all zero",
    ),
    "a debug enclave that the policy lists": (
        lambda: verify(
            with_pcrs(pcr0=bytes(48), pcr1=bytes(48), pcr2=bytes(48)),
            policy=NitroPolicy(pcr0=(bytes(48),)),
        ),
        Refusal.DEBUG,
        "all zero",
    ),
    "an image that the policy does not list": (
        lambda: verify(with_pcrs(pcr0=pcr(9))),
        Refusal.MEASUREMENT,
        pcr(9).hex(),
    ),
    "an application that the policy does not list": (
        lambda: verify(policy=NitroPolicy(pcr0=(pcr(0),), pcr2=(pcr(9),))),
        Refusal.MEASUREMENT,
        f"pcr2 is {pcr(2).hex()}",
    ),
    "a signer of the image that the policy does not list": (
        lambda: verify(policy=NitroPolicy(pcr0=(pcr(0),), pcr8=(pcr(9),))),
        Refusal.MEASUREMENT,
        f"pcr8 is {pcr(8).hex()}",
    ),
    "a listed PCR that the document does not state": (
        lambda: verify(
            document(pcrs={index: pcr(index) for index in range(3)}),
            policy=NitroPolicy(pcr0=(pcr(0),), pcr8=(pcr(8),)),
        ),
        Refusal.MEASUREMENT,
        "lists pcr8",
    ),
    "a kernel that is listed, where no image is": (
        lambda: verify(policy=NitroPolicy(pcr1=(pcr(1),))),
        Refusal.MEASUREMENT,
        f'pcr0 = ["{pcr(0).hex()}"]',
    ),
    "any image, where the policy lists none": (
        lambda: verify(policy=NitroPolicy()),
        Refusal.MEASUREMENT,
        f'[nitro]: pcr0 = ["{pcr(0).hex()}"]',
    ),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed(what):
    with pytest.raises(AttestationRefused) as refused:
        verify(MALFORMED[what]())
    assert refused.value.reason == Refusal.MALFORMED, str(refused.value)


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    attempt, reason, words = REFUSED[what]
    with pytest.raises(AttestationRefused) as refused:
        attempt()
    assert refused.value.reason == reason, str(refused.value)
    assert words in str(refused.value)


def test_a_name_in_a_certificate_cannot_write_to_the_terminal():
    root = authority("\x1b[2J\n", "\x1b[2J\n")
    with pytest.raises(AttestationRefused) as refused:
        verify(cabundle(root))
    assert refused.value.reason == Refusal.ROOT
    assert str(refused.value).isprintable()


# Bytes from anybody.


def refuses(data):
    """Passes if nothing is proved and nothing but a refusal gets out."""
    with pytest.raises(AttestationRefused):
        read(data)
    with pytest.raises(AttestationRefused):
        verify(data)


TAGS = [0, 1, 2, 3, 4, 5, 18, 24, 25, 28, 29, 30, 35, 36, 37, 100, 256, 258, 260, 261, 1004]
TAGS += [43000, 55799, 65535]


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("value", [0, -1, b"x", "x", [], [1, 1], {}], ids=repr)
def test_no_tag_is_let_through(tag, value):
    refuses(cbor2.dumps(cbor2.CBORTag(tag, value)))
    refuses(seal(cbor2.dumps(payload() | {"more": cbor2.CBORTag(tag, value)})))


BOMBS = {
    "a string that says it is long": b"\x5b" + (1 << 40).to_bytes(8, "big"),
    "a string that says it is longer than memory": b"\x5b" + b"\x7f" * 8,
    "a list that says it is long": b"\x9b" + (1 << 40).to_bytes(8, "big"),
    "a map that says it is long": b"\xbb" + (1 << 40).to_bytes(8, "big"),
    "lists in lists": b"\x81" * 16_000,
    "tags on tags": b"\xc1" * 16_000,
    "two to a high power": bytes.fromhex("c5821b00000000ffffffff01"),
}


@pytest.mark.parametrize("what", BOMBS)
def test_a_bomb_takes_no_memory(what):
    tracemalloc.start()
    refuses(BOMBS[what])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@given(st.binary(max_size=300))
def test_random_bytes_are_no_document(data):
    refuses(data)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)


@given(PLAIN)
def test_any_value_is_no_document(value):
    refuses(cbor2.dumps(value))


@given(st.sampled_from(sorted(payload())), PLAIN)
def test_any_value_in_a_field_is_taken_or_refused(name, value):
    try:
        claims = verify(document(**{name: value}))
    except AttestationRefused:
        return
    assert claims.measurement("pcr0") == pcr(0)


@st.composite
def mutated(draw, original):
    """Bytes like the original's: a piece of it replaced by some others, or by another piece."""
    start = draw(st.integers(0, len(original)))
    end = draw(st.integers(start, min(start + 64, len(original))))
    source = draw(st.integers(0, len(original)))
    piece = draw(
        st.one_of(st.binary(max_size=64), st.just(original[source : source + end - start]))
    )
    return original[:start] + piece + original[end:]


DOCUMENT = document()


@given(mutated(DOCUMENT))
def test_a_mutated_document_is_refused(data):
    if data != DOCUMENT:
        with pytest.raises(AttestationRefused):
            verify(data)


@given(st.integers(0, 3), st.data())
def test_a_mutated_certificate_is_refused(which, data):
    """The enclave's key has signed the document, whatever certificates it carries."""
    certificates = [LEAF, ROOT, REGION, INSTANCE]
    other = data.draw(mutated(certificates[which]))
    certificates[which] = other
    if other not in (LEAF, ROOT, REGION, INSTANCE):
        with pytest.raises(AttestationRefused):
            verify(document(certificate=certificates[0], cabundle=certificates[1:]))


def sweep(data, attempt, step=1):
    """The offsets at which a byte can be changed and nobody minds. step: every so many bytes."""
    passed = set()
    for at in range(0, len(data), step):
        try:
            attempt(changed(data, at))
        except AttestationRefused:
            continue
        passed.add(at)
    return passed


def test_bytes_of_a_document_matter():
    assert sweep(DOCUMENT, verify, step=7) == set()


@pytest.mark.slow
def test_every_byte_of_a_document_matters(scale):
    assert sweep(DOCUMENT, verify, scale(4, 1)) == set()


# Recorded evidence.

VECTORS = Path(__file__).parents[2] / "vectors" / "evidence" / "nitro"
MADE = 1_668_034_320  # when the recorded document was


@cache
def recorded():
    return (VECTORS / "aws_nitro_document.cbor").read_bytes()


def verify_recorded(data=None, *, now=MADE, policy=None, skew=SKEW):
    policy = policy or NitroPolicy(pcr0=(read(recorded()).measurement("pcr0"),))
    return nitro.verify(evidence(data or recorded()), policy=policy, now=now, skew=skew)


def test_the_recorded_document_is_proved():
    claims = verify_recorded(skew=0)
    assert dict(claims.facts)["module id"] == "i-04fd167167daacf3b-enc01845e97d0b3eb4e"
    assert [name for name, _ in claims.measurements] == [f"pcr{i}" for i in (0, 1, 2, 3, 4, 8)]
    assert len(claims.report_data) == 32


def test_the_pinned_root_is_aws_s():
    root = x509.load_pem_x509_certificate((VECTORS / "aws_nitro_root_cert.pem").read_bytes())
    assert root.fingerprint(SHA256()) == nitro.AWS_ROOT


@pytest.mark.parametrize("now", [MADE - SKEW - 1, MADE + 2 * HOUR, MADE + 4 * HOUR, 0, 1 << 40])
def test_the_recorded_document_has_its_time(now):
    with pytest.raises(AttestationRefused) as refused:
        verify_recorded(now=now)
    assert refused.value.reason == Refusal.VALIDITY


def test_the_recorded_document_is_not_for_another_image():
    with pytest.raises(AttestationRefused) as refused:
        verify_recorded(policy=POLICY)
    assert refused.value.reason == Refusal.MEASUREMENT


def test_bytes_of_the_recorded_document_matter():
    assert sweep(recorded(), verify_recorded, step=13) == set()


@pytest.mark.slow
def test_every_byte_of_the_recorded_document_matters(scale):
    assert sweep(recorded(), verify_recorded, scale(4, 1)) == set()

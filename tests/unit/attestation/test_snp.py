"""Reports under roots that are made here, and recorded ones under AMD's."""

import contextlib
import datetime
import hashlib
import struct
import tomllib
import warnings
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from ostraka.attestation import snp
from ostraka.attestation.certificates import from_der
from ostraka.attestation.snp import SnpPolicy, SnpTcb
from ostraka.errors import AttestationRefused, ConfigError, Refusal
from ostraka.messages import Evidence

NOW, SKEW = 1_700_000_000, 300
YEAR = 365 * 86_400
MEASUREMENT, DATA, CHIP = b"m" * 48, b"d" * 64, bytes(range(64))
TCB = {"bootloader": 3, "tee": 1, "snp": 200, "microcode": 115}
LAYOUT = {"bootloader": 0, "tee": 1, "snp": 6, "microcode": 7}
TURIN = {"fmc": 0, "bootloader": 1, "tee": 2, "snp": 3, "microcode": 7}
NUMBERS = {"bootloader": 1, "tee": 2, "snp": 3, "microcode": 8, "fmc": 9}
PSS = padding.PSS(padding.MGF1(SHA384()), 48)
LOWEST = SnpTcb(**TCB)
POLICY = SnpPolicy(measurement=(b"x" * 48, MEASUREMENT), min_tcb=LOWEST)


# The vendor: a root, an intermediate, and a chip's key. AMD numbers them like this, but for the
# chip's key, whose number is 0, with which nothing can be made here.
SERIALS = {"ARK": 0x10000, "ASK": 0x10001}


@cache
def rsa_key(name):
    return rsa.generate_private_key(65537, 2048)


@cache
def chip_key(name):
    return ec.generate_private_key(ec.SECP384R1())


def subject(name, **more):
    names = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if country := more.get("country"):
        with warnings.catch_warnings(action="ignore"):
            names.append(x509.NameAttribute(NameOID.COUNTRY_NAME, country, _validate=False))
    return x509.Name(names)


def day(seconds):
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def certify(
    name, key, issuer, issuer_key, *, extensions=(), start=-YEAR, end=YEAR, serial=1, **more
):
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject(name, **more))
        .issuer_name(subject(issuer))
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(day(NOW + start))
        .not_valid_after(day(NOW + end))
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(issuer_key, SHA384(), rsa_padding=more.get("scheme", PSS))


def usage(*, issue, revoke):
    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=issue,
        crl_sign=revoke,
        encipher_only=False,
        decipher_only=False,
    )


def authority(name, issuer, *, key=None, issuer_key=None, ca=True, issue=True, revoke=True, **more):
    extensions = (
        (x509.BasicConstraints(ca=ca, path_length=None), True),
        (usage(issue=issue, revoke=revoke), True),
    )
    more.setdefault("serial", SERIALS.get(name, 7))
    key, issuer_key = key or rsa_key(name), issuer_key or rsa_key(issuer)
    return certify(name, key, issuer, issuer_key, extensions=extensions, **more)


def amd(number, value):
    oid = x509.ObjectIdentifier(f"1.3.6.1.4.1.3704.1.{number}")
    return x509.UnrecognizedExtension(oid, value), False


def integer(value):
    return bytes([2, 1, value]) if value < 128 else bytes([2, 2, 0, value])


def chip_certificate(*, hardware=CHIP, cloud=None, tcb=TCB, product="Milan-B0", **more):
    extensions = [amd(f"3.{NUMBERS[name]}", integer(value)) for name, value in tcb.items()]
    if product is not None:
        extensions.append(amd(2, bytes([more.pop("text", 0x16), len(product)]) + product.encode()))
    if hardware is not None:
        extensions.append(amd(4, hardware))
    if cloud is not None:
        extensions.append(amd(5, bytes([0x16, len(cloud)]) + cloud.encode()))
    settings = {"name": "VEK", "issuer": "ASK", "key": chip_key("chip")} | more
    settings.setdefault("issuer_key", rsa_key(settings["issuer"]))
    return certify(extensions=extensions, **settings)


def der(*certificates):
    return tuple(each.public_bytes(Encoding.DER) for each in certificates)


def pem(*certificates):
    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


def pin(certificate):
    encoded = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(encoded).digest()


ROOT, INTERMEDIATE = authority("ARK", "ARK"), authority("ASK", "ARK")
CHIP_CERTIFICATE = chip_certificate()
CLOUD_CERTIFICATE = chip_certificate(hardware=None, cloud="CN=cloud", product="Milan")
CHAIN = (CHIP_CERTIFICATE, INTERMEDIATE, ROOT)
PINS = {"Milan": pin(ROOT)}


# The machine: a report, laid out as AMD does and signed by the chip's key.

FIELDS = {
    "version": (0x000, "<I"),
    "guest_svn": (0x004, "<I"),
    "policy": (0x008, "<Q"),
    "vmpl": (0x030, "<I"),
    "algorithm": (0x034, "<I"),
    "current": (0x038, "8s"),
    "platform": (0x040, "<Q"),
    "keys": (0x048, "<I"),
    "data": (0x050, "64s"),
    "measurement": (0x090, "48s"),
    "reported": (0x180, "8s"),
    "processor": (0x188, "3s"),
    "chip": (0x1A0, "64s"),
    "committed": (0x1E0, "8s"),
    "firmware": (0x1E8, "3s"),
    "launch": (0x1F0, "8s"),
    "mitigations": (0x1F8, "<Q"),
}
ALWAYS, SMT, MIGRATION, DEBUG = (1 << bit for bit in (17, 16, 18, 19))
VLEK, UNSIGNED = 1 << 2, 7 << 2
MILAN, GENOA, TURIN_CHIP = b"\x19\x01\x01", b"\x19\x11\x01", b"\x1a\x02\x01"


def tcb_bytes(tcb=TCB, layout=LAYOUT):
    return bytes({at: tcb[name] for name, at in layout.items()}.get(at, 0) for at in range(8))


def statement(**changes):
    tcb = tcb_bytes()
    fields = {
        "version": 2,
        "guest_svn": 7,
        "policy": ALWAYS | 0x011F,
        "algorithm": 1,
        "data": DATA,
        "measurement": MEASUREMENT,
        "chip": CHIP,
        "firmware": bytes([4, 55, 1]),
    }
    fields |= dict.fromkeys(("current", "reported", "committed", "launch"), tcb) | changes
    data = bytearray(0x2A0)
    for name, value in fields.items():
        offset, form = FIELDS[name]
        struct.pack_into(form, data, offset, value)
    return bytes(data)


def sign(signed, key=None):
    signature = (key or chip_key("chip")).sign(signed, ec.ECDSA(SHA384()))
    numbers = (number.to_bytes(72, "little") for number in decode_dss_signature(signature))
    return (signed + b"".join(numbers)).ljust(0x4A0, b"\0")


def report(**changes):
    return sign(statement(**changes))


def table(*entries, guid=b"\xca" * 16):
    """The certificates as a host hands them to its guests."""
    at = 24 * (len(entries) + 1)
    head, body = b"", b""
    for entry in entries:
        head += guid + struct.pack("<II", at + len(body), len(entry))
        body += entry
    return head + bytes(24) + body


def verify(document=None, endorsements=None, **changes):
    settings: dict[str, Any] = {
        "collateral": {},
        "policy": POLICY,
        "now": NOW,
        "skew": SKEW,
        "roots": PINS,
    }
    document = report() if document is None else document
    endorsements = der(*CHAIN) if endorsements is None else endorsements
    return snp.verify(Evidence("snp", document, endorsements), **(settings | changes))


def read(document):
    return snp.read(Evidence("snp", document, ()))


def allowing(*names):
    lowest = None if "any-tcb" in names else LOWEST
    return SnpPolicy(measurement=(MEASUREMENT,), min_tcb=lowest, allow=names)


def least(**parts):
    """A policy that asks for a TCB."""
    return SnpPolicy(measurement=(MEASUREMENT,), min_tcb=SnpTcb(**(TCB | parts)))


def unstated(**more):
    return SnpPolicy(measurement=(MEASUREMENT,), **more)


def changed(data, at, mask=1):
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


# What is accepted.


def test_a_report_is_proved_and_says_what_was_measured():
    claims = verify()
    assert claims.kind == "snp"
    assert claims.measurements == (("measurement", MEASUREMENT),)
    assert claims.report_data == DATA
    assert not claims.debug


def test_a_person_can_read_the_rest():
    facts = dict(read(report(version=5, processor=MILAN, mitigations=9, vmpl=2)).facts)
    assert facts["report version"] == "5"
    assert facts["signed by"] == "VCEK"
    assert facts["processor"] == "family 0x19, model 0x1, stepping 1"
    assert facts["chip id"] == CHIP.hex()
    assert facts["guest svn"] == "7"
    assert facts["vmpl"] == "2"
    assert facts["least firmware abi"] == "1.31"
    assert facts["reported tcb"] == "bootloader 3, tee 1, snp 200, microcode 115"
    assert facts["current firmware"] == "1.55.4"
    assert facts["launch mitigations"] == "0x9"
    assert dict(verify().facts)["product"] == "Milan"


MODELS = {
    "Milan": [(0x19, 0x00), (0x19, 0x0F)],
    "Genoa": [(0x19, 0x10), (0x19, 0x1F), (0x19, 0xA0), (0x19, 0xAF)],
    "Turin": [(0x1A, 0x00), (0x1A, 0x1F)],
    None: [(0x19, 0x20), (0x19, 0x9F), (0x19, 0xB0), (0x1A, 0x20), (0x18, 0x00), (0x1B, 0x00)],
}


@pytest.mark.parametrize("product", MODELS)
def test_a_processor_is_of_one_product_from_its_first_model_to_its_last(product):
    for family, model in MODELS[product]:
        said = snp.parse(report(version=3, processor=bytes((family, model, 1))))
        assert said.products == ((product,) if product else ())


def test_a_person_can_read_what_was_checked_of_revocation():
    assert dict(verify().facts)["revocation"] == "not checked: the policy names no crl"
    said = dict(listed(revoked(9)).facts)["revocation"]
    assert said == "1 revoked, list from 2022-11-14 22:13:20+00:00 to 2024-11-13 22:13:20+00:00"


def test_a_list_that_the_policy_does_not_name_is_not_looked_at():
    verify(collateral={"crl": revoked(0x10001)})


def test_bits_are_read_out_in_words():
    facts = dict(read(report(policy=ALWAYS | SMT | DEBUG, platform=0b100001)).facts)
    assert facts["policy"] == "smt allowed, debug allowed"
    assert facts["platform"] == "smt on, no memory aliases"
    plain = dict(read(report(policy=ALWAYS, chip=bytes(64))).facts)
    assert (plain["policy"], plain["platform"], plain["chip id"]) == ("none", "none", "masked")


def test_reading_proves_nothing_and_shows_a_debug_machine():
    assert read(sign(statement(policy=ALWAYS | DEBUG), chip_key("another"))).debug


ACCEPTED = {
    "version 3, of a processor that fits": lambda: verify(report(version=3, processor=MILAN)),
    "version 5": lambda: verify(report(version=5, processor=MILAN, mitigations=1)),
    "a key that a cloud has loaded": lambda: verify(
        report(keys=VLEK, chip=bytes(64)), der(CLOUD_CERTIFICATE, INTERMEDIATE, ROOT)
    ),
    "an author's key": lambda: verify(report(keys=1)),
    "a chip whose id its host masks": lambda: verify(report(chip=bytes(64))),
    "certificates in another order": lambda: verify(endorsements=der(*CHAIN[::-1])),
    "certificates as PEM in one piece": lambda: verify(endorsements=(pem(*CHAIN),)),
    "certificates as PEM with words around": lambda: verify(
        endorsements=("schöne Grüße\n".encode() + pem(*CHAIN),)
    ),
    "certificates in a host's table": lambda: verify(endorsements=(table(*der(*CHAIN)),)),
    "PEM in a host's table": lambda: verify(endorsements=(table(pem(*CHAIN)),)),
    "a table with entries of other kinds": lambda: verify(
        endorsements=(table(b"", *der(*CHAIN), b"\1" * 8),)
    ),
    "a table without the zeros at its end": lambda: verify(
        endorsements=(*der(*CHAIN), b"\xca" * 16 + struct.pack("<II", 0, 24))
    ),
    "certificates from the policy's file": lambda: verify(
        endorsements=(), collateral={"certificates": pem(*CHAIN)}
    ),
    "some from the evidence and some from the file": lambda: verify(
        endorsements=(table(*der(CHIP_CERTIFICATE)),),
        collateral={"certificates": pem(INTERMEDIATE, ROOT)},
    ),
    "the certificates of many chips": lambda: verify(
        endorsements=der(chip_certificate(hardware=b"x" * 64), *CHAIN)
    ),
    "many chips, and the id masked": lambda: verify(
        report(chip=bytes(64)),
        der(chip_certificate(hardware=b"x" * 64, key=chip_key("another")), *CHAIN),
    ),
    "an impostor beside the root": lambda: verify(
        endorsements=der(authority("ARK", "ARK", key=rsa_key("impostor")), *CHAIN)
    ),
    "a certificate that ended within the clocks' skew": lambda: verify(
        endorsements=der(chip_certificate(end=-SKEW), INTERMEDIATE, ROOT)
    ),
    "a certificate that will start within the clocks' skew": lambda: verify(
        endorsements=der(chip_certificate(start=SKEW), INTERMEDIATE, ROOT)
    ),
    "threads shared, where that is allowed": lambda: verify(
        report(policy=ALWAYS | SMT), policy=allowing("smt")
    ),
    "a migration agent, where that is allowed": lambda: verify(
        report(policy=ALWAYS | MIGRATION), policy=allowing("migration")
    ),
    "a report from below VMPL 0, where that is allowed": lambda: verify(
        report(vmpl=3), policy=allowing("vmpl")
    ),
    "stricter bits of the policy": lambda: verify(report(policy=ALWAYS | 0x3F << 20)),
    "exactly the lowest TCB": lambda: verify(policy=least()),
    "more than the lowest TCB": lambda: verify(policy=least(tee=0, snp=1)),
    "every TCB, where that is allowed by name": lambda: verify(policy=allowing("any-tcb")),
    "Turin, with the part that only it has": lambda: turin(policy=least(fmc=9)),
    "Turin and every TCB": lambda: turin(policy=allowing("any-tcb")),
    "a chip that is listed": lambda: verify(
        policy=replace(POLICY, chip_ids=(b"y" * 64, CHIP)),
    ),
    "a list that revokes nothing": lambda: listed(revoked()),
    "a list that revokes others": lambda: listed(revoked(0x10002, 0x20001)),
    "a list as PEM, with words around": lambda: listed(b"AMD's list\n" + revoked(form="PEM")),
    "the lists of several products": lambda: listed(
        revoked(0x10001, issuer="ARK-Genoa", form="PEM") + revoked(form="PEM")
    ),
    "a list that ended within the clocks' skew": lambda: listed(revoked(end=-SKEW)),
    "a list that will start within the clocks' skew": lambda: listed(revoked(start=SKEW)),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_accepted(what):
    assert ACCEPTED[what]().report_data == DATA


def turin(**changes):
    tcb = TCB | {"fmc": 9}
    versions = tcb_bytes(tcb, TURIN)
    fields = {"version": 3, "processor": TURIN_CHIP, "chip": b"12345678".ljust(64, b"\0")}
    fields |= dict.fromkeys(("current", "reported", "committed", "launch"), versions)
    certificate = chip_certificate(
        hardware=changes.pop("hardware", b"12345678"),
        tcb=changes.pop("tcb", tcb),
        product="Turin-B1",
    )
    policy = changes.pop("policy", least(fmc=9))
    return verify(
        report(**(fields | changes)),
        der(certificate, INTERMEDIATE, ROOT),
        roots={"Turin": pin(ROOT)},
        policy=policy,
    )


def revoked(*serials, issuer="ARK", key=None, start=-YEAR, end=YEAR, form="DER", **more):
    """A list as AMD's key service has it, in DER unless said otherwise."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(subject(issuer))
        .last_update(day(NOW + start))
        .next_update(day(NOW + end))
    )
    for extension, critical in more.get("extensions", ()):
        builder = builder.add_extension(extension, critical)
    for serial in serials:
        entry = x509.RevokedCertificateBuilder().serial_number(serial)
        for extension, critical in more.get("entry", ()):
            entry = entry.add_extension(extension, critical)
        builder = builder.add_revoked_certificate(entry.revocation_date(day(NOW - 9)).build())
    signed = builder.sign(
        key or rsa_key(issuer), more.get("hash", SHA384()), rsa_padding=more.get("scheme", PSS)
    )
    return signed.public_bytes(getattr(Encoding, form))


def listed(crl, *, endorsements=None, **changes):
    """Verifies with a policy that names a list."""
    policy = replace(POLICY, crl="amd.crl")
    given = {"crl": crl}
    return verify(endorsements=endorsements, **({"policy": policy, "collateral": given} | changes))


def test_turin_has_its_own_order_of_parts_and_shorter_ids():
    facts = dict(turin().facts)
    assert facts["product"] == "Turin"
    assert facts["launch tcb"] == "fmc 9, bootloader 3, tee 1, snp 200, microcode 115"


def resigned(certificate, old, new):
    """The same certificate with other bytes in it, signed again by the intermediate."""
    encoded, body = certificate.public_bytes(Encoding.DER), certificate.tbs_certificate_bytes
    assert body.count(old) == 1
    other = body.replace(old, new)
    signature = rsa_key("ASK").sign(other, PSS, SHA384())
    return encoded.replace(body, other).replace(certificate.signature, signature)


def test_a_chip_s_certificate_has_the_serial_number_zero_and_nobody_is_warned():
    """Warnings are errors here, so this fails if one gets out."""
    version = bytes.fromhex("a003020102")
    odd = resigned(CHIP_CERTIFICATE, version + b"\x02\x01\x01", version + b"\x02\x01\x00")
    before = list(warnings.filters)
    with pytest.warns(UserWarning, match="serial number"):
        assert x509.load_der_x509_certificate(odd).serial_number == 0
    endorsements = (odd, *der(INTERMEDIATE, ROOT))
    verify(endorsements=endorsements)
    listed(revoked(1), endorsements=endorsements)
    assert list(warnings.filters) == before

    # AMD's lists name no chip. One that did so would revoke them all.
    with pytest.raises(AttestationRefused, match="number 0x0") as refused:
        listed(renumbered(revoked(0x55)), endorsements=endorsements)
    assert refused.value.reason == Refusal.REVOKED


def sequence(content):
    size = len(content).to_bytes(2, "big").lstrip(b"\0")
    long = bytes([0x80 + len(size)]) if len(content) >= 0x80 else b""
    return b"\x30" + long + size + content


def without_an_end(crl):
    """The same list, which does not say when the next one comes."""
    parsed = x509.load_der_x509_crl(crl)
    body, start = parsed.tbs_certlist_bytes, parsed.last_update_utc
    head, tail = body.split(f"{start:%y%m%d%H%M%SZ}".encode())
    header = 2 + max(0, body[1] - 0x80)
    other = sequence(head[header:] + f"{start:%y%m%d%H%M%SZ}".encode() + tail[2 + tail[1] :])
    signature = rsa_key("ARK").sign(other, PSS, SHA384())
    rest = crl[crl.index(body) + len(body) :].replace(parsed.signature, signature)
    return sequence(other + rest)


def renumbered(crl):
    """The same list, for the serial number 0 in place of 0x55."""
    parsed = x509.load_der_x509_crl(crl)
    body = parsed.tbs_certlist_bytes
    assert body.count(b"\x02\x01\x55") == 1
    other = body.replace(b"\x02\x01\x55", b"\x02\x01\x00")
    signature = rsa_key("ARK").sign(other, PSS, SHA384())
    return crl.replace(body, other).replace(parsed.signature, signature)


# What is refused. Every line changes one thing of what is accepted.

ELSEWHERE = [x509.DirectoryName(subject("ASK"))]
PARTIAL = x509.IssuingDistributionPoint(
    full_name=None,
    relative_name=None,
    only_contains_user_certs=True,
    only_contains_ca_certs=False,
    only_some_reasons=None,
    indirect_crl=False,
    only_contains_attribute_certs=False,
)

REFUSED = {
    "nothing at all": (lambda: verify(b""), Refusal.MALFORMED, "got 0"),
    "a report that is a byte short": (
        lambda: verify(report()[:-1]),
        Refusal.MALFORMED,
        "1184 bytes; got 1183",
    ),
    "a report of a version from the future": (
        lambda: verify(report(version=6)),
        Refusal.MALFORMED,
        "version 6",
    ),
    "a report of a version from before SNP": (
        lambda: verify(report(version=1)),
        Refusal.MALFORMED,
        "version 1",
    ),
    "a policy without its constant bit": (
        lambda: verify(report(policy=0)),
        Refusal.MALFORMED,
        "always set",
    ),
    "words after the signature": (
        lambda: verify(changed(report(), 0x4A0 - 1)),
        Refusal.MALFORMED,
        "after the signature",
    ),
    "no certificates": (
        lambda: verify(endorsements=()),
        Refusal.COLLATERAL,
        "none of 0 certificates is the VCEK for chip 000102",
    ),
    "the certificate of another chip": (
        lambda: verify(endorsements=der(chip_certificate(hardware=b"x" * 64), INTERMEDIATE, ROOT)),
        Refusal.COLLATERAL,
        "none of 3",
    ),
    "the certificate of an older TCB": (
        lambda: verify(
            endorsements=der(chip_certificate(tcb=TCB | {"microcode": 114}), INTERMEDIATE, ROOT)
        ),
        Refusal.COLLATERAL,
        "microcode 115",
    ),
    "a certificate that states no TCB": (
        lambda: verify(endorsements=der(chip_certificate(tcb={}), INTERMEDIATE, ROOT)),
        Refusal.COLLATERAL,
        "none of 3",
    ),
    "a chip's key where the report names a cloud's": (
        lambda: verify(report(keys=VLEK)),
        Refusal.COLLATERAL,
        "is the VLEK for bootloader 3",
    ),
    "a cloud's key where the report names a chip's": (
        lambda: verify(endorsements=der(CLOUD_CERTIFICATE, INTERMEDIATE, ROOT)),
        Refusal.COLLATERAL,
        "is the VCEK",
    ),
    "a cloud's key that is a chip's as well": (
        lambda: verify(
            report(keys=VLEK), der(chip_certificate(cloud="CN=cloud"), INTERMEDIATE, ROOT)
        ),
        Refusal.COLLATERAL,
        "is the VLEK",
    ),
    "a chip's key that is a cloud's as well": (
        lambda: verify(endorsements=der(chip_certificate(cloud="CN=cloud"), INTERMEDIATE, ROOT)),
        Refusal.COLLATERAL,
        "is the VCEK",
    ),
    "a chip's key on another curve": (
        lambda: verify(
            endorsements=der(
                chip_certificate(key=ec.generate_private_key(ec.SECP256R1())), INTERMEDIATE, ROOT
            )
        ),
        Refusal.COLLATERAL,
        "none of 3",
    ),
    "a certificate that is none": (
        lambda: verify(endorsements=(b"\x30\x03abc", *der(*CHAIN))),
        Refusal.COLLATERAL,
        "is none",
    ),
    "a certificate that the parser frowns at": (
        lambda: verify(endorsements=der(*CHAIN, authority("odd", "ARK", country="Nowhere"))),
        Refusal.COLLATERAL,
        "is none",
    ),
    "a table that points outside itself": (
        lambda: verify(endorsements=(*der(*CHAIN), b"\xca" * 16 + struct.pack("<II", 1, 24))),
        Refusal.COLLATERAL,
        "is none",
    ),
    "a table that breaks off": (
        lambda: verify(endorsements=(*der(*CHAIN), b"\xca" * 23)),
        Refusal.COLLATERAL,
        "is none",
    ),
    "a table without an end": (
        lambda: verify(endorsements=(*der(*CHAIN), (b"\xca" * 16 + struct.pack("<II", 0, 1)) * 99)),
        Refusal.COLLATERAL,
        "is none",
    ),
    "more certificates than anybody needs": (
        lambda: verify(endorsements=der(*CHAIN) * 11),
        Refusal.COLLATERAL,
        "more than 32",
    ),
    "more bytes than anybody needs": (
        lambda: verify(endorsements=(bytes(1 << 18), *der(*CHAIN))),
        Refusal.COLLATERAL,
        "more than 262144 bytes",
    ),
    "a report that its host left unsigned": (
        lambda: verify(report(keys=UNSIGNED)),
        Refusal.SIGNATURE,
        "left unsigned",
    ),
    "a signature algorithm that nobody knows": (
        lambda: verify(report(algorithm=2)),
        Refusal.SIGNATURE,
        "algorithm 2",
    ),
    "another measurement under the same signature": (
        lambda: verify(
            statement(measurement=b"x" * 48) + report()[0x2A0:],
        ),
        Refusal.SIGNATURE,
        "VCEK's",
    ),
    "another challenge under the same signature": (
        lambda: verify(statement(data=b"e" * 64) + report()[0x2A0:]),
        Refusal.SIGNATURE,
        "VCEK's",
    ),
    "a report that another chip signed": (
        lambda: verify(sign(statement(), chip_key("another"))),
        Refusal.SIGNATURE,
        "VCEK's",
    ),
    "a signature of zeros": (
        lambda: verify(statement().ljust(0x4A0, b"\0")),
        Refusal.SIGNATURE,
        "VCEK's",
    ),
    "a signature of numbers that are too long": (
        lambda: verify(changed(report(), 0x2A0 + 71)),
        Refusal.SIGNATURE,
        "VCEK's",
    ),
    "a root that is not pinned": (
        lambda: verify(roots={"Milan": bytes(32)}),
        Refusal.ROOT,
        "end at 'CN=ARK'",
    ),
    "no roots at all": (lambda: verify(roots={}), Refusal.ROOT, "end at"),
    "an impostor in place of the root": (
        lambda: verify(
            endorsements=der(
                CHIP_CERTIFICATE,
                authority("ASK", "ARK", issuer_key=rsa_key("impostor")),
                authority("ARK", "ARK", key=rsa_key("impostor"), issuer_key=rsa_key("impostor")),
            )
        ),
        Refusal.ROOT,
        "end at 'CN=ARK'",
    ),
    "the root's key under another's signature": (
        lambda: verify(
            endorsements=der(CHIP_CERTIFICATE, INTERMEDIATE, authority("ARK", "another"))
        ),
        Refusal.ROOT,
        "end at 'CN=ARK'",
    ),
    "no root among the certificates": (
        lambda: verify(endorsements=der(CHIP_CERTIFICATE, INTERMEDIATE)),
        Refusal.ROOT,
        "issuer of 'CN=ASK'",
    ),
    "no intermediate among the certificates": (
        lambda: verify(endorsements=der(CHIP_CERTIFICATE, ROOT)),
        Refusal.ROOT,
        "issuer of 'CN=VEK'",
    ),
    "an intermediate that is no authority": (
        lambda: verify(endorsements=der(CHIP_CERTIFICATE, authority("ASK", "ARK", ca=False), ROOT)),
        Refusal.ROOT,
        "issuer of 'CN=VEK'",
    ),
    "an intermediate that may not issue": (
        lambda: verify(
            endorsements=der(CHIP_CERTIFICATE, authority("ASK", "ARK", issue=False), ROOT)
        ),
        Refusal.ROOT,
        "issuer of 'CN=VEK'",
    ),
    "an intermediate that says nothing of what it may": (
        lambda: verify(
            endorsements=der(
                CHIP_CERTIFICATE, certify("ASK", rsa_key("ASK"), "ARK", rsa_key("ARK")), ROOT
            )
        ),
        Refusal.ROOT,
        "issuer of 'CN=VEK'",
    ),
    "an intermediate signed as AMD never signs": (
        lambda: verify(
            endorsements=der(
                CHIP_CERTIFICATE, authority("ASK", "ARK", scheme=padding.PKCS1v15()), ROOT
            )
        ),
        Refusal.ROOT,
        "issuer of 'CN=ASK'",
    ),
    "a chip's certificate by an intermediate of somebody else": (
        lambda: verify(
            endorsements=der(chip_certificate(issuer_key=rsa_key("other")), INTERMEDIATE, ROOT)
        ),
        Refusal.ROOT,
        "issuer of 'CN=VEK'",
    ),
    "a chip's certificate by another chip": (
        lambda: verify(
            endorsements=der(
                chip_certificate(
                    issuer="VEK", issuer_key=chip_key("another"), scheme=None, name="forged"
                ),
                chip_certificate(key=chip_key("another")),
                INTERMEDIATE,
                ROOT,
            )
        ),
        Refusal.ROOT,
        "issuer of 'CN=forged'",
    ),
    "a chip's certificate that has ended": (
        lambda: verify(endorsements=der(chip_certificate(end=-SKEW - 1), INTERMEDIATE, ROOT)),
        Refusal.VALIDITY,
        "'CN=VEK' is valid from",
    ),
    "a chip's certificate of tomorrow": (
        lambda: verify(endorsements=der(chip_certificate(start=SKEW + 1), INTERMEDIATE, ROOT)),
        Refusal.VALIDITY,
        "'CN=VEK' is valid from",
    ),
    "an intermediate that has ended": (
        lambda: verify(
            endorsements=der(CHIP_CERTIFICATE, authority("ASK", "ARK", end=-SKEW - 1), ROOT)
        ),
        Refusal.VALIDITY,
        "'CN=ASK' is valid from",
    ),
    "a root that has ended": (
        lambda: verify(
            endorsements=der(CHIP_CERTIFICATE, INTERMEDIATE, authority("ARK", "ARK", end=-SKEW - 1))
        ),
        Refusal.VALIDITY,
        "'CN=ARK' is valid from",
    ),
    "a processor of another product than the root's": (
        lambda: verify(report(version=3, processor=GENOA)),
        Refusal.COLLATERAL,
        "another processor",
    ),
    "a processor that nobody knows": (
        lambda: verify(report(version=3, processor=b"\x17\x31\x00")),
        Refusal.COLLATERAL,
        "another processor",
    ),
    "a report that does not say it is Turin's": (
        lambda: verify(roots={"Turin": pin(ROOT)}),
        Refusal.COLLATERAL,
        "another processor",
    ),
    "a chip's certificate for another product": (
        lambda: verify(endorsements=der(chip_certificate(product="Genoa-B1"), INTERMEDIATE, ROOT)),
        Refusal.COLLATERAL,
        "another product",
    ),
    "a product's name in another alphabet": (
        lambda: verify(endorsements=der(chip_certificate(text=0x0C), INTERMEDIATE, ROOT)),
        Refusal.COLLATERAL,
        "another product",
    ),
    "a chip's certificate for no product": (
        lambda: verify(endorsements=der(chip_certificate(product=None), INTERMEDIATE, ROOT)),
        Refusal.COLLATERAL,
        "another product",
    ),
    "Turin with another first part of its TCB": (
        lambda: turin(tcb=TCB | {"fmc": 8}),
        Refusal.COLLATERAL,
        "fmc 9",
    ),
    "Turin with another chip": (
        lambda: turin(hardware=b"87654321"),
        Refusal.COLLATERAL,
        "none of 3",
    ),
    "Turin below the lowest TCB": (
        lambda: turin(policy=least(fmc=9, tee=2)),
        Refusal.TCB,
        "in its reported TCB tee is 1; the policy asks for 2",
    ),
    "Turin below the lowest of the part that only it has": (
        lambda: turin(policy=least(fmc=10)),
        Refusal.TCB,
        "in its reported TCB fmc is 9; the policy asks for 10",
    ),
    "another product than Turin where Turin's part is asked for": (
        lambda: verify(policy=least(fmc=1)),
        Refusal.TCB,
        "in its reported TCB fmc is 0; the policy asks for 1",
    ),
    "a machine that can be debugged": (
        lambda: verify(report(policy=ALWAYS | DEBUG)),
        Refusal.DEBUG,
        "its host can read it",
    ),
    "a machine that can be debugged, whatever is allowed": (
        lambda: verify(report(policy=ALWAYS | DEBUG), policy=allowing(*snp.ALLOWANCES)),
        Refusal.DEBUG,
        "its host can read it",
    ),
    "a machine with a migration agent": (
        lambda: verify(report(policy=ALWAYS | MIGRATION), policy=allowing("smt", "vmpl")),
        Refusal.PLATFORM,
        'add "migration" to allow',
    ),
    "a machine that shares its cores": (
        lambda: verify(report(policy=ALWAYS | SMT), policy=allowing("migration", "vmpl")),
        Refusal.PLATFORM,
        'add "smt" to allow',
    ),
    "a policy with a bit that nobody knows": (
        lambda: verify(report(policy=ALWAYS | 1 << 40), policy=allowing(*snp.ALLOWANCES)),
        Refusal.PLATFORM,
        "bits 0x10000000000",
    ),
    "a report from below VMPL 0": (
        lambda: verify(report(vmpl=1), policy=allowing("smt", "migration")),
        Refusal.PLATFORM,
        "VMPL 1",
    ),
    "a report that the host asked for": (
        lambda: verify(report(vmpl=0xFFFFFFFF), policy=allowing(*snp.ALLOWANCES)),
        Refusal.PLATFORM,
        "the host asked",
    ),
    "a TCB below the lowest": (
        lambda: verify(policy=least(microcode=116)),
        Refusal.TCB,
        "in its reported TCB microcode is 115; the policy asks for 116",
    ),
    "a machine that was started by a firmware below the lowest": (
        lambda: verify(
            report(launch=tcb_bytes(TCB | {"snp": 199})),
            policy=least(),
        ),
        Refusal.TCB,
        "in its launch TCB snp is 199; the policy asks for 200",
    ),
    "a chip that is not listed": (
        lambda: verify(policy=replace(POLICY, chip_ids=(b"y" * 64,))),
        Refusal.PLATFORM,
        CHIP.hex(),
    ),
    "a masked chip where chips are listed": (
        lambda: verify(report(chip=bytes(64)), policy=replace(POLICY, chip_ids=(CHIP,))),
        Refusal.PLATFORM,
        "masked by its host",
    ),
    "code that the policy does not list": (
        lambda: verify(policy=replace(POLICY, measurement=(b"x" * 48,))),
        Refusal.MEASUREMENT,
        MEASUREMENT.hex(),
    ),
    "any code, where the policy lists none": (
        lambda: verify(policy=replace(POLICY, measurement=())),
        Refusal.MEASUREMENT,
        f'[snp]: measurement = ["{MEASUREMENT.hex()}"]',
    ),
    "everything, where the policy is empty": (
        lambda: verify(policy=SnpPolicy()),
        Refusal.TCB,
        "the policy does not say",
    ),
    "any TCB, where the policy states none": (
        lambda: verify(policy=unstated()),
        Refusal.TCB,
        "[snp]: min_tcb = { bootloader = 3, tee = 1, snp = 200, microcode = 115 }",
    ),
    "the same, whatever else is allowed": (
        lambda: verify(policy=unstated(allow=("migration", "smt", "vmpl"))),
        Refusal.TCB,
        "this platform reports bootloader 3, tee 1, snp 200, microcode 115",
    ),
    "Turin, where the policy does not state the part that only it has": (
        lambda: turin(policy=least()),
        Refusal.TCB,
        "[snp]: min_tcb = { fmc = 9, bootloader = 3, tee = 1, snp = 200, microcode = 115 }",
    ),
    "a revoked intermediate": (
        lambda: listed(revoked(0x10001)),
        Refusal.REVOKED,
        "'CN=ASK', number 0x10001",
    ),
    "a revoked root": (lambda: listed(revoked(0x10000)), Refusal.REVOKED, "'CN=ARK'"),
    "a revoked key of a chip, if it had a number": (
        lambda: listed(revoked(1)),
        Refusal.REVOKED,
        "'CN=VEK', number 0x1",
    ),
    "an intermediate that is the last of many": (
        lambda: listed(revoked(*range(0x20000, 0x20040), 0x10001)),
        Refusal.REVOKED,
        "'CN=ASK'",
    ),
    "an intermediate that the second list revokes": (
        lambda: listed(revoked(form="PEM") + revoked(0x10001, form="PEM")),
        Refusal.REVOKED,
        "'CN=ASK'",
    ),
    "an intermediate on hold": (
        lambda: listed(
            revoked(0x10001, entry=[(x509.CRLReason(x509.ReasonFlags.certificate_hold), False)])
        ),
        Refusal.REVOKED,
        "'CN=ASK'",
    ),
    "a list that is named and not at hand": (
        lambda: listed(b"", collateral={}),
        Refusal.COLLATERAL,
        "it is not at hand",
    ),
    "an empty file": (lambda: listed(b""), Refusal.COLLATERAL, "it cannot be read"),
    "a list that is none": (lambda: listed(der(ROOT)[0]), Refusal.COLLATERAL, "cannot be read"),
    "a file of certificates": (lambda: listed(pem(ROOT)), Refusal.COLLATERAL, "cannot be read"),
    "a list that is cut off": (lambda: listed(revoked()[:-1]), Refusal.COLLATERAL, "cannot be"),
    "a list that is cut off behind a good one": (
        lambda: listed(revoked(form="PEM") + revoked(0x10001, form="PEM")[:200]),
        Refusal.COLLATERAL,
        "cannot be read",
    ),
    "a list of another root": (
        lambda: listed(revoked(issuer="ARK-Genoa")),
        Refusal.COLLATERAL,
        "there is none of 'CN=ARK' in it",
    ),
    "a list that somebody else signed in the root's name": (
        lambda: listed(revoked(key=rsa_key("impostor"))),
        Refusal.COLLATERAL,
        "it is not signed by 'CN=ARK'",
    ),
    "a forged list beside a good one": (
        lambda: listed(revoked(form="PEM") + revoked(key=rsa_key("impostor"), form="PEM")),
        Refusal.COLLATERAL,
        "it is not signed",
    ),
    "a list that the intermediate signed": (
        lambda: listed(revoked(issuer="ASK")),
        Refusal.COLLATERAL,
        "there is none of 'CN=ARK' in it",
    ),
    "a list that was changed": (
        lambda: listed(changed(revoked(0x10001), 150)),
        Refusal.COLLATERAL,
        "the revocation list (crl)",
    ),
    "a list with another hash": (
        lambda: listed(revoked(hash=SHA256())),
        Refusal.COLLATERAL,
        "it is not signed",
    ),
    "a list with another padding": (
        lambda: listed(revoked(scheme=padding.PKCS1v15())),
        Refusal.COLLATERAL,
        "it is not signed",
    ),
    "a list of a root that may sign none": (
        lambda: listed(
            revoked(), endorsements=der(*CHAIN[:2], authority("ARK", "ARK", revoke=False))
        ),
        Refusal.COLLATERAL,
        "may not issue it",
    ),
    "a list for a part of the certificates only": (
        lambda: listed(revoked(extensions=[(PARTIAL, True)])),
        Refusal.COLLATERAL,
        "critical extension",
    ),
    "a list that names another issuer's certificates": (
        lambda: listed(revoked(9, entry=[(x509.CertificateIssuer(ELSEWHERE), True)])),
        Refusal.COLLATERAL,
        "critical extension",
    ),
    "a list that is out of date": (
        lambda: listed(revoked(end=-SKEW - 1)),
        Refusal.VALIDITY,
        "the revocation list of 'CN=ARK' is valid from",
    ),
    "a list of the future": (
        lambda: listed(revoked(start=SKEW + 1)),
        Refusal.VALIDITY,
        "the revocation list of 'CN=ARK' is valid from",
    ),
    "a list without an end": (
        lambda: listed(without_an_end(revoked())),
        Refusal.VALIDITY,
        "an unsaid day",
    ),
    "an old list beside a new one": (
        lambda: listed(revoked(form="PEM") + revoked(end=-SKEW - 1, form="PEM")),
        Refusal.VALIDITY,
        "the revocation list",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    attempt, reason, words = REFUSED[what]
    with pytest.raises(AttestationRefused) as refused:
        attempt()
    assert refused.value.reason == reason, str(refused.value)
    assert words in str(refused.value)


def test_a_name_in_a_certificate_cannot_write_to_the_terminal():
    root = authority("\x1b[2J\n" + "x" * 50, "\x1b[2J\n" + "x" * 50)
    intermediate = authority("ASK", "\x1b[2J\n" + "x" * 50)
    with pytest.raises(AttestationRefused) as refused:
        verify(endorsements=der(CHIP_CERTIFICATE, intermediate, root))
    assert refused.value.reason == Refusal.ROOT
    assert str(refused.value).isprintable()


def test_only_known_allowances_can_be_asked_for():
    SnpPolicy(allow=snp.ALLOWANCES)
    known = "any-tcb, migration, smt, vmpl"
    with pytest.raises(ConfigError, match=f"'debug' is not known; there are {known}"):
        SnpPolicy(allow=("smt", "debug"))


# Bytes from anybody.


def refuses(attempt, *arguments):
    """Passes if nothing is proved and nothing but a refusal gets out."""
    with pytest.raises(AttestationRefused):
        attempt(*arguments)


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


@given(st.one_of(st.binary(max_size=0x500), st.binary(min_size=0x4A0, max_size=0x4A0)))
def test_random_bytes_are_no_report(data):
    refuses(verify, data)


DOCUMENT, CERTIFICATES = report(), der(*CHAIN)


@given(mutated(DOCUMENT))
def test_a_mutated_report_is_refused(data):
    if data != DOCUMENT:
        refuses(verify, data)


@given(st.sampled_from(range(3)), st.data())
def test_a_mutated_certificate_is_refused(which, data):
    other = data.draw(mutated(CERTIFICATES[which]))
    endorsements = [*CERTIFICATES[:which], other, *CERTIFICATES[which + 1 :]]
    if other != CERTIFICATES[which]:
        refuses(verify, DOCUMENT, tuple(endorsements))


@given(mutated(table(*CERTIFICATES)))
def test_a_mutated_table_is_read_or_refused(data):
    """A change of a GUID, or of what no entry points to, does not matter."""
    with contextlib.suppress(AttestationRefused):
        verify(DOCUMENT, (data,))


REVOKED = revoked(0x10001)


@given(st.one_of(st.binary(max_size=200), mutated(REVOKED)))
def test_a_mutated_list_is_refused(data):
    refuses(listed, data)


@given(st.lists(st.binary(max_size=200), max_size=3), st.binary(max_size=200))
def test_random_certificates_are_refused(endorsements, file):
    refuses(lambda: verify(DOCUMENT, tuple(endorsements), collateral={"certificates": file}))


def sweep(data, attempt, masks, step=1):
    """The offsets at which a byte can be changed and nobody minds."""
    passed = set()
    for at in range(0, len(data), step):
        for mask in masks:
            try:
                attempt(changed(data, at, mask))
            except AttestationRefused:
                continue
            passed.add(at)
    return passed


def test_every_byte_of_a_report_matters():
    assert sweep(DOCUMENT, verify, [0x10]) == set()


# Recorded evidence.

VECTORS = Path(__file__).parents[2] / "vectors" / "evidence" / "snp"
MILAN_TCB = SnpTcb(bootloader=3, tee=0, snp=8, microcode=115)
LOOSE = ("smt", "vmpl")  # both machines share cores, and the cloud asks at VMPL 1
MACHINES = {
    "a chip's key": ("test-report.bin", "test-vcek.der", "ask_ark_milan.pem", 1_700_000_000),
    "a cloud's key": (
        "test-vlek-report.bin",
        "test-vlek.der",
        "ask_ark_milan_vlek.pem",
        1_740_000_000,
    ),
}


@cache
def machine(name):
    """The report, the three certificates as DER, and a time at which all are valid."""
    document, key, file, now = MACHINES[name]
    chain = x509.load_pem_x509_certificates((VECTORS / file).read_bytes())
    return (VECTORS / document).read_bytes(), ((VECTORS / key).read_bytes(), *der(*chain)), now


def verify_recorded(name, *, document=None, endorsements=None, **changes):
    own, certificates, now = machine(name)
    policy = SnpPolicy((read(own).measurement("measurement"),), min_tcb=MILAN_TCB, allow=LOOSE)
    settings = {"collateral": {}, "policy": policy, "now": now, "skew": SKEW}
    evidence = Evidence("snp", document or own, endorsements or certificates)
    return snp.verify(evidence, **(settings | changes))


@pytest.mark.parametrize("name", MACHINES)
def test_a_recorded_report_is_proved(name):
    facts = dict(verify_recorded(name).facts)
    assert facts["product"] == "Milan"
    assert facts["signed by"] == ("VCEK" if name == "a chip's key" else "VLEK")


@pytest.mark.parametrize("name", MACHINES)
def test_a_recorded_report_is_proved_from_a_table_and_a_file(name):
    _, (key, intermediate, root), _ = machine(name)
    chain = pem(x509.load_der_x509_certificate(intermediate), x509.load_der_x509_certificate(root))
    claims = verify_recorded(name, endorsements=(table(key),), collateral={"certificates": chain})
    assert claims == verify_recorded(name)


@pytest.mark.parametrize("name", MACHINES)
def test_a_recorded_report_under_a_policy_that_states_no_tcb_says_which_line_to_write(name):
    policy = SnpPolicy((read(machine(name)[0]).measurement("measurement"),), allow=LOOSE)
    with pytest.raises(AttestationRefused) as refused:
        verify_recorded(name, policy=policy)
    assert refused.value.reason == Refusal.TCB
    advice = tomllib.loads(str(refused.value).split("write under [snp]:")[1])
    stated = SnpTcb(**advice["min_tcb"])
    assert stated.microcode == (115 if name == "a chip's key" else 217)
    verify_recorded(name, policy=replace(policy, min_tcb=stated))


@pytest.mark.parametrize("name", MACHINES)
def test_amd_numbers_no_chip_and_its_root_alone_may_sign_lists(name):
    """What a list can revoke: AMD's intermediates, and no chip."""
    signer, intermediate, root = from_der(machine(name)[1])
    assert signer.serial == 0
    assert intermediate.serial != root.serial != 0
    assert root.usage is not None
    assert root.usage.crl_sign
    assert intermediate.usage is not None
    assert not intermediate.usage.crl_sign


@pytest.mark.parametrize("name", MACHINES)
def test_a_recorded_report_is_refused_under_a_list_that_amd_did_not_sign(name):
    _, root = from_der(machine(name)[1][1:])
    forged = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(root.parsed.subject)
        .last_update(day(machine(name)[2] - YEAR))
        .next_update(day(machine(name)[2] + YEAR))
        .sign(rsa_key("impostor"), SHA384(), rsa_padding=PSS)
    )
    policy = SnpPolicy(min_tcb=MILAN_TCB, allow=LOOSE, crl="amd.crl")
    with pytest.raises(AttestationRefused, match="it is not signed by 'CN=ARK-Milan") as refused:
        verify_recorded(name, policy=policy, collateral={"crl": forged.public_bytes(Encoding.DER)})
    assert refused.value.reason == Refusal.COLLATERAL


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize(
    "file", ["ask_ark_genoa.pem", "ask_ark_genoa_vlek.pem", "ask_ark_turin_vcek.pem"]
)
def test_a_recorded_report_is_refused_under_another_product_s_chain(name, file):
    chain = (VECTORS / file).read_bytes()
    with pytest.raises(AttestationRefused) as refused:
        verify_recorded(name, endorsements=(machine(name)[1][0], chain))
    assert refused.value.reason == Refusal.ROOT


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize(("years", "reason"), [(-10, Refusal.VALIDITY), (50, Refusal.VALIDITY)])
def test_a_recorded_report_has_its_time(name, years, reason):
    with pytest.raises(AttestationRefused) as refused:
        verify_recorded(name, now=machine(name)[2] + years * YEAR)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("name", "allow", "word"),
    [
        ("a chip's key", (), "smt"),
        ("a cloud's key", (), "smt"),
        ("a cloud's key", ("smt",), "vmpl"),
    ],
)
def test_a_recorded_machine_needs_its_allowances(name, allow, word):
    measurement = read(machine(name)[0]).measurement("measurement")
    with pytest.raises(AttestationRefused, match=f'add "{word}"') as refused:
        verify_recorded(name, policy=SnpPolicy(measurement=(measurement,), allow=allow))
    assert refused.value.reason == Refusal.PLATFORM


@pytest.mark.parametrize(
    ("product", "files"),
    [
        ("Milan", ["ask_ark_milan.pem", "ask_ark_milan_vlek.pem"]),
        ("Genoa", ["ask_ark_genoa.pem", "ask_ark_genoa_vlek.pem"]),
        ("Turin", ["ask_ark_turin_vcek.pem"]),
    ],
)
def test_the_pinned_roots_are_amd_s(product, files):
    for file in files:
        intermediate, root = x509.load_pem_x509_certificates((VECTORS / file).read_bytes())
        assert snp.AMD_ROOTS[product] == pin(root)
        intermediate.verify_directly_issued_by(root)
        root.verify_directly_issued_by(root)
    assert root.fingerprint(SHA256()) != snp.AMD_ROOTS[product]


@pytest.mark.parametrize("name", MACHINES)
def test_every_byte_of_a_recorded_report_matters(name):
    document = machine(name)[0]
    assert sweep(document, lambda data: verify_recorded(name, document=data), [0x01]) == set()


def sweep_certificates(name, masks, step):
    """By certificate: the offsets that do not matter, counted from its signature."""
    certificates = machine(name)[1]
    for which, certificate in enumerate(certificates):
        others = partial(_replaced, certificates, which)
        passed = sweep(
            certificate,
            lambda data, others=others: verify_recorded(name, endorsements=others(data)),
            masks,
            step,
        )
        yield {at - (len(certificate) - 512) for at in passed}


def _replaced(certificates, which, data):
    return (*certificates[:which], data, *certificates[which + 1 :])


@pytest.mark.parametrize("name", MACHINES)
def test_bytes_of_recorded_certificates_matter(name):
    for passed in sweep_certificates(name, [0x10], 11):
        assert passed == set()


# DER puts the number of unused bits, here 0, in front of a signature. Nothing signs that number,
# and 1 is as good where the signature's last bit is a zero: its bytes stay the same.
UNUSED_BITS = {-1}


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
def test_every_byte_of_the_recorded_certificates_matters(name, scale):
    for passed in sweep_certificates(name, [0x01], scale(4, 1)):
        assert passed <= UNUSED_BITS

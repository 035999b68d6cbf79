"""Certificates from anybody: what is read, what is refused, and that nobody else notices."""

import datetime
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from ostraka.attestation import certificates
from ostraka.attestation.certificates import from_der, from_der_or_pem
from ostraka.errors import AttestationRefused, Refusal

NOW, HOUR = 1_700_000_000, 3600
VERSION_3 = bytes.fromhex("a003020102")


@cache
def key(name):
    return ec.generate_private_key(ec.SECP256R1() if name == "small" else ec.SECP384R1())


def day(seconds):
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def subject(name, country=None):
    names = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if country:
        with warnings.catch_warnings(action="ignore"):
            names.append(x509.NameAttribute(NameOID.COUNTRY_NAME, country, _validate=False))
    return x509.Name(names)


def certify(name, issuer, *, ca=None, issue=None, length=None, **more):
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject(name, more.get("country")))
        .issuer_name(subject(issuer))
        .public_key(key(name).public_key())
        .serial_number(1)
        .not_valid_before(day(NOW - HOUR))
        .not_valid_after(day(NOW + HOUR))
    )
    if ca is not None:
        basic = x509.BasicConstraints(ca=ca, path_length=length)
        builder = builder.add_extension(basic, critical=True)
    if issue is not None:
        builder = builder.add_extension(usage(issue), critical=True)
    signer, digest = more.get("signer") or key(issuer), more.get("digest") or SHA384()
    return builder.sign(signer, digest).public_bytes(Encoding.DER)


def usage(issue):
    others = [
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "crl_sign", "encipher_only", "decipher_only"),
    ]
    return x509.KeyUsage(key_cert_sign=issue, **dict.fromkeys(others, False))


def with_serial(certificate, value):
    assert certificate.count(VERSION_3 + b"\x02\x01\x01") == 1
    return certificate.replace(VERSION_3 + b"\x02\x01\x01", VERSION_3 + b"\x02\x01" + value)


def pem(*encoded):
    loaded = map(x509.load_der_x509_certificate, encoded)
    return b"".join(each.public_bytes(Encoding.PEM) for each in loaded)


def read(**settings):
    return from_der([certify("child", "parent", **settings)])[0]


PARENT, CHILD = certify("parent", "parent", ca=True, issue=True), certify("child", "parent")
SERIAL_0 = with_serial(CHILD, b"\x00")
FROWNED_AT = certify("odd", "parent", country="Nowhere")


# What is read.


def test_what_a_certificate_says():
    parent, child = from_der([PARENT, CHILD])
    assert (parent.name, child.name) == ("'CN=parent'", "'CN=child'")
    assert (child.start, child.end) == (NOW - HOUR, NOW + HOUR)
    assert parent.basic == x509.BasicConstraints(ca=True, path_length=None)
    assert parent.usage == usage(issue=True)
    assert (child.basic, child.usage, child.extensions) == (None, None, ())
    assert child.p384 == key("child").public_key()


def test_a_key_on_another_curve_signs_no_evidence():
    assert from_der([certify("small", "parent")])[0].p384 is None


def test_der_and_pem_are_read_in_their_order_and_no_further_than_asked():
    blobs = [CHILD, b"words\n" + pem(PARENT, CHILD), PARENT]
    names = [each.name for each in from_der_or_pem(blobs, most=9)]
    assert names == ["'CN=child'", "'CN=parent'", "'CN=child'", "'CN=parent'"]
    assert len(from_der_or_pem([*blobs, b"none"], most=4)) == 4


def test_where_only_der_will_do_pem_is_refused():
    with pytest.raises(ValueError, match="cannot be read"):
        from_der([pem(CHILD)])


def test_what_can_be_a_certificate():
    assert certificates.looks_encoded(CHILD)
    assert certificates.looks_encoded(b"words\n" + pem(CHILD))
    assert not certificates.looks_encoded(b"")
    assert not certificates.looks_encoded(b"words")
    assert not certificates.looks_encoded(b"\1\0" + pem(CHILD))


@given(st.lists(st.binary(max_size=80), min_size=1, max_size=3))
def test_random_bytes_are_no_certificates(blobs):
    with pytest.raises(ValueError, match="cannot be read"):
        from_der(blobs)
    with pytest.raises(ValueError, match="cannot be read"):
        from_der_or_pem(blobs, most=9)


# Who may issue, and who has.

MAY_ISSUE: dict[str, tuple[dict[str, Any], int, bool]] = {
    "an authority": ({"ca": True, "issue": True}, 3, True),
    "an authority with room for one more": ({"ca": True, "issue": True, "length": 1}, 1, True),
    "an authority with no room for two": ({"ca": True, "issue": True, "length": 1}, 2, False),
    "an authority whose key is for something else": ({"ca": True, "issue": False}, 0, False),
    "an authority that says nothing of its key": ({"ca": True}, 0, False),
    "no authority": ({"ca": False, "issue": True}, 0, False),
    "one that says only what its key is for": ({"issue": True}, 0, False),
    "one that says nothing": ({}, 0, False),
}


@pytest.mark.parametrize("what", MAY_ISSUE)
def test_who_may_issue(what):
    settings, between, expected = MAY_ISSUE[what]
    assert certificates.may_issue(read(**settings), between) is expected


ISSUED_BY = {
    "its issuer": (CHILD, PARENT, True),
    "a root by itself": (PARENT, PARENT, True),
    "a key of another": (certify("child", "parent", signer=key("another")), PARENT, False),
    "another name": (certify("child", "elsewhere", signer=key("parent")), PARENT, False),
    "its issuer, over a weaker digest": (
        certify("child", "parent", digest=SHA256()),
        PARENT,
        False,
    ),
    "itself": (CHILD, CHILD, False),
}


@pytest.mark.parametrize("what", ISSUED_BY)
def test_who_has_issued(what):
    child, issuer, expected = ISSUED_BY[what]
    assert certificates.is_issued_by(*from_der([child, issuer])) is expected


@pytest.mark.parametrize("now", [NOW - HOUR - 60, NOW, NOW + HOUR + 60])
def test_valid_within_the_skew_of_clocks(now):
    certificates.require_valid(from_der([CHILD]), now, skew=60)


@pytest.mark.parametrize("now", [NOW - HOUR - 61, NOW + HOUR + 61])
def test_not_valid_beyond_the_skew_of_clocks(now):
    with pytest.raises(AttestationRefused, match="'CN=child' is valid from 2023-11-14") as refused:
        certificates.require_valid(from_der([CHILD]), now, skew=60)
    assert refused.value.reason is Refusal.VALIDITY


# The parser's warnings. The caller's filters must neither decide anything nor be changed.


@pytest.mark.parametrize("action", ["error", "ignore", "always"])
def test_whatever_the_filters_a_serial_number_of_zero_is_read_and_nobody_is_warned(action):
    with warnings.catch_warnings(record=True, action=action) as seen:
        before = list(warnings.filters)
        assert from_der([SERIAL_0])[0].name == "'CN=child'"
        assert from_der_or_pem([SERIAL_0], most=1)[0].name == "'CN=child'"
        assert list(warnings.filters) == before
    assert seen == []


@pytest.mark.parametrize("action", ["error", "ignore", "always"])
def test_whatever_the_filters_what_the_parser_frowns_at_is_refused(action):
    with warnings.catch_warnings(record=True, action=action) as seen:
        before = list(warnings.filters)
        with pytest.raises(ValueError, match="cannot be read"):
            from_der([CHILD, FROWNED_AT])
        assert list(warnings.filters) == before
    assert seen == []


def test_warnings_of_others_go_their_way_meanwhile():
    def blobs():
        yield CHILD
        warnings.warn("a serial number of somebody else", stacklevel=1)
        yield CHILD

    with pytest.warns(UserWarning, match="somebody else"):
        assert len(from_der(blobs())) == 2


def test_threads_do_not_take_each_other_s_filters():
    """They take turns. Else the second would begin within the first and read after its end."""
    second_began, first_ended = threading.Event(), threading.Event()

    def blobs_of_second():
        second_began.set()
        first_ended.wait()
        yield SERIAL_0

    def blobs_of_first():
        reading = pool.submit(from_der, blobs_of_second())
        second_began.wait(0.1)  # in vain, if they take turns
        readings.append(reading)
        yield CHILD

    before = list(warnings.filters)
    readings: list[Any] = []
    with ThreadPoolExecutor(1) as pool:
        from_der(blobs_of_first())
        first_ended.set()
        assert len(readings.pop().result()) == 1
    assert list(warnings.filters) == before

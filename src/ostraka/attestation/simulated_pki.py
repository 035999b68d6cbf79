"""The keys and certificates of a simulated platform, in the form of Intel's hierarchy.

Everything follows from a seed and a validity: keys by HKDF, signatures by RFC 6979, serial numbers
from the keys. So a platform that was saved as its seed has the same certificates when it is loaded.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from ostraka.attestation.dcap import PROPERTIES

_LABEL = b"ostraka/simulated-key/v1:"
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256

# Intel's extension of a PCK certificate, 1.2.840.113741.1.13.1, as text and as DER.
_SGX_EXTENSION = x509.ObjectIdentifier("1.2.840.113741.1.13.1")
_SGX_ARC = bytes.fromhex("2a864886f84d010d01")
_BOOLEAN, _INTEGER, _OCTETS, _OID, _ENUMERATED, _SEQUENCE = 0x01, 0x02, 0x04, 0x06, 0x0A, 0x30


@dataclass(frozen=True)
class Validity:
    """The first and the last moment at which something is valid, in seconds since 1970."""

    start: int
    end: int

    @property
    def first(self) -> datetime:
        return datetime.fromtimestamp(self.start, UTC)

    @property
    def last(self) -> datetime:
        return datetime.fromtimestamp(self.end, UTC)


class SigningKey:
    """An ECDSA P-256 key that is derived from a seed and signs deterministically."""

    def __init__(self, seed: bytes, name: str) -> None:
        wide = HKDF(SHA256(), length=48, salt=None, info=_LABEL + name.encode()).derive(seed)
        scalar = 1 + int.from_bytes(wide, "big") % (_ORDER - 1)
        self.private = ec.derive_private_key(scalar, ec.SECP256R1())
        self.name = name

    def __repr__(self) -> str:
        return f"SigningKey({self.name!r}, <secret>)"

    @cached_property
    def public(self) -> bytes:
        """Returns the point: x and y, 32 bytes each."""
        numbers = self.private.public_key().public_numbers()
        return numbers.x.to_bytes(32, "big") + numbers.y.to_bytes(32, "big")

    @property
    def serial(self) -> int:
        """Returns a serial number, which X.509 wants to be positive and of at most 20 bytes."""
        return int.from_bytes(hashlib.sha256(self.public).digest()[:16], "big") | 1 << 128

    def sign(self, message: bytes) -> bytes:
        """Signs. Returns r and s, 32 bytes each, as quotes and collateral have them."""
        signature = self.private.sign(message, ec.ECDSA(SHA256(), deterministic_signing=True))
        r, s = decode_dss_signature(signature)
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")


@dataclass(frozen=True)
class Issuer:
    """A name and its key, which issue certificates and revocation lists."""

    name: str
    key: SigningKey

    @property
    def subject(self) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])

    def certify(
        self,
        subject: "Issuer",
        validity: Validity,
        *,
        path_length: int | None = None,
        extra: x509.ExtensionType | None = None,
    ) -> x509.Certificate:
        """Issues a certificate for a name. Only one with a path length may issue others."""
        authority = path_length is not None
        builder = (
            x509.CertificateBuilder()
            .issuer_name(self.subject)
            .subject_name(subject.subject)
            .public_key(subject.key.private.public_key())
            .serial_number(subject.key.serial)
            .not_valid_before(validity.first)
            .not_valid_after(validity.last)
            .add_extension(self._authority_key, critical=False)
            .add_extension(_subject_key(subject.key), critical=False)
            .add_extension(_usage(authority), critical=True)
            .add_extension(x509.BasicConstraints(authority, path_length), critical=True)
        )
        if extra is not None:
            builder = builder.add_extension(extra, critical=False)
        return builder.sign(self.key.private, SHA256(), ecdsa_deterministic=True)

    def revoke(self, serials: Iterable[int], validity: Validity) -> bytes:
        """Issues a revocation list in DER."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.subject)
            .last_update(validity.first)
            .next_update(validity.last)
            .add_extension(x509.CRLNumber(1), critical=False)
            .add_extension(self._authority_key, critical=False)
        )
        for serial in serials:
            entry = x509.RevokedCertificateBuilder().serial_number(serial)
            builder = builder.add_revoked_certificate(entry.revocation_date(validity.first).build())
        signed = builder.sign(self.key.private, SHA256(), ecdsa_deterministic=True)
        return signed.public_bytes(Encoding.DER)

    @property
    def _authority_key(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.private.public_key())


def _subject_key(key: SigningKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key.private.public_key())


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=not authority,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


@dataclass(frozen=True)
class PckExtension:
    """What a PCK certificate says of its platform.

    svns: the 16 component versions. properties: those of `dcap.PROPERTIES` that the platform has.
    """

    fmspc: bytes
    svns: bytes
    pce_svn: int
    properties: tuple[str, ...]

    def extension(self) -> x509.UnrecognizedExtension:
        return x509.UnrecognizedExtension(_SGX_EXTENSION, self._der())

    def _der(self) -> bytes:
        parts = (
            _entry((1,), _der(_OCTETS, bytes(16))),
            _entry((2,), self._tcb()),
            _entry((3,), _der(_OCTETS, bytes(2))),
            _entry((4,), _der(_OCTETS, self.fmspc)),
            _entry((5,), _der(_ENUMERATED, b"\1")),
            _entry((6,), _der(_OCTETS, bytes(16))),
            _entry((7,), self._configuration()),
        )
        return _der(_SEQUENCE, *parts)

    def _tcb(self) -> bytes:
        components = (_entry((2, i), _integer(svn)) for i, svn in enumerate(self.svns, 1))
        pce_svn = _entry((2, 17), _integer(self.pce_svn))
        return _der(_SEQUENCE, *components, pce_svn, _entry((2, 18), _der(_OCTETS, self.svns)))

    def _configuration(self) -> bytes:
        flags = (b"\xff" if name in self.properties else b"\0" for name in PROPERTIES)
        entries = (_entry((7, i), _der(_BOOLEAN, flag)) for i, flag in enumerate(flags, 1))
        return _der(_SEQUENCE, *entries)


def _entry(arcs: tuple[int, ...], value: bytes) -> bytes:
    return _der(_SEQUENCE, _der(_OID, _SGX_ARC + bytes(arcs)), value)


def _integer(value: int) -> bytes:
    return _der(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content

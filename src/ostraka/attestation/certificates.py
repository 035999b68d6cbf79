"""X.509 certificates, as AMD and AWS issue them for the keys that sign evidence.

A chain is followed by hand, because the library's verifier is made for the web and checks one
instant, where a policy allows for the skew of clocks.
"""

import hashlib
import re
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.utils import CryptographyDeprecationWarning

from ostraka.errors import AttestationRefused, Refusal

_DER = b"\x30"
_LONGEST_NAME = 128
_UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
    Warning,
)

_ONE_AT_A_TIME = threading.Lock()
_THIS_MODULE = re.escape(__name__) + r"\Z"


@dataclass(frozen=True)
class Certificate:
    """A certificate and what was read from it. Reading may fail; using it later does not."""

    parsed: x509.Certificate
    public: CertificatePublicKeyTypes
    extensions: tuple[x509.Extension[x509.ExtensionType], ...]
    basic: x509.BasicConstraints | None
    usage: x509.KeyUsage | None
    serial: int
    name: str  # escaped, so that it may be printed
    start: float
    end: float

    @property
    def p384(self) -> ec.EllipticCurvePublicKey | None:
        """Returns its key, if that is on the curve with which evidence is signed."""
        key = self.public
        if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1):
            return key
        return None


def from_der(blobs: Iterable[bytes]) -> tuple[Certificate, ...]:
    """Reads one certificate from each blob. Raises ValueError if one cannot be read."""
    with _strictly():
        return tuple(map(_inspect, map(x509.load_der_x509_certificate, blobs)))


def from_der_or_pem(blobs: Iterable[bytes], *, most: int) -> tuple[Certificate, ...]:
    """Reads the certificates in blobs of either form. Raises ValueError if one cannot be read.

    most: stops after this many, because a few bytes can name the same ones again and again.
    """
    with _strictly():
        parsed = (each for blob in blobs for each in _parse(blob))
        return tuple(map(_inspect, islice(parsed, most)))


def looks_encoded(blob: bytes) -> bool:
    """Tells whether it can be DER or PEM. PEM may have text around it, but no zeros."""
    return blob.startswith(_DER) or (b"-----BEGIN" in blob and b"\0" not in blob)


def may_issue(issuer: Certificate, between: int = 0) -> bool:
    """Tells whether it may issue. between: the number of authorities between it and the leaf."""
    if issuer.basic is None or not issuer.basic.ca:
        return False
    if issuer.usage is None or not issuer.usage.key_cert_sign:
        return False
    return issuer.basic.path_length is None or issuer.basic.path_length >= between


def is_issued_by(child: Certificate, issuer: Certificate) -> bool:
    """Checks the issuer's name, its signature, and SHA-384, which AMD and AWS always use."""
    try:
        child.parsed.verify_directly_issued_by(issuer.parsed)
        return isinstance(child.parsed.signature_hash_algorithm, SHA384)
    except (InvalidSignature, *_UNREADABLE):
        return False


def key_digest(certificate: Certificate) -> bytes:
    """Returns SHA-256 of its SubjectPublicKeyInfo, by which a root is pinned.

    A root that is issued again keeps its key, and a certificate's bytes can be changed by others:
    an ECDSA signature has a second form.
    """
    encoded = certificate.public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(encoded).digest()


def require_valid(chain: Iterable[Certificate], now: int, skew: int) -> None:
    """Raises AttestationRefused unless each is valid at some time within the skew of now."""
    for each in chain:
        if not each.start - skew <= now <= each.end + skew:
            span = f"{each.parsed.not_valid_before_utc} to {each.parsed.not_valid_after_utc}"
            raise AttestationRefused(Refusal.VALIDITY, f"{each.name} is valid from {span}")


@contextmanager
def _strictly() -> Iterator[None]:
    """Refuses what the parser warns of, except the serial number 0 of every AMD chip's key."""
    # Python keeps one list of filters for all threads, and catch_warnings swaps it. The lock keeps
    # threads that read certificates from restoring each other's list. It cannot keep out other code
    # that swaps the list at the same moment. Both filters therefore name this module, to which the
    # parser's warnings are attributed: if another thread sees them, or leaves them behind, nothing
    # changes for other modules. If ours are missing for a moment, a warning may be printed or an
    # oddity may pass, and neither makes a chain lead to a pinned root.
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.filterwarnings("error", module=_THIS_MODULE)
        warnings.filterwarnings(
            "ignore", ".*serial number", CryptographyDeprecationWarning, _THIS_MODULE
        )
        try:
            yield
        except _UNREADABLE:
            raise ValueError("a certificate cannot be read") from None


def _parse(blob: bytes) -> list[x509.Certificate]:
    if blob.startswith(_DER):
        return [x509.load_der_x509_certificate(blob)]
    return x509.load_pem_x509_certificates(blob)


def _inspect(parsed: x509.Certificate) -> Certificate:
    values = {type(each.value): each.value for each in parsed.extensions}
    basic, usage = values.get(x509.BasicConstraints), values.get(x509.KeyUsage)
    return Certificate(
        parsed=parsed,
        public=parsed.public_key(),
        extensions=tuple(parsed.extensions),
        basic=basic if isinstance(basic, x509.BasicConstraints) else None,
        usage=usage if isinstance(usage, x509.KeyUsage) else None,
        serial=parsed.serial_number,
        name=repr(parsed.subject.rfc4514_string()[:_LONGEST_NAME]),
        start=parsed.not_valid_before_utc.timestamp(),
        end=parsed.not_valid_after_utc.timestamp(),
    )

"""X.509 certificates, as AMD and AWS issue them for the keys that sign evidence.

A chain is followed by hand: the library's verifier is for the web, and knows one instant where a
policy allows for the skew of clocks.
"""

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
    """A certificate and what was read out of it, while reading could still fail."""

    parsed: x509.Certificate
    public: CertificatePublicKeyTypes
    extensions: tuple[x509.Extension[x509.ExtensionType], ...]
    basic: x509.BasicConstraints | None
    usage: x509.KeyUsage | None
    name: str  # as it may be printed, whoever wrote it
    start: float
    end: float

    @property
    def p384(self) -> ec.EllipticCurvePublicKey | None:
        """Its key, if that is one on the curve with which evidence is signed."""
        key = self.public
        if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1):
            return key
        return None


def from_der(blobs: Iterable[bytes]) -> tuple[Certificate, ...]:
    """One certificate from each. Raises ValueError where one cannot be read."""
    with _strictly():
        return tuple(map(_inspect, map(x509.load_der_x509_certificate, blobs)))


def from_der_or_pem(blobs: Iterable[bytes], *, most: int) -> tuple[Certificate, ...]:
    """The certificates in blobs of either form. Raises ValueError where one cannot be read.

    most: after how many to stop, since a few bytes can name the same ones again and again.
    """
    with _strictly():
        parsed = (each for blob in blobs for each in _parse(blob))
        return tuple(map(_inspect, islice(parsed, most)))


def looks_encoded(blob: bytes) -> bool:
    """Whether it can be DER or PEM. Words around PEM do no harm; what holds zeros is no text."""
    return blob.startswith(_DER) or (b"-----BEGIN" in blob and b"\0" not in blob)


def may_issue(issuer: Certificate, between: int = 0) -> bool:
    """between: how many further authorities stand between this one and the leaf."""
    if issuer.basic is None or not issuer.basic.ca:
        return False
    if issuer.usage is None or not issuer.usage.key_cert_sign:
        return False
    return issuer.basic.path_length is None or issuer.basic.path_length >= between


def is_issued_by(child: Certificate, issuer: Certificate) -> bool:
    """By the issuer's name and key, and with SHA-384, as all that AMD and AWS sign."""
    try:
        child.parsed.verify_directly_issued_by(issuer.parsed)
        return isinstance(child.parsed.signature_hash_algorithm, SHA384)
    except (InvalidSignature, *_UNREADABLE):
        return False


def require_valid(chain: Iterable[Certificate], now: int, skew: int) -> None:
    """Raises AttestationRefused unless each is valid at some time within the skew of now."""
    for each in chain:
        if not each.start - skew <= now <= each.end + skew:
            span = f"{each.parsed.not_valid_before_utc} to {each.parsed.not_valid_after_utc}"
            raise AttestationRefused(Refusal.VALIDITY, f"{each.name} is valid from {span}")


@contextmanager
def _strictly() -> Iterator[None]:
    """What the parser warns of is refused, but for the serial number 0 of every AMD chip's key."""
    # Python keeps one list of filters for all threads, and catch_warnings swaps it. The lock keeps
    # threads that read certificates from restoring each other's list. Code elsewhere that swaps it
    # at the same moment cannot be kept out. Both filters therefore name this module, to which the
    # parser's warnings are put down: seen by another thread, or left behind by one, they change
    # nothing for anybody else. Should ours be missing for a moment, a warning may be printed or an
    # oddity pass, and neither makes a chain lead to a pinned root.
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
        name=repr(parsed.subject.rfc4514_string()[:_LONGEST_NAME]),
        start=parsed.not_valid_before_utc.timestamp(),
        end=parsed.not_valid_after_utc.timestamp(),
    )

"""AMD's revocation lists (CRLs): which of its certificates do not count any more.

The root of a product signs its list, which its key service publishes. A list names certificates by
serial number. AMD's intermediates have numbers of their own; the VCEK of every chip and every VLEK
have the number 0, so a list revokes all keys below an intermediate and never one chip.
"""

import re
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA384

from ostraka.attestation.certificates import Certificate, looks_encoded
from ostraka.errors import AttestationRefused, Refusal

_BEGIN = b"-----BEGIN X509 CRL-----"
_PEM = re.compile(_BEGIN + rb".*?-----END X509 CRL-----\n?", re.DOTALL)
_MOST_BYTES = 1 << 22
_UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True)
class RevocationList:
    """A list and what was read from it. end: None if it does not say when the next one comes."""

    parsed: x509.CertificateRevocationList
    issuer: bytes
    serials: frozenset[int]
    critical: bool  # something in it must be understood, and is not
    start: float
    end: float | None

    @property
    def span(self) -> str:
        return f"{self.parsed.last_update_utc} to {self.parsed.next_update_utc or 'an unsaid day'}"


def require_not_revoked(chain: tuple[Certificate, ...], blob: bytes, *, now: int, skew: int) -> str:
    """Returns what was checked, in words. Raises AttestationRefused unless all of a chain counts.

    chain: from the key that signs evidence to the root. blob: a file with lists, as DER or as PEM;
    lists of other roots may be among them. A list that cannot be used is never ignored.
    """
    *_, root = chain
    lists = [each for each in _read(blob) if each.issuer == root.parsed.subject.public_bytes()]
    if not lists:
        raise _unfit(f"there is none of {root.name} in it")
    for each in lists:
        _require_genuine(each, root)
        if each.end is None or not each.start - skew <= now <= each.end + skew:
            raise AttestationRefused(
                Refusal.VALIDITY, f"the revocation list of {root.name} is valid from {each.span}"
            )
        _require_unlisted(chain, each)
    return "; ".join(f"{len(each.serials)} revoked, list from {each.span}" for each in lists)


def _require_genuine(revoked: RevocationList, root: Certificate) -> None:
    """Requires the root's signature by RSA-PSS with SHA-384, as AMD always signs."""
    if root.usage is None or not root.usage.crl_sign:
        raise _unfit(f"{root.name} may not issue it")
    if not _is_signed_by(revoked.parsed, root):
        raise _unfit(f"it is not signed by {root.name}")
    if revoked.critical:
        raise _unfit(f"that of {root.name} has a critical extension, and none is known")


def _is_signed_by(parsed: x509.CertificateRevocationList, root: Certificate) -> bool:
    try:
        return (
            isinstance(root.public, rsa.RSAPublicKey)
            and isinstance(parsed.signature_hash_algorithm, SHA384)
            and isinstance(parsed.signature_algorithm_parameters, padding.PSS)
            and parsed.is_signature_valid(root.public)
        )
    except _UNREADABLE:
        return False


def _require_unlisted(chain: tuple[Certificate, ...], revoked: RevocationList) -> None:
    """Looks for the whole chain, though a root can revoke by number only what it issued itself."""
    for each in chain:
        if each.serial in revoked.serials:
            raise AttestationRefused(Refusal.REVOKED, f"{each.name}, number {each.serial:#x}")


def _read(blob: bytes) -> list[RevocationList]:
    try:
        pem = _PEM.findall(blob)
        if len(blob) > _MOST_BYTES or not looks_encoded(blob) or len(pem) != blob.count(_BEGIN):
            raise ValueError
        parsed = map(x509.load_pem_x509_crl, pem) if pem else (x509.load_der_x509_crl(blob),)
        return [_inspect(each) for each in parsed]
    except _UNREADABLE:
        raise _unfit("it cannot be read") from None


def _inspect(parsed: x509.CertificateRevocationList) -> RevocationList:
    entries = list(parsed)
    extensions = [*parsed.extensions, *(every for each in entries for every in each.extensions)]
    following = parsed.next_update_utc
    return RevocationList(
        parsed=parsed,
        issuer=parsed.issuer.public_bytes(),
        serials=frozenset(each.serial_number for each in entries),
        critical=any(each.critical for each in extensions),
        start=parsed.last_update_utc.timestamp(),
        end=None if following is None else following.timestamp(),
    )


def _unfit(why: str) -> AttestationRefused:
    return AttestationRefused(Refusal.COLLATERAL, f"the revocation list (crl): {why}")

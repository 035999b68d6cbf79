"""AWS Nitro Enclaves: a document about an enclave's image, signed by the hypervisor.

The document carries its own certificates. They lead to AWS's root, which is pinned here. AWS's
revocation lists are not read: the certificate of a document lives for three hours.
"""

from dataclasses import asdict
from itertools import pairwise

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256, SHA384

from ostraka.attestation.certificates import (
    Certificate,
    from_der,
    is_issued_by,
    may_issue,
    require_valid,
)
from ostraka.attestation.claims import Claims
from ostraka.attestation.listed import require_listed
from ostraka.attestation.nitro_document import Document, claims_of, parse
from ostraka.attestation.policy import NitroPolicy
from ostraka.errors import AttestationRefused, Refusal

# SHA-256 of the root certificate that AWS publishes.
AWS_ROOT = bytes.fromhex("641a0321a3e244efe456463195d606317ed7cdcc3c1756e09893f3c68f79bb5b")

# A document is made when it is asked for. This is how long, in seconds, it may be under way.
PROMPT = 300


def read(document: bytes) -> Claims:
    """What a document says. Raises AttestationRefused where it is none."""
    return claims_of(parse(document))


def verify(
    document: bytes, *, rules: NitroPolicy, now: int, skew: int, root: bytes = AWS_ROOT
) -> Claims:
    """What a document proves about an image that the policy lists. Raises AttestationRefused."""
    # (1) The document can be read.
    parsed = parse(document)
    claims = claims_of(parsed)

    # (2) Its certificates lead to the pinned root, each valid at this time.
    chain = _certificates(parsed)
    _require_root(chain[-1], root)
    _require_chain(chain)
    require_valid(chain, now, skew)

    # (3) The first of them has signed it.
    _require_signed(parsed, chain[0])

    # (4) It was made about now. That it was made for this challenge, its user data will tell.
    _require_prompt(parsed, now, skew)

    # (5) Nobody may look into the enclave.
    if claims.debug:
        raise AttestationRefused(Refusal.DEBUG, "its PCRs are all zero")

    # (6) The policy lists the image. What the document is bound to, the caller compares.
    require_listed(claims, "nitro", asdict(rules), ("pcr0",))
    return claims


def _certificates(document: Document) -> tuple[Certificate, ...]:
    """The document's own certificate first, the root last."""
    try:
        return from_der((document.certificate, *reversed(document.cabundle)))
    except ValueError:
        raise AttestationRefused(Refusal.MALFORMED, "one of its certificates is none") from None


def _require_root(last: Certificate, root: bytes) -> None:
    if last.parsed.fingerprint(SHA256()) != root:
        raise AttestationRefused(Refusal.ROOT, f"they end at {last.name}")


def _require_chain(chain: tuple[Certificate, ...]) -> None:
    if any(map(_has_unknown_condition, chain)):
        raise AttestationRefused(Refusal.ROOT, "one has a critical extension that is not known")
    if not _may_sign(chain[0]):
        raise AttestationRefused(Refusal.ROOT, f"{chain[0].name} may not sign documents")
    for between, (child, issuer) in enumerate(pairwise(chain)):
        if not may_issue(issuer, between):
            raise AttestationRefused(Refusal.ROOT, f"{issuer.name} may not issue {child.name}")
        if not is_issued_by(child, issuer):
            raise AttestationRefused(Refusal.ROOT, f"{issuer.name} has not issued {child.name}")


def _has_unknown_condition(certificate: Certificate) -> bool:
    """Whether it has a critical extension that is not looked at here."""
    return any(
        each.critical and not isinstance(each.value, x509.BasicConstraints | x509.KeyUsage)
        for each in certificate.extensions
    )


def _may_sign(leaf: Certificate) -> bool:
    authority = leaf.basic is not None and leaf.basic.ca
    return not authority and leaf.usage is not None and leaf.usage.digital_signature


def _require_signed(document: Document, leaf: Certificate) -> None:
    if leaf.p384 is None:
        raise AttestationRefused(Refusal.SIGNATURE, "its key is not for ES384")
    try:
        leaf.p384.verify(document.signature, document.signed, ec.ECDSA(SHA384()))
    except InvalidSignature:
        raise AttestationRefused(Refusal.SIGNATURE) from None


def _require_prompt(document: Document, now: int, skew: int) -> None:
    age = now - document.timestamp // 1000
    if not -skew <= age <= PROMPT + skew:
        raise AttestationRefused(Refusal.VALIDITY, f"the document says that it is {age} s old")

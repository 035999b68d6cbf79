"""AWS Nitro Enclaves: a document about an enclave's image, signed by the hypervisor.

A document is a CBOR map in an untagged COSE_Sign1 (RFC 9052) under ES384. It carries its own
certificates, which lead to AWS's root, and that root is pinned here. AWS's revocation lists are not
read, because the certificate of a document lives for three hours.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NoReturn

import cbor2
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384

from ostraka.attestation.certificates import (
    Certificate,
    from_der,
    is_issued_by,
    may_issue,
    require_valid,
)
from ostraka.attestation.claims import Claims, Collateral
from ostraka.attestation.policy import Sha384, require_listed
from ostraka.errors import AttestationRefused, Refusal
from ostraka.messages import Evidence

_PCRS = {f"pcr{index}": index for index in (0, 1, 2, 3, 4, 8)}
_IMAGE = (0, 1, 2)  # always there, and all zero in a debug enclave
_PLACES = ("pcr3", "pcr4")  # the role and the parent instance: where the code runs
_DIGEST = "SHA384"
_PCR = 48
_LAST_PCR = 31
_ES384 = bytes.fromhex("a1013822")  # the protected header {1: -35}: algorithm, and its number
_HALF = 48  # r and s, each big-endian

_MOST_BYTES = 1 << 14  # the hypervisor's own limit is lower
_MOST_DEPTH = 4
_MOST_CERTIFICATES = 8

# SHA-256 of the root certificate that AWS publishes.
AWS_ROOT = bytes.fromhex("641a0321a3e244efe456463195d606317ed7cdcc3c1756e09893f3c68f79bb5b")

# A document is made when it is asked for. It may take this many seconds to arrive.
PROMPT = 300


@dataclass(frozen=True)
class NitroPolicy:
    """Nitro: the image, and if they are listed its parts, its role and its signer.

    pcr0: the whole image; it must be listed. pcr1: its kernel. pcr2: its application. pcr3: the
    role of the parent instance. pcr4: the id of the parent instance. pcr8: the certificate that
    signed the image.
    """

    pcr0: tuple[Sha384, ...] = ()
    pcr1: tuple[Sha384, ...] = ()
    pcr2: tuple[Sha384, ...] = ()
    pcr3: tuple[Sha384, ...] = ()
    pcr4: tuple[Sha384, ...] = ()
    pcr8: tuple[Sha384, ...] = ()


def read(evidence: Evidence) -> Claims:
    """Reads what a document says, unchecked. Raises AttestationRefused if it is no document."""
    return claims_of(parse(evidence.document))


def verify(
    evidence: Evidence,
    *,
    policy: NitroPolicy,
    collateral: Collateral | None = None,
    now: int,
    skew: int,
    root: bytes = AWS_ROOT,
) -> Claims:
    """Returns what a document proves about an image that the policy lists.

    Raises AttestationRefused. A document brings all that it needs, so the collateral is not read.
    """
    # (1) The document can be read.
    parsed = parse(evidence.document)
    claims = claims_of(parsed)

    # (2) Its certificates lead to the pinned root, each valid at this time.
    chain = _certificates(parsed)
    _require_root(chain[-1], root)
    _require_chain(chain)
    require_valid(chain, now, skew)

    # (3) The first of them has signed it.
    _require_signed(parsed, chain[0])

    # (4) It was made about now. Its user data tells whether it was made for this challenge.
    _require_prompt(parsed, now, skew)

    # (5) Its host cannot look into the enclave.
    if claims.debug:
        raise AttestationRefused(Refusal.DEBUG, "its PCRs are all zero")

    # (6) The policy lists the image. The caller compares what the document is bound to.
    require_listed(claims, "nitro", asdict(policy), ("pcr0",))
    return claims


@dataclass(frozen=True)
class Document:
    """A document's parts, each of the type that it must have.

    signed: the bytes that are signed, as COSE puts them together. signature: as DER.
    """

    signed: bytes
    signature: bytes
    module_id: str
    timestamp: int  # milliseconds since 1970
    pcrs: Mapping[int, bytes]
    certificate: bytes
    cabundle: tuple[bytes, ...]
    user_data: bytes | None
    nonce: bytes | None
    public_key: bytes | None


def parse(document: bytes) -> Document:
    """Takes a document apart. Raises AttestationRefused if it is no document."""
    if len(document) > _MOST_BYTES:
        raise _malformed(f"a document has at most {_MOST_BYTES} bytes; got {len(document)}")
    match _decode(document):
        case [bytes(protected), {**unprotected}, bytes(payload), bytes(signature)]:
            pass
        case _:
            raise _malformed("it is no COSE_Sign1")
    # The unprotected header is not signed, so it must be empty.
    if unprotected or protected != _ES384 or len(signature) != 2 * _HALF:
        raise _malformed("it is not signed by ES384 alone")
    fields = _decode(payload)
    if not isinstance(fields, dict) or fields.get("digest") != _DIGEST:
        raise _malformed("it holds no map of PCRs by SHA-384")
    return Document(
        signed=cbor2.dumps(["Signature1", protected, b"", payload]),
        signature=_as_der(signature),
        module_id=_field(fields, "module_id", _is_name),
        timestamp=_field(fields, "timestamp", _is_positive),
        pcrs=_field(fields, "pcrs", _are_pcrs),
        certificate=_field(fields, "certificate", _is_bytes),
        cabundle=tuple(_field(fields, "cabundle", _are_certificates)),
        user_data=_field(fields, "user_data", _is_optional),
        nonce=_field(fields, "nonce", _is_optional),
        public_key=_field(fields, "public_key", _is_optional),
    )


def claims_of(document: Document) -> Claims:
    present = {name: index for name, index in _PCRS.items() if index in document.pcrs}
    return Claims(
        kind="nitro",
        measurements=tuple((name, document.pcrs[index]) for name, index in present.items()),
        report_data=document.user_data or b"",
        debug=not any(any(document.pcrs[index]) for index in _IMAGE),
        facts=tuple(_facts(document)),
        places=_PLACES,
    )


def _decode(data: bytes) -> Any:
    """Decodes plain CBOR values, and only from the bytes that they encode to.

    A tag makes the decoder build dates, patterns or numbers of any size, so every tag is refused.
    Encoding again finds what decoding overlooks: bytes left over, keys that come twice, and forms
    that are longer than needed or have no length.
    """
    try:
        value = cbor2.loads(
            data,
            semantic_decoders=defaultdict(lambda: _refuse_tag),
            max_depth=_MOST_DEPTH,
        )
        if cbor2.dumps(value) == data:
            return value
    except (cbor2.CBORError, ValueError, TypeError):
        pass
    raise _malformed("it is not plain CBOR in its shortest form")


def _refuse_tag(value: object, immutable: bool) -> NoReturn:
    raise ValueError


def _as_der(signature: bytes) -> bytes:
    r, s = signature[:_HALF], signature[_HALF:]
    return encode_dss_signature(int.from_bytes(r, "big"), int.from_bytes(s, "big"))


def _field(fields: Mapping[object, Any], name: str, is_right: Callable[[Any], bool]) -> Any:
    value = fields.get(name)
    if not is_right(value):
        raise _malformed(f"its field {name} is missing or of the wrong kind")
    return value


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isprintable() and value != ""


def _is_positive(value: object) -> bool:
    return type(value) is int and value > 0


def _is_bytes(value: object) -> bool:
    return isinstance(value, bytes) and value != b""


def _is_optional(value: object) -> bool:
    return value is None or isinstance(value, bytes)


def _are_pcrs(value: object) -> bool:
    if not isinstance(value, dict) or not all(index in value for index in _IMAGE):
        return False
    return all(
        type(index) is int and 0 <= index <= _LAST_PCR and type(pcr) is bytes and len(pcr) == _PCR
        for index, pcr in value.items()
    )


def _are_certificates(value: object) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) < _MOST_CERTIFICATES
        and all(map(_is_bytes, value))
    )


def _facts(document: Document) -> Iterator[tuple[str, str]]:
    yield "module id", document.module_id
    yield "timestamp", f"{document.timestamp // 1000} s since 1970"
    others = (index for index in sorted(document.pcrs) if index not in _PCRS.values())
    for index in others:
        if any(document.pcrs[index]):
            yield f"pcr{index}", document.pcrs[index].hex()
    if document.nonce:
        yield "nonce", document.nonce.hex()
    if document.public_key:
        yield "public key", document.public_key.hex()


def _malformed(why: str) -> AttestationRefused:
    return AttestationRefused(Refusal.MALFORMED, why)


def _certificates(document: Document) -> tuple[Certificate, ...]:
    """Returns the chain: the document's own certificate first, the root last."""
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
    """Tells whether it has a critical extension that is not checked here."""
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

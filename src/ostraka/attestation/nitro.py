"""AWS Nitro Enclaves: a document about an enclave's image, signed by the hypervisor.

The document is an untagged COSE_Sign1 (RFC 9052) under ES384, over a CBOR map that carries its own
certificates. They lead to AWS's root, which is pinned here. AWS's revocation lists are not read:
the certificate of a document lives for three hours.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NoReturn

import cbor2
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384

from ostraka.attestation.claims import Claims
from ostraka.attestation.listed import require_listed
from ostraka.attestation.policy import NitroPolicy
from ostraka.errors import AttestationRefused, Refusal

# SHA-256 of the root certificate that AWS publishes.
AWS_ROOT = bytes.fromhex("641a0321a3e244efe456463195d606317ed7cdcc3c1756e09893f3c68f79bb5b")

# A document is made when it is asked for. This is how long, in seconds, it may be under way.
PROMPT = 300

_PCRS = {f"pcr{index}": index for index in (0, 1, 2, 3, 4, 8)}
_IMAGE = (0, 1, 2)  # always there, and all zero in a debug enclave
_DIGEST = "SHA384"
_PCR = 48
_LAST_PCR = 31
_ES384 = bytes.fromhex("a1013822")  # the protected header {1: -35}: algorithm, and its number
_HALF = 48  # r and s, each big-endian

_MOST_BYTES = 1 << 14  # the hypervisor's own limit is lower
_MOST_DEPTH = 4
_MOST_CERTIFICATES = 8
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


@dataclass(frozen=True)
class _Document:
    """A document's parts, each of the type that it must have."""

    protected: bytes
    payload: bytes
    signature: bytes
    module_id: str
    timestamp: int  # milliseconds since 1970
    pcrs: Mapping[int, bytes]
    certificate: bytes
    cabundle: tuple[bytes, ...]
    user_data: bytes | None
    nonce: bytes | None
    public_key: bytes | None


@dataclass(frozen=True)
class _Certificate:
    """A certificate and what was read out of it, while reading could still fail."""

    parsed: x509.Certificate
    public: object
    basic: x509.BasicConstraints | None
    usage: x509.KeyUsage | None
    by_sha384: bool  # it is itself signed with SHA-384, as everything of AWS's is
    unknown: bool  # it has a critical extension that is not looked at here
    name: str  # as it may be printed, whoever wrote it
    start: float
    end: float


def read(document: bytes) -> Claims:
    """What a document says. Raises AttestationRefused where it is none."""
    return _claims(_parse(document))


def verify(
    document: bytes, *, rules: NitroPolicy, now: int, skew: int, root: bytes = AWS_ROOT
) -> Claims:
    """What a document proves about an image that the policy lists. Raises AttestationRefused."""
    # (1) The document can be read.
    parsed = _parse(document)
    claims = _claims(parsed)

    # (2) Its certificates lead to the pinned root, each valid at this time.
    chain = _certificates(parsed)
    _require_root(chain[-1], root)
    _require_chain(chain)
    _require_valid(chain, now, skew)

    # (3) The first of them has signed it.
    _require_signed(parsed, chain[0])

    # (4) It was made about now. That it was made for this challenge, its user data will tell.
    _require_prompt(parsed, now, skew)

    # (5) Nobody may look into the enclave.
    if claims.debug:
        raise AttestationRefused(Refusal.DEBUG, "its PCRs are all zero")

    # (6) The policy lists the image. What the document is bound to, the caller compares.
    _require_image(claims, asdict(rules))
    return claims


def _parse(document: bytes) -> _Document:
    if len(document) > _MOST_BYTES:
        raise _malformed(f"a document has at most {_MOST_BYTES} bytes; got {len(document)}")
    match _decode(document):
        case [bytes(protected), {**unprotected}, bytes(payload), bytes(signature)]:
            pass
        case _:
            raise _malformed("it is no COSE_Sign1")
    # Nothing signs the unprotected header, so it must not be able to say anything.
    if unprotected or protected != _ES384 or len(signature) != 2 * _HALF:
        raise _malformed("it is not signed by ES384 alone")
    fields = _decode(payload)
    if not isinstance(fields, dict) or fields.get("digest") != _DIGEST:
        raise _malformed("it holds no map of PCRs by SHA-384")
    return _Document(
        protected=protected,
        payload=payload,
        signature=signature,
        module_id=_field(fields, "module_id", _is_name),
        timestamp=_field(fields, "timestamp", _is_positive),
        pcrs=_field(fields, "pcrs", _are_pcrs),
        certificate=_field(fields, "certificate", _is_bytes),
        cabundle=tuple(_field(fields, "cabundle", _are_certificates)),
        user_data=_field(fields, "user_data", _is_optional),
        nonce=_field(fields, "nonce", _is_optional),
        public_key=_field(fields, "public_key", _is_optional),
    )


def _decode(data: bytes) -> Any:
    """Plain CBOR values, and only from the bytes that they encode to.

    A tag makes the decoder build dates, patterns or numbers of any size, so none is let through.
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


def _claims(document: _Document) -> Claims:
    present = {name: index for name, index in _PCRS.items() if index in document.pcrs}
    return Claims(
        kind="nitro",
        measurements=tuple((name, document.pcrs[index]) for name, index in present.items()),
        report_data=document.user_data or b"",
        debug=not any(any(document.pcrs[index]) for index in _IMAGE),
        facts=tuple(_facts(document)),
    )


def _facts(document: _Document) -> Iterator[tuple[str, str]]:
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


def _certificates(document: _Document) -> tuple[_Certificate, ...]:
    """The document's own certificate first, the root last."""
    encoded = (document.certificate, *reversed(document.cabundle))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what the parser frowns at is refused
            return tuple(_inspect(x509.load_der_x509_certificate(each)) for each in encoded)
    except _UNREADABLE:
        raise _malformed("one of its certificates is none") from None


def _inspect(parsed: x509.Certificate) -> _Certificate:
    values = {type(each.value): each.value for each in parsed.extensions}
    basic, usage = values.get(x509.BasicConstraints), values.get(x509.KeyUsage)
    return _Certificate(
        parsed=parsed,
        public=parsed.public_key(),
        basic=basic if isinstance(basic, x509.BasicConstraints) else None,
        usage=usage if isinstance(usage, x509.KeyUsage) else None,
        by_sha384=isinstance(parsed.signature_hash_algorithm, SHA384),
        unknown=any(
            each.critical and not isinstance(each.value, x509.BasicConstraints | x509.KeyUsage)
            for each in parsed.extensions
        ),
        name=repr(parsed.subject.rfc4514_string()[:_LONGEST_NAME]),
        start=parsed.not_valid_before_utc.timestamp(),
        end=parsed.not_valid_after_utc.timestamp(),
    )


def _require_root(last: _Certificate, root: bytes) -> None:
    if last.parsed.fingerprint(SHA256()) != root:
        raise AttestationRefused(Refusal.ROOT, f"they end at {last.name}")


def _require_chain(chain: tuple[_Certificate, ...]) -> None:
    """By hand: the library's verifier knows one instant, and a policy allows for clocks' skew."""
    if any(each.unknown for each in chain):
        raise AttestationRefused(Refusal.ROOT, "one has a critical extension that is not known")
    if not _may_sign(chain[0]):
        raise AttestationRefused(Refusal.ROOT, f"{chain[0].name} may not sign documents")
    for between, (child, issuer) in enumerate(pairwise(chain)):
        if not _may_issue(issuer, between):
            raise AttestationRefused(Refusal.ROOT, f"{issuer.name} may not issue {child.name}")
        if not _is_issued_by(child, issuer):
            raise AttestationRefused(Refusal.ROOT, f"{issuer.name} has not issued {child.name}")


def _may_sign(leaf: _Certificate) -> bool:
    authority = leaf.basic is not None and leaf.basic.ca
    return not authority and leaf.usage is not None and leaf.usage.digital_signature


def _may_issue(issuer: _Certificate, between: int) -> bool:
    """between: how many further authorities stand between this one and the leaf."""
    if issuer.basic is None or not issuer.basic.ca:
        return False
    if issuer.usage is None or not issuer.usage.key_cert_sign:
        return False
    return issuer.basic.path_length is None or issuer.basic.path_length >= between


def _is_issued_by(child: _Certificate, issuer: _Certificate) -> bool:
    try:
        child.parsed.verify_directly_issued_by(issuer.parsed)
    except (InvalidSignature, *_UNREADABLE):
        return False
    return child.by_sha384


def _require_valid(chain: tuple[_Certificate, ...], now: int, skew: int) -> None:
    for each in chain:
        if not each.start - skew <= now <= each.end + skew:
            span = f"{each.parsed.not_valid_before_utc} to {each.parsed.not_valid_after_utc}"
            raise AttestationRefused(Refusal.VALIDITY, f"{each.name} is valid from {span}")


def _require_signed(document: _Document, leaf: _Certificate) -> None:
    key = leaf.public
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise AttestationRefused(Refusal.SIGNATURE, "its key is not for ES384")
    r, s = document.signature[:_HALF], document.signature[_HALF:]
    signature = encode_dss_signature(int.from_bytes(r, "big"), int.from_bytes(s, "big"))
    signed = cbor2.dumps(["Signature1", document.protected, b"", document.payload])
    try:
        key.verify(signature, signed, ec.ECDSA(SHA384()))
    except InvalidSignature:
        raise AttestationRefused(Refusal.SIGNATURE) from None


def _require_prompt(document: _Document, now: int, skew: int) -> None:
    age = now - document.timestamp // 1000
    if not -skew <= age <= PROMPT + skew:
        raise AttestationRefused(Refusal.VALIDITY, f"the document says that it is {age} s old")


def _require_image(claims: Claims, lists: Mapping[str, tuple[bytes, ...]]) -> None:
    present = dict(claims.measurements)
    if absent := [name for name in lists if lists[name] and name not in present]:
        raise AttestationRefused(
            Refusal.MEASUREMENT, f"the policy lists {', '.join(absent)}, which it does not state"
        )
    known = {name: values for name, values in lists.items() if name in present}
    require_listed(claims, "nitro", known, ("pcr0",))


def _malformed(why: str) -> AttestationRefused:
    return AttestationRefused(Refusal.MALFORMED, why)

"""AMD SEV-SNP: a report about a virtual machine, signed by a key that AMD certifies.

A report is 0x2A0 bytes of statement, laid out by AMD's firmware ABI (document 56860), and then its
signature. The key that signs belongs to one chip (VCEK) or was loaded by a cloud (VLEK). AMD's
intermediate (ASK or ASVK) certifies it, and the product's root (ARK) certifies the intermediate;
the roots are pinned here. AMD's revocation lists are not read: evidence does not bring them.
"""

import hashlib
import struct
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.utils import CryptographyDeprecationWarning

from ostraka.attestation.claims import Claims
from ostraka.attestation.listed import require_listed
from ostraka.attestation.policy import SnpPolicy
from ostraka.errors import AttestationRefused, ConfigError, Refusal

# SHA-256 of each root's SubjectPublicKeyInfo: a root that is issued again keeps its key.
AMD_ROOTS: Mapping[str, bytes] = {
    "Milan": bytes.fromhex("9f056bee44377e29308cb5ffa895bdfb62d18881fa6bed8d6f075b0204089cb9"),
    "Genoa": bytes.fromhex("429a69c9422aa258ee4d8db5fcda9c6470ef15f8cd5a9cebd6cbc7d90b863831"),
    "Turin": bytes.fromhex("4f125410563a2ab9a50356f9243f6fe0b6f73de98603f53f90339c70e9d7ad08"),
}

# What a policy may allow beyond the strict rules.
ALLOWANCES = (
    "migration",  # a migration agent, which sees the machine's memory
    "smt",  # other machines on the other thread of a core
    "vmpl",  # a report that was asked for below VMPL 0: the measured code may host other code there
)

_VERSIONS = (2, 3, 4, 5)
_REPORT = 0x4A0
_STATEMENT = struct.Struct("<IIQ32xII8sQI4x64s48s32s48s48x64x8s3B21x64s8s3sx3sx8sQQ152x")
_NUMBER = 72  # r and s, each little-endian
_ECDSA_P384_SHA384 = 1
_SIGNERS = {0: "VCEK", 1: "VLEK"}
_HIGHEST_VMPL = 3

_SMT, _RESERVED_ONE, _MIGRATION, _DEBUG = (1 << bit for bit in (16, 17, 18, 19))
_POLICY_BITS = {
    16: "smt allowed",
    18: "migration agent allowed",
    19: "debug allowed",
    20: "single socket only",
    21: "cxl allowed",
    22: "aes-256-xts required",
    23: "rapl disabled",
    24: "ciphertext hiding required",
    25: "page swap disabled",
}
_KNOWN_POLICY = 0xFFFF | _RESERVED_ONE | sum(1 << bit for bit in _POLICY_BITS)
_PLATFORM_BITS = {
    0: "smt on",
    1: "tsme on",
    2: "ecc memory",
    3: "rapl disabled",
    4: "ciphertext hiding",
    5: "no memory aliases",
}

# Where each part of a TCB version stands in its eight bytes. Turin moved them.
_TCB = {"bootloader": 0, "tee": 1, "snp": 6, "microcode": 7}
_TURIN_TCB = {"fmc": 0, "bootloader": 1, "tee": 2, "snp": 3, "microcode": 7}
_TURIN_FAMILY = 0x1A
_MODELS = {  # CPUID family, and ranges of models
    "Milan": (0x19, (range(0x10),)),
    "Genoa": (0x19, (range(0x10, 0x20), range(0xA0, 0xB0))),
    "Turin": (_TURIN_FAMILY, (range(0x20),)),
}

_AMD_ARC = "1.3.6.1.4.1.3704.1."
_PRODUCT, _HARDWARE_ID, _CLOUD = "2", "4", "5"
_TCB_EXTENSIONS = {
    "bootloader": "3.1",
    "tee": "3.2",
    "snp": "3.3",
    "microcode": "3.8",
    "fmc": "3.9",
}

_TABLE_ENTRY = struct.Struct("<16sII")  # GUID, offset, length
_MOST_CERTIFICATES = 32
_MOST_BYTES = 1 << 18
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
class _Report:
    """The fields that somebody needs, in the order in which they stand; TCB versions as bytes."""

    version: int
    guest_svn: int
    policy: int
    vmpl: int
    algorithm: int
    current_tcb: bytes
    platform: int
    keys: int
    report_data: bytes
    measurement: bytes
    host_data: bytes
    id_key: bytes
    reported_tcb: bytes
    family: int
    model: int
    stepping: int
    chip_id: bytes
    committed_tcb: bytes
    current_firmware: bytes
    committed_firmware: bytes
    launch_tcb: bytes
    launch_mitigations: int
    current_mitigations: int

    @property
    def signer(self) -> str:
        return _SIGNERS.get(self.keys >> 2 & 7, "none")

    @property
    def products(self) -> tuple[str, ...]:
        """Which products can have made this report. Only since version 3 does it say more."""
        if self.version == 2:
            return ("Milan", "Genoa")
        return tuple(
            product
            for product, (family, models) in _MODELS.items()
            if self.family == family and any(self.model in each for each in models)
        )

    def parts(self, tcb: bytes) -> dict[str, int]:
        turin = self.version > 2 and self.family >= _TURIN_FAMILY
        return {name: tcb[at] for name, at in (_TURIN_TCB if turin else _TCB).items()}


@dataclass(frozen=True)
class _Certificate:
    """A certificate and what was read out of it, while reading could still fail."""

    parsed: x509.Certificate
    key: bytes  # SHA-256 of the SubjectPublicKeyInfo
    signs_reports: ec.EllipticCurvePublicKey | None
    issues: bool
    by_pss: bool  # it is itself signed by RSA-PSS with SHA-384, as everything of AMD's is
    amd: Mapping[str, bytes]  # AMD's own extensions, by their number under AMD's arc
    name: str  # as it may be printed, whoever wrote it
    start: float
    end: float


def read(document: bytes) -> Claims:
    """What a report says. Raises AttestationRefused where it is none."""
    return _claims(_parse(document))


def verify(
    document: bytes,
    endorsements: tuple[bytes, ...],
    *,
    certificates: bytes | None,
    rules: SnpPolicy,
    now: int,
    skew: int,
    roots: Mapping[str, bytes] = AMD_ROOTS,
) -> Claims:
    """What a report proves about code that the policy lists. Raises AttestationRefused.

    endorsements, certificates: the VCEK or VLEK, AMD's intermediate and AMD's root, in any order;
    as PEM, as DER, or in the table that a host hands its guests (configfs-tsm's `auxblob`).
    """
    # (1) The report can be read.
    report = _parse(document)

    # (2) There are certificates for the kind of key, the chip and the TCB that the report states.
    held = _certificates(endorsements, certificates)
    fitting = _require_fitting(report, held)

    # (3) The key of one of them has signed the report.
    signer = _require_signer(report, document, fitting)

    # (4) It leads to a pinned root, at this time, and all three are of the same product.
    product = _require_chain(signer, held, roots, now, skew)
    _require_product(report, signer, product)

    # (5) Nobody may look into the machine, and the code itself asked for the report.
    _require_policy(report, rules.allow)
    _require_vmpl(report, rules.allow)

    # (6) The firmware is new enough, now and when the machine was started, on a machine of ours.
    _require_tcb(report, rules)
    _require_chip(report, rules)

    # (7) The policy lists the code. What the report is bound to, the caller compares.
    claims = _claims(report)
    require_listed(claims, "snp", {"measurement": rules.measurement}, ("measurement",))
    return replace(claims, facts=(("product", product), *claims.facts))


def check_allowances(names: Iterable[str]) -> None:
    """Raises ConfigError for a name that no policy may allow."""
    for name in names:
        if name not in ALLOWANCES:
            known = ", ".join(ALLOWANCES)
            raise ConfigError(f"[snp] allow: {name!r} is not known; there are {known}")


def _parse(document: bytes) -> _Report:
    if len(document) != _REPORT:
        raise _malformed(f"a report has {_REPORT} bytes; got {len(document)}")
    report = _Report(*_STATEMENT.unpack_from(document))
    if report.version not in _VERSIONS:
        raise _malformed(f"version {report.version} of the report is not known")
    if not report.policy & _RESERVED_ONE:
        raise _malformed("a bit of the policy that is always set is not")
    # Nothing signs what follows the signature, so it must not be able to say anything.
    if any(document[_STATEMENT.size + 2 * _NUMBER :]):
        raise _malformed("there is something after the signature")
    return report


def _claims(report: _Report) -> Claims:
    return Claims(
        kind="snp",
        measurements=(("measurement", report.measurement),),
        report_data=report.report_data,
        debug=bool(report.policy & _DEBUG),
        facts=tuple(_facts(report)),
    )


def _facts(report: _Report) -> Iterator[tuple[str, str]]:
    yield "report version", str(report.version)
    yield "signed by", report.signer
    if report.version > 2:
        yield (
            "processor",
            f"family {report.family:#x}, model {report.model:#x}, stepping {report.stepping}",
        )
    yield "chip id", report.chip_id.hex() if any(report.chip_id) else "masked"
    yield "vmpl", str(report.vmpl)
    yield "guest svn", str(report.guest_svn)
    yield "policy", _flags(report.policy, _POLICY_BITS)
    yield "least firmware abi", f"{report.policy >> 8 & 0xFF}.{report.policy & 0xFF}"
    yield "platform", _flags(report.platform, _PLATFORM_BITS)
    for name in ("reported", "current", "committed", "launch"):
        yield f"{name} tcb", _text(report.parts(getattr(report, f"{name}_tcb")))
    yield "current firmware", _firmware(report.current_firmware)
    yield "committed firmware", _firmware(report.committed_firmware)
    yield "host data", report.host_data.hex()
    yield "id key", report.id_key.hex()
    if report.version > 3:
        yield "launch mitigations", f"{report.launch_mitigations:#x}"
        yield "current mitigations", f"{report.current_mitigations:#x}"


def _flags(bits: int, names: Mapping[int, str]) -> str:
    return ", ".join(name for bit, name in names.items() if bits >> bit & 1) or "none"


def _text(tcb: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {version}" for name, version in tcb.items())


def _firmware(version: bytes) -> str:
    build, minor, major = version
    return f"{major}.{minor}.{build}"


def _certificates(
    endorsements: tuple[bytes, ...], certificates: bytes | None
) -> list[_Certificate]:
    """Everything in what the evidence brought and what the policy's file holds."""
    blobs = (*endorsements, certificates or b"")
    if sum(map(len, blobs)) > _MOST_BYTES:
        raise _unfit(f"the certificates have more than {_MOST_BYTES} bytes")
    try:
        with warnings.catch_warnings():
            # What the parser frowns at is refused, but for the serial number 0 of every VCEK.
            warnings.simplefilter("error")
            warnings.filterwarnings(
                "ignore", ".*serial number", category=CryptographyDeprecationWarning
            )
            parsed = [each for blob in blobs for each in _parse_certificates(blob)]
            if len(parsed) > _MOST_CERTIFICATES:
                raise _unfit(f"there are more than {_MOST_CERTIFICATES} certificates")
            return [_inspect(each) for each in parsed]
    except _UNREADABLE:
        raise _unfit("something among the certificates is none") from None


def _parse_certificates(blob: bytes) -> list[x509.Certificate]:
    if blob.startswith(b"\x30"):
        return [x509.load_der_x509_certificate(blob)]
    if _is_pem(blob):
        return x509.load_pem_x509_certificates(blob)
    # By an entry's GUID nothing is decided, so what is no certificate is simply left out.
    found = (entry for entry in _table(blob) if entry.startswith(b"\x30") or _is_pem(entry))
    return [each for entry in found for each in _parse_certificates(entry)]


def _is_pem(blob: bytes) -> bool:
    """Text around it does no harm. A table that holds PEM has zeros in its offsets."""
    return b"-----BEGIN" in blob and b"\0" not in blob


def _table(blob: bytes) -> Iterator[bytes]:
    """The entries of a host's certificate table. All zeros end it."""
    for number in range(_MOST_CERTIFICATES):
        at = number * _TABLE_ENTRY.size
        entry = blob[at : at + _TABLE_ENTRY.size]
        if not any(entry):
            return
        if len(entry) < _TABLE_ENTRY.size:
            raise ValueError
        _, offset, length = _TABLE_ENTRY.unpack(entry)
        if offset + length > len(blob):
            raise ValueError
        yield blob[offset : offset + length]
    raise ValueError


def _inspect(parsed: x509.Certificate) -> _Certificate:
    public = parsed.public_key()
    encoded = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    extensions = {each.oid.dotted_string: each.value for each in parsed.extensions}
    return _Certificate(
        parsed=parsed,
        key=hashlib.sha256(encoded).digest(),
        signs_reports=_on_p384(public),
        issues=_may_issue(parsed.extensions),
        by_pss=isinstance(parsed.signature_algorithm_parameters, padding.PSS)
        and isinstance(parsed.signature_hash_algorithm, SHA384),
        amd={
            oid.removeprefix(_AMD_ARC): value.value
            for oid, value in extensions.items()
            if oid.startswith(_AMD_ARC) and isinstance(value, x509.UnrecognizedExtension)
        },
        name=repr(parsed.subject.rfc4514_string()[:_LONGEST_NAME]),
        start=parsed.not_valid_before_utc.timestamp(),
        end=parsed.not_valid_after_utc.timestamp(),
    )


def _on_p384(public: object) -> ec.EllipticCurvePublicKey | None:
    if isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, ec.SECP384R1):
        return public
    return None


def _may_issue(extensions: x509.Extensions) -> bool:
    try:
        basic = extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return basic.ca and usage.key_cert_sign


def _require_fitting(report: _Report, held: list[_Certificate]) -> list[_Certificate]:
    if report.signer not in _SIGNERS.values():
        raise AttestationRefused(Refusal.SIGNATURE, "its host had it left unsigned")
    fitting = [each for each in held if each.signs_reports and _fits(report, each.amd)]
    if not fitting:
        chip = f"chip {report.chip_id.hex()}, " if report.signer == "VCEK" else ""
        tcb = _text(report.parts(report.reported_tcb))
        raise _unfit(
            f"none of {len(held)} certificates is the {report.signer} for {chip}{tcb}; "
            "AMD's key service has it, and a file for `certificates` under [snp] can hold it"
        )
    return fitting


def _fits(report: _Report, amd: Mapping[str, bytes]) -> bool:
    """Whether a certificate is for the kind of key, the chip and the TCB of a report."""
    tcb = report.parts(report.reported_tcb)
    if any(amd.get(_TCB_EXTENSIONS[name]) != _integer(value) for name, value in tcb.items()):
        return False
    if report.signer == "VLEK":
        return _CLOUD in amd and _HARDWARE_ID not in amd
    if _CLOUD in amd or _HARDWARE_ID not in amd:
        return False
    # A host may mask the chip's id. The key is the chip's own all the same.
    padded = amd[_HARDWARE_ID].ljust(len(report.chip_id), b"\0")  # Turin's ids have 8 bytes
    return padded == report.chip_id or not any(report.chip_id)


def _integer(value: int) -> bytes:
    """A byte as DER has it, in AMD's extensions."""
    body = bytes([value]) if value < 0x80 else bytes([0, value])
    return bytes([2, len(body)]) + body


def _require_signer(report: _Report, document: bytes, fitting: list[_Certificate]) -> _Certificate:
    if report.algorithm != _ECDSA_P384_SHA384:
        raise AttestationRefused(
            Refusal.SIGNATURE, f"signature algorithm {report.algorithm} is not known"
        )
    statement, rest = document[: _STATEMENT.size], document[_STATEMENT.size :]
    number = partial(int.from_bytes, byteorder="little")
    signature = encode_dss_signature(number(rest[:_NUMBER]), number(rest[_NUMBER : 2 * _NUMBER]))
    for each in fitting:
        if each.signs_reports and _has_signed(each.signs_reports, signature, statement):
            return each
    raise AttestationRefused(Refusal.SIGNATURE, f"it is not the {report.signer}'s")


def _has_signed(key: ec.EllipticCurvePublicKey, signature: bytes, statement: bytes) -> bool:
    try:
        key.verify(signature, statement, ec.ECDSA(SHA384()))
    except InvalidSignature:
        return False
    return True


def _require_chain(
    signer: _Certificate,
    held: list[_Certificate],
    roots: Mapping[str, bytes],
    now: int,
    skew: int,
) -> str:
    """The product whose root vouches for the signer."""
    intermediate = _require_issuer(signer, held)
    root = _require_issuer(intermediate, held)
    product = next((name for name, key in roots.items() if key == root.key), None)
    if product is None or not _is_issued_by(root, root):
        raise AttestationRefused(Refusal.ROOT, f"they end at {root.name}")
    for each in (signer, intermediate, root):
        if not each.start - skew <= now <= each.end + skew:
            span = f"{each.parsed.not_valid_before_utc} to {each.parsed.not_valid_after_utc}"
            raise AttestationRefused(Refusal.VALIDITY, f"{each.name} is valid from {span}")
    return product


def _require_issuer(child: _Certificate, held: list[_Certificate]) -> _Certificate:
    for each in held:
        if each.issues and _is_issued_by(child, each):
            return each
    raise AttestationRefused(Refusal.ROOT, f"the issuer of {child.name} is not among them")


def _is_issued_by(child: _Certificate, issuer: _Certificate) -> bool:
    try:
        child.parsed.verify_directly_issued_by(issuer.parsed)
    except (InvalidSignature, *_UNREADABLE):
        return False
    return child.by_pss


def _require_product(report: _Report, signer: _Certificate, product: str) -> None:
    if product not in report.products:
        raise _unfit(f"AMD's root for {product} vouches for a report of another processor")
    # An IA5String, such as Milan-B0: the product and its stepping.
    name = signer.amd.get(_PRODUCT, b"")
    if name[:2] != bytes([0x16, len(name[2:])]) or name[2:].split(b"-")[0] != product.encode():
        raise _unfit(f"AMD's root for {product} vouches for a key of another product")


def _require_policy(report: _Report, allow: tuple[str, ...]) -> None:
    if report.policy & _DEBUG:
        raise AttestationRefused(Refusal.DEBUG)
    if report.policy & _MIGRATION and "migration" not in allow:
        raise _not_allowed("a migration agent may read the machine", "migration")
    if report.policy & _SMT and "smt" not in allow:
        raise _not_allowed("other machines may share its cores", "smt")
    if unknown := report.policy & ~_KNOWN_POLICY:
        raise AttestationRefused(
            Refusal.PLATFORM, f"bits {unknown:#x} of its policy are not known to this release"
        )


def _require_vmpl(report: _Report, allow: tuple[str, ...]) -> None:
    """What runs at VMPL 0 was measured. Below it there may be code that it loaded and distrusts."""
    if report.vmpl > _HIGHEST_VMPL:
        raise AttestationRefused(Refusal.PLATFORM, "the host asked for the report, not the machine")
    if report.vmpl and "vmpl" not in allow:
        raise _not_allowed(f"the report was asked for at VMPL {report.vmpl}", "vmpl")


def _require_tcb(report: _Report, rules: SnpPolicy) -> None:
    """Of the launch, too: an old firmware may have measured falsely before it was renewed."""
    for when, tcb in (("reported", report.reported_tcb), ("launch", report.launch_tcb)):
        parts = report.parts(tcb)
        for name, least in asdict(rules.min_tcb).items():
            if parts.get(name, 0) < least:
                have = f"in its {when} TCB {name} is {parts.get(name, 0)}"
                raise AttestationRefused(Refusal.TCB, f"{have}; the policy asks for {least}")


def _require_chip(report: _Report, rules: SnpPolicy) -> None:
    if rules.chip_ids and report.chip_id not in rules.chip_ids:
        chip = report.chip_id.hex() if any(report.chip_id) else "masked by its host"
        raise AttestationRefused(Refusal.PLATFORM, f"its chip id, {chip}, is not listed")


def _malformed(why: str) -> AttestationRefused:
    return AttestationRefused(Refusal.MALFORMED, why)


def _unfit(why: str) -> AttestationRefused:
    return AttestationRefused(Refusal.COLLATERAL, why)


def _not_allowed(what: str, allowance: str) -> AttestationRefused:
    return AttestationRefused(
        Refusal.PLATFORM, f'{what}; to accept that, add "{allowance}" to allow under [snp]'
    )

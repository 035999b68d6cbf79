"""AMD SEV-SNP: a report about a virtual machine, signed by a key that AMD certifies.

The key that signs belongs to one chip (VCEK) or was loaded by a cloud (VLEK). AMD's intermediate
(ASK or ASVK) certifies it, and the product's root (ARK) certifies the intermediate; the roots are
pinned here. AMD's revocation list is read if the policy names a file with it, because evidence
does not bring one.

The layout is that of AMD's firmware ABI (document 56860): a report is 0x2A0 bytes of statement and
then its signature.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384

from ostraka.attestation.certificates import (
    Certificate,
    from_der_or_pem,
    is_issued_by,
    key_digest,
    looks_encoded,
    may_issue,
    require_valid,
)
from ostraka.attestation.claims import Claims, Collateral
from ostraka.attestation.policy import Sha384, require_listed
from ostraka.attestation.revocation import require_not_revoked
from ostraka.encoding import Length
from ostraka.errors import AttestationRefused, ConfigError, Refusal
from ostraka.messages import Evidence

_VERSIONS = (2, 3, 4, 5)
_REPORT = 0x4A0
_STATEMENT = struct.Struct("<IIQ32xII8sQI4x64s48s32s48s48x64x8s3B21x64s8s3sx3sx8sQQ152x")
_NUMBER = 72  # r and s, each little-endian
_SIGNERS = {0: "VCEK", 1: "VLEK"}

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

# Each root's `key_digest`.
AMD_ROOTS: Mapping[str, bytes] = {
    "Milan": bytes.fromhex("9f056bee44377e29308cb5ffa895bdfb62d18881fa6bed8d6f075b0204089cb9"),
    "Genoa": bytes.fromhex("429a69c9422aa258ee4d8db5fcda9c6470ef15f8cd5a9cebd6cbc7d90b863831"),
    "Turin": bytes.fromhex("4f125410563a2ab9a50356f9243f6fe0b6f73de98603f53f90339c70e9d7ad08"),
}

# What a policy may allow beyond the strict rules.
ALLOWANCES = (
    "any-tcb",  # firmware of every version, those with published attacks included
    "migration",  # a migration agent, which sees the machine's memory
    "smt",  # other machines on the other thread of a core
    "vmpl",  # a report that was asked for below VMPL 0: the measured code may host other code there
)

_HOW_TO_ALLOW_ANY_TCB = 'who wants that adds "any-tcb" to allow under [snp]'

_ECDSA_P384_SHA384 = 1
_HIGHEST_VMPL = 3

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


@dataclass(frozen=True)
class SnpTcb:
    """The lowest acceptable security version of each part of an SEV-SNP platform.

    bootloader, tee, snp, microcode: the lowest version of this part, all of which must be stated.
    fmc: only Turin has it, and there it must be stated as well.
    """

    bootloader: int
    tee: int
    snp: int
    microcode: int
    fmc: int | None = None

    def __post_init__(self) -> None:
        if not any(asdict(self).values()):
            raise ConfigError(f"a min_tcb of zeros accepts every version; {_HOW_TO_ALLOW_ANY_TCB}")


@dataclass(frozen=True)
class SnpPolicy:
    """SEV-SNP: the launch measurement, and the lowest version of the platform's firmware.

    measurement: of the image at its launch. chip_ids: only these machines, if any are listed.
    min_tcb: the oldest firmware that is accepted. allow: some of `ALLOWANCES`. certificates: a
    PEM file with what the evidence does not bring: the VCEK or VLEK, AMD's intermediate, and AMD's
    root certificate as well, since only the hash of its key is pinned. crl: a file with AMD's
    revocation list, as DER or PEM; if it is named, it must be genuine and in date.
    """

    measurement: tuple[Sha384, ...] = ()
    chip_ids: tuple[Annotated[bytes, Length(64)], ...] = ()
    min_tcb: SnpTcb | None = None
    allow: tuple[str, ...] = ()
    certificates: str | None = None
    crl: str | None = None

    def __post_init__(self) -> None:
        for name in self.allow:
            if name not in ALLOWANCES:
                known = ", ".join(ALLOWANCES)
                raise ConfigError(f"[snp] allow: {name!r} is not known; there are {known}")
        if self.min_tcb is not None and "any-tcb" in self.allow:
            raise ConfigError("[snp] states min_tcb, and allows any-tcb: keep one of them")
        for source in ("certificates", "crl"):
            if (getattr(self, source) or "").startswith(("http://", "https://")):
                raise ConfigError(f"snp.{source} is a path, not a URL")


def read(evidence: Evidence) -> Claims:
    """Reads what a report says, unchecked. Raises AttestationRefused if it is no report."""
    return claims_of(parse(evidence.document))


def verify(
    evidence: Evidence,
    *,
    policy: SnpPolicy,
    collateral: Collateral,
    now: int,
    skew: int,
    roots: Mapping[str, bytes] = AMD_ROOTS,
) -> Claims:
    """Returns what a report proves about code that the policy lists. Raises AttestationRefused.

    The evidence's endorsements and the policy's `certificates` hold the VCEK or VLEK, AMD's
    intermediate and AMD's root, in any order; as PEM, as DER, or in the table that a host hands its
    guests (configfs-tsm's `auxblob`).
    """
    # (1) The report can be read.
    report = parse(evidence.document)

    # (2) There are certificates for the kind of key, the chip and the TCB that the report states.
    held = _certificates((*evidence.endorsements, collateral.get("certificates", b"")))
    fitting = _require_fitting(report, held)

    # (3) The key of one of them has signed the report.
    signer = _require_signer(report, fitting)

    # (4) It leads to a pinned root, at this time, and all three are of the same product.
    chain = _chain(signer, held)
    product = _require_root(chain, roots)
    require_valid(chain, now, skew)
    _require_product(report, signer, product)

    # (5) None of the three is revoked, if the policy names a list.
    revocation = _require_not_revoked(chain, policy, collateral, now, skew)

    # (6) Its host cannot look into the machine, and the code itself asked for the report.
    _require_policy(report, policy.allow)
    _require_vmpl(report, policy.allow)

    # (7) The firmware is new enough, now and when the machine was started, on a machine of ours.
    _require_tcb(report, policy)
    _require_chip(report, policy)

    # (8) The policy lists the code. The caller compares what the report is bound to.
    claims = claims_of(report)
    require_listed(claims, "snp", {"measurement": policy.measurement}, ("measurement",))
    return replace(claims, facts=(("product", product), ("revocation", revocation), *claims.facts))


@dataclass(frozen=True)
class Report:
    """The fields of a report that are used, in their order there, with TCB versions as bytes.

    statement: the signed bytes that hold the fields. signature: as DER.
    """

    statement: bytes
    signature: bytes
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
    def signer(self) -> str | None:
        """Returns the kind of key that signed it, VCEK or VLEK, or None."""
        return _SIGNERS.get(self.keys >> 2 & 7)

    @property
    def debug(self) -> bool:
        return bool(self.policy & _DEBUG)

    @property
    def migration(self) -> bool:
        return bool(self.policy & _MIGRATION)

    @property
    def smt(self) -> bool:
        return bool(self.policy & _SMT)

    @property
    def unknown_policy(self) -> int:
        """Returns the bits of its policy that this release cannot judge."""
        return self.policy & ~_KNOWN_POLICY

    @property
    def products(self) -> tuple[str, ...]:
        """Returns the products that can have made this report. Version 2 does not name one."""
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


def parse(document: bytes) -> Report:
    """Takes a report apart. Raises AttestationRefused if it is no report."""
    if len(document) != _REPORT:
        raise _malformed(f"a report has {_REPORT} bytes; got {len(document)}")
    statement, rest = document[: _STATEMENT.size], document[_STATEMENT.size :]
    report = Report(statement, _signature(rest), *_STATEMENT.unpack(statement))
    if report.version not in _VERSIONS:
        raise _malformed(f"version {report.version} of the report is not known")
    if not report.policy & _RESERVED_ONE:
        raise _malformed("a bit of the policy that is always set is not")
    # What follows the signature is not signed, so it must be empty.
    if any(rest[2 * _NUMBER :]):
        raise _malformed("there is something after the signature")
    return report


def claims_of(report: Report) -> Claims:
    return Claims(
        kind="snp",
        measurements=(("measurement", report.measurement),),
        report_data=report.report_data,
        debug=report.debug,
        facts=tuple(_facts(report)),
    )


def tcb_text(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {version}" for name, version in parts.items())


def _signature(rest: bytes) -> bytes:
    number = partial(int.from_bytes, byteorder="little")
    return encode_dss_signature(number(rest[:_NUMBER]), number(rest[_NUMBER : 2 * _NUMBER]))


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    yield "report version", str(report.version)
    yield "signed by", report.signer or "none"
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
        yield f"{name} tcb", tcb_text(report.parts(getattr(report, f"{name}_tcb")))
    yield "current firmware", _firmware(report.current_firmware)
    yield "committed firmware", _firmware(report.committed_firmware)
    yield "host data", report.host_data.hex()
    yield "id key", report.id_key.hex()
    if report.version > 3:
        yield "launch mitigations", f"{report.launch_mitigations:#x}"
        yield "current mitigations", f"{report.current_mitigations:#x}"


def _flags(bits: int, names: Mapping[int, str]) -> str:
    return ", ".join(name for bit, name in names.items() if bits >> bit & 1) or "none"


def _firmware(version: bytes) -> str:
    build, minor, major = version
    return f"{major}.{minor}.{build}"


def _malformed(why: str) -> AttestationRefused:
    return AttestationRefused(Refusal.MALFORMED, why)


def _certificates(blobs: tuple[bytes, ...]) -> tuple[Certificate, ...]:
    """Returns every certificate that the evidence brought or the policy's file holds."""
    if sum(map(len, blobs)) > _MOST_BYTES:
        raise _unfit(f"the certificates have more than {_MOST_BYTES} bytes")
    try:
        pieces = (piece for blob in blobs for piece in _pieces(blob))
        held = from_der_or_pem(pieces, most=_MOST_CERTIFICATES + 1)
    except ValueError:
        raise _unfit("something among the certificates is none") from None
    if len(held) > _MOST_CERTIFICATES:
        raise _unfit(f"there are more than {_MOST_CERTIFICATES} certificates")
    return held


def _pieces(blob: bytes) -> Iterable[bytes]:
    """Returns a table's entries that hold certificates. Their GUIDs do not matter."""
    return (blob,) if looks_encoded(blob) else filter(looks_encoded, _table(blob))


def _table(blob: bytes) -> Iterator[bytes]:
    """Yields the entries of a host's certificate table. An entry of zeros ends it."""
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


def _require_fitting(report: Report, held: tuple[Certificate, ...]) -> tuple[Certificate, ...]:
    if report.signer is None:
        raise AttestationRefused(Refusal.SIGNATURE, "its host had it left unsigned")
    fitting = tuple(each for each in held if each.p384 and _fits(report, _amd(each)))
    if not fitting:
        chip = f"chip {report.chip_id.hex()}, " if report.signer == "VCEK" else ""
        tcb = tcb_text(report.parts(report.reported_tcb))
        raise _unfit(
            f"none of {len(held)} certificates is the {report.signer} for {chip}{tcb}; "
            "AMD's key service has it, and a file for `certificates` under [snp] can hold it"
        )
    return fitting


def _fits(report: Report, amd: Mapping[str, bytes]) -> bool:
    """Tells whether a certificate is for the kind of key, the chip and the TCB of a report."""
    tcb = report.parts(report.reported_tcb)
    if any(amd.get(_TCB_EXTENSIONS[name]) != _integer(value) for name, value in tcb.items()):
        return False
    if report.signer == "VLEK":
        return _CLOUD in amd and _HARDWARE_ID not in amd
    if _CLOUD in amd or _HARDWARE_ID not in amd:
        return False
    # A host may mask the chip's id. The key belongs to the chip nevertheless.
    padded = amd[_HARDWARE_ID].ljust(len(report.chip_id), b"\0")  # Turin's ids have 8 bytes
    return padded == report.chip_id or not any(report.chip_id)


def _amd(certificate: Certificate) -> dict[str, bytes]:
    """Returns AMD's own extensions, by their number under AMD's arc."""
    return {
        each.oid.dotted_string.removeprefix(_AMD_ARC): each.value.value
        for each in certificate.extensions
        if each.oid.dotted_string.startswith(_AMD_ARC)
        and isinstance(each.value, x509.UnrecognizedExtension)
    }


def _integer(value: int) -> bytes:
    """Encodes a byte as a DER integer, as AMD's extensions do."""
    body = bytes([value]) if value < 0x80 else bytes([0, value])
    return bytes([2, len(body)]) + body


def _require_signer(report: Report, fitting: tuple[Certificate, ...]) -> Certificate:
    if report.algorithm != _ECDSA_P384_SHA384:
        raise AttestationRefused(
            Refusal.SIGNATURE, f"signature algorithm {report.algorithm} is not known"
        )
    for each in fitting:
        if each.p384 and _has_signed(each.p384, report):
            return each
    raise AttestationRefused(Refusal.SIGNATURE, f"it is not the {report.signer}'s")


def _has_signed(key: ec.EllipticCurvePublicKey, report: Report) -> bool:
    try:
        key.verify(report.signature, report.statement, ec.ECDSA(SHA384()))
    except InvalidSignature:
        return False
    return True


def _chain(signer: Certificate, held: tuple[Certificate, ...]) -> tuple[Certificate, ...]:
    """Returns the signer, its issuer, and the issuer's issuer."""
    intermediate = _require_issuer(signer, held)
    return signer, intermediate, _require_issuer(intermediate, held)


def _require_root(chain: tuple[Certificate, ...], roots: Mapping[str, bytes]) -> str:
    """Returns the product whose root vouches for the signer."""
    *_, root = chain
    product = next((name for name, key in roots.items() if key == key_digest(root)), None)
    if product is None or not _is_issued_by(root, root):
        raise AttestationRefused(Refusal.ROOT, f"they end at {root.name}")
    return product


def _require_issuer(child: Certificate, held: tuple[Certificate, ...]) -> Certificate:
    for each in held:
        if may_issue(each) and _is_issued_by(child, each):
            return each
    raise AttestationRefused(Refusal.ROOT, f"the issuer of {child.name} is not among them")


def _is_issued_by(child: Certificate, issuer: Certificate) -> bool:
    """Tells whether the issuer signed the child by RSA-PSS, as AMD always does."""
    return is_issued_by(child, issuer) and isinstance(
        child.parsed.signature_algorithm_parameters, padding.PSS
    )


def _require_product(report: Report, signer: Certificate, product: str) -> None:
    if product not in report.products:
        raise _unfit(f"AMD's root for {product} vouches for a report of another processor")
    # An IA5String, such as Milan-B0: the product and its stepping.
    name = _amd(signer).get(_PRODUCT, b"")
    if name[:2] != bytes([0x16, len(name[2:])]) or name[2:].split(b"-")[0] != product.encode():
        raise _unfit(f"AMD's root for {product} vouches for a key of another product")


def _require_not_revoked(
    chain: tuple[Certificate, ...],
    policy: SnpPolicy,
    collateral: Collateral,
    now: int,
    skew: int,
) -> str:
    if policy.crl is None:
        return "not checked: the policy names no crl"
    if "crl" not in collateral:
        raise _unfit("the policy names a revocation list (crl), and it is not at hand")
    return require_not_revoked(chain, collateral["crl"], now=now, skew=skew)


def _require_policy(report: Report, allow: tuple[str, ...]) -> None:
    if report.debug:
        raise AttestationRefused(Refusal.DEBUG)
    if report.migration and "migration" not in allow:
        raise _not_allowed("a migration agent may read the machine", "migration")
    if report.smt and "smt" not in allow:
        raise _not_allowed("other machines may share its cores", "smt")
    if report.unknown_policy:
        bits = f"bits {report.unknown_policy:#x} of its policy"
        raise AttestationRefused(Refusal.PLATFORM, f"{bits} are not known to this release")


def _require_vmpl(report: Report, allow: tuple[str, ...]) -> None:
    """Requires VMPL 0, whose code was measured. It may have loaded other code below it."""
    if report.vmpl > _HIGHEST_VMPL:
        raise AttestationRefused(Refusal.PLATFORM, "the host asked for the report, not the machine")
    if report.vmpl and "vmpl" not in allow:
        raise _not_allowed(f"the report was asked for at VMPL {report.vmpl}", "vmpl")


def _require_tcb(report: Report, policy: SnpPolicy) -> None:
    """Checks the launch, too: old firmware may have measured falsely before it was renewed."""
    if "any-tcb" in policy.allow:
        return
    least = {} if policy.min_tcb is None else asdict(policy.min_tcb)
    shown = {
        "reported": report.parts(report.reported_tcb),
        "launch": report.parts(report.launch_tcb),
    }
    if any(least.get(name) is None for name in shown["reported"]):
        raise AttestationRefused(Refusal.TCB, _tcb_advice(*shown.values()))
    for when, parts in shown.items():
        for name, wanted in least.items():
            if parts.get(name, 0) < (wanted or 0):
                have = f"in its {when} TCB {name} is {parts.get(name, 0)}"
                raise AttestationRefused(Refusal.TCB, f"{have}; the policy asks for {wanted}")


def _tcb_advice(reported: Mapping[str, int], launch: Mapping[str, int]) -> str:
    """Says what the platform reports, and which line would accept it, now and as it was started."""
    lowest = ", ".join(f"{name} = {min(reported[name], launch[name])}" for name in reported)
    return (
        f"the policy does not say which is; this platform reports {tcb_text(reported)}; if that is "
        f"what AMD recommends at present, write under [snp]: min_tcb = {{ {lowest} }}"
    )


def _require_chip(report: Report, policy: SnpPolicy) -> None:
    if policy.chip_ids and report.chip_id not in policy.chip_ids:
        chip = report.chip_id.hex() if any(report.chip_id) else "masked by its host"
        raise AttestationRefused(Refusal.PLATFORM, f"its chip id, {chip}, is not listed")


def _unfit(why: str) -> AttestationRefused:
    return AttestationRefused(Refusal.COLLATERAL, why)


def _not_allowed(what: str, allowance: str) -> AttestationRefused:
    return AttestationRefused(
        Refusal.PLATFORM, f'{what}; to accept that, add "{allowance}" to allow under [snp]'
    )

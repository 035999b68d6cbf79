"""What stands in an SEV-SNP report: its layout, by AMD's firmware ABI (document 56860).

A report is 0x2A0 bytes of statement and then its signature.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from ostraka.attestation.claims import Claims
from ostraka.errors import AttestationRefused, Refusal

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


@dataclass(frozen=True)
class Report:
    """The fields that somebody needs, in the order in which they stand; TCB versions as bytes.

    statement: the bytes that hold them, and are signed. signature: as DER.
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
        """The kind of key that signed it: VCEK, VLEK, or none."""
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
        """The bits of its policy that this release cannot judge."""
        return self.policy & ~_KNOWN_POLICY

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


def parse(document: bytes) -> Report:
    """Raises AttestationRefused where it is no report."""
    if len(document) != _REPORT:
        raise _malformed(f"a report has {_REPORT} bytes; got {len(document)}")
    statement, rest = document[: _STATEMENT.size], document[_STATEMENT.size :]
    report = Report(statement, _signature(rest), *_STATEMENT.unpack(statement))
    if report.version not in _VERSIONS:
        raise _malformed(f"version {report.version} of the report is not known")
    if not report.policy & _RESERVED_ONE:
        raise _malformed("a bit of the policy that is always set is not")
    # Nothing signs what follows the signature, so it must not be able to say anything.
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

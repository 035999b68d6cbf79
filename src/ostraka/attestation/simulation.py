"""Simulated SGX and TDX evidence: real in form, and worth nothing.

Quotes and collateral have the form of Intel's, down to the last signature, so the code that checks
real ones also checks these. But anyone who knows the seed can make a quote for any code, and a seed
lies on an ordinary disk. Therefore the root's name says SIMULATION, the evidence has a kind of its
own, and a verifier must be told twice before it looks at it.
"""

import hashlib
import json
import struct
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from ostraka.attestation import dcap
from ostraka.attestation.certificates import from_der, key_digest
from ostraka.attestation.claims import Claims, Collateral
from ostraka.attestation.dcap import SgxPolicy
from ostraka.attestation.policy import toml_line
from ostraka.attestation.simulated_pki import Issuer, PckExtension, SigningKey, Validity
from ostraka.encoding import Digest
from ostraka.errors import AttestationRefused, LocalProtocolError, Refusal
from ostraka.messages import Evidence

_TEN_YEARS = 3653 * 24 * 3600

_SGX, _TDX = 0x00, 0x81
_ECDSA_P256, _PEM_CHAIN, _QE_CERTIFICATION = 2, 5, 6
_INTEL_QE = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")
_BITS64, _DEBUG = 0x04, 0x02
_TD_DEBUG, _TD_SEPT_VE_DISABLE = 1, 1 << 28

_FMSPC = b"\x51\xd0\0\0\0\0"
_SVNS = bytes([2] * 16)
_TD_SVNS = bytes([5, 0, 2]) + bytes(13)
_PCE_SVN = 11
_QE_SVN = 8
_QE_SIGNER = hashlib.sha256(b"Ostraka SIMULATION quoting enclave").digest()
_QE_PRODUCTS = {_SGX: 1, _TDX: 2}
_QE_AUTH_DATA = bytes(32)


@dataclass(frozen=True)
class SimulationPolicy:
    """Simulated SGX quotes under a private root.

    root: that root, by the hash that `root_key` gives. mrenclave, mrsigner, isv_prod_id,
    min_isv_svn, allow, collateral: as in [sgx].
    """

    root: tuple[Digest, ...] = ()
    mrenclave: tuple[Digest, ...] = ()
    mrsigner: tuple[Digest, ...] = ()
    isv_prod_id: int | None = None
    min_isv_svn: int | None = None
    allow: tuple[str, ...] = ()
    collateral: str | None = None

    def __post_init__(self) -> None:
        dcap.require_allowances(self.allow)

    def for_quotes(self) -> SgxPolicy:
        """Returns the part of this policy that concerns the quote, and not its root."""
        return SgxPolicy(**{each.name: getattr(self, each.name) for each in fields(SgxPolicy)})


def verify(
    evidence: Evidence,
    *,
    policy: SimulationPolicy,
    collateral: Collateral,
    now: int,
    skew: int,
) -> Claims:
    """Verifies as `dcap.verify` does, under the evidence's own root if the policy names it.

    The caller has checked that simulation is allowed at all.
    """
    if not evidence.endorsements:
        raise AttestationRefused(Refusal.ROOT, "the simulated evidence brings no root certificate")
    root = evidence.endorsements[0]
    digest = root_key(root)
    if digest not in policy.root:
        line = toml_line("root", (*policy.root, digest))
        raise AttestationRefused(
            Refusal.ROOT,
            f"this platform's root is {digest.hex()}; "
            f"if you decide to believe its simulations, write under [simulation]: {line}",
        )
    return dcap.verify(
        evidence, policy=policy.for_quotes(), collateral=collateral, now=now, skew=skew, root=root
    )


@lru_cache(maxsize=4)  # A platform shows the same root each time.
def root_key(certificate: bytes) -> bytes:
    """Returns the name of a simulated platform: the digest of its root's key.

    Raises AttestationRefused unless the key has signed the certificate.
    """
    try:
        (root,) = from_der((certificate,))
        root.parsed.verify_directly_issued_by(root.parsed)
        return key_digest(root)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        raise AttestationRefused(Refusal.ROOT, "the root is no self-signed certificate") from None


@dataclass(frozen=True)
class UnsafeSimulatedPlatform:
    """A machine that attests to anything that it is told.

    issued, lifetime: when its certificates are valid, in seconds. collateral_lifetime: how long its
    collateral is valid, if not as long. properties: some of `dcap.PROPERTIES`. status, qe_status:
    what the collateral says of it and of its quoting enclave. revoked: which of its certificates
    are revoked: "root", "pck-ca", "tcb-signing", "pck".
    """

    seed: bytes = field(repr=False)
    _: KW_ONLY
    issued: int
    lifetime: int = _TEN_YEARS
    collateral_lifetime: int | None = None
    properties: tuple[str, ...] = ()
    status: str = "UpToDate"
    qe_status: str = "UpToDate"
    revoked: tuple[str, ...] = ()

    @property
    def root_der(self) -> bytes:
        return self._root_certificate.public_bytes(Encoding.DER)

    @property
    def root_digest(self) -> bytes:
        """Returns the digest by which a policy names the root."""
        return root_key(self.root_der)

    def quote(
        self,
        report_data: bytes,
        *,
        mrenclave: bytes,
        mrsigner: bytes = bytes(32),
        isv_prod_id: int = 0,
        isv_svn: int = 1,
        debug: bool = False,
    ) -> bytes:
        """Makes an SGX quote, version 3."""
        report = _enclave_report(
            report_data,
            attributes=_BITS64 | (_DEBUG if debug else 0),
            mrenclave=mrenclave,
            mrsigner=mrsigner,
            isv_prod_id=isv_prod_id,
            isv_svn=isv_svn,
        )
        signed = _header(3, _SGX) + report
        authentication = self._signature(signed) + self._qe_certification(_SGX)
        return signed + _counted(authentication)

    def td_quote(
        self,
        report_data: bytes,
        *,
        mrtd: bytes,
        rtmrs: tuple[bytes, bytes, bytes, bytes] = (bytes(48),) * 4,
        debug: bool = False,
    ) -> bytes:
        """Makes a TDX quote, version 4, with a TD report 1.0."""
        attributes = _TD_SEPT_VE_DISABLE | (_TD_DEBUG if debug else 0)
        signed = _header(4, _TDX) + b"".join(
            (
                _TD_SVNS,
                bytes(48 + 48 + 8),  # the TDX module's measurement, signer and attributes
                struct.pack("<Q", attributes),
                bytes(8),
                _exactly(48, mrtd),
                bytes(3 * 48),  # what the owner configured
                *(_exactly(48, rtmr) for rtmr in rtmrs),
                _exactly(64, report_data),
            )
        )
        certification = struct.pack("<H", _QE_CERTIFICATION) + _counted(
            self._qe_certification(_TDX)
        )
        return signed + _counted(self._signature(signed) + certification)

    def collateral(self) -> bytes:
        """Makes what Intel's service would say of this platform, as JSON for SGX quotes."""
        level = {"sgxtcbcomponents": _components(_SVNS), "pcesvn": _PCE_SVN}
        return self._collateral("QE", _SGX, {"id": "SGX", **self._tcb_info(level)})

    def td_collateral(self) -> bytes:
        """Makes the same for TDX quotes."""
        level = {
            "sgxtcbcomponents": _components(_SVNS),
            "tdxtcbcomponents": _components(_TD_SVNS),
            "pcesvn": _PCE_SVN,
        }
        module = {"mrsigner": "00" * 48, "attributes": "00" * 8, "attributesMask": "ff" * 8}
        info = {"id": "TDX", **self._tcb_info(level), "tdxModule": module}
        return self._collateral("TD_QE", _TDX, info)

    def _collateral(self, quoting_enclave: str, tee: int, tcb_info: dict[str, Any]) -> bytes:
        info = json.dumps(tcb_info)
        identity = json.dumps({"id": quoting_enclave, **self._qe_identity(tee)})
        chain = _pem(self._tcb_certificate, self._root_certificate)
        fields = {
            "pck_crl_issuer_chain": _pem(self._ca_certificate, self._root_certificate),
            "root_ca_crl": self._revocations(self._root, "root", "pck-ca", "tcb-signing"),
            "pck_crl": self._revocations(self._ca, "pck"),
            "tcb_info_issuer_chain": chain,
            "tcb_info": info,
            "tcb_info_signature": self._tcb.key.sign(info.encode()).hex(),
            "qe_identity_issuer_chain": chain,
            "qe_identity": identity,
            "qe_identity_signature": self._tcb.key.sign(identity.encode()).hex(),
        }
        return json.dumps(fields).encode()

    def _tcb_info(self, level: dict[str, Any]) -> dict[str, Any]:
        return {
            "version": 3,
            **self._dates(),
            "fmspc": _FMSPC.hex(),
            "pceId": "0000",
            "tcbType": 0,
            "tcbEvaluationDataNumber": 1,
            "tcbLevels": [self._level(level, self.status)],
        }

    def _qe_identity(self, tee: int) -> dict[str, Any]:
        return {
            "version": 2,
            **self._dates(),
            "tcbEvaluationDataNumber": 1,
            "miscselect": "00" * 4,
            "miscselectMask": "ff" * 4,
            "attributes": f"{_BITS64:02x}" + "00" * 15,
            "attributesMask": "ff" * 16,
            "mrsigner": _QE_SIGNER.hex(),
            "isvprodid": _QE_PRODUCTS[tee],
            "tcbLevels": [self._level({"isvsvn": _QE_SVN}, self.qe_status)],
        }

    def _level(self, tcb: dict[str, Any], status: str) -> dict[str, Any]:
        return {"tcb": tcb, "tcbDate": _rfc3339(self._validity.first), "tcbStatus": status}

    def _dates(self) -> dict[str, str]:
        said = self._collateral_validity
        return {"issueDate": _rfc3339(said.first), "nextUpdate": _rfc3339(said.last)}

    def _revocations(self, issuer: Issuer, *names: str) -> str:
        subjects = {
            "root": self._root,
            "pck-ca": self._ca,
            "tcb-signing": self._tcb,
            "pck": self._pck,
        }
        serials = [subjects[name].key.serial for name in names if name in self.revoked]
        return issuer.revoke(serials, self._collateral_validity).hex()

    def _signature(self, signed: bytes) -> bytes:
        return self._attestation_key.sign(signed) + self._attestation_key.public

    def _qe_certification(self, tee: int) -> bytes:
        """Makes the quoting enclave's word on the attestation key, and the PCK's on the enclave."""
        key = hashlib.sha256(self._attestation_key.public + _QE_AUTH_DATA).digest()
        report = _enclave_report(
            key + bytes(32),
            attributes=_BITS64,
            mrenclave=bytes(32),
            mrsigner=_QE_SIGNER,
            isv_prod_id=_QE_PRODUCTS[tee],
            isv_svn=_QE_SVN,
        )
        chain = _pem(self._pck_certificate, self._ca_certificate, self._root_certificate)
        return b"".join(
            (
                report,
                self._pck.key.sign(report),
                struct.pack("<H", len(_QE_AUTH_DATA)) + _QE_AUTH_DATA,
                struct.pack("<H", _PEM_CHAIN) + _counted(chain.encode()),
            )
        )

    @property
    def _validity(self) -> Validity:
        return Validity(self.issued, self.issued + self.lifetime)

    @property
    def _collateral_validity(self) -> Validity:
        lifetime = self.lifetime if self.collateral_lifetime is None else self.collateral_lifetime
        return Validity(self.issued, self.issued + lifetime)

    def _issuer(self, name: str) -> Issuer:
        return Issuer(f"Ostraka SIMULATION {name}, NOT A TEE", SigningKey(self.seed, name))

    @cached_property
    def _attestation_key(self) -> SigningKey:
        return SigningKey(self.seed, "attestation key")

    @cached_property
    def _root(self) -> Issuer:
        return self._issuer("Root CA")

    @cached_property
    def _ca(self) -> Issuer:
        return self._issuer("PCK Platform CA")

    @cached_property
    def _pck(self) -> Issuer:
        return self._issuer("PCK")

    @cached_property
    def _tcb(self) -> Issuer:
        return self._issuer("TCB Signing")

    @cached_property
    def _root_certificate(self) -> x509.Certificate:
        return self._root.certify(self._root, self._validity, path_length=1)

    @cached_property
    def _ca_certificate(self) -> x509.Certificate:
        return self._root.certify(self._ca, self._validity, path_length=0)

    @cached_property
    def _pck_certificate(self) -> x509.Certificate:
        extension = PckExtension(_FMSPC, _SVNS, _PCE_SVN, self.properties).extension()
        return self._ca.certify(self._pck, self._validity, extra=extension)

    @cached_property
    def _tcb_certificate(self) -> x509.Certificate:
        return self._root.certify(self._tcb, self._validity)


def _header(version: int, tee: int) -> bytes:
    numbers = struct.pack("<HHIHH", version, _ECDSA_P256, tee, _QE_SVN, _PCE_SVN)
    return numbers + _INTEL_QE + bytes(20)


def _enclave_report(
    report_data: bytes,
    *,
    attributes: int,
    mrenclave: bytes,
    mrsigner: bytes,
    isv_prod_id: int,
    isv_svn: int,
) -> bytes:
    return b"".join(
        (
            _SVNS,
            bytes(4 + 28),
            struct.pack("<QQ", attributes, 0),
            _exactly(32, mrenclave),
            bytes(32),
            _exactly(32, mrsigner),
            bytes(96),
            struct.pack("<HH", isv_prod_id, isv_svn),
            bytes(60),
            _exactly(64, report_data),
        )
    )


def _exactly(size: int, value: bytes) -> bytes:
    if len(value) != size:
        raise LocalProtocolError(f"a field of {size} bytes of a quote got {len(value)}")
    return value


def _counted(content: bytes) -> bytes:
    return struct.pack("<I", len(content)) + content


def _components(svns: bytes) -> list[dict[str, int]]:
    return [{"svn": svn} for svn in svns]


def _pem(*certificates: x509.Certificate) -> str:
    return "".join(each.public_bytes(Encoding.PEM).decode() for each in certificates)


def _rfc3339(when: datetime) -> str:
    return f"{when:%Y-%m-%dT%H:%M:%SZ}"

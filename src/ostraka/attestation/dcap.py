"""SGX and TDX quotes. dcap-qvl checks that the platform is genuine; what runs on it, we check.

A quote is signed by a key that the platform's quoting enclave vouches for, and the quoting enclave
is vouched for by a key that Intel certified. The collateral is what Intel says of such platforms at
present: which are revoked, and which are out of date. It is signed, too, so it does not matter who
brings it. The library is used as strictly as it can be, except for what a policy allows by name.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import dcap_qvl
from cryptography import x509

from ostraka.attestation.claims import Claims, Collateral
from ostraka.attestation.policy import Sha384, require_listed
from ostraka.encoding import Digest
from ostraka.errors import AttestationRefused, ConfigError, Refusal, printable
from ostraka.messages import Evidence

STATUSES = (
    "SWHardeningNeeded",
    "ConfigurationNeeded",
    "ConfigurationAndSWHardeningNeeded",
    "OutOfDate",
    "OutOfDateConfigurationNeeded",
)
PROPERTIES = ("dynamic-platform", "cached-keys", "smt")
# What a policy may allow by name. A revoked platform is never allowed.
ALLOWANCES = STATUSES + PROPERTIES

_OUT_OF_DATE = frozenset({"OutOfDate", "OutOfDateConfigurationNeeded"})

_HEADER = 48
_ISV_PROD_ID = _HEADER + 256  # and right behind it isv_svn, two bytes each
_SGX_DEBUG = 0x02  # in byte 0 of attributes
_TD_DEBUG = 0x01  # in byte 0 of td_attributes

_TDX_MEASUREMENTS = ("mrtd", "rtmr0", "rtmr1", "rtmr2", "rtmr3")
_UNUSED = bytes(48)  # a register that nothing was measured into

# What a TDX policy may waive by name instead of listing it. Firmware and kernel cannot be waived.
WAIVERS = {
    "rtmr0": "any-rtmr0",  # the host's configuration: secure boot's keys, ACPI tables, devices
    "rtmr3": "any-rtmr3",  # what the measured system itself measured later, such as containers
}

# The library gives its reasons as text. The first row whose words occur in it decides; a text that
# no row knows is a refusal, too. Every row has a test, which fails when the words change.
_REASONS = (
    ("CertRevoked", Refusal.REVOKED),
    ("TCB status is invalid: Revoked", Refusal.REVOKED),
    ("CertExpired", Refusal.VALIDITY),
    ("CertNotValidYet", Refusal.VALIDITY),
    ("CrlExpired", Refusal.VALIDITY),
    ("TCBInfo expired", Refusal.VALIDITY),
    ("QE Identity expired", Refusal.VALIDITY),
    ("issue date is in the future", Refusal.VALIDITY),
    ("certificate chain Caused by: InvalidCrlSignatureForPublicKey", Refusal.COLLATERAL),
    ("certificate chain Caused by: UnknownRevocationStatus", Refusal.COLLATERAL),
    ("Failed to verify certificate chain", Refusal.ROOT),
    ("root CA CRL Caused by: InvalidCrlSignatureForPublicKey", Refusal.ROOT),
    ("Signature is invalid for qe_report", Refusal.SIGNATURE),
    ("QE report hash mismatch", Refusal.SIGNATURE),
    ("ISV enclave report signature is invalid", Refusal.SIGNATURE),
    ("Unknown QE vendor ID", Refusal.SIGNATURE),
    ("QE MRSIGNER mismatch", Refusal.SIGNATURE),
    ("QE ISVPRODID mismatch", Refusal.SIGNATURE),
    ("QE ATTRIBUTES mismatch", Refusal.SIGNATURE),
    ("QE MISCSELECT mismatch", Refusal.SIGNATURE),
    ("QE report validation failed", Refusal.SIGNATURE),
    ("QE ISVSVN", Refusal.TCB),
    ("TCB status", Refusal.TCB),
    ("No matching TCB level found", Refusal.TCB),
    ("TDX module identity check", Refusal.TCB),
    ("not allowed by policy", Refusal.PLATFORM),
    ("TD profiling is enabled", Refusal.PLATFORM),
    ("TD migration is enabled", Refusal.PLATFORM),
    ("SEPT_VE_DISABLE is not enabled", Refusal.PLATFORM),
    ("Reserved bits in TD attributes are set", Refusal.PLATFORM),
    ("Debug mode is enabled", Refusal.DEBUG),
    ("Unsupported DCAP", Refusal.MALFORMED),
    ("Failed to parse PCK certificate", Refusal.MALFORMED),
    ("PCK certificates from quote", Refusal.MALFORMED),
    ("Certificate chain is too short in quote", Refusal.MALFORMED),
    ("Invalid QE auth data length", Refusal.MALFORMED),
)
_OTHERWISE = Refusal.COLLATERAL
_LONGEST_DETAIL = 300

Result = TypeVar("Result")


@dataclass(frozen=True)
class SgxPolicy:
    """SGX: the code itself, or the key that signed it.

    mrenclave: measurements of the code. mrsigner: hashes of the keys that may have signed it.
    isv_prod_id, min_isv_svn: the product and its lowest version, which must be stated if mrsigner
    stands alone: a signer signs many products, and old versions of each. allow: some of
    `ALLOWANCES`. collateral: where Intel's signed TCB data for this platform comes from, a path or
    the URL of a service.
    """

    mrenclave: tuple[Digest, ...] = ()
    mrsigner: tuple[Digest, ...] = ()
    isv_prod_id: int | None = None
    min_isv_svn: int | None = None
    allow: tuple[str, ...] = ()
    collateral: str | None = None

    def __post_init__(self) -> None:
        require_allowances(self.allow)


@dataclass(frozen=True)
class TdxPolicy:
    """TDX: the firmware and what it started.

    mrtd: the firmware; it must be listed. rtmr0: what the host configured the firmware with; it
    must be listed or waived. rtmr1, rtmr2: the kernel and what started it; they must be listed,
    because the firmware alone says nothing about them. rtmr3: what the system measured later; it
    must be listed or waived if anything was measured into it. allow: some of `ALLOWANCES` and of
    the values of `WAIVERS`. collateral: as in [sgx].
    """

    mrtd: tuple[Sha384, ...] = ()
    rtmr0: tuple[Sha384, ...] = ()
    rtmr1: tuple[Sha384, ...] = ()
    rtmr2: tuple[Sha384, ...] = ()
    rtmr3: tuple[Sha384, ...] = ()
    allow: tuple[str, ...] = ()
    collateral: str | None = None

    def __post_init__(self) -> None:
        require_allowances(self.allow, ALLOWANCES + tuple(WAIVERS.values()))
        for name, waiver in WAIVERS.items():
            if getattr(self, name) and waiver in self.allow:
                raise ConfigError(f"[tdx] lists {name}, and allows {waiver}: keep one of them")


def require_allowances(names: tuple[str, ...], known: tuple[str, ...] = ALLOWANCES) -> None:
    """Raises ConfigError for a name that no policy can allow."""
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ConfigError(f"cannot allow {', '.join(unknown)}; one of {', '.join(known)}")


def read(evidence: Evidence) -> Claims:
    """Reads what a quote says, unchecked. Raises AttestationRefused if it is none of its kind.

    A quote of the kind "simulation" has the form of an SGX quote.
    """
    quote = parse(evidence.document)
    if evidence.kind == "tdx":
        return _read_tdx(quote)
    return _read_sgx(evidence.kind, quote, evidence.document)


def verify(
    evidence: Evidence,
    *,
    policy: SgxPolicy | TdxPolicy,
    collateral: Collateral,
    now: int,
    skew: int,
    root: bytes | None = None,
) -> Claims:
    """Returns the claims of a quote that the policy accepts. Raises AttestationRefused.

    now: seconds since 1970. skew: the seconds that clocks may differ by; what is valid now, or at
    either end of that span, is valid. root: a certificate in Intel's place, for simulations. The
    caller compares the report data.
    """
    # (1) The document is a quote of this kind.
    claims = read(evidence)
    # (2) We have what Intel says of the platform.
    if "collateral" not in collateral:
        raise AttestationRefused(Refusal.COLLATERAL, "none at hand; a policy names where it is")
    said = parse_collateral(collateral["collateral"])
    # (3) The platform is genuine and in order, or out of order in a way that the policy allows.
    examination = Examination(evidence.document, said, policy.allow, root)
    facts = _at_any_of((now, max(0, now - skew), now + skew), examination.check_at)
    # (4) Its host cannot look inside.
    if claims.debug:
        raise AttestationRefused(Refusal.DEBUG)
    # (5) It runs code that the policy lists,
    _require_code(claims, policy)
    # (6) in a version that is not too old.
    if isinstance(policy, SgxPolicy):
        _require_version(claims, policy)
    return replace(claims, facts=claims.facts + facts)


def _read_sgx(kind: str, quote: Any, document: bytes) -> Claims:
    if not quote.is_sgx() or quote.header.version != 3:
        raise AttestationRefused(Refusal.MALFORMED, "not an SGX quote of version 3")
    report = quote.report
    # The library does not give these two. They are at their place in version 3, and signed there.
    isv_prod_id, isv_svn = struct.unpack_from("<HH", document, _ISV_PROD_ID)
    return Claims(
        kind=kind,
        measurements=(("mrenclave", report.mr_enclave), ("mrsigner", report.mr_signer)),
        report_data=report.report_data,
        debug=bool(report.attributes[0] & _SGX_DEBUG),
        facts=(
            ("isv_prod_id", str(isv_prod_id)),
            ("isv_svn", str(isv_svn)),
            ("attributes", report.attributes.hex()),
            ("cpu_svn", report.cpu_svn.hex()),
            *_platform_facts(quote),
        ),
    )


def _read_tdx(quote: Any) -> Claims:
    if not quote.is_tdx() or quote.header.version not in (4, 5):
        raise AttestationRefused(Refusal.MALFORMED, "not a TDX quote of version 4 or 5")
    report = quote.report
    values = (report.mr_td, report.rt_mr0, report.rt_mr1, report.rt_mr2, report.rt_mr3)
    shown = ("td_attributes", "xfam", "mr_seam", "tee_tcb_svn", "mr_config_id", "mr_owner")
    return Claims(
        kind="tdx",
        measurements=tuple(zip(_TDX_MEASUREMENTS, values, strict=True)),
        report_data=report.report_data,
        debug=bool(report.td_attributes[0] & _TD_DEBUG),
        facts=(*((name, getattr(report, name).hex()) for name in shown), *_platform_facts(quote)),
    )


def _platform_facts(quote: Any) -> tuple[tuple[str, str], ...]:
    """Returns the platform's model, by which collateral is looked up, if the quote has it."""
    pck = quote.pck_extension()
    return () if pck is None else (("fmspc", pck.fmspc.hex()),)


def _at_any_of(times: tuple[int, ...], check: Callable[[int], Result]) -> Result:
    """Returns the check's result at the first of these times at which nothing is out of date."""
    for when in times[:-1]:
        try:
            return check(when)
        except AttestationRefused as refused:
            if refused.reason is not Refusal.VALIDITY:
                raise
    return check(times[-1])


def _require_code(claims: Claims, policy: SgxPolicy | TdxPolicy) -> None:
    if isinstance(policy, TdxPolicy):
        lists = {name: getattr(policy, name) for name in _TDX_MEASUREMENTS}
        require_listed(claims, claims.kind, lists, _required(claims, policy), WAIVERS)
        return
    lists = {"mrenclave": policy.mrenclave, "mrsigner": policy.mrsigner}
    require_listed(claims, claims.kind, lists, () if policy.mrsigner else ("mrenclave",))
    _require_product(claims, policy)


def _required(claims: Claims, policy: TdxPolicy) -> tuple[str, ...]:
    """Returns what the policy must list. Nobody lists an rtmr3 that nothing was measured into."""
    waived = {name for name, waiver in WAIVERS.items() if waiver in policy.allow}
    if claims.measurement("rtmr3") == _UNUSED:
        waived.add("rtmr3")
    return tuple(name for name in _TDX_MEASUREMENTS if name not in waived)


def _require_product(claims: Claims, policy: SgxPolicy) -> None:
    """Requires a product's number beside a signer, because a signer signs many products."""
    seen, wanted = _number(claims, "isv_prod_id"), policy.isv_prod_id
    if wanted is None and not policy.mrenclave:
        raise AttestationRefused(
            Refusal.MEASUREMENT,
            f"mrsigner alone would trust all that it signs; this enclave's isv_prod_id is {seen}; "
            f"if you decide to trust it, write under [{claims.kind}]: isv_prod_id = {seen}",
        )
    if wanted not in (None, seen):
        raise AttestationRefused(
            Refusal.MEASUREMENT, f"its isv_prod_id is {seen}; the policy asks for {wanted}"
        )


def _require_version(claims: Claims, policy: SgxPolicy) -> None:
    """Requires a lowest version beside a signer, because a signer has signed old versions, too."""
    seen, least = _number(claims, "isv_svn"), policy.min_isv_svn
    if least is None and not policy.mrenclave:
        raise AttestationRefused(
            Refusal.VERSION,
            f"mrsigner alone would trust all versions; this enclave's isv_svn is {seen}; "
            f"if you decide to trust it, write under [{claims.kind}]: min_isv_svn = {seen}",
        )
    if seen < (least or 0):
        raise AttestationRefused(
            Refusal.VERSION, f"its isv_svn is {seen}; the policy asks for {least}"
        )


def _number(claims: Claims, fact: str) -> int:
    return int(dict(claims.facts)[fact])


def parse(document: bytes) -> Any:
    """Returns the library's view of a quote. Raises AttestationRefused."""
    try:
        return dcap_qvl.parse_quote(document)
    except ValueError as failure:
        raise _refused(Refusal.MALFORMED, str(failure)) from None


def parse_collateral(collateral: bytes) -> Any:
    """Parses what Intel says of a platform. Raises AttestationRefused."""
    try:
        return dcap_qvl.QuoteCollateralV3.from_json(collateral.decode())
    except ValueError as failure:
        raise _refused(Refusal.COLLATERAL, str(failure)) from None


@dataclass(frozen=True)
class Examination:
    """A quote with everything that is needed to check it.

    root: a certificate to trust in place of Intel's. allow: some of `ALLOWANCES`.
    """

    document: bytes
    collateral: Any
    allow: tuple[str, ...]
    root: bytes | None = None

    def __post_init__(self) -> None:
        if self.root is not None:
            _require_self_issued(self.root)

    def check_at(self, when: int) -> tuple[tuple[str, str], ...]:
        """Checks the platform, and returns the facts about it. Raises AttestationRefused."""
        verifier, policy = dcap_qvl.QuoteVerifier(self.root), self._policy(when)
        try:
            verified = verifier.verify_with_policy(self.document, self.collateral, when, policy)
        except ValueError as failure:
            cause = self._cause(when) or str(failure)
            raise _refused(_reason(cause), cause) from None
        result = json.loads(verified.to_json())
        self._require_quoting_enclave(result["qe"]["tcb_level"]["tcbStatus"])
        tcb = result["tcb"]
        return (("tcb_status", tcb["status"]), ("advisories", ", ".join(tcb["advisory_ids"])))

    def _policy(self, when: int) -> Any:
        policy = dcap_qvl.QuotePolicy.strict(when)
        for status in STATUSES:
            if status in self.allow:
                policy = policy.allow_status(status)
        if _OUT_OF_DATE & set(self.allow):
            # The library refuses an old platform once more by its date, and a policy names no date.
            policy = policy.platform_grace_period(when).qe_grace_period(when)
        return (
            policy.allow_dynamic_platform("dynamic-platform" in self.allow)
            .allow_cached_keys("cached-keys" in self.allow)
            .allow_smt("smt" in self.allow)
        )

    def _require_quoting_enclave(self, status: str) -> None:
        """Refuses statuses of the quoting enclave that the library lets pass as up to date."""
        if status not in ("UpToDate", *self.allow):
            raise AttestationRefused(Refusal.TCB, f"its quoting enclave is {status}")

    def _cause(self, when: int) -> str | None:
        """Returns the whole reason of a failure. The check by policy names its last step only.

        This older call names every step. Its verdict is not used, because it accepts too much.
        """
        try:
            if self.root is None:
                dcap_qvl.verify(self.document, self.collateral, when)
            else:
                dcap_qvl.verify_with_root_ca(self.document, self.collateral, self.root, when)
        except ValueError as failure:
            return str(failure)
        return None


@lru_cache(maxsize=4)
def _require_self_issued(root: bytes) -> None:
    """Refuses a root whose issuer is not its subject, which would crash the whole process."""
    try:
        certificate = x509.load_der_x509_certificate(root)
        names = certificate.issuer.public_bytes(), certificate.subject.public_bytes()
        self_issued = names[0] == names[1]
    except (TypeError, ValueError, x509.InvalidVersion):
        self_issued = False
    if not self_issued:
        raise AttestationRefused(Refusal.ROOT, "the root is no self-issued certificate")


def _reason(text: str) -> Refusal:
    words = _one_line(text)
    return next((reason for known, reason in _REASONS if known in words), _OTHERWISE)


def _refused(reason: Refusal, text: str) -> AttestationRefused:
    """Quotes the library, which may quote a peer, so what is not printable is escaped."""
    line = _one_line(text).removeprefix("Verification failed: ")
    return AttestationRefused(reason, printable(line, _LONGEST_DETAIL))


def _one_line(text: str) -> str:
    return " ".join(text.split())

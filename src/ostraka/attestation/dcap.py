"""SGX and TDX quotes. dcap-qvl checks that the platform is genuine; what runs on it, we check.

A quote is signed by a key that the platform's quoting enclave vouches for, and that enclave's word
by a key that Intel certified. The collateral is what Intel says of such platforms at present: which
are revoked, which are out of date. It is signed too, so it does not matter who brings it.
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from ostraka.attestation import qvl
from ostraka.attestation.claims import Claims
from ostraka.attestation.listed import require_listed
from ostraka.attestation.policy import SgxPolicy, SimulationPolicy, TdxPolicy
from ostraka.errors import AttestationRefused, ConfigError, Refusal

# What a policy may allow by name. A revoked platform is never allowed.
ALLOWANCES = qvl.STATUSES + qvl.PROPERTIES

_HEADER = 48
_ISV_PROD_ID = _HEADER + 256  # and right behind it isv_svn, two bytes each
_SGX_DEBUG = 0x02  # in byte 0 of attributes
_TD_DEBUG = 0x01  # in byte 0 of td_attributes

_TDX_MEASUREMENTS = ("mrtd", "rtmr0", "rtmr1", "rtmr2", "rtmr3")
_TDX_REQUIRED = ("mrtd", "rtmr1", "rtmr2")

Result = TypeVar("Result")


def check_allowances(names: Iterable[str]) -> None:
    """Raises ConfigError for a name that no policy can allow."""
    unknown = sorted(set(names) - set(ALLOWANCES))
    if unknown:
        raise ConfigError(f"cannot allow {', '.join(unknown)}; one of {', '.join(ALLOWANCES)}")


def read(kind: str, document: bytes) -> Claims:
    """What a quote says, unchecked. kind: "sgx", "tdx" or "simulation", which is SGX in form."""
    quote = qvl.parse(document)
    if kind == "tdx":
        return _read_tdx(quote)
    return _read_sgx(kind, quote, document)


def verify(
    kind: str,
    document: bytes,
    *,
    collateral: bytes | None,
    rules: SgxPolicy | TdxPolicy | SimulationPolicy,
    now: int,
    skew: int,
    root: bytes | None = None,
) -> Claims:
    """The claims of a quote that these rules accept. Raises AttestationRefused.

    now: seconds since 1970. skew: by how many seconds clocks may differ: what is valid now, or at
    either end of that span, is valid. root: a certificate in Intel's place, for simulations. The
    report data is for the caller to compare.
    """
    # (1) The document is a quote of this kind.
    claims = read(kind, document)
    # (2) We have what Intel says of the platform.
    if collateral is None:
        raise AttestationRefused(Refusal.COLLATERAL, "none at hand; a policy names where it is")
    said = qvl.parse_collateral(collateral)
    # (3) The platform is genuine and in order, or out of order in a way that the policy allows.
    examination = qvl.Examination(document, said, rules.allow, root)
    facts = _at_any_of((now, max(0, now - skew), now + skew), examination.check_at)
    # (4) Its host cannot look inside.
    if claims.debug:
        raise AttestationRefused(Refusal.DEBUG)
    # (5) It runs code that the policy lists,
    _require_code(claims, rules)
    # (6) in a version that is not too old.
    if not isinstance(rules, TdxPolicy):
        _require_version(claims, rules)
    return replace(claims, facts=claims.facts + facts)


def _read_sgx(kind: str, quote: Any, document: bytes) -> Claims:
    if not quote.is_sgx() or quote.header.version != 3:
        raise AttestationRefused(Refusal.MALFORMED, "not an SGX quote of version 3")
    report = quote.report
    # The library does not tell these two. They are where version 3 has them, and signed there.
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
    """The platform's model, by which collateral is looked up, where the quote tells it."""
    pck = quote.pck_extension()
    return () if pck is None else (("fmspc", pck.fmspc.hex()),)


def _at_any_of(times: tuple[int, ...], check: Callable[[int], Result]) -> Result:
    """The check's result at the first time at which nothing is out of date."""
    for when in times[:-1]:
        try:
            return check(when)
        except AttestationRefused as refused:
            if refused.reason is not Refusal.VALIDITY:
                raise
    return check(times[-1])


def _require_code(claims: Claims, rules: SgxPolicy | TdxPolicy | SimulationPolicy) -> None:
    if isinstance(rules, TdxPolicy):
        lists = {name: getattr(rules, name) for name in _TDX_MEASUREMENTS}
        require_listed(claims, claims.kind, lists, _TDX_REQUIRED)
        return
    lists = {"mrenclave": rules.mrenclave, "mrsigner": rules.mrsigner}
    require_listed(claims, claims.kind, lists, () if rules.mrsigner else ("mrenclave",))
    _require_product(claims, rules)


def _require_product(claims: Claims, rules: SgxPolicy | SimulationPolicy) -> None:
    """A signer signs many products, so one is trusted only together with a product's number."""
    seen, wanted = _number(claims, "isv_prod_id"), rules.isv_prod_id
    if wanted is None and not rules.mrenclave:
        raise AttestationRefused(
            Refusal.MEASUREMENT,
            f"mrsigner alone would trust all that it signs; this enclave's isv_prod_id is {seen}; "
            f"if you decide to trust it, write under [{claims.kind}]: isv_prod_id = {seen}",
        )
    if wanted not in (None, seen):
        raise AttestationRefused(
            Refusal.MEASUREMENT, f"its isv_prod_id is {seen}; the policy asks for {wanted}"
        )


def _require_version(claims: Claims, rules: SgxPolicy | SimulationPolicy) -> None:
    version = _number(claims, "isv_svn")
    if version < rules.min_isv_svn:
        raise AttestationRefused(
            Refusal.VERSION, f"its isv_svn is {version}; the policy asks for {rules.min_isv_svn}"
        )


def _number(claims: Claims, fact: str) -> int:
    return int(dict(claims.facts)[fact])

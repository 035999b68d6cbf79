"""What dcap-qvl makes of a quote, in our words: is the platform genuine, and is it in order?

As strict as the library can be, but for what a policy allows by name.
"""

import json
from dataclasses import dataclass
from typing import Any

import dcap_qvl
from cryptography import x509

from ostraka.errors import AttestationRefused, Refusal

STATUSES = (
    "SWHardeningNeeded",
    "ConfigurationNeeded",
    "ConfigurationAndSWHardeningNeeded",
    "OutOfDate",
    "OutOfDateConfigurationNeeded",
)
PROPERTIES = ("dynamic-platform", "cached-keys", "smt")

_OUT_OF_DATE = frozenset({"OutOfDate", "OutOfDateConfigurationNeeded"})

# The library gives its reasons as text. The first row whose words occur in it decides; a text that
# no row knows is a refusal all the same. Every row has a test, which fails when the words change.
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


def parse(document: bytes) -> Any:
    """The library's view of a quote. Raises AttestationRefused."""
    try:
        return dcap_qvl.parse_quote(document)
    except ValueError as failure:
        raise _refused(Refusal.MALFORMED, str(failure)) from None


def parse_collateral(collateral: bytes) -> Any:
    """Intel's word on a platform. Raises AttestationRefused."""
    try:
        return dcap_qvl.QuoteCollateralV3.from_json(collateral.decode())
    except ValueError as failure:
        raise _refused(Refusal.COLLATERAL, str(failure)) from None


@dataclass(frozen=True)
class Examination:
    """A quote with all that it takes to check it.

    root: a certificate to trust in place of Intel's. allow: some of `STATUSES` and `PROPERTIES`.
    """

    document: bytes
    collateral: Any
    allow: tuple[str, ...]
    root: bytes | None = None

    def __post_init__(self) -> None:
        if self.root is not None:
            _require_self_issued(self.root)

    def check_at(self, when: int) -> tuple[tuple[str, str], ...]:
        """What is to be known of the platform. Raises AttestationRefused."""
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
            # Out of date is refused once more by its date. Whoever allows it has named no date.
            policy = policy.platform_grace_period(when).qe_grace_period(when)
        return (
            policy.allow_dynamic_platform("dynamic-platform" in self.allow)
            .allow_cached_keys("cached-keys" in self.allow)
            .allow_smt("smt" in self.allow)
        )

    def _require_quoting_enclave(self, status: str) -> None:
        """The library lets some statuses of the quoting enclave pass as up to date; we do not."""
        if status not in ("UpToDate", *self.allow):
            raise AttestationRefused(Refusal.TCB, f"its quoting enclave is {status}")

    def _cause(self, when: int) -> str | None:
        """The whole reason of a failure, of which the check by policy names the last step only.

        This older call names all of them. Its verdict is not asked for: it accepts too much.
        """
        try:
            if self.root is None:
                dcap_qvl.verify(self.document, self.collateral, when)
            else:
                dcap_qvl.verify_with_root_ca(self.document, self.collateral, self.root, when)
        except ValueError as failure:
            return str(failure)
        return None


def _require_self_issued(root: bytes) -> None:
    """The library takes the whole process down where a root's issuer is not its subject."""
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
    """With the library's words, which may quote a peer's: nothing in them may move a cursor."""
    line = _one_line(text).removeprefix("Verification failed: ")
    shown = "".join(each if each.isprintable() else "?" for each in line)
    return AttestationRefused(reason, shown[:_LONGEST_DETAIL])


def _one_line(text: str) -> str:
    return " ".join(text.split())

"""What evidence is about, what it says of an enclave, and what a verified enclave holds."""

import hashlib
from dataclasses import dataclass

from ostraka.encoding import pack
from ostraka.messages import IN_PROCESS, RoundOffer

_CODE_ID = b"ostraka/code-id/v1"

# Measurements of where code runs, not of what runs: Nitro's role and its parent instance. State
# that is sealed to the code must open on the next instance, too.
_PLACES = {"nitro": ("pcr3", "pcr4")}


@dataclass(frozen=True)
class Claims:
    """Read out of evidence. They count for nothing until the evidence has been verified.

    measurements: what the platform measured of the code, by the policy's name for it, such as
    mrenclave, mrtd, pcr0. facts: everything else that a person may want to read.
    """

    kind: str
    measurements: tuple[tuple[str, bytes], ...]
    report_data: bytes
    debug: bool
    facts: tuple[tuple[str, str], ...] = ()

    @property
    def code_id(self) -> bytes:
        """One name for all that was measured of the code: what state is sealed to and handed on to.

        Where the code runs does not count.
        """
        places = _PLACES.get(self.kind, ())
        code = ((name, value) for name, value in self.measurements if name not in places)
        parts = (part for name, value in code for part in (name.encode(), value))
        return hashlib.sha256(pack(_CODE_ID, self.kind.encode(), *parts)).digest()

    def measurement(self, name: str) -> bytes:
        return dict(self.measurements)[name]


_LABEL = b"ostraka/report-data/v1"

NONCE_BYTES = 32


@dataclass(frozen=True)
class Binding:
    """The fields that report data commits to.

    nonce: chosen by whoever verifies, for this one challenge. round_key: the hybrid public key that
    updates are sealed to. receipt_key: signs offers and receipts. federation: its digest,
    and so its rules, its roster and its workers' keys.
    """

    nonce: bytes
    round_key: bytes
    receipt_key: bytes
    federation: bytes

    def report_data(self) -> bytes:
        """SHA-512 over the label and all fields, each behind its length."""
        fields = (self.nonce, self.round_key, self.receipt_key, self.federation)
        return hashlib.sha512(pack(_LABEL, *fields)).digest()


@dataclass(frozen=True)
class Attested:
    """A client seals nothing without one of these. `verify.verify` makes them.

    kind: the evidence that proved it. code_id: one name for the measured code.
    """

    round_key: bytes
    receipt_key: bytes
    federation: bytes
    kind: str
    code_id: bytes


def in_process(offer: RoundOffer, receipt_key: bytes) -> Attested:
    """For an enclave in the client's own process: there is nobody to prove anything to."""
    return Attested(offer.key, receipt_key, offer.federation, IN_PROCESS, bytes(32))

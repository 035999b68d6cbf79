"""What evidence says of an enclave, what it must be about, and what a verified enclave holds.

Evidence is about this challenge, these keys and this federation: its report data commits to them.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ostraka.encoding import pack
from ostraka.messages import IN_PROCESS, RoundOffer

NONCE_BYTES = 32

# What a platform's maker says, which evidence does not bring: the bytes by the name of the policy's
# field that says where they are, such as `collateral`, `certificates` or `crl`.
Collateral: TypeAlias = Mapping[str, bytes]

_CODE_ID = b"ostraka/code-id/v1"
_REPORT_DATA = b"ostraka/report-data/v1"
_KEY_REPORT_DATA = b"ostraka/report-data/key/v1"
_DEPUTY_REPORT_DATA = b"ostraka/report-data/deputy/v1"


@dataclass(frozen=True)
class Claims:
    """What was read from evidence. It counts for nothing until the evidence has been verified.

    measurements: what the platform measured, by the policy's name for it, such as mrenclave, mrtd
    or pcr0. places: the names of those that tell where the code runs, and not which code it is.
    facts: everything else that a person may want to read.
    """

    kind: str
    measurements: tuple[tuple[str, bytes], ...]
    report_data: bytes
    debug: bool
    facts: tuple[tuple[str, str], ...] = ()
    places: tuple[str, ...] = ()

    @property
    def code_id(self) -> bytes:
        """Returns one name for all that was measured of the code.

        State is sealed to it and handed on to it. Places are left out: sealed state must open on
        the next machine, too.
        """
        code = ((name, value) for name, value in self.measurements if name not in self.places)
        parts = (part for name, value in code for part in (name.encode(), value))
        return hashlib.sha256(pack(_CODE_ID, self.kind.encode(), *parts)).digest()

    def measurement(self, name: str) -> bytes:
        return dict(self.measurements)[name]


@dataclass(frozen=True)
class Binding:
    """The fields that report data commits to.

    nonce: chosen by the verifier for this one challenge. round_key: the hybrid public key that
    updates are sealed to. receipt_key: signs offers and receipts. federation: the digest of the
    federation, and so of its terms, its roster and its workers' keys.
    """

    nonce: bytes
    round_key: bytes
    receipt_key: bytes
    federation: bytes

    def report_data(self) -> bytes:
        """Returns SHA-512 over the label and all fields, each behind its length."""
        fields = (self.nonce, self.round_key, self.receipt_key, self.federation)
        return hashlib.sha512(pack(_REPORT_DATA, *fields)).digest()


@dataclass(frozen=True)
class KeyBinding:
    """The same for who sends no update, and so needs no round: voters and workers."""

    nonce: bytes
    receipt_key: bytes
    federation: bytes

    def report_data(self) -> bytes:
        fields = (self.nonce, self.receipt_key, self.federation)
        return hashlib.sha512(pack(_KEY_REPORT_DATA, *fields)).digest()


@dataclass(frozen=True)
class DeputyBinding:
    """The same for workers that a shard asks. key: the shard's own, which the lead has deputed.

    Its label differs, so that no shard can be shown as the holder of a receipt key.
    """

    nonce: bytes
    receipt_key: bytes
    key: bytes
    federation: bytes

    def report_data(self) -> bytes:
        fields = (self.nonce, self.receipt_key, self.key, self.federation)
        return hashlib.sha512(pack(_DEPUTY_REPORT_DATA, *fields)).digest()


@dataclass(frozen=True)
class Attested:
    """The outcome of a verification (`verify.verify`). A client seals nothing without one.

    kind: the kind of evidence that proved it. code_id: one name for the measured code.
    """

    round_key: bytes
    receipt_key: bytes
    federation: bytes
    kind: str
    code_id: bytes


def in_process(offer: RoundOffer, receipt_key: bytes) -> Attested:
    """Stands in for a verification where the enclave is in the client's own process."""
    return Attested(offer.key, receipt_key, offer.federation, IN_PROCESS, bytes(32))

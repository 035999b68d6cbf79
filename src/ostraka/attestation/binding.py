"""What evidence must be about: this challenge, these keys, these rules."""

import hashlib
from dataclasses import dataclass

from ostraka.encoding import pack

_LABEL = b"ostraka/report-data/v1"

NONCE_BYTES = 32


@dataclass(frozen=True)
class Binding:
    """The fields that report data commits to.

    nonce: chosen by whoever verifies, for this one challenge. round_key: the hybrid public key that
    updates are sealed to. receipt_key: signs offers and receipts. config: the federation's digest,
    and so its rules, its roster and its workers' keys.
    """

    nonce: bytes
    round_key: bytes
    receipt_key: bytes
    config: bytes

    def report_data(self) -> bytes:
        """SHA-512 over the label and all fields, each behind its length."""
        fields = (self.nonce, self.round_key, self.receipt_key, self.config)
        return hashlib.sha512(pack(_LABEL, *fields)).digest()

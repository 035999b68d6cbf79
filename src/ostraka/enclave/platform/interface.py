"""What an enclave asks of its platform: evidence about itself, and a key for its state."""

from typing import Protocol

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ostraka.crypto.aead import KEY_BYTES
from ostraka.errors import LocalProtocolError, PlatformError
from ostraka.messages import Evidence


class EvidenceProvider(Protocol):
    """Proves to others which code runs here."""

    @property
    def kind(self) -> str:
        """One of `attestation.policy.KINDS`: which of them, a policy decides about."""

    def evidence(self, report_data: bytes) -> Evidence:
        """Fresh evidence about these 64 bytes. Raises PlatformError."""


class SealingKeys(Protocol):
    """Where the key comes from under which the enclave's state lies on the host's disk."""

    @property
    def name(self) -> str:
        """A public word for logs, never the key."""

    def key(self) -> bytes:
        """32 bytes, the same at every start of the same code. Raises PlatformError."""


def sealing_key(secret: bytes, label: bytes) -> bytes:
    """HKDF, so that other users of the same platform secret learn nothing about this key.

    label: names the platform and the version. Without a version, keys could never be changed.
    """
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=label).derive(secret)


REPORT_DATA_BYTES = 64


def require_report_data(report_data: bytes) -> None:
    """Raises LocalProtocolError. Platforms take less, too, and each pads it in its own way."""
    if len(report_data) != REPORT_DATA_BYTES:
        raise LocalProtocolError(
            f"report data has {REPORT_DATA_BYTES} bytes; got {len(report_data)}"
        )


def require_about(report_data: bytes, document: bytes) -> None:
    """Raises PlatformError if the platform speaks of other report data than it was asked about.

    Every format carries report data literally. A client checks its place and the signature over it;
    this only catches, before anybody sees it, an answer to another caller in this process.
    """
    if report_data not in document:
        raise PlatformError(
            f"the platform's answer ({len(document)} bytes) is not about the report data that it "
            "was given: something else in this process asks for evidence at the same time"
        )

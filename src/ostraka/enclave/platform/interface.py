"""What an enclave asks of its platform: evidence about itself, and a key for its state."""

from typing import Protocol

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ostraka.crypto.aead import KEY_BYTES
from ostraka.errors import LocalProtocolError, PlatformError
from ostraka.messages import Evidence

REPORT_DATA_BYTES = 64


class EvidenceProvider(Protocol):
    """Proves to others which code runs here."""

    @property
    def kind(self) -> str:
        """The kind of evidence, one of `attestation.tees.KINDS`."""

    def evidence(self, report_data: bytes) -> Evidence:
        """Returns fresh evidence about these 64 bytes. Raises PlatformError."""


class SealingKeys(Protocol):
    """Gives the key that encrypts the enclave's state on the host's disk."""

    @property
    def name(self) -> str:
        """The name of this source of keys, for logs. It is never the key."""

    def key(self) -> bytes:
        """Returns 32 bytes, the same at every start of the same code. Raises PlatformError."""


def sealing_key(secret: bytes, label: bytes) -> bytes:
    """Derives a key by HKDF, so other users of the platform's secret learn nothing about it.

    label: names the platform and the version. Without a version, keys could never be changed.
    """
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=label).derive(secret)


def require_report_data(report_data: bytes) -> None:
    """Raises LocalProtocolError for another length, which each platform would pad in its way."""
    if len(report_data) != REPORT_DATA_BYTES:
        raise LocalProtocolError(
            f"report data has {REPORT_DATA_BYTES} bytes; got {len(report_data)}"
        )


def require_about(report_data: bytes, document: bytes) -> None:
    """Raises PlatformError if a document is not about the report data that was asked about.

    Every format carries report data literally. A client checks its place and its signature. This
    only catches an answer to another caller in this process, before it is sent.
    """
    if report_data not in document:
        raise PlatformError(
            f"the platform's answer ({len(document)} bytes) is not about the report data that it "
            "was given: something else in this process asks for evidence at the same time"
        )

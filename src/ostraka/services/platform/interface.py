"""What an enclave asks of its platform: evidence about itself, and a key for its state."""

from typing import Protocol

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

"""Which platform vouches for this enclave, and which key its state is sealed under."""

from dataclasses import dataclass

from ostraka.attestation.verify import read
from ostraka.errors import ConfigError
from ostraka.services.platform import (
    EvidenceProvider,
    GramineKeys,
    KeyRelease,
    SealingKeys,
    SevGuestKeys,
    detect,
)

_REPORT_DATA = 64


@dataclass(frozen=True)
class Platform:
    """identity: one name for this enclave's measurements; its state is sealed to that."""

    provider: EvidenceProvider
    keys: SealingKeys
    identity: bytes


def real(release: tuple[str, ...] = (), broker: bytes | None = None) -> Platform:
    """The TEE that is present. Raises PlatformError if there is none; it never simulates one.

    release: on TDX and Nitro, the command that asks a key broker. broker: whose word counts.
    """
    provider = detect()
    return Platform(provider, _keys(provider, release, broker), identity_of(provider))


def _keys(
    provider: EvidenceProvider, release: tuple[str, ...], broker: bytes | None
) -> SealingKeys:
    if provider.kind == "sgx":
        return GramineKeys()
    if provider.kind == "snp":
        return SevGuestKeys()
    if not release or broker is None:
        raise ConfigError(
            f"{provider.kind} gives no sealing key: name the command that asks a key broker, and "
            "the broker's public key (--key-release, --key-broker)"
        )
    return KeyRelease(list(release), provider, broker=broker)


def identity_of(provider: EvidenceProvider) -> bytes:
    """What evidence about this very enclave says that it is."""
    return read(provider.evidence(bytes(_REPORT_DATA))).identity

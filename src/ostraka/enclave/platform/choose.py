"""Chooses the platform that vouches for this enclave: the TEE that is present, or a simulation.

To let an enclave run in another TEE, write its module in this package and add a row to `SOURCES`.
How others verify its evidence is in `ostraka.attestation.tees`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ostraka.attestation.verify import read
from ostraka.enclave import measurement
from ostraka.enclave.platform import gramine, nitro, tsm
from ostraka.enclave.platform.gramine import GramineKeys
from ostraka.enclave.platform.interface import REPORT_DATA_BYTES, EvidenceProvider, SealingKeys
from ostraka.enclave.platform.key_release import KeyRelease
from ostraka.enclave.platform.linux import OS_FILES, Files
from ostraka.enclave.platform.sev_guest import SevGuestKeys
from ostraka.enclave.platform.simulated import (
    UnsafeDevelopmentKey,
    UnsafeSimulatedProvider,
    load_platform,
)
from ostraka.errors import ConfigError, PlatformError

_SIMULATE = "to run without one, ask for simulation by name: --unsafe-simulation"
_DRIVER = "a guest driver behind {} (TDX, SEV-SNP; Linux 6.7 or later)"


@dataclass(frozen=True)
class Source:
    """What an enclave in one TEE gets from its platform.

    place: where the TEE shows itself. sought: how an error calls the place. provider: the provider
    of evidence, if this TEE is present there. keys: the TEE's own sealing keys; None if it derives
    none, and a key broker has to release one.
    """

    kind: str
    place: Path
    sought: str
    provider: Callable[[Path, Files], EvidenceProvider | None]
    keys: Callable[[], SealingKeys] | None = None


SOURCES = (
    Source("sgx", gramine.PLACE, "{} (SGX under Gramine)", gramine.find, GramineKeys),
    Source("tdx", tsm.PLACE, _DRIVER, partial(tsm.find, "tdx")),
    Source("snp", tsm.PLACE, _DRIVER, partial(tsm.find, "snp"), SevGuestKeys),
    Source("nitro", nitro.PLACE, "{} (Nitro)", nitro.find),
)


@dataclass(frozen=True)
class Platform:
    """code_id: one name for this enclave's measurements; its state is sealed to that."""

    provider: EvidenceProvider
    keys: SealingKeys
    code_id: bytes


def real(release: tuple[str, ...] = (), broker: bytes | None = None) -> Platform:
    """Returns the TEE that is present. Raises PlatformError if there is none; it never simulates.

    release: on TDX and Nitro, the command that asks a key broker. broker: the broker's public key.
    """
    provider = detect()
    return Platform(provider, _keys(provider, release, broker), code_id_of(provider))


def unsafe_simulated(platform_file: Path, key_file: Path) -> Platform:
    """Simulates a TEE for the code as it is, with a private root and a sealing key in a file."""
    provider = UnsafeSimulatedProvider(load_platform(platform_file), measurement.measure().digest)
    create = UnsafeDevelopmentKey if key_file.exists() else UnsafeDevelopmentKey.create
    return Platform(provider, create(key_file), code_id_of(provider))


def code_id_of(provider: EvidenceProvider) -> bytes:
    """Returns this enclave's own code id, as evidence about it says."""
    return read(provider.evidence(bytes(REPORT_DATA_BYTES))).code_id


def detect(
    kind: str | None = None,
    *,
    sources: tuple[Source, ...] = SOURCES,
    files: Files = OS_FILES,
) -> EvidenceProvider:
    """Returns the provider of the one TEE that is present.

    kind: looks for this one only, where a machine offers several. Raises PlatformError if there is
    no TEE, or more than one.
    """
    kinds = [source.kind for source in sources]
    if kind is not None and kind not in kinds:
        raise ConfigError(f"{kind!r} is not detected, only {', '.join(kinds)}; {_SIMULATE}")
    asked = [source for source in sources if kind in (None, source.kind)]
    answers = (source.provider(source.place, files) for source in asked)
    found = [provider for provider in answers if provider is not None]
    if len(found) > 1:
        raise PlatformError(
            "this machine offers several kinds of evidence: "
            f"{', '.join(provider.kind for provider in found)}; say which one to use (kind=...)"
        )
    if not found:
        of_kind = f" of kind {kind!r}" if kind else ""
        raise PlatformError(
            f"no TEE was found{of_kind}: looked for {_places(sources)}; {_SIMULATE}"
        )
    return found[0]


def _places(sources: tuple[Source, ...]) -> str:
    *others, last = dict.fromkeys(source.sought.format(source.place) for source in sources)
    return f"{', '.join(others)} and {last}"


def _keys(
    provider: EvidenceProvider, release: tuple[str, ...], broker: bytes | None
) -> SealingKeys:
    for source in SOURCES:
        if source.kind == provider.kind and source.keys is not None:
            return source.keys()
    if not release or broker is None:
        raise ConfigError(
            f"{provider.kind} gives no sealing key: name the command that asks a key broker, and "
            "the broker's public key (--key-release, --key-broker)"
        )
    return KeyRelease(list(release), provider, broker=broker)

"""Which platform vouches for this enclave: the TEE that is present, or a simulation by name."""

from dataclasses import dataclass
from pathlib import Path

from ostraka.attestation.verify import read
from ostraka.enclave import measurement
from ostraka.enclave.platform.gramine import ATTESTATION_TYPE, GRAMINE, GramineKeys, GramineProvider
from ostraka.enclave.platform.interface import EvidenceProvider, SealingKeys
from ostraka.enclave.platform.key_release import KeyRelease
from ostraka.enclave.platform.linux import OS_FILES, Files
from ostraka.enclave.platform.nitro import NSM, NitroProvider
from ostraka.enclave.platform.sev_guest import SevGuestKeys
from ostraka.enclave.platform.simulated import (
    UnsafeDevelopmentKey,
    UnsafeSimulatedProvider,
    load_platform,
)
from ostraka.enclave.platform.tsm import TSM, TsmProvider, present_kind
from ostraka.errors import ConfigError, PlatformError

_DETECTED = ("sgx", "tdx", "snp", "nitro")
_SIMULATE = "to run without one, ask for simulation by name: --unsafe-simulation"


def detect(
    kind: str | None = None,
    *,
    gramine: Path = GRAMINE,
    tsm: Path = TSM,
    nsm: Path = NSM,
    files: Files = OS_FILES,
) -> EvidenceProvider:
    """The provider of the one TEE that is present. Raises PlatformError for none and for several.

    kind: look for this one only, where a machine offers several.
    """
    if kind is not None and kind not in _DETECTED:
        raise ConfigError(f"{kind!r} is not detected, only {', '.join(_DETECTED)}; {_SIMULATE}")
    found: dict[str, EvidenceProvider] = {}
    if kind in (None, "sgx") and files.exists(gramine / ATTESTATION_TYPE):
        found["sgx"] = GramineProvider(gramine, files)
    if kind in (None, "tdx", "snp"):
        machine = present_kind(tsm, files)
        if machine is not None and kind in (None, machine):
            found[machine] = TsmProvider(machine, tsm, files)
    if kind in (None, "nitro") and files.exists(nsm):
        found["nitro"] = NitroProvider(nsm)
    return _only(found, kind, (gramine / ATTESTATION_TYPE, tsm, nsm))


def _only(
    found: dict[str, EvidenceProvider], kind: str | None, places: tuple[Path, Path, Path]
) -> EvidenceProvider:
    if len(found) > 1:
        raise PlatformError(
            f"this machine offers several kinds of evidence: {', '.join(found)}; "
            "say which one to use (kind=...)"
        )
    if not found:
        gramine, tsm, nsm = places
        raise PlatformError(
            f"no TEE was found{f' of kind {kind!r}' if kind else ''}: looked for {gramine} "
            f"(SGX under Gramine), a guest driver behind {tsm} (TDX, SEV-SNP; Linux 6.7 or later) "
            f"and {nsm} (Nitro); {_SIMULATE}"
        )
    return next(iter(found.values()))


_REPORT_DATA = 64


@dataclass(frozen=True)
class Platform:
    """code_id: one name for this enclave's measurements; its state is sealed to that."""

    provider: EvidenceProvider
    keys: SealingKeys
    code_id: bytes


def real(release: tuple[str, ...] = (), broker: bytes | None = None) -> Platform:
    """The TEE that is present. Raises PlatformError if there is none; it never simulates one.

    release: on TDX and Nitro, the command that asks a key broker. broker: whose word counts.
    """
    provider = detect()
    return Platform(provider, _keys(provider, release, broker), code_id_of(provider))


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


def code_id_of(provider: EvidenceProvider) -> bytes:
    """What evidence about this very enclave says that it is."""
    return read(provider.evidence(bytes(_REPORT_DATA))).code_id


def unsafe_simulated(platform_file: Path, key_file: Path) -> Platform:
    """Evidence under a private root about the code as it is, and state under a key in a file."""
    provider = UnsafeSimulatedProvider(load_platform(platform_file), measurement.measure().digest)
    create = UnsafeDevelopmentKey if key_file.exists() else UnsafeDevelopmentKey.create
    return Platform(provider, create(key_file), code_id_of(provider))

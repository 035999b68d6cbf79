"""Which TEE is this? Detected, never guessed, and simulation is never the answer."""

from pathlib import Path

from ostraka.errors import ConfigError, PlatformError
from ostraka.services.platform.files import OS_FILES, Files
from ostraka.services.platform.gramine import ATTESTATION_TYPE, GRAMINE, GramineProvider
from ostraka.services.platform.interface import EvidenceProvider
from ostraka.services.platform.nitro import NSM, NitroProvider
from ostraka.services.platform.tsm import TSM, TsmProvider, present_kind

_DETECTED = ("sgx", "tdx", "snp", "nitro")
_SIMULATE = "to run without one, ask for simulation by name: --unsafe-simulate"


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

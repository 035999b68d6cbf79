"""What a client accepts as an enclave. Nothing is accepted that a policy does not list.

Measurements are lists: any of the values will do. An empty list accepts nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ostraka.attestation.claims import Claims
from ostraka.config import MASKINGS
from ostraka.errors import AttestationRefused, Refusal

KINDS = ("sgx", "tdx", "snp", "nitro", "simulation")

DEFAULT_SKEW = 300  # seconds


@dataclass(frozen=True)
class SgxPolicy:
    """SGX: the code itself (mrenclave), or whoever signs it (mrsigner, product and version).

    allow: TCB statuses beyond UpToDate, and platform properties, by name (see `dcap.ALLOWANCES`).
    collateral: where Intel's signed TCB data for this platform comes from, a path or a URL.
    """

    mrenclave: tuple[bytes, ...] = ()
    mrsigner: tuple[bytes, ...] = ()
    isv_prod_id: int | None = None
    min_isv_svn: int = 0
    allow: tuple[str, ...] = ()
    collateral: str | None = None


@dataclass(frozen=True)
class TdxPolicy:
    """TDX: the firmware (mrtd) and what it started (rtmr0 to rtmr3).

    mrtd, rtmr1 and rtmr2 must be listed: the firmware alone says nothing about the kernel.
    """

    mrtd: tuple[bytes, ...] = ()
    rtmr0: tuple[bytes, ...] = ()
    rtmr1: tuple[bytes, ...] = ()
    rtmr2: tuple[bytes, ...] = ()
    rtmr3: tuple[bytes, ...] = ()
    allow: tuple[str, ...] = ()
    collateral: str | None = None


@dataclass(frozen=True)
class SnpTcb:
    """The lowest acceptable security version of each part of an SEV-SNP platform.

    fmc: only Turin has it; elsewhere it counts as 0.
    """

    bootloader: int = 0
    tee: int = 0
    snp: int = 0
    microcode: int = 0
    fmc: int = 0


@dataclass(frozen=True)
class SnpPolicy:
    """SEV-SNP: the launch measurement.

    chip_ids: only these machines, if any are listed. allow: see `snp.ALLOWANCES`. certificates: a
    PEM file with what the evidence does not bring: the VCEK or VLEK, AMD's intermediate, and AMD's
    root certificate as well, since only its key's hash is pinned.
    """

    measurement: tuple[bytes, ...] = ()
    chip_ids: tuple[bytes, ...] = ()
    min_tcb: SnpTcb = field(default_factory=SnpTcb)
    allow: tuple[str, ...] = ()
    certificates: str | None = None


@dataclass(frozen=True)
class NitroPolicy:
    """Nitro: the image (pcr0), and where listed its kernel, application, role, and signer."""

    pcr0: tuple[bytes, ...] = ()
    pcr1: tuple[bytes, ...] = ()
    pcr2: tuple[bytes, ...] = ()
    pcr3: tuple[bytes, ...] = ()
    pcr4: tuple[bytes, ...] = ()
    pcr8: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class SimulationPolicy:
    """Simulated SGX quotes, under the one private root whose SHA-256 is named here."""

    root: tuple[bytes, ...] = ()
    mrenclave: tuple[bytes, ...] = ()
    mrsigner: tuple[bytes, ...] = ()
    isv_prod_id: int | None = None
    min_isv_svn: int = 0
    allow: tuple[str, ...] = ()
    collateral: str | None = None


@dataclass(frozen=True)
class FederationPolicy:
    """Whose word decides about the roster, which workers may compute, and how updates are hidden.

    authority: the Ed25519 key that signs the federation's rules and roster. workers: the keys of
    all workers that may ever get a share. successors: hand-overs of the enclave's state that are
    agreed to (`config.succession`). maskings: Gaussian masking leaks, and must be asked for.
    """

    authority: bytes | None = None
    workers: tuple[bytes, ...] = ()
    successors: tuple[bytes, ...] = ()
    maskings: tuple[str, ...] = tuple(name for name in MASKINGS if name != "gaussian")


@dataclass(frozen=True)
class Policy:
    """Everything that a client checks an enclave against. An empty policy refuses all."""

    evidence: tuple[str, ...] = ()
    federation: FederationPolicy = field(default_factory=FederationPolicy)
    clock_skew: int = DEFAULT_SKEW
    unsafe_simulation: bool = False
    sgx: SgxPolicy = field(default_factory=SgxPolicy)
    tdx: TdxPolicy = field(default_factory=TdxPolicy)
    snp: SnpPolicy = field(default_factory=SnpPolicy)
    nitro: NitroPolicy = field(default_factory=NitroPolicy)
    simulation: SimulationPolicy = field(default_factory=SimulationPolicy)


def require_listed(
    claims: Claims,
    section: str,
    lists: Mapping[str, tuple[bytes, ...]],
    required: tuple[str, ...],
) -> None:
    """Raises AttestationRefused unless every list that must hold a measurement holds it.

    lists: the policy's values by the measurement's name. A list that is not empty must hold the
    measurement; a required one must not be empty; and where all are empty nothing is accepted.
    """
    needed = [name for name in lists if lists[name] or name in required] or list(lists)
    present = dict(claims.measurements)
    if absent := ", ".join(name for name in needed if name not in present):
        detail = f"a policy that lists {absent} accepts no evidence in which that is absent"
        raise AttestationRefused(Refusal.MEASUREMENT, detail)
    missing = [name for name in needed if present[name] not in lists[name]]
    if missing:
        raise AttestationRefused(Refusal.MEASUREMENT, _advice(claims, section, lists, missing))


def _advice(
    claims: Claims, section: str, lists: Mapping[str, tuple[bytes, ...]], missing: list[str]
) -> str:
    """What was seen, and the lines as they would have to be: whole ones, since TOML forbids two."""
    seen = {name: claims.measurement(name) for name in missing}
    said = ", ".join(f"{name} is {value.hex()}" for name, value in seen.items())
    lines = [toml_line(name, (*lists[name], value)) for name, value in seen.items()]
    separator = " " if len(lines) == 1 else "\n"
    return (
        f"this enclave's {said}; if you decide to trust it, "
        f"write under [{section}]:{separator}{separator.join(lines)}"
    )


def toml_line(name: str, values: tuple[bytes, ...]) -> str:
    quoted = ", ".join(f'"{value.hex()}"' for value in values)
    return f"{name} = [{quoted}]"

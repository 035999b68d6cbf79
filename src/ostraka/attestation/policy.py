"""What a client accepts as an enclave. Nothing is accepted that a policy does not list.

Measurements are lists: any of the values will do. An empty list accepts nothing.
"""

from dataclasses import dataclass, field

from ostraka.config import MASKINGS

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
    insecure_allow_simulation: bool = False
    sgx: SgxPolicy = field(default_factory=SgxPolicy)
    tdx: TdxPolicy = field(default_factory=TdxPolicy)
    snp: SnpPolicy = field(default_factory=SnpPolicy)
    nitro: NitroPolicy = field(default_factory=NitroPolicy)
    simulation: SimulationPolicy = field(default_factory=SimulationPolicy)

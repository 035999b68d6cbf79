"""A client's policy as TOML, such as policy.toml of a federation folder."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ostraka import settings
from ostraka.attestation import dcap, snp
from ostraka.attestation.policy import (
    DEFAULT_SKEW,
    KINDS,
    FederationPolicy,
    NitroPolicy,
    Policy,
    SgxPolicy,
    SimulationPolicy,
    SnpPolicy,
    TdxPolicy,
)
from ostraka.config import MASKINGS
from ostraka.errors import ConfigError
from ostraka.settings import Document

VERSION = 1
_LONGEST_SKEW = 24 * 3600

_BYTES = {
    **dict.fromkeys(("authority", "workers", "successors", "root", "mrenclave", "mrsigner"), 32),
    **dict.fromkeys(("mrtd", "rtmr0", "rtmr1", "rtmr2", "rtmr3", "measurement"), 48),
    **dict.fromkeys(("pcr0", "pcr1", "pcr2", "pcr3", "pcr4", "pcr8"), 48),
    "chip_ids": 64,
}


@dataclass(frozen=True)
class _Layout:
    """The file's tables. clock_skew_s: seconds that clocks may differ by."""

    version: int
    evidence: tuple[str, ...] = ()
    clock_skew_s: int = DEFAULT_SKEW
    unsafe_simulation: bool = False
    federation: FederationPolicy = field(default_factory=FederationPolicy)
    sgx: SgxPolicy = field(default_factory=SgxPolicy)
    tdx: TdxPolicy = field(default_factory=TdxPolicy)
    snp: SnpPolicy = field(default_factory=SnpPolicy)
    nitro: NitroPolicy = field(default_factory=NitroPolicy)
    simulation: SimulationPolicy = field(default_factory=SimulationPolicy)

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ConfigError(f"version {self.version} is not known, only version {VERSION}")
        if not 0 <= self.clock_skew_s <= _LONGEST_SKEW:
            raise ConfigError(f"clock_skew_s is 0 to {_LONGEST_SKEW}; got {self.clock_skew_s}")


def parse(text: str, name: str) -> Policy:
    """The policy that a file of this name holds. Raises ConfigError and nothing else."""
    document = settings.parse(text, name, sizes=_BYTES)
    layout = document.read(_Layout)
    _require_known(document, "evidence", layout.evidence, KINDS)
    _require_known(document, "federation.maskings", layout.federation.maskings, MASKINGS)
    for table in ("federation", *KINDS):
        _require_counts(document, table, getattr(layout, table))
    for table in ("sgx", "tdx", "simulation"):
        with document.blame(table):
            dcap.check_allowances(getattr(layout, table).allow)
    with document.blame("snp"):
        snp.check_allowances(layout.snp.allow)
    if (layout.snp.certificates or "").startswith(("http://", "https://")):
        raise document.error("snp.certificates", "snp.certificates is a path, not a URL")
    return Policy(
        evidence=layout.evidence,
        federation=layout.federation,
        clock_skew=layout.clock_skew_s,
        unsafe_simulation=layout.unsafe_simulation,
        **{kind: getattr(layout, kind) for kind in KINDS},
    )


def _require_known(
    document: Document, path: str, names: Iterable[str], known: tuple[str, ...]
) -> None:
    for i, name in enumerate(names):
        if name not in known:
            what = f"{path} has {', '.join(known)}; got {name!r}"
            raise document.error(f"{path}[{i}]", what)


def _require_counts(document: Document, table: str, section: Any) -> None:
    for each in dataclasses.fields(section):
        value = getattr(section, each.name)
        if dataclasses.is_dataclass(value):
            _require_counts(document, f"{table}.{each.name}", value)
        elif isinstance(value, int) and value < 0:
            path = f"{table}.{each.name}"
            raise document.error(path, f"{path} cannot be negative; got {value}")

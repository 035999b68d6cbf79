"""What a client accepts as an enclave. Nothing is accepted that a policy does not list.

Measurements are lists, and any value of a list will do. An empty list accepts nothing. What a
policy says of one TEE is declared beside the verifier of its evidence, and `tees` lists them all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, TypeAlias, TypeVar

from ostraka.attestation.claims import Claims
from ostraka.config import CONFIRMS, MASKINGS
from ostraka.encoding import Digest, Id, Key, Length
from ostraka.errors import AttestationRefused, ConfigError, Refusal

DEFAULT_SKEW = 300  # seconds

Sha384: TypeAlias = Annotated[bytes, Length(48)]
AnyPolicy = TypeVar("AnyPolicy")

_NO_WAIVERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class FederationPolicy:
    """Which federation it is, who decides about its roster, who may compute, and how.

    authority: the Ed25519 key that signs the federation's terms and roster. id: the federation's;
    an authority may have several. workers: the keys of all workers that may ever get a share.
    witnesses: the keys of all that may confirm besides the clients; if any are listed, outcomes
    need their confirmation. successors: the hand-overs of the enclave's state that are agreed to
    (`config.succession`). shard_policies: the platform policies that the evidence of shards may be
    held to, each by the SHA-256 of its file. maskings: Gaussian masking leaks, so it must be asked
    for. confirms: who may confirm; if nobody does, a host that copies the enclave reads updates: it
    must be asked for.
    rules: the aggregation rules, each with what comes before it and its options, as receipts show
    them; None for any. Options count, since fltrust(root=a) and fltrust(root=b) trust others.
    disclose_values: aggregates may hold single values of single clients; it must be asked for.
    report_metrics: those of which rounds may publish the mean of what clients report; the same.
    """

    authority: Key | None = None
    id: Id | None = None
    workers: tuple[Key, ...] = ()
    successors: tuple[Digest, ...] = ()
    maskings: tuple[str, ...] = tuple(name for name in MASKINGS if name != "gaussian")
    witnesses: tuple[Key, ...] = ()
    confirms: tuple[str, ...] = tuple(name for name in CONFIRMS if name != "none")
    rules: tuple[str, ...] | None = None
    disclose_values: bool = False
    report_metrics: tuple[str, ...] = ()
    shard_policies: tuple[Digest, ...] = ()


@dataclass(frozen=True)
class Policy:
    """Everything that a client checks an enclave against. An empty policy refuses all.

    evidence: the kinds that are accepted. clock_skew: the seconds that clocks may differ by.
    unsafe_simulation: simulated evidence may be accepted. tees: at most one policy for each TEE.
    """

    evidence: tuple[str, ...] = ()
    federation: FederationPolicy = field(default_factory=FederationPolicy)
    clock_skew: int = DEFAULT_SKEW
    unsafe_simulation: bool = False
    tees: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        if len({type(policy) for policy in self.tees}) < len(self.tees):
            raise ConfigError("a policy has at most one part for each TEE")

    def of(self, tee: type[AnyPolicy]) -> AnyPolicy:
        """Returns the part for one TEE: an empty one, which accepts nothing, if there is none."""
        return next((policy for policy in self.tees if isinstance(policy, tee)), tee())


def require_listed(
    claims: Claims,
    section: str,
    lists: Mapping[str, tuple[bytes, ...]],
    required: tuple[str, ...],
    waivers: Mapping[str, str] = _NO_WAIVERS,
) -> None:
    """Raises AttestationRefused unless every list that must hold a measurement holds it.

    section: the policy file's table. lists: the policy's values by the measurement's name. A list
    that is not empty must hold the measurement, a required list must not be empty, and if all lists
    are empty, nothing is accepted. waivers: what a policy may allow instead of listing a
    measurement, by its name.
    """
    needed = [name for name in lists if lists[name] or name in required] or list(lists)
    present = dict(claims.measurements)
    if absent := ", ".join(name for name in needed if name not in present):
        detail = f"a policy that lists {absent} accepts no evidence in which that is absent"
        raise AttestationRefused(Refusal.MEASUREMENT, detail)
    missing = [name for name in needed if present[name] not in lists[name]]
    if missing:
        detail = _advice(claims, section, lists, missing)
        for name in missing:
            if name in waivers and not lists[name]:
                detail += f'\n# or, to accept any {name}, add to allow: "{waivers[name]}"'
        raise AttestationRefused(Refusal.MEASUREMENT, detail)


def _expected(listed: tuple[bytes, ...]) -> str:
    return " or ".join(value.hex() for value in listed) or "none"


def _advice(
    claims: Claims, section: str, lists: Mapping[str, tuple[bytes, ...]], missing: list[str]
) -> str:
    """Says what was seen, and which lines would accept it: whole lines, since TOML forbids two."""
    seen = {name: claims.measurement(name) for name in missing}
    said = ", ".join(
        f"{name} is {value.hex()} (the policy expects {_expected(lists[name])})"
        for name, value in seen.items()
    )
    lines = [toml_line(name, (*lists[name], value)) for name, value in seen.items()]
    separator = " " if len(lines) == 1 else "\n"
    return (
        f"this enclave's {said}; if you decide to trust it, "
        f"write under [{section}]:{separator}{separator.join(lines)}"
    )


def toml_line(name: str, values: tuple[bytes, ...]) -> str:
    """Writes a list of a policy file."""
    quoted = ", ".join(f'"{value.hex()}"' for value in values)
    return f"{name} = [{quoted}]"

"""Reads a client's policy from TOML, such as policy.toml of a federation folder."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ostraka import settings
from ostraka.attestation.policy import DEFAULT_SKEW, FederationPolicy, Policy
from ostraka.attestation.tees import KINDS, TEES
from ostraka.config import CONFIRMS, MASKINGS, Federation
from ostraka.core import metrics, rules
from ostraka.errors import ConfigError
from ostraka.settings import Document

VERSION = 1
_LONGEST_SKEW = 24 * 3600


@dataclass(frozen=True)
class _Head:
    """The file's keys and tables, but for those of the TEEs.

    version: of the form of this file. evidence: the kinds that are accepted. clock_skew_s: the
    seconds that clocks may differ by. unsafe_simulation: simulated evidence, which proves nothing,
    may be accepted.
    """

    version: int
    evidence: tuple[str, ...] = ()
    clock_skew_s: int = DEFAULT_SKEW
    unsafe_simulation: bool = False
    federation: FederationPolicy = field(default_factory=FederationPolicy)

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ConfigError(f"version {self.version} is not known, only version {VERSION}")
        if not 0 <= self.clock_skew_s <= _LONGEST_SKEW:
            raise ConfigError(f"clock_skew_s is 0 to {_LONGEST_SKEW}; got {self.clock_skew_s}")


# The whole file: a table for each TEE, which is called as its kind.
_Layout: Any = dataclasses.make_dataclass(
    "_Layout",
    [(tee.kind, tee.policy, field(default_factory=tee.policy)) for tee in TEES],
    bases=(_Head,),
    frozen=True,
)


def parse(text: str, name: str) -> Policy:
    """Returns the policy that a file of this name holds. Raises ConfigError and nothing else."""
    document = settings.parse(text, name)
    layout = document.read(_Layout)
    _require_known(document, "evidence", layout.evidence, KINDS)
    _require_known(document, "federation.maskings", layout.federation.maskings, MASKINGS)
    _require_known(document, "federation.confirms", layout.federation.confirms, CONFIRMS)
    reported = layout.federation.report_metrics
    _require_known(document, "federation.report_metrics", reported, metrics.NAMES)
    for table in ("federation", *KINDS):
        _require_counts(document, table, getattr(layout, table))
    policies = (getattr(layout, tee.kind) for tee in TEES)
    return Policy(
        evidence=layout.evidence,
        federation=_with_rules_read(document, layout.federation),
        clock_skew=layout.clock_skew_s,
        unsafe_simulation=layout.unsafe_simulation,
        tees=tuple(policy for policy in policies if policy != type(policy)()),
    )


def parse_shards(text: str, name: str) -> Policy:
    """Returns the policy that evidence of shards is held to. Raises ConfigError and nothing else.

    It is about platforms alone: the federation that it is signed in is the only one there is.
    """
    document = settings.parse(text, name)
    if "federation" in document.values:
        raise document.error(
            "federation",
            "a policy for shards says nothing of a federation, since it is signed as a part of one",
        )
    policy = parse(text, name)
    if not policy.evidence:
        raise document.error("evidence", "evidence lists no kind, so no shard could prove itself")
    return policy


def of_shards(federation: Federation) -> Policy:
    """Returns what the evidence of this federation's shards has to meet. Raises ConfigError."""
    if not federation.shard_policy:
        raise ConfigError(
            f"revision {federation.revision} of the federation has no shards: its authority signs "
            "no shard_policy"
        )
    return parse_shards(federation.shard_policy, "the signed shard_policy")


def _require_known(
    document: Document, path: str, names: Iterable[str], known: tuple[str, ...]
) -> None:
    for i, name in enumerate(names):
        if name not in known:
            what = f"{path} has {', '.join(known)}; got {name!r}"
            raise document.error(f"{path}[{i}]", what)


def _with_rules_read(document: Document, pinned: FederationPolicy) -> FederationPolicy:
    """Rules by the names that terms and receipts have for them."""
    if pinned.rules is None:
        return pinned
    read = []
    for i, text in enumerate(pinned.rules):
        path = f"federation.rules[{i}]"
        try:
            read.append(str(rules.parse(text)))
        except ConfigError as unknown:
            raise document.error(path, f"{path}: {unknown}") from None
    return dataclasses.replace(pinned, rules=tuple(read))


def _require_counts(document: Document, table: str, section: Any) -> None:
    for each in dataclasses.fields(section):
        value = getattr(section, each.name)
        if dataclasses.is_dataclass(value):
            _require_counts(document, f"{table}.{each.name}", value)
        elif isinstance(value, int) and value < 0:
            path = f"{table}.{each.name}"
            raise document.error(path, f"{path} cannot be negative; got {value}")

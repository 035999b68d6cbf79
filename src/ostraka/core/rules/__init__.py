"""Aggregation rules, one file a family. A new rule is a file, and a line in the table below."""

from ostraka.core.rules.krum import MultiKrum, krum_scores, multi_krum
from ostraka.core.rules.seam import Gram, Options, Plan, Rule, Weights
from ostraka.errors import ConfigError

DEFAULT = "multi-krum"

RULES: dict[str, Rule] = {
    "multi-krum": MultiKrum(),
}


def rule(name: str) -> Rule:
    """The rule of this name. Raises ConfigError if there is none."""
    if name not in RULES:
        raise ConfigError(f"rule is one of {', '.join(RULES)}; got {name!r}")
    return RULES[name]


def require_enough(name: str, n: int, f: int) -> None:
    """Raises ConfigError unless the rule stands on n rows of which f may be Byzantine."""
    least = rule(name).least(f)
    if n < least:
        most = max((each for each in range(min(f, n)) if rule(name).least(each) <= n), default=0)
        raise ConfigError(
            f"{name} needs at least {least} clients; got n={n}, f={f}: "
            f"take at least {least} clients, or f at most {most}"
        )


__all__ = [
    "DEFAULT",
    "RULES",
    "Gram",
    "MultiKrum",
    "Options",
    "Plan",
    "Rule",
    "Weights",
    "krum_scores",
    "multi_krum",
    "require_enough",
    "rule",
]

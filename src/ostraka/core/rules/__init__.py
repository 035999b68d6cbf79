"""Aggregation rules and pre-aggregations, one file a family.

A new one is a file, and a line in a table below.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args

from ostraka.core.rules.averaging import Cge, Mean
from ostraka.core.rules.centres import CentredClipping, GeometricMedian
from ostraka.core.rules.columns import Bulyan, Meamed, Median, TrimmedMean
from ostraka.core.rules.composition import FALLBACK, Composition, limited
from ostraka.core.rules.flame import Flame
from ostraka.core.rules.krum import Krum, MultiKrum, krum_scores, multi_krum
from ostraka.core.rules.pre import Arc, Bucketing, Clip, NearestNeighbourMixing
from ostraka.core.rules.seam import (
    Columnwise,
    Gram,
    Mixing,
    Options,
    Part,
    Plan,
    PreAggregation,
    Rule,
    Weights,
)
from ostraka.core.rules.spectral import Caf, Dnc
from ostraka.core.rules.subsets import Mda
from ostraka.core.rules.trusted import FlTrust, Monna
from ostraka.errors import ConfigError

_T = TypeVar("_T")

DEFAULT, DEFAULT_PRE = FALLBACK.name, FALLBACK.pre
PAPER = "multi-krum"

RULES: dict[str, Rule] = {
    "mean": Mean(),
    "multi-krum": MultiKrum(),
    "krum": Krum(),
    "geometric-median": GeometricMedian(),
    "centred-clipping": CentredClipping(),
    "mda": Mda(),
    "caf": Caf(),
    "dnc": Dnc(),
    "cge": Cge(),
    "median": Median(),
    "trimmed-mean": TrimmedMean(),
    "meamed": Meamed(),
    "bulyan": Bulyan(),
    "flame": Flame(),
    "fltrust": FlTrust(),
    "monna": Monna(),
}
PRE: dict[str, PreAggregation] = {
    "nnm": NearestNeighbourMixing(),
    "bucketing": Bucketing(),
    "clip": Clip(),
    "arc": Arc(),
}

# What ByzFL and Flower call the same.
ALIASES = {
    "Average": "mean",
    "FedAvg": "mean",
    "MultiKrum": "multi-krum",
    "Krum": "krum",
    "MDA": "mda",
    "MoNNA": "monna",
    "GeometricMedian": "geometric-median",
    "CenteredClipping": "centred-clipping",
    "CAF": "caf",
    "Median": "median",
    "FedMedian": "median",
    "TrMean": "trimmed-mean",
    "FedTrimmedAvg": "trimmed-mean",
    "Meamed": "meamed",
    "Bulyan": "bulyan",
    "NNM": "nnm",
    "Bucketing": "bucketing",
    "Clipping": "clip",
    "ARC": "arc",
}


def compose(rule: str, pre: tuple[str, ...] = (), options: Options | None = None) -> Composition:
    """The composition of these names, or of what others call the same. Raises ConfigError."""
    name, steps = _known("rule", rule, RULES), [_known("pre-aggregation", p, PRE) for p in pre]
    return Composition(
        name, RULES[name], tuple(steps), tuple(PRE[step] for step in steps), options or Options()
    )


def usual_pre(rule: str) -> tuple[str, ...]:
    """What comes before a rule if nothing is said: before the default, its usual company."""
    return DEFAULT_PRE if canonical(rule) == DEFAULT else ()


def asked_pre(rule: str, pre: Sequence[str] | None) -> tuple[str, ...]:
    """What a caller asks to come before a rule; None for the usual. Raises ConfigError."""
    if isinstance(pre, str):
        raise ConfigError(f'pre is a list of names, such as ["arc"], or [] for none; got {pre!r}')
    return usual_pre(rule) if pre is None else tuple(pre)


def read_options(given: Mapping[str, Any]) -> Options:
    """Options by name, of the types that they have. Raises ConfigError."""
    known = _option_kinds()
    taken: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f"there is no option {name!r} of a rule. Known: {', '.join(known)}")
        taken[name] = _of_type(name, value, known[name])
    return Options(**taken)


def _option_kinds() -> dict[str, tuple[Any, ...]]:
    return {each.name: get_args(each.type) or (each.type,) for each in fields(Options)}


def _of_type(name: str, value: Any, kinds: tuple[type, ...]) -> Any:
    if value is None and NoneType in kinds:
        return None
    try:
        if int in kinds:
            return operator.index(value)
        if float in kinds:
            return float(value)
        if isinstance(value, str):
            return value
    except (TypeError, ValueError):
        pass
    wanted = "a whole number" if int in kinds else "a number" if float in kinds else "a name"
    raise ConfigError(f"{name} is {wanted}; got {value!r}")


def parse(text: str, options: Options | None = None) -> Composition:
    """Read what `str` gives of a composition, such as "arc+nnm+geometric-median" or
    "multi-krum(k=5)", or the names that others use. Raises ConfigError.

    options: if the text has none.
    """
    names, bracket, rest = text.strip().partition("(")
    *pre, rule = (name.strip() for name in names.split("+"))
    if not bracket:
        return compose(rule, tuple(pre), options)
    if not rest.endswith(")") or options is not None:
        raise ConfigError(f"options are given once, such as multi-krum(k=5); got {text!r}")
    return compose(rule, tuple(pre), _options_in(rest[:-1]))


def _options_in(text: str) -> Options:
    """Read "k=5, neighbours=3"."""
    kinds, given = _option_kinds(), {}
    for each in text.split(","):
        name, equals, value = (part.strip() for part in each.partition("="))
        if not equals or name in given:
            raise ConfigError(f"options are such as k=5, neighbours=3, each once; got {text!r}")
        of = kinds.get(name, ())
        given[name] = _number(value, int if int in of else float) if str not in of else value
    return read_options(given)


def _number(text: str, kind: type[int] | type[float]) -> int | float | str:
    try:
        return kind(text)
    except ValueError:
        return text  # which is refused with the option's name


def _known(kind: str, name: str, table: dict[str, _T]) -> str:
    """The name in the table, of which case, hyphens and underscores do not matter."""
    found, names = canonical(name), _names()
    if found in table:
        return found
    if found in PRE:
        raise ConfigError(f"{found} comes before a rule: give it as pre, and a rule")
    if found in RULES:
        raise ConfigError(f"there is no pre-aggregation {name!r}: it is a rule")
    if "+" in name or "(" in name:
        raise ConfigError(
            f"{name!r} is more than one name: here what comes before a rule is given as pre, and "
            "options by their own names"
        )
    near = get_close_matches(_plain(name), names, n=3, cutoff=0.5)
    likely = next((names[each] for each in near if names[each] in table), "")
    meant = f": did you mean {likely}?" if likely else "."
    raise ConfigError(f"there is no {kind} {name!r}{meant} Known: {', '.join(table)}")


def canonical(name: str) -> str:
    """Our own name of a rule or pre-aggregation; the name itself if there is none."""
    return _names().get(_plain(name), name)


@cache
def _names() -> dict[str, str]:
    """Our own names, by the plain form of every name that we know."""
    ours = {_plain(each): each for each in (*RULES, *PRE)}
    return ours | {_plain(alias): of for alias, of in ALIASES.items()}


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def require_enough(composition: Composition, n: int, f: int) -> None:
    """Raises ConfigError unless the composition stands on n rows of which f may be Byzantine."""
    least = composition.least(f)
    if n < least:
        borne = [each for each in range(min(f, n)) if composition.least(each) <= n]
        smaller = f", or f at most {borne[-1]}" if borne else ""
        raise ConfigError(
            f"{composition} needs at least {least} clients; got n={n}, f={f}: "
            f"take at least {least} clients{smaller}"
        )


__all__ = [
    "ALIASES",
    "DEFAULT",
    "DEFAULT_PRE",
    "FALLBACK",
    "PAPER",
    "PRE",
    "RULES",
    "Columnwise",
    "Composition",
    "Gram",
    "Krum",
    "Mixing",
    "MultiKrum",
    "Options",
    "Part",
    "Plan",
    "PreAggregation",
    "Rule",
    "Weights",
    "asked_pre",
    "canonical",
    "compose",
    "krum_scores",
    "limited",
    "multi_krum",
    "parse",
    "read_options",
    "require_enough",
    "usual_pre",
]

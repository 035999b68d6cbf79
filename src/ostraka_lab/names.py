"""Names that users give: of models, data sets and attacks."""

from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import TypeVar

from ostraka.errors import ConfigError

_T = TypeVar("_T")


def find(kind: str, name: str, known: Mapping[str, _T]) -> _T:
    """Look up a name. Raises ConfigError, which lists all names, the nearest first."""
    if name not in known:
        nearest = sorted(known, key=lambda each: -SequenceMatcher(None, name, each).ratio())
        raise ConfigError(f"there is no {kind} {name!r}; known: {', '.join(nearest)}")
    return known[name]

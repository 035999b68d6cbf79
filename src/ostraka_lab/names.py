"""Names that users give: of models, data sets and attacks."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

from ostraka.errors import ConfigError

_T = TypeVar("_T")


def find(kind: str, name: str, known: Mapping[str, _T]) -> _T:
    """Look up a name. Raises ConfigError, which says what may be meant, and lists all names."""
    if name not in known:
        near = get_close_matches(name, known, n=1)
        meant = f": did you mean {near[0]}?" if near else ";"
        raise ConfigError(f"there is no {kind} {name!r}{meant} known: {', '.join(sorted(known))}")
    return known[name]

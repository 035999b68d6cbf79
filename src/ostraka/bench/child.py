"""How a benchmark's own process reports: events on stdout, one JSON object a line.

{"stage": ..., "done": ..., "of": ...} when something begins, and {"figures": ...} or
{"error": ..., "config": ...} at the end. `ostraka.bench.launch` listens.
"""

import json
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from ostraka.errors import ConfigError, OstrakaError

Figures: TypeAlias = dict[str, Any]
Begin: TypeAlias = Callable[[str, int, int], None]


def report(measure: Callable[[Begin], Figures]) -> int:
    """Run a measurement and report it. Returns the exit code."""
    try:
        figures = measure(_begin)
    except OstrakaError as error:
        _send({"error": str(error), "config": isinstance(error, ConfigError)})
        return 1
    _send({"figures": figures})
    return 0


def _begin(what: str, done: int, of: int) -> None:
    _send({"stage": what, "done": done, "of": of})


def _send(event: Figures) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()

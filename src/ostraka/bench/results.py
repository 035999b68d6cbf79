"""A folder of results: one JSON file a benchmark, and one page that is drawn from all of them."""

import json
from datetime import UTC, datetime
from pathlib import Path

from ostraka.bench.child import Figures
from ostraka.errors import ConfigError

BENCHMARKS = ("peers", "paper", "scale", "leakage", "check")
REPORT = "report.html"
_LAYOUT = 2  # of the figures, for the page that is drawn from them


def save(folder: Path, name: str, figures: Figures) -> Path:
    """Keep the figures of one benchmark, in place of older ones of its name. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    stamped = {"layout": _LAYOUT, "measured": when} | figures
    path.write_text(json.dumps(stamped, indent=1) + "\n")
    return path


def load(folder: Path) -> dict[str, Figures]:
    """What there is, by benchmark. Raises ConfigError for a file that is no result."""
    found: dict[str, Figures] = {}
    for name in BENCHMARKS:
        path = folder / f"{name}.json"
        if path.exists():
            found[name] = _read(path)
    return found


def _read(path: Path) -> Figures:
    try:
        figures = json.loads(path.read_text())
    except (OSError, ValueError) as bad:
        raise ConfigError(f"{path} is no result of a benchmark: {bad}; delete it") from None
    if not isinstance(figures, dict) or figures.get("layout") != _LAYOUT:
        raise ConfigError(f"{path} is no result of this version's benchmarks; delete it")
    return figures

"""What repeated runs say: a median, and how far to trust it."""

import json
import math
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ostraka.errors import ConfigError
from ostraka_lab.bench.process import Figures

# The mean range of n normal samples, in standard deviations.
_MEAN_RANGE = {2: 1.128, 3: 1.693, 4: 2.059, 5: 2.326, 6: 2.534, 7: 2.704, 8: 2.847, 9: 2.970}
# The standard error of a median is so much larger than that of a mean.
_MEDIAN = 1.253


def spread(runs: Sequence[float]) -> float:
    """(max - min) / median: 0.1 is ten per cent between the best and the worst run."""
    middle = statistics.median(runs)
    return (max(runs) - min(runs)) / middle if middle else 0.0


def noise(relative_range: float, runs: int) -> float:
    """The relative standard error of a median of so many runs that lie so far apart."""
    if runs < 2:
        return math.inf
    deviation = relative_range / _MEAN_RANGE[min(runs, max(_MEAN_RANGE))]
    return _MEDIAN * deviation / math.sqrt(runs)


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

"""Metrics that clients report with their updates: what is sealed, and what is published of it.

(21) A client that takes part reports the level l = round(1000 min(x, X)/X) of every metric x that
the terms name, or nothing. X is the largest value that counts. Published is the mean X Σl/(1000 m)
over all m clients that report, if m >= f + 2, and nothing otherwise.

Levels are coarse on purpose. Accuracies are fractions: from an unrounded mean of 37/41 and 55/59
anybody reads both, by partial fractions. Of whole numbers a sum tells their sum. And every value of
the 16 bits of a level means something, so that no report can be malformed.
"""

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any, SupportsFloat, TypeAlias

from ostraka.errors import ConfigError

NAMES = ("loss", "accuracy", "examples")
LEVELS = 1000
DEFAULT_LOSS = 10.0
DEFAULT_EXAMPLES = 10_000.0

_NONE = 2**16 - 1  # in the place of each level: this client reports nothing

Levels: TypeAlias = tuple[int, ...]
Values: TypeAlias = Mapping[str, SupportsFloat]


@dataclass(frozen=True)
class Reported:
    """The means that a round publishes, of what `clients` clients have reported.

    None for what the terms do not name. Nobody has checked what a client reports.
    """

    clients: int
    loss: float | None = None
    accuracy: float | None = None
    examples: float | None = None

    @property
    def means(self) -> dict[str, float]:
        """What is published, by name."""
        values = {name: getattr(self, name) for name in NAMES}
        return {name: value for name, value in values.items() if value is not None}

    def figures(self, number: int) -> dict[str, float]:
        """As a status shows it. number: of the round."""
        shown = {name: value for name, value in asdict(self).items() if value is not None}
        return {"round": number, **shown}


@dataclass(frozen=True)
class Asked:
    """The metrics that the terms name, in their order, each with the largest value that counts."""

    names: tuple[str, ...]
    most: tuple[float, ...]

    @property
    def size(self) -> int:
        """How many bytes a report takes, whether the client reports or not."""
        return 2 * len(self.names)

    def write(self, values: Values | None) -> bytes:
        """Returns what is sealed of these values by name; None for a client that reports nothing.

        What the terms do not name stays out. Raises ConfigError for a name that is no metric, a
        metric that is missing, and what is not a number of its range.
        """
        given = {} if values is None else {name: _number(name, values[name]) for name in values}
        if values is None or not self.names:
            return struct.pack(f">{len(self.names)}H", *[_NONE] * len(self.names))
        if missing := [name for name in self.names if name not in given]:
            raise ConfigError(
                f"the terms ask for {', '.join(self.names)}, of which {', '.join(missing)} is "
                "missing: report all of them, or none"
            )
        pairs = zip(self.names, self.most, strict=True)
        levels = [round(LEVELS * min(given[name] / most, 1.0)) for name, most in pairs]
        return struct.pack(f">{len(levels)}H", *levels)

    def read(self, report: bytes) -> Levels | None:
        """Returns a client's levels; None if any is out of range, and the client reports nothing.

        report: of `size` bytes.
        """
        levels = struct.unpack(f">{len(self.names)}H", report)
        return levels if levels and max(levels) <= LEVELS else None

    def mean(self, reports: Iterable[Levels | None], least: int) -> Reported | None:
        """Returns what is published of all reports: nothing of fewer than `least` (law 21)."""
        levels = [each for each in reports if each is not None]
        if not levels or len(levels) < least:
            return None
        sums = [sum(column) for column in zip(*levels, strict=True)]
        scale = LEVELS * len(levels)
        # In this order, no mean is infinite.
        means = [most * (total / scale) for most, total in zip(self.most, sums, strict=True)]
        return Reported(len(levels), **dict(zip(self.names, means, strict=True)))

    def allows(self, reported: Reported | None, least: int) -> bool:
        """Tells whether the terms let a round publish this."""
        if reported is None:
            return True
        return reported.clients >= least and tuple(sorted(reported.means)) == tuple(
            sorted(self.names)
        )


def ask(names: tuple[str, ...], *, loss: float, examples: float) -> Asked:
    """Returns what terms ask for. loss, examples: the largest that count. Raises ConfigError."""
    for name in names:
        require_known(name)
    if len(set(names)) != len(names):
        raise ConfigError(f"metrics are named once each; got {', '.join(names)}")
    limits = {"loss": loss, "accuracy": 1.0, "examples": examples}
    for name, most in limits.items():
        if not 0 < most < math.inf:
            raise ConfigError(f"most_{name} is above 0, and finite; got {most}")
    return Asked(names, tuple(limits[name] for name in names))


def require_known(name: str) -> None:
    """Raises ConfigError for a name that is no metric."""
    if name not in NAMES:
        near = get_close_matches(str(name), NAMES, n=1, cutoff=0.4)
        meant = f": did you mean {near[0]}?" if near else ""
        raise ConfigError(f"a metric is one of {', '.join(NAMES)}; got {name!r}{meant}")


def _number(name: str, value: Any) -> float:
    """Returns a client's own value of a metric. Raises ConfigError before anything is sent."""
    require_known(name)
    try:
        number = math.nan if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    most = 1.0 if name == "accuracy" else math.inf
    if not 0 <= number <= most or math.isinf(number):  # a NaN fails it
        wanted = "a number from 0 to 1" if name == "accuracy" else "a finite number, at least 0"
        raise ConfigError(f"{name} is {wanted}; got {value!r}")
    return number

"""Which is cheaper for the enclave: to measure distances itself, or to mask rows for workers?

    inside = gram n^2 c              every pair of rows, in BLAS
    masked = (mask + share w) n c    quantise, mask and check once, and seal a share per worker

c is the number of columns: d, or the size of the sketch. Opening and averaging cost the same either
way. The noise Gram that an even number of workers needs is made offline and not counted here.
"""

import json
import math
from dataclasses import asdict, dataclass, fields

from ostraka.errors import ConfigError


@dataclass(frozen=True)
class Costs:
    """Nanoseconds of enclave time per pair and column, per value, and per value and share.

    The defaults were measured on a 2-core virtual machine; `ostraka bench calibrate` measures
    yours.
    """

    gram: float = 0.045
    mask: float = 4.0
    share: float = 1.2

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"cost {name!r} must be positive and finite; got {value}")

    def inside(self, n: int, columns: int) -> float:
        """Seconds to measure n rows inside."""
        return self.gram * n**2 * columns * 1e-9

    def masked(self, n: int, columns: int, workers: int) -> float:
        """Seconds to mask n rows for so many workers."""
        return (self.mask + self.share * workers) * n * columns * 1e-9

    def choose(self, n: int, columns: int, workers: int) -> "Choice":
        inside, masked = self.inside(n, columns), self.masked(n, columns, workers)
        return Choice("inside" if inside <= masked else "workers", inside, masked)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Costs":
        """Raises ConfigError unless the text is what `to_json` gives."""
        try:
            values = json.loads(text)
            return cls(**{field.name: float(values[field.name]) for field in fields(cls)})
        except (ValueError, TypeError, KeyError) as bad:
            raise ConfigError(f"not a table of costs: {bad}") from None


@dataclass(frozen=True)
class Choice:
    """Where distances are measured, and the seconds that either way is expected to take."""

    distances: str
    inside: float
    masked: float

    def __str__(self) -> str:
        return (
            f"distances {self.distances}: {self.inside:.3g} s inside the enclave, "
            f"{self.masked:.3g} s to mask them for workers"
        )

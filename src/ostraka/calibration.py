"""Where distances cost the enclave less, by workers or inside: this machine's measured costs."""

import json
import math
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ostraka.errors import ConfigError

_LIMB_PRODUCTS = 3  # of float64, that a product of residues takes


@dataclass(frozen=True)
class Costs:
    """Nanoseconds of enclave time: per pair of rows and column, and per value for t = 1, 2, 3; and
    both for rows of int8, which are multiplied as integers.

    Of an even number of workers none makes the Gram matrix of the leading mask. The enclave does,
    and in residues that is three times the matrix of the rows themselves, if these are real.

    The defaults were measured on 2-core virtual machines, those of int8 on one with AVX-512 VNNI;
    `ostraka bench calibrate` measures yours.
    """

    gram: float = 0.05
    mask: tuple[float, float, float] = (8.0, 20.0, 45.0)
    int8_gram: float = 0.006
    int8_mask: tuple[float, float, float] = (2.5, 4.1, 7.4)

    def __post_init__(self) -> None:
        for value in (self.gram, *self.mask, self.int8_gram, *self.int8_mask):
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"a cost must be positive and finite; got {value}")

    def choose(self, n: int, columns: int, workers: int, *, integers: bool = False) -> "Choice":
        """Choose for n rows of this many columns, and this many workers. integers: of int8."""
        collusion = workers // 2
        if not 1 <= collusion <= len(self.mask):
            raise ConfigError(f"costs are known for 2 to 7 workers; got {workers}")
        gram, mask = self._of(integers)
        inside = gram * n**2 * columns * 1e-9
        masked = mask[collusion - 1] * n * columns * 1e-9
        if workers % 2 == 0:
            masked += _LIMB_PRODUCTS * self.gram * n**2 * columns * 1e-9
        return Choice("inside" if inside <= masked else "workers", inside, masked)

    def break_even(self, workers: int, *, integers: bool = False) -> float:
        """From how many clients on masks are cheaper; infinity for an even number of workers."""
        gram, mask = self._of(integers)
        return mask[workers // 2 - 1] / gram if workers % 2 else math.inf

    def _of(self, integers: bool) -> tuple[float, tuple[float, float, float]]:
        return (self.int8_gram, self.int8_mask) if integers else (self.gram, self.mask)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Costs":
        """Raises ConfigError unless the text is what `to_json` gives; int8 may be missing."""
        try:
            values = json.loads(text)
            first, second, third = values["mask"]
            whole = cls(float(values["gram"]), (float(first), float(second), float(third)))
            if "int8_gram" not in values:
                return whole
            first, second, third = values["int8_mask"]
            return replace(
                whole,
                int8_gram=float(values["int8_gram"]),
                int8_mask=(float(first), float(second), float(third)),
            )
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as bad:
            raise ConfigError(f"not a table of costs: {bad}") from None


@dataclass(frozen=True)
class Choice:
    """Where distances are measured, and the seconds that either way is expected to take."""

    distances: str
    inside: float
    masked: float

    def __str__(self) -> str:
        where = "inside the enclave" if self.distances == "inside" else "by workers"
        return (
            f"distances {where}: about {self.inside:.2g} s to measure them inside, "
            f"{self.masked:.2g} s to mask them for workers"
        )


def user_cache() -> Path:
    """$OSTRAKA_CACHE, or a folder in the user's cache."""
    own = os.environ.get("OSTRAKA_CACHE")
    if own:
        return Path(own)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "ostraka"


def path() -> Path:
    return user_cache() / "costs.json"


def load() -> Costs:
    """This machine's costs, or the defaults where it was never calibrated."""
    try:
        return Costs.from_json(path().read_text())
    except FileNotFoundError:
        return Costs()
    except (OSError, ValueError) as bad:
        raise ConfigError(f"{path()}: {bad}; delete it, or run `ostraka bench calibrate`") from None


def save(costs: Costs) -> Path:
    """Keep the costs, replacing the file in one step."""
    target = path()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".new")
    temporary.write_text(costs.to_json() + "\n")
    temporary.replace(target)
    return target

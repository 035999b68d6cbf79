"""What to measure. A plan that exists can be run on this machine."""

import shutil
import tempfile
from dataclasses import dataclass

from ostraka.errors import ConfigError
from ostraka_lab.bench.kernels import STAGES
from ostraka_lab.bench.machine import available_bytes
from ostraka_lab.bench.parties import cast, sketch_size

_BASE_BYTES = 200 * 2**20  # interpreter, numpy and BLAS, twice
_GIB = 2**30

# The reference of every ratio: measured whatever else is.
REFERENCE = "open"
# The stage whose round the enclave's memory is measured in.
WHOLE_ROUND = "gaussian_online"


@dataclass(frozen=True)
class Plan:
    """Sizes and stages of one run. No stage named: all of them."""

    clients: int
    dim: int
    threads: int = 1
    repeat: int = 3
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("threads", "repeat"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1; got {getattr(self, name)}")
        if unknown := sorted(set(self.only) - set(STAGES)):
            raise ConfigError(f"no stage {', '.join(unknown)}; there are {', '.join(STAGES)}")
        cast(self.clients, self.dim, masking="gaussian")
        if impossible := sorted(set(self.only) - set(self.stages)):
            raise ConfigError(
                f"no sketch of {self.clients} clients' {self.dim} values is possible, and so no "
                f"{', '.join(impossible)}"
            )

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages to run, in the table's order."""
        wanted = {REFERENCE, *(self.only or STAGES)}
        sketches = sketch_size(self.clients, self.dim) is not None
        return tuple(
            name
            for name, stage in STAGES.items()
            if name in wanted and (sketches or not stage.sketches)
        )

    @property
    def memory_bytes(self) -> int:
        """About what the run will need: updates, ciphertext, and what the stages add."""
        per_value = 8 + sum(STAGES[name].extra for name in self.stages)
        return self.clients * self.dim * per_value + _BASE_BYTES

    @property
    def disk_bytes(self) -> int:
        """The spool of the enclave's own process: ciphertext of updates and of noise."""
        return self.clients * self.dim * 12 if WHOLE_ROUND in self.stages else 0

    def require_room(self) -> None:
        """ConfigError if this machine is too small."""
        _require("memory", self.memory_bytes, available_bytes(), self)
        free = shutil.disk_usage(tempfile.gettempdir()).free
        _require(f"disk in {tempfile.gettempdir()}", self.disk_bytes, free, self)


def _require(what: str, needed: int, available: int, plan: Plan) -> None:
    if needed > available:
        raise ConfigError(
            f"{plan.clients} clients of {plan.dim} values need about {needed / _GIB:.1f} GiB of "
            f"{what}; {available / _GIB:.1f} GiB are available: take fewer, or --only some stages"
        )

"""Has anything become slower? Ratios of this run beside those of a stored baseline.

Every stage is divided by opening all updates once, in the same run: what is left does not depend
much on how fast or how busy a machine is. A stage has become slower if its ratio exceeds the
baseline's by more than both runs' noise and a tolerance.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from ostraka.errors import ConfigError
from ostraka_lab.bench import machine
from ostraka_lab.bench.kernels import REFERENCE, Plan, run_kernels
from ostraka_lab.bench.process import Begin, Figures
from ostraka_lab.bench.results import noise

STAGES = (
    "floor",
    "inside_naive",
    "inside_blas32",
    "inside_blas64",
    "sketch_inside",
    "exact_online",
    "exact_sketch",
    "gaussian_online",
    "second_pass",
)
BASELINE = Path("benchmarks") / "baseline.json"
_DEVIATIONS = 3  # of noise
_FORMAT = 1


@dataclass(frozen=True)
class Ratio:
    """noise: the relative standard error of `value`."""

    value: float
    noise: float


def plan(clients: int, dim: int, repeat: int) -> Plan:
    if repeat < 3:
        raise ConfigError(f"noise shows in 3 repetitions or more; got repeat={repeat}")
    return Plan(clients, dim, repeat=repeat, only=STAGES)


def run(plan: Plan, begin: Begin) -> Figures:
    """The ratios of this machine, now."""
    figures = run_kernels(plan, begin)
    stages = figures["stages"]
    # The reference runs between any two stages, so it has many more runs than they have.
    reference = noise(stages[REFERENCE]["spread"], plan.repeat * len(stages))
    return {
        "format": _FORMAT,
        "clients": plan.clients,
        "dim": plan.dim,
        "repeat": plan.repeat,
        "ratios": {
            name: {
                "value": stage["x_open"],
                "noise": math.hypot(noise(stage["spread"], plan.repeat), reference),
            }
            for name, stage in stages.items()
            if name != REFERENCE
        },
        "machine": machine.describe(threads=plan.threads),
    }


def compare(now: Figures, baseline: Figures, *, tolerance: float) -> list[Figures]:
    """A row a stage. `slower`: by more than noise and tolerance explain."""
    old = baseline["ratios"]
    return [
        _row(name, Ratio(**ratio), Ratio(**old[name]), tolerance)
        for name, ratio in now["ratios"].items()
        if name in old
    ]


def load(path: Path) -> Figures:
    """A stored baseline. Raises ConfigError."""
    try:
        baseline: Figures = json.loads(path.read_text())
        if baseline["format"] != _FORMAT:
            raise ConfigError(f"{path}: format {baseline['format']} is not known")
        for ratio in baseline["ratios"].values():
            Ratio(**ratio)
    except FileNotFoundError:
        raise ConfigError(f"{path} is not there: `ostraka bench check --save` makes it") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as bad:
        raise ConfigError(f"{path} is no baseline: {bad}") from None
    return baseline


def save(figures: Figures, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=2) + "\n")


def _row(name: str, now: Ratio, old: Ratio, tolerance: float) -> Figures:
    limit = max(tolerance, _DEVIATIONS * math.hypot(now.noise, old.noise))
    change = now.value / old.value - 1
    return {
        "stage": name,
        "ratio": now.value,
        "baseline": old.value,
        "change": change,
        "limit": limit,
        "slower": not change <= limit,
    }

"""`ostraka bench check`: has anything become slower? And `ostraka bench calibrate`.

`check` divides the cost of every stage by that of opening all updates once, in the same run; and
what a whole service and its clients spend on an upload by a bare loop that receives and opens. The
ratio depends little on how fast or how busy a machine is. A stage has become slower if its ratio
exceeds the baseline's by more than both runs' noise and a tolerance.

`calibrate` measures the costs that `distances="auto"` chooses by: the enclave's time per value with
masks, and per pair of clients without, for rows of float32 and of int8. `python -m
ostraka_lab.bench.check` is its process.
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ostraka.calibration import Costs
from ostraka.config import DEFAULT_TILE, Manifest, Terms
from ostraka.errors import ConfigError
from ostraka.protocol.enclave import Inside, Offload
from ostraka.protocol.round import enrol
from ostraka_lab.bench import machine, service
from ostraka_lab.bench.kernels import REFERENCE, Plan, run_kernels
from ostraka_lab.bench.process import Begin, Figures, report, run_module
from ostraka_lab.bench.results import noise
from ostraka_lab.bench.service_rounds import Plan as ServicePlan

STAGES = (
    "floor",
    "inside_naive",
    "inside_blas32",
    "inside_blas64",
    "headers",
    "arrival",
    "arrival_sketch",
    "sketch_inside",
    "exact_online",
    "exact_sketch",
    "gaussian_online",
    "second_pass",
)
BASELINE = Path("benchmarks") / "baseline.json"

_DEVIATIONS = 3  # of noise that are allowed
_FORMAT = 3


@dataclass(frozen=True)
class Ratio:
    """The cost of a stage over that of opening. noise: the relative standard error."""

    value: float
    noise: float


def plan(clients: int, dimension: int, repeat: int) -> Plan:
    if repeat < 3:
        raise ConfigError(f"repeat must be at least 3 to show noise; got {repeat}")
    return Plan(clients, dimension, repeat=repeat, only=STAGES)


# What a whole service is measured by: a figure, and the two spreads that it has.
SERVICE = {
    "service_receive": ("enclave_x_bare_loop", "receive_cpu_s", "loop_cpu_s"),
    "service_client": ("client_x_bare_loop", "client_cpu_s", "loop_cpu_s"),
    "service_close": ("close_cpu_x_open", "close_cpu_s", "open_cpu_s"),
}


def run(plan: Plan, begin: Begin) -> Figures:
    """Measure the ratios of this machine."""
    figures = run_kernels(plan, begin)
    stages = figures["stages"]
    # The reference runs between any two stages, so it has many more runs than they have.
    reference = noise(stages[REFERENCE]["spread"], plan.repeat * len(stages))
    return {
        "format": _FORMAT,
        "clients": plan.clients,
        "dimension": plan.dimension,
        "repeat": plan.repeat,
        "ratios": {
            name: {
                "value": stage["x_open"],
                "noise": math.hypot(noise(stage["spread"], plan.repeat), reference),
            }
            for name, stage in stages.items()
            if name != REFERENCE
        }
        | _service_ratios(plan, begin),
        "machine": machine.describe(threads=plan.threads),
    }


def _service_ratios(plan: Plan, begin: Begin) -> Figures:
    served = ServicePlan(plan.clients, plan.dimension, repeat=plan.repeat, small=False)
    figures = service.measure(served, begin)
    spreads = figures["spread"]
    return {
        name: {
            "value": figures[value],
            # What it is divided by is measured before and after.
            "noise": math.hypot(
                noise(spreads[own], plan.repeat), noise(spreads[base], 2 * plan.repeat)
            ),
        }
        for name, (value, own, base) in SERVICE.items()
    }


def compare(now: Figures, baseline: Figures, *, tolerance: float) -> list[Figures]:
    """Compare stage by stage. slower: by more than noise and tolerance explain."""
    old = baseline["ratios"]
    return [
        _row(name, Ratio(**ratio), Ratio(**old[name]), tolerance)
        for name, ratio in now["ratios"].items()
        if name in old
    ]


def load(path: Path) -> Figures:
    """Load a stored baseline. Raises ConfigError."""
    try:
        baseline: Figures = json.loads(path.read_text())
        if baseline["format"] != _FORMAT:
            raise ConfigError(
                f"{path} has format {baseline['format']}, not {_FORMAT}: make it again with "
                "`ostraka bench check --save`"
            )
        for ratio in baseline["ratios"].values():
            Ratio(**ratio)
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing: `ostraka bench check --save` makes it") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as bad:
        raise ConfigError(f"{path} is not a baseline: {bad}") from None
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


def calibrate(begin: Begin, *, clients: int = 64, tiles: int = 2, repeat: int = 5) -> Costs:
    """Measure the costs: medians over `repeat` runs, each of every way of measuring."""
    begin("sealing updates", 0, repeat + 1)
    cohorts = [
        [_Cohort(clients, tiles, workers, upload) for workers in (3, 5, 7)]
        for upload in ("float32", "int8")
    ]
    runs: list[list[list[float]]] = [[], []]
    for number in range(1, repeat + 1):
        begin(f"run {number}", number, repeat + 1)
        for some, times in zip(cohorts, runs, strict=True):
            times.append([some[0].inside(), *(cohort.masked() for cohort in some)])
    values = clients * tiles * DEFAULT_TILE
    (gram, *mask), (int8_gram, *int8_mask) = (
        [statistics.median(each) / values * 1e9 for each in zip(*times, strict=True)]
        for times in runs
    )
    return Costs(gram / clients, _three(mask), int8_gram / clients, _three(int8_mask))


def _three(costs: list[float]) -> tuple[float, float, float]:
    first, second, third = costs
    return first, second, third


class _Cohort:
    """A closed round that is measured again and again, in CPU seconds."""

    def __init__(self, clients: int, tiles: int, workers: int, upload: str) -> None:
        terms = Terms(Manifest.flat(tiles * DEFAULT_TILE), f=1, workers=workers, upload=upload)
        parties, rng = enrol(terms, clients=clients), np.random.default_rng(0)
        self._federation = parties.federation
        offer = self._federation.open()
        for client in parties.clients:
            update = rng.standard_normal(terms.dimension, dtype=np.float32)
            self._federation.take(parties.seal(client, offer, update))
        self._cohort = self._federation.close()

    def inside(self) -> float:
        return _cpu(Inside(self._cohort).measure)

    def masked(self) -> float:
        offload = Offload(self._cohort)
        workers = zip(self._federation.workers.values(), offload.offers, strict=True)
        masking = offload.connect([worker.accept(offer)[1] for worker, offer in workers])

        def mask_all() -> None:
            for _ in masking.encode():
                pass

        return _cpu(mask_all)


def _cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _costs(begin: Begin) -> Figures:
    figures: Figures = json.loads(calibrate(begin).to_json())
    return figures


def run_calibration(begin: Begin) -> Costs:
    """Measure the costs of one thread of this machine, in a process of its own."""
    return Costs.from_json(json.dumps(run_module("ostraka_lab.bench.check", [], begin)))


if __name__ == "__main__":
    sys.exit(report(_costs))

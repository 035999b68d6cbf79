"""The benchmark's own process: `python -m ostraka.bench.kernels PLAN DIRECTORY`.

A process of its own, because BLAS reads its number of threads when numpy is first imported. PLAN is
JSON.
"""

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from ostraka.bench.cast import sketch_size
from ostraka.bench.child import Begin, Figures, report
from ostraka.bench.enclave_memory import enclave_peak_bytes
from ostraka.bench.plan import REFERENCE, WHOLE_ROUND, Plan
from ostraka.bench.stages import STAGES
from ostraka.bench.stopwatch import Stopwatch
from ostraka.bench.workload import Workload

_MIB = 2**20


def measure(plan: Plan, directory: Path, begin: Begin) -> Figures:
    """Run the plan. directory: for files, to be removed by whoever made it."""
    turns = list(_turns(plan))
    steps = 2 + len(turns)
    peak = None
    if WHOLE_ROUND in plan.stages:
        begin("enclave memory", 0, steps)
        peak = enclave_peak_bytes(plan.clients, plan.dim, masking="gaussian", directory=directory)

    begin("sealing updates", 1, steps)
    load = Workload(plan.clients, plan.dim, directory, plan.threads)
    # The first pass over new memory is slower than all others, and is not counted.
    STAGES[REFERENCE].run(load, Stopwatch())
    clocks: dict[str, list[Stopwatch]] = {name: [] for name in plan.stages}
    for done, name in enumerate(turns, 2):
        begin(name, done, steps)
        clock = Stopwatch()
        STAGES[name].run(load, clock)
        clocks[name].append(clock)

    return {
        "clients": plan.clients,
        "dim": plan.dim,
        "threads": plan.threads,
        "repeat": plan.repeat,
        "tile": load.rules.tile,
        "sketch": sketch_size(plan.clients, plan.dim),
        "enclave_rss_mib": None if peak is None else peak / _MIB,
        "stages": summary(clocks),
    }


def _turns(plan: Plan) -> Iterator[str]:
    """The stages in the order in which they run.

    Every repeat runs every stage, so that what else the machine does hits all of them alike. The
    reference, by which all others are divided, runs between any two.
    """
    for repeat in range(plan.repeat):
        yield REFERENCE
        for name in plan.stages:
            if name != REFERENCE and (repeat == 0 or not STAGES[name].once):
                yield from (name, REFERENCE)


def summary(clocks: dict[str, list[Stopwatch]]) -> Figures:
    """Medians, as seconds and as multiples of the reference; spread is (max - min) / median."""
    seconds = {name: [clock.seconds for clock in runs] for name, runs in clocks.items()}
    reference = statistics.median(seconds[REFERENCE])
    stages: Figures = {}
    for name, runs in seconds.items():
        median = statistics.median(runs)
        stages[name] = {
            "cpu_s": median,
            "x_open": median / reference,
            "spread": (max(runs) - min(runs)) / median,
        }
        if note := clocks[name][0].note:
            stages[name]["note"] = note
    return stages


def _plan(text: str) -> Plan:
    fields = json.loads(text)
    return Plan(**fields | {"only": tuple(fields["only"])})


def main(plan: str, directory: str) -> int:
    return report(lambda begin: measure(_plan(plan), Path(directory), begin))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

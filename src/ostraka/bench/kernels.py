"""The benchmark's own process: `python -m ostraka.bench.kernels PLAN DIRECTORY`.

A process of its own, because BLAS reads its number of threads when numpy is first imported. PLAN is
JSON. Events go to stdout, one JSON object a line: {"stage": ..., "done": ..., "of": ...} when a
stage begins, and {"figures": ...} or {"error": ..., "config": ...} at the end.
"""

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from ostraka.bench.enclave_memory import enclave_peak_bytes
from ostraka.bench.plan import REFERENCE, WHOLE_ROUND, Plan
from ostraka.bench.stages import STAGES
from ostraka.bench.stopwatch import Stopwatch
from ostraka.bench.workload import Workload
from ostraka.errors import ConfigError, OstrakaError

Figures: TypeAlias = dict[str, Any]
Report: TypeAlias = Callable[[Figures], None]

_MIB = 2**20


def measure(plan: Plan, directory: Path, report: Report) -> Figures:
    """Run the plan. directory: for files, to be removed by whoever made it."""
    turns = list(_turns(plan))
    steps = 2 + len(turns)

    def begin(what: str, done: int) -> None:
        report({"stage": what, "done": done, "of": steps})

    peak = None
    if WHOLE_ROUND in plan.stages:
        begin("enclave memory", 0)
        peak = enclave_peak_bytes(plan.clients, plan.dim, masking="gaussian", directory=directory)

    begin("sealing updates", 1)
    load = Workload(plan.clients, plan.dim, directory, plan.threads)
    # The first pass over new memory is slower than all others, and is not counted.
    STAGES[REFERENCE].run(load, Stopwatch())
    clocks: dict[str, list[Stopwatch]] = {name: [] for name in plan.stages}
    for done, name in enumerate(turns, 2):
        begin(name, done)
        clock = Stopwatch()
        STAGES[name].run(load, clock)
        clocks[name].append(clock)

    return {
        "clients": plan.clients,
        "dim": plan.dim,
        "threads": plan.threads,
        "repeat": plan.repeat,
        "tile": load.rules.tile,
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


def main(plan: str, directory: str) -> int:
    try:
        figures = measure(_plan(plan), Path(directory), _send)
    except OstrakaError as error:
        _send({"error": str(error), "config": isinstance(error, ConfigError)})
        return 1
    _send({"figures": figures})
    return 0


def _plan(text: str) -> Plan:
    fields = json.loads(text)
    return Plan(**fields | {"only": tuple(fields["only"])})


def _send(event: Figures) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

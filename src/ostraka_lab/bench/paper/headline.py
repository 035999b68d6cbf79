"""The headline for one size: `python -m ostraka_lab.bench.paper.headline CLIENTS DIM REPEAT`.

How many times longer a round takes with everything inside the enclave than with workers. A round
is collecting (open every key, check every signature), the first pass, and the second, which
averages. Inside, the first pass is opening and distances, by the paper's loop over pairs and by
BLAS; neither is charged for the checks that Ostraka's own first pass makes.

Beside it stands the first pass alone: finding the outliers, which is what the paper compares.
"""

import statistics
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ostraka.errors import LeakyMasking
from ostraka_lab.bench import kernels
from ostraka_lab.bench.clock import Stopwatch
from ostraka_lab.bench.paper import MASKINGS
from ostraka_lab.bench.parties import sketch_size, terms_of
from ostraka_lab.bench.process import Begin, Figures, report
from ostraka_lab.bench.results import spread
from ostraka_lab.bench.whole_round import AGGREGATE, COLLECT, Played, play, repeated, warm_up
from ostraka_lab.bench.workload import Workload

BASELINES = {
    "naive": kernels.inside_naive,
    "blas64": kernels.inside_blas64,
    "blas32": kernels.inside_blas32,
}


def measure(clients: int, dim: int, repeat: int, begin: Begin) -> Figures:
    """Every repetition runs everything once; medians count."""
    warnings.simplefilter("ignore", LeakyMasking)
    begin("sealing updates", 0, 1)
    load = Workload(clients, dim, Path())
    maskings = [each for each in MASKINGS if each != "sketch" or sketch_size(clients, dim)]
    inside: dict[str, list[float]] = {name: [] for name in BASELINES}
    played: dict[str, list[Played]] = {name: [] for name in maskings}
    for name in maskings:
        warm_up(terms_of(name, clients, dim), clients=clients)
    for turn in range(repeat):
        for name, stage in BASELINES.items():
            begin(f"inside, {name}", turn, repeat)
            inside[name].append(_cpu(partial(stage, load)))
        for name in maskings:
            begin(f"with workers, {name}", turn, repeat)
            updates = repeated(clients, dim)
            played[name].append(play(terms_of(name, clients, dim), updates, clients=clients))
    # What both ways have in common, as all rounds together measured it.
    common = statistics.median(
        run.cpu_s[COLLECT] + run.cpu_s[AGGREGATE] for runs in played.values() for run in runs
    )
    rounds = {name: statistics.median(runs) + common for name, runs in inside.items()}
    return {
        "clients": clients,
        "dim": dim,
        "sketch": sketch_size(clients, dim),
        "inside": {
            name: {"enclave_cpu_s": rounds[name], "spread": spread(inside[name])} for name in inside
        },
        "rows": [
            _row(name, runs, rounds) | _detection(runs, inside) for name, runs in played.items()
        ],
    }


def _row(name: str, runs: list[Played], rounds: dict[str, float]) -> Figures:
    enclave = statistics.median(run.enclave_cpu_s for run in runs)
    worker = statistics.median(run.slowest_worker_s for run in runs)
    return {
        "name": name,
        "enclave_cpu_s": enclave,
        "slowest_worker_s": worker,
        "spread": spread([run.enclave_cpu_s for run in runs]),
        # By the enclave's time, which is what is scarce.
        **{f"over_{base}": seconds / enclave for base, seconds in rounds.items()},
        # By the time of the whole round, if nothing overlapped.
        **{f"round_over_{base}": seconds / (enclave + worker) for base, seconds in rounds.items()},
    }


def _detection(runs: list[Played], inside: dict[str, list[float]]) -> Figures:
    """Of the first pass alone: opening, checks, masks, decoding."""
    seconds = statistics.median(
        run.enclave_cpu_s - run.cpu_s[COLLECT] - run.cpu_s[AGGREGATE] for run in runs
    )
    ratios = {
        f"detection_over_{base}": statistics.median(inside[base]) / seconds for base in inside
    }
    return {"detection_cpu_s": seconds, **ratios}


def _cpu(stage: Callable[[Stopwatch], object]) -> float:
    clock = Stopwatch()
    stage(clock)
    return clock.seconds


if __name__ == "__main__":
    clients, dim, repeat = map(int, sys.argv[1:])
    sys.exit(report(partial(measure, clients, dim, repeat)))

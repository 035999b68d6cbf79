"""The measurements of `ostraka bench paper`, each in a process of its own.

python -m ostraka_lab.bench.paper_measurements NAME [ARGUMENT ...]

    networks                                  the number of parameters of the paper's networks
    distances CLIENTS DIMENSION REPEAT        figures 2a and 2b
    training NETWORK CLIENTS STEPS            figure 3: one client's local epoch
    epoch CLIENTS DIMENSION MASKING REPEAT    figure 3: the parts of a round
    headline CLIENTS DIMENSION REPEAT         a round inside the enclave over one by each scheme

Whole rounds are played by the real roles on one thread. PyTorch takes seconds to load, and only the
measurements that need it import it.
"""

import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np

from ostraka.core.field import P
from ostraka.core.gram import Kernel
from ostraka.errors import ConfigError, LeakyMasking
from ostraka.worker import backends
from ostraka_lab.bench import kernels
from ostraka_lab.bench.machine import Stopwatch, available_bytes
from ostraka_lab.bench.parties import (
    EXACT,
    GAUSSIAN,
    PAPER,
    SKETCH,
    SKETCH_INSIDE,
    Workload,
    sketch_size,
    terms_of,
)
from ostraka_lab.bench.process import Begin, Figures, report
from ostraka_lab.bench.results import spread
from ostraka_lab.bench.whole_round import Played, play, repeated, warm_up

NETWORKS = ("mobilenetv1", "mobilenetv2", "efficientnet-b0", "efficientnet-b1")
MASKINGS = (GAUSSIAN, EXACT, SKETCH)
# Rounds of the headline: off-loading without a sketch, a sketch without off-loading, and both.
SCHEMES = (GAUSSIAN, EXACT, SKETCH_INSIDE, SKETCH)
BASELINES = {
    "naive": kernels.inside_naive,
    "blas64": kernels.inside_blas64,
    "blas32": kernels.inside_blas32,
}

_BYTES_A_VALUE = 10  # ciphertext, rows, and what is made of them on the way
_SHARE = 0.7  # of the available memory
_PARTS = (
    "prepare",
    "collect",
    "arrive",
    "open",
    "encode",
    "encrypt",
    "decode",
    "aggregate",
    "confirm",
    "release",
)

_SHAPE = (3, 32, 32)  # of a picture of CIFAR-10
_CLASSES = 1000  # as the networks were published
_PICTURES, _BATCH = 50_000, 32
_MEAN = _STD = (0.5, 0.5, 0.5)


def networks(begin: Begin) -> Figures:
    """Count the parameters of each network, with 1,000 classes."""
    from ostraka_lab import models  # noqa: PLC0415

    counts: Figures = {}
    for done, name in enumerate(NETWORKS):
        begin(name, done, len(NETWORKS))
        model = models.build(name, shape=_SHAPE, classes=_CLASSES, seed=0)
        counts[name] = sum(each.numel() for each in model.parameters())
    return counts


def training(network: str, clients: int, steps: int, begin: Begin) -> Figures:
    """Time some steps of the lab's own trainer, after one that is not timed.

    The pictures have CIFAR-10's shape and are random: what they show does not change what a step
    costs. batches: the steps of an epoch, over a client's part of 50,000 pictures.
    """
    from ostraka_lab import models  # noqa: PLC0415
    from ostraka_lab.training import Recipe, Trainer  # noqa: PLC0415

    begin(f"training {network}", 0, 1)
    batches = math.ceil(_PICTURES / clients / _BATCH)
    model = models.build(network, shape=_SHAPE, classes=_CLASSES, seed=0)
    start = models.vector(model)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (_BATCH * steps, *_SHAPE), dtype=np.uint8)
    labels = rng.integers(0, 10, len(images))
    seconds = []
    for recipe in (Recipe(steps=1, batch=_BATCH), Recipe(steps=steps, batch=_BATCH)):
        trainer = Trainer(model, images, labels, _MEAN, _STD, recipe)
        begun = time.perf_counter()
        trainer.update(start, seed=(0,))
        seconds.append(time.perf_counter() - begun)
    return {"step_s": seconds[1] / steps, "batches": batches, "steps_timed": steps}


def distances(clients: int, dimension: int, repeat: int, begin: Begin) -> Figures:
    """Measure distances inside the enclave (2a) and by a worker's kernel (2b), by stage.

    Inside, by the paper's loop over pairs and by BLAS. What takes too much memory is measured on
    some columns and scaled, because the work is tile by tile. On an accelerator, wall time counts.
    """
    columns = _columns(clients, dimension)
    begin(f"sealing {clients} updates", 0, repeat + 1)
    load = Workload(clients, columns)
    todo: dict[str, Callable[[Stopwatch], object]] = {
        "open": partial(kernels.open_updates, load),
        **{name: partial(stage, load) for name, stage in BASELINES.items()},
        **_worker_stages(load, "cpu"),
        **(_worker_stages(load, "cuda") if _has_cuda() else {}),
    }
    runs: dict[str, list[float]] = {name: [] for name in todo}
    for turn in range(repeat):
        for name, run in todo.items():
            begin(f"{name}, {clients} clients", turn + 1, repeat + 1)
            runs[name].append(_seconds(run, _timer(name)) * dimension / columns)
    return {
        "clients": clients,
        "dimension": dimension,
        "columns": columns,
        "seconds": {name: statistics.median(each) for name, each in runs.items()},
        "spread": {name: spread(each) for name, each in runs.items()},
    }


def _timer(stage: str) -> Callable[[], float]:
    """The clock of a stage. While an accelerator works, this process has no CPU time."""
    ours = not stage.startswith("worker-") or stage.endswith("-cpu")
    return time.process_time if ours else time.perf_counter


def _columns(clients: int, dimension: int) -> int:
    """The number of columns that fit into memory."""
    return min(dimension, int(_SHARE * available_bytes() / (_BYTES_A_VALUE * clients)))


def _worker_stages(load: Workload, device: str) -> dict[str, Callable[[Stopwatch], object]]:
    kernel = backends.choose(device)
    return {
        f"worker-gaussian-{device}": partial(_gaussian, load, kernel),
        f"worker-exact-{device}": partial(_exact, load, kernel),
    }


def _gaussian(load: Workload, kernel: Kernel, clock: Stopwatch) -> None:
    block = np.random.default_rng(0).standard_normal((load.clients, load.terms.tile))
    with clock:
        running = kernel.begin(load.clients, "float64")
        for width in _widths(load):
            running.add(block[:, :width])
        running.total()


def _exact(load: Workload, kernel: Kernel, clock: Stopwatch) -> None:
    shape = (load.clients, load.terms.tile)
    block = np.random.default_rng(0).integers(0, P, shape, dtype=np.uint32)
    with clock:
        running = kernel.begin(load.clients, "residues")
        for width in _widths(load):
            running.add(np.ascontiguousarray(block[:, :width]))
        running.total()


def _widths(load: Workload) -> list[int]:
    return [load.tiling.size(index) for index in range(load.tiling.count)]


def _has_cuda() -> bool:
    try:
        backends.choose("cuda")
    except ConfigError:
        return False
    return True


def epoch(clients: int, dimension: int, masking: str, repeat: int, begin: Begin) -> Figures:
    """Cut a whole round into the parts that the paper shows. Seconds are medians.

    distances: of one worker, as workers run side by side. Bytes are those of all clients and of all
    workers.
    """
    warnings.simplefilter("ignore", LeakyMasking)
    terms = terms_of(masking, clients, dimension, composition=PAPER)
    warm_up(terms, clients=clients)
    runs = []
    for turn in range(repeat):
        begin(f"{masking}, {clients} clients of {dimension}", turn, repeat)
        runs.append(play(terms, repeated(clients, dimension), clients=clients, parts=True))
    return {
        "parts": {
            name: statistics.median(run.cpu_s.get(name, 0.0) for run in runs) for name in _PARTS
        }
        | {"distances": statistics.median(run.slowest_worker_s for run in runs)},
        "enclave_cpu_s": statistics.median(run.enclave_cpu_s for run in runs),
        "spread": spread([run.enclave_cpu_s for run in runs]),
        "uploaded_bytes": runs[0].traffic.uploads,
        "shared_bytes": runs[0].traffic.shares + runs[0].traffic.answers,
        "sketch": terms.sketch,
    }


def headline(clients: int, dimension: int, repeat: int, begin: Begin) -> Figures:
    """Measure how much longer a round takes the enclave with everything inside than by a scheme.

    Workers and a sketch are told apart: rounds have either, and both. A round is collecting (open
    every key, check every signature), the first pass, the second, which averages, and the clients'
    confirmations. Inside, the first pass is opening and distances, by the paper's loop over pairs
    and by BLAS; neither is charged for the checks that Ostraka's own first pass makes. The first
    pass alone, which finds the outliers, is what the paper compares.

    Every repetition runs everything once; figures are medians. Workers' time and the clients'
    sealing are not counted. Noise is, and is a figure of its own: the paper makes it offline.
    """
    warnings.simplefilter("ignore", LeakyMasking)
    begin("sealing updates", 0, 1)
    load = Workload(clients, dimension)
    columns = sketch_size(clients, dimension, PAPER)
    schemes = [each for each in SCHEMES if columns or each in (GAUSSIAN, EXACT)]
    terms = {name: terms_of(name, clients, dimension, composition=PAPER) for name in schemes}
    inside: dict[str, list[float]] = {name: [] for name in BASELINES}
    played: dict[str, list[Played]] = {name: [] for name in schemes}
    for each in terms.values():
        warm_up(each, clients=clients)
    for turn in range(repeat):
        for name, stage in BASELINES.items():
            begin(f"inside, {name}", turn, repeat)
            inside[name].append(_seconds(partial(stage, load)))
        for name in schemes:
            begin(name, turn, repeat)
            played[name].append(play(terms[name], repeated(clients, dimension), clients=clients))
    # What both ways have in common, as all rounds together measured it.
    common = statistics.median(run.besides_cpu_s for runs in played.values() for run in runs)
    rounds = {name: statistics.median(runs) + common for name, runs in inside.items()}
    return {
        "clients": clients,
        "dimension": dimension,
        "sketch": columns,
        "inside": {
            name: {"enclave_cpu_s": rounds[name], "spread": spread(inside[name])} for name in inside
        },
        "rows": [
            _whole_row(name, runs, rounds) | _first_pass_row(runs, inside)
            for name, runs in played.items()
        ],
    }


def _whole_row(name: str, runs: list[Played], rounds: dict[str, float]) -> Figures:
    enclave = statistics.median(run.enclave_cpu_s for run in runs)
    worker = statistics.median(run.slowest_worker_s for run in runs)
    return {
        "name": name,
        "enclave_cpu_s": enclave,
        "prepare_cpu_s": statistics.median(run.prepare_cpu_s for run in runs),
        "slowest_worker_s": worker,
        "spread": spread([run.enclave_cpu_s for run in runs]),
        # By the enclave's time, which is what is scarce.
        **{f"over_{base}": seconds / enclave for base, seconds in rounds.items()},
        # By the time of the whole round, if nothing overlapped.
        **{f"round_over_{base}": seconds / (enclave + worker) for base, seconds in rounds.items()},
    }


def _first_pass_row(runs: list[Played], inside: dict[str, list[float]]) -> Figures:
    """The first pass alone: opening, checks, masks, decoding."""
    seconds = statistics.median(run.first_pass_cpu_s for run in runs)
    ratios = {
        f"detection_over_{base}": statistics.median(inside[base]) / seconds for base in inside
    }
    return {"detection_cpu_s": seconds, **ratios}


def _seconds(
    stage: Callable[[Stopwatch], object], timer: Callable[[], float] | None = None
) -> float:
    clock = Stopwatch(timer)
    stage(clock)
    return clock.seconds


MEASUREMENTS: dict[str, Callable[..., Figures]] = {
    each.__name__: each for each in (networks, training, distances, epoch, headline)
}


def main(name: str, *arguments: str) -> int:
    """Run one measurement. Arguments that look like numbers are numbers."""
    values = [int(each) if each.isdecimal() else each for each in arguments]
    return report(partial(MEASUREMENTS[name], *values))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Figures 2a and 2b for one size: `python -m ostraka_lab.bench.paper.distances SIZE`. SIZE is JSON.

2a: pairwise distances of sealed updates inside the enclave: the paper's loop over pairs, and BLAS.
2b: a worker's kernel on the same number of values, and how much faster than either it is.

What takes too much memory is measured on some columns and scaled: the work is tile by tile.
"""

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ostraka.arrays import AnyArray
from ostraka.core.field import P
from ostraka.core.gram import Kernel
from ostraka.errors import ConfigError
from ostraka.worker import backends
from ostraka_lab.bench import kernels
from ostraka_lab.bench.clock import Stopwatch
from ostraka_lab.bench.machine import available_bytes
from ostraka_lab.bench.process import Begin, Figures, report
from ostraka_lab.bench.results import spread
from ostraka_lab.bench.workload import Workload

_BYTES_A_VALUE = 6  # ciphertext, and what is made of it on the way
_SHARE = 0.7  # of the memory that is left


@dataclass(frozen=True)
class Size:
    """repeat: of every stage; medians count."""

    clients: int
    dim: int
    repeat: int = 3

    @property
    def columns(self) -> int:
        """How many of the columns fit into memory."""
        return min(self.dim, int(_SHARE * available_bytes() / (_BYTES_A_VALUE * self.clients)))

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def measure(size: Size, begin: Begin) -> Figures:
    """Seconds of CPU by stage, and of wall time on an accelerator."""
    columns = size.columns
    begin(f"sealing {size.clients} updates", 0, size.repeat + 1)
    load = Workload(size.clients, columns, Path())
    todo: dict[str, Callable[[Stopwatch], object]] = {
        "open": partial(kernels.open_updates, load),
        "naive": partial(kernels.inside_naive, load),
        "blas32": partial(kernels.inside_blas32, load),
        "blas64": partial(kernels.inside_blas64, load),
        **_worker_stages(load, "cpu"),
        **(_worker_stages(load, "cuda") if _has_cuda() else {}),
    }
    runs: dict[str, list[float]] = {name: [] for name in todo}
    for turn in range(size.repeat):
        for name, run in todo.items():
            begin(f"{name}, {size.clients} clients", turn + 1, size.repeat + 1)
            clock = Stopwatch()
            run(clock)
            runs[name].append(clock.seconds * size.dim / columns)
    return {
        "clients": size.clients,
        "dim": size.dim,
        "columns": columns,
        "seconds": {name: statistics.median(each) for name, each in runs.items()},
        "spread": {name: spread(each) for name, each in runs.items()},
    }


def _worker_stages(load: Workload, device: str) -> dict[str, Callable[[Stopwatch], object]]:
    kernel = backends.choose(device)
    return {
        f"worker-gaussian-{device}": partial(_gaussian, load, kernel),
        f"worker-exact-{device}": partial(_exact, load, kernel),
    }


def _gaussian(load: Workload, kernel: Kernel, clock: Stopwatch) -> None:
    block = _normals(load)
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


def _normals(load: Workload) -> AnyArray:
    return np.random.default_rng(0).standard_normal((load.clients, load.terms.tile))


def _widths(load: Workload) -> list[int]:
    return [load.tiling.size(index) for index in range(load.tiling.count)]


def _has_cuda() -> bool:
    try:
        backends.choose("cuda")
    except ConfigError:
        return False
    return True


if __name__ == "__main__":
    asked = Size(**json.loads(sys.argv[1]))
    sys.exit(report(partial(measure, asked)))

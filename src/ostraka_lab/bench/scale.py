"""`ostraka bench scale`: how cost grows with clients and with values.

python -m ostraka_lab.bench.scale CLIENTS DIMENSION REPEAT    measures one size

Sizes go from small to large, within the memory and the time that there are. Each is measured in a
process of its own: whole rounds by the real roles on one thread. The enclave's memory is that of
another process, which opens ciphertext from files as a host keeps it.
"""

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from ostraka.config import Terms
from ostraka.errors import ConfigError
from ostraka_lab.bench import fit, machine
from ostraka_lab.bench.enclave_memory import enclave_peak_bytes
from ostraka_lab.bench.fit import TARGET, Sample, Size
from ostraka_lab.bench.machine import available_bytes
from ostraka_lab.bench.parties import (
    EXACT,
    SKETCH,
    SKETCH_VALUES,
    least_sketch,
    sketch_size,
    terms_of,
)
from ostraka_lab.bench.process import Begin, Figures, report
from ostraka_lab.bench.results import Part, Parts
from ostraka_lab.bench.whole_round import Played, play, repeated, warm_up

UNCHECKED = "exact-unchecked"

_CELL = "ostraka_lab.bench.scale"
_LONG_S = 60.0  # a size that takes longer is not repeated: long runs are less noisy than short ones
_BYTES_A_VALUE = 10  # ciphertext, the enclave's rows, and what is kept beside them
_DISK_BYTES_A_VALUE = 4  # ciphertext that the enclave's own process reads
_SHARE = 0.6  # of what is available of either
_FEW = 256  # clients, up to which an exponent is given by itself
_MEMORY = "enclave_bytes"

# What each cost is made of. A sketch's own columns are m; without one m is d.
_TERMS: Mapping[tuple[str, str], Sequence[str]] = {
    (EXACT, "enclave_cpu_s"): ("1", "N", "N d", "N²"),
    (UNCHECKED, "enclave_cpu_s"): ("1", "N", "N d", "N²"),
    (SKETCH, "enclave_cpu_s"): ("1", "N", "N d", "N m", "N²"),
    (EXACT, "worker_cpu_s"): ("1", "N d", "N²", "N² m"),
    (SKETCH, "worker_cpu_s"): ("1", "N m", "N²", "N² m"),
    (EXACT, "uploaded_bytes"): ("N", "N d"),
    (EXACT, "shared_bytes"): ("N", "N d", "N²"),
    (SKETCH, "shared_bytes"): ("N", "N m", "N²"),
}
_MEMORY_TERMS = ("1", "N", "d", "N²")
_BUDGET_TERMS = ("1", "N d", "N² m")


@dataclass(frozen=True)
class Grid:
    """The sizes to measure: every pair of clients and dimensions.

    repeat: runs of each; fewer if they are long.
    """

    clients: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1024)
    dimensions: tuple[int, ...] = (100_000, 1_000_000, 10_000_000)
    repeat: int = 3

    def __post_init__(self) -> None:
        if len(self.clients) < 2 or len(self.dimensions) < 2:
            raise ConfigError("growth needs at least two numbers of clients and two dimensions")
        if self.repeat < 1:
            raise ConfigError(f"repeat must be at least 1; got {self.repeat}")

    def sizes(self) -> Iterator[tuple[int, int]]:
        """The pairs that fit, the smallest first, so that these are measured if time runs out."""
        disk = shutil.disk_usage(tempfile.gettempdir()).free / _DISK_BYTES_A_VALUE
        limit = _SHARE * min(available_bytes() / _BYTES_A_VALUE, disk)
        pairs = ((n, d) for n in self.clients for d in self.dimensions if n * d <= limit)
        return iter(sorted(pairs, key=lambda pair: (pair[0] * pair[1], pair)))


class Budget:
    """Seconds that may be spent. The time of a size is predicted from what the others took."""

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise ConfigError(f"the budget must be above 0 seconds; got {seconds}")
        self._left = seconds
        self._sizes: list[Size] = []
        self._seconds: list[float] = []

    def allows(self, clients: int, dimension: int) -> bool:
        if not self._sizes:
            return True
        model = fit.terms(self._sizes, self._seconds, _BUDGET_TERMS)
        return fit.predict(model, Size(clients, dimension, dimension)) <= self._left

    def spend(self, clients: int, dimension: int, seconds: float) -> None:
        self._left -= seconds
        self._sizes.append(Size(clients, dimension, dimension))
        self._seconds.append(seconds)


def run(grid: Grid, budget_s: float, begin: Begin, parts: Parts) -> Figures:
    """Measure all sizes that fit, and give the figures."""
    cells, skipped = _measure(grid, budget_s, begin, parts)
    fits = [
        each for (variant, cost) in _TERMS if (each := _fitted(cells, variant, cost)) is not None
    ]
    memory = [(Size(c["clients"], c["dimension"], c["dimension"]), [c[_MEMORY]]) for c in cells]
    fits.append(_fit(EXACT, _MEMORY, memory, _MEMORY_TERMS))
    seconds = {
        _named(each): each["forecast"]["value"]
        for each in fits
        if each["cost"].endswith("_s") and each["variant"] != UNCHECKED
    }
    clients, dimension = TARGET
    return {
        "repeat": grid.repeat,
        "budget_s": budget_s,
        "cells": [_shown(cell) for cell in cells],
        "skipped": skipped,
        "fits": fits,
        "target": {"clients": clients, "dimension": dimension, "sketch": least_sketch()},
        "splits": fit.splits(clients, dimension, seconds, sketch=least_sketch()),
        "machine": machine.describe(threads=1),
    }


def _named(fitted: Figures) -> str:
    """The name of a forecast of seconds, with its clients if they are not those of the target."""
    clients = fitted["forecast"]["clients"]
    name = f"{fitted['variant']} {fitted['cost'].removesuffix('_cpu_s')}"
    return name if clients == TARGET[0] else f"{name} of {clients:,} clients"


def _measure(
    grid: Grid, budget_s: float, begin: Begin, parts: Parts
) -> tuple[list[Figures], list[list[int]]]:
    """Measure the cells. Gives them, and the sizes that lacked time or memory."""
    every = [(n, d) for n in grid.clients for d in grid.dimensions]
    before = {size: part for size in every if (part := parts.take(_CELL, _words(grid, size)))}
    budget = _budget(budget_s, before)
    cells = [part.figures for part in before.values()]
    for size in grid.sizes():
        if size in before or not budget.allows(*size):
            continue
        step = _counted(begin, len(cells), len(every))
        part = parts.measure(_CELL, _words(grid, size), step)
        cells.append(part.figures)
        budget.spend(*size, part.seconds)
    cells.sort(key=lambda cell: (cell["clients"] * cell["dimension"], cell["clients"]))
    done = {(cell["clients"], cell["dimension"]) for cell in cells}
    return cells, [list(pair) for pair in every if pair not in done]


def _words(grid: Grid, size: tuple[int, int]) -> list[str]:
    return [str(each) for each in (*size, grid.repeat)]


def _budget(seconds: float, before: Mapping[tuple[int, int], Part]) -> Budget:
    """A budget in which what was measured before is paid for, and predicts the other sizes."""
    budget = Budget(seconds + sum(part.seconds for part in before.values()))
    for size, part in before.items():
        budget.spend(*size, part.seconds)
    return budget


def _counted(begin: Begin, done: int, of: int) -> Begin:
    def step(what: str, *_: int) -> None:
        begin(what, done, of)

    return step


def _fitted(cells: Sequence[Figures], variant: str, cost: str) -> Figures | None:
    samples = [
        (
            Size(cell["clients"], cell["dimension"], cell["columns"][variant]),
            [run[cost] for run in cell["runs"][variant]],
        )
        for cell in cells
        if variant in cell["runs"]
    ]
    return _fit(variant, cost, samples, _TERMS[variant, cost]) if samples else None


def _fit(variant: str, cost: str, samples: Sequence[Sample], names: Sequence[str]) -> Figures:
    target = _target(variant)
    return {
        "variant": variant,
        "cost": cost,
        "exponents": _exponents(samples, lambda size: True),
        "exponents_few": _exponents(samples, lambda size: size.clients <= _FEW),
        "exponents_many": _exponents(samples, lambda size: size.clients >= _FEW),
        "forecast": fit.extrapolate(samples, names, target) | asdict(target),
    }


def _target(variant: str) -> Size:
    """What to forecast. On a sketch, no more clients than were measured with one of this length."""
    clients, dimension = TARGET
    if variant != SKETCH:
        return Size(clients, dimension, dimension)
    columns = least_sketch()
    return Size(min(clients, SKETCH_VALUES // columns), dimension, columns)


def _exponents(samples: Sequence[Sample], among: Callable[[Size], bool]) -> Figures | None:
    """Fit the exponents over these sizes. None if there are too few."""
    chosen = [(size, statistics.median(runs)) for size, runs in samples if among(size)]
    try:
        found = fit.exponents([size for size, _ in chosen], [cost for _, cost in chosen])
    except ConfigError:
        return None
    return {name: asdict(each) for name, each in found.items()}


def _shown(cell: Figures) -> Figures:
    """Add medians to a cell. Its runs stay, as the forecast's band comes from their spread."""
    return cell | {
        "medians": {
            variant: {name: statistics.median(run[name] for run in runs) for name in runs[0]}
            for variant, runs in cell["runs"].items()
        }
    }


def variants(clients: int, dimension: int) -> dict[str, Terms]:
    """The terms to measure. A sketch needs long updates and not too many clients."""
    exact = terms_of(EXACT, clients, dimension)
    rounds = {EXACT: exact, UNCHECKED: replace(exact, verify=False)}
    if sketch_size(clients, dimension):
        rounds[SKETCH] = terms_of(SKETCH, clients, dimension)
    return rounds


def measure(clients: int, dimension: int, repeat: int, begin: Begin) -> Figures:
    """Measure one size."""
    rounds = variants(clients, dimension)
    runs: dict[str, list[Figures]] = {name: [] for name in rounds}
    for terms in rounds.values():
        warm_up(terms, clients=clients)
    start = time.monotonic()
    for turn in range(repeat):
        for name, terms in rounds.items():
            begin(f"{name}, {clients} clients of {dimension}", turn, repeat)
            runs[name].append(_run(play(terms, repeated(clients, dimension), clients=clients)))
        if time.monotonic() - start > _LONG_S:
            break
    begin(f"memory, {clients} clients of {dimension}", repeat, repeat)
    return {
        "clients": clients,
        "dimension": dimension,
        "columns": {name: terms.measured for name, terms in rounds.items()},
        "enclave_bytes": _memory(clients, dimension),
        "runs": runs,
    }


def _run(played: Played) -> Figures:
    return {
        "enclave_cpu_s": played.enclave_cpu_s,
        "worker_cpu_s": played.worker_cpu_s,
        "uploaded_bytes": played.traffic.uploads,
        "shared_bytes": played.traffic.shares + played.traffic.answers,
    }


def _memory(clients: int, dimension: int) -> int:
    with tempfile.TemporaryDirectory(prefix="ostraka-bench-") as directory:
        return enclave_peak_bytes(clients, dimension, masking="exact", directory=Path(directory))


if __name__ == "__main__":
    clients, dimension, repeat = map(int, sys.argv[1:])
    sys.exit(report(partial(measure, clients, dimension, repeat)))

"""Which sizes to measure: from small to large, within the memory and the time that there are."""

import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from ostraka.core.sketch import MIN_SIZE
from ostraka.errors import ConfigError
from ostraka_lab.bench import machine
from ostraka_lab.bench.machine import available_bytes
from ostraka_lab.bench.parties import EXACT, SKETCH
from ostraka_lab.bench.process import Begin, Figures
from ostraka_lab.bench.resume import Part, Parts
from ostraka_lab.bench.scale import fit, forecast
from ostraka_lab.bench.scale.cell import UNCHECKED
from ostraka_lab.bench.scale.fit import Size
from ostraka_lab.bench.scale.forecast import Sample

_BYTES_A_VALUE = 6  # ciphertext, and what the host keeps beside it
_DISK_BYTES_A_VALUE = 4  # ciphertext that the enclave's own process reads
_SHARE = 0.6  # of what is left of either
_BUDGET_TERMS = ("1", "N d", "N² m")


@dataclass(frozen=True)
class Grid:
    """clients, dims: every pair of them is a size. repeat: runs of each, fewer if they are long."""

    clients: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1024)
    dims: tuple[int, ...] = (100_000, 1_000_000, 10_000_000)
    repeat: int = 3

    def __post_init__(self) -> None:
        if len(self.clients) < 2 or len(self.dims) < 2:
            raise ConfigError("growth needs at least two numbers of clients and two dimensions")
        if self.repeat < 1:
            raise ConfigError(f"repeat must be at least 1; got {self.repeat}")

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Pairs that fit, the least first: whoever runs out of time has the small ones."""
        disk = shutil.disk_usage(tempfile.gettempdir()).free / _DISK_BYTES_A_VALUE
        limit = _SHARE * min(available_bytes() / _BYTES_A_VALUE, disk)
        pairs = ((n, d) for n in self.clients for d in self.dims if n * d <= limit)
        return iter(sorted(pairs, key=lambda pair: (pair[0] * pair[1], pair)))


class Budget:
    """Seconds that may be spent. What a size will take is told from what the others took."""

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise ConfigError(f"a budget is some seconds; got {seconds}")
        self._left = seconds
        self._sizes: list[Size] = []
        self._seconds: list[float] = []

    def allows(self, clients: int, dim: int) -> bool:
        if not self._sizes:
            return True
        model = fit.terms(self._sizes, self._seconds, _BUDGET_TERMS)
        return fit.predict(model, Size(clients, dim, dim)) <= self._left

    def spend(self, clients: int, dim: int, seconds: float) -> None:
        self._left -= seconds
        self._sizes.append(Size(clients, dim, dim))
        self._seconds.append(seconds)


_FEW = 256  # clients, up to which an exponent is given by itself
_MEMORY = "enclave_bytes"
_CELL = "ostraka_lab.bench.scale.cell"

# What each cost is made of. A sketch's own columns are m; without one m is d.
_TERMS: Mapping[tuple[str, str], Sequence[str]] = {
    (EXACT, "enclave_cpu_s"): ("1", "N", "N d", "N²"),
    (UNCHECKED, "enclave_cpu_s"): ("1", "N", "N d", "N²"),
    (SKETCH, "enclave_cpu_s"): ("1", "N", "N d", "N m", "N²"),
    (EXACT, "worker_cpu_s"): ("1", "N d", "N²", "N² m"),
    (SKETCH, "worker_cpu_s"): ("1", "N m", "N²", "N² m"),
    (EXACT, "offline_cpu_s"): ("1", "N d", "N²", "N² m"),
    (SKETCH, "offline_cpu_s"): ("1", "N m", "N²", "N² m"),
    (EXACT, "uploaded_bytes"): ("N", "N d"),
    (EXACT, "shared_bytes"): ("N", "N d", "N²"),
    (SKETCH, "shared_bytes"): ("N", "N m", "N²"),
}
_MEMORY_TERMS = ("1", "N", "d", "N²")


def run(grid: Grid, budget_s: float, begin: Begin, parts: Parts) -> Figures:
    """The figures of `ostraka bench scale`."""
    cells, skipped = _measure(grid, budget_s, begin, parts)
    fits = [
        each for (variant, cost) in _TERMS if (each := _fitted(cells, variant, cost)) is not None
    ]
    memory = [(Size(c["clients"], c["dim"], c["dim"]), [c[_MEMORY]]) for c in cells]
    fits.append(_fit(EXACT, _MEMORY, memory, _MEMORY_TERMS))
    seconds = {
        f"{each['variant']} {each['cost'].removesuffix('_cpu_s')}": each["forecast"]["value"]
        for each in fits
        if each["cost"].endswith("_s") and each["variant"] != UNCHECKED
    }
    clients, dim = forecast.TARGET
    return {
        "repeat": grid.repeat,
        "budget_s": budget_s,
        "cells": [_shown(cell) for cell in cells],
        "skipped": skipped,
        "fits": fits,
        "target": {"clients": clients, "dim": dim, "sketch": MIN_SIZE},
        "splits": forecast.splits(clients, dim, seconds),
        "machine": machine.describe(threads=1),
    }


def _measure(
    grid: Grid, budget_s: float, begin: Begin, parts: Parts
) -> tuple[list[Figures], list[list[int]]]:
    """The cells, and the sizes that there was no time or no memory for."""
    every = [(n, d) for n in grid.clients for d in grid.dims]
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
    cells.sort(key=lambda cell: (cell["clients"] * cell["dim"], cell["clients"]))
    done = {(cell["clients"], cell["dim"]) for cell in cells}
    return cells, [list(pair) for pair in every if pair not in done]


def _words(grid: Grid, size: tuple[int, int]) -> list[str]:
    return [str(each) for each in (*size, grid.repeat)]


def _budget(seconds: float, before: Mapping[tuple[int, int], Part]) -> Budget:
    """What was measured before is paid for, and tells how long the other sizes take."""
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
            Size(cell["clients"], cell["dim"], cell["columns"][variant]),
            [run[cost] for run in cell["runs"][variant]],
        )
        for cell in cells
        if variant in cell["runs"]
    ]
    return _fit(variant, cost, samples, _TERMS[variant, cost]) if samples else None


def _fit(variant: str, cost: str, samples: Sequence[Sample], names: Sequence[str]) -> Figures:
    clients, dim = forecast.TARGET
    target = Size(clients, dim, MIN_SIZE if variant == SKETCH else dim)
    return {
        "variant": variant,
        "cost": cost,
        "exponents": _exponents(samples, lambda size: True),
        "exponents_few": _exponents(samples, lambda size: size.clients <= _FEW),
        "exponents_many": _exponents(samples, lambda size: size.clients >= _FEW),
        "forecast": forecast.extrapolate(samples, names, target),
    }


def _exponents(samples: Sequence[Sample], among: Callable[[Size], bool]) -> Figures | None:
    """Over these sizes, or None if they are too few."""
    chosen = [(size, statistics.median(runs)) for size, runs in samples if among(size)]
    try:
        found = fit.exponents([size for size, _ in chosen], [cost for _, cost in chosen])
    except ConfigError:
        return None
    return {name: asdict(each) for name, each in found.items()}


def _shown(cell: Figures) -> Figures:
    """Medians, and the spread that the forecast's band comes from is in the runs."""
    return cell | {
        "medians": {
            variant: {name: statistics.median(run[name] for run in runs) for name in runs[0]}
            for variant, runs in cell["runs"].items()
        }
    }

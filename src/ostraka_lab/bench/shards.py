"""`ostraka bench scale --shards`: what a lead and each of its shards spend, and what that tells.

python -m ostraka_lab.bench.shards CLIENTS DIMENSION REPEAT SCHEME COUNT ...    measures one size

A size is measured with each number of shards in turn, as real processes over loopback; 1 is an
enclave without shards. Clients send the same updates each time, so that the same ones must be
selected and the models must be equal. Costs are fitted as sums of terms and extended to many
clients of long updates, by the number of shards.
"""

import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from ostraka.config import (
    Federation,
    Manifest,
    Member,
    Terms,
    Tiling,
    cut_into_spans,
    default_tile,
)
from ostraka.crypto.aead import TAG_BYTES
from ostraka.enclave.budget import needs
from ostraka.errors import ConfigError
from ostraka_lab.bench import fit, machine
from ostraka_lab.bench.fit import Sample, Size
from ostraka_lab.bench.machine import available_bytes
from ostraka_lab.bench.parties import EXACT, PAPER, SKETCH, byzantine
from ostraka_lab.bench.process import Begin, Figures, report
from ostraka_lab.bench.results import Parts
from ostraka_lab.bench.scale import Budget
from ostraka_lab.bench.service_rounds import (
    UPDATE_BYTES,
    Plan,
    Round,
    Served,
    needed_bytes,
    serve,
)

TARGET = (10_000, 100_000_000)
COUNTS = (4, 16, 64)  # of shards, of the forecast
GBIT_S = (10, 100)
INT8_RATE = 1e15  # operations a second of one GPU: assumed, not measured
LEAD = "enclave"

_CELL = "ostraka_lab.bench.shards"
_ALONE = "enclave_cpu_s"  # of an enclave without shards
_WORKERS = 3  # The third makes the Gram matrix of the mask.
_PRODUCTS = 10  # of int8 digits, for one product of residues (worker/torch_kernel.py)
_FLOAT, _RESIDUE = 4, 4  # bytes
_CLOSE = 1e-6  # between models

# What each cost is made of. On a sketch its columns m are the same at all sizes, so that what the
# lead spends by client and shard is spent by column, too.
_TERMS: Mapping[tuple[str, str], Sequence[str]] = {
    (SKETCH, "enclave_cpu_s"): ("1", "N", "d", "N d"),
    (SKETCH, "shard_cpu_s"): ("1", "N", "d/n", "N d/n"),
    (SKETCH, "lead_cpu_s"): ("1", "N", "N m n", "N²"),
    (SKETCH, "shard_bytes"): ("1", "N", "d/n", "N d/n"),
    (SKETCH, "lead_bytes"): ("1", "N", "N m", "N²"),
    (EXACT, "enclave_cpu_s"): ("1", "N", "d", "N d", "N²"),
    (EXACT, "shard_cpu_s"): ("1", "N", "d/n", "N d/n", "N²"),
    (EXACT, "lead_cpu_s"): ("1", "N", "N²", "N² n"),
    (EXACT, "shard_bytes"): ("1", "N", "d/n", "N d/n", "N²"),
    (EXACT, "lead_bytes"): ("1", "N", "N²"),
}


@dataclass(frozen=True)
class Grid:
    """The sizes to measure: every pair of clients and dimensions that fits, with every number of
    shards.

    counts: of shards. scheme: on a sketch, or exact masks on whole updates. repeat: rounds that
    count, there and back each. most: values of all clients together. Every size needs as many
    values as the largest number of shards can be cut from.
    """

    clients: tuple[int, ...] = (16, 64, 256)
    dimensions: tuple[int, ...] = (200_000, 1_000_000, 3_500_000)
    counts: tuple[int, ...] = (1, 2, 4)
    scheme: str = SKETCH
    repeat: int = 3
    most: int = 64 * 3_500_000

    def __post_init__(self) -> None:
        if len(self.clients) < 2 or len(self.dimensions) < 2:
            raise ConfigError("growth needs at least two numbers of clients and two dimensions")
        if 1 not in self.counts or max(self.counts) < 2:
            raise ConfigError("shards are compared with one enclave: count both 1 and more")
        if self.repeat < 1:
            raise ConfigError(f"repeat must be at least 1; got {self.repeat}")
        for dimension in self.dimensions:
            for count in self.counts:
                cut_into_spans(Tiling(dimension, default_tile(dimension, count)), count)

    def plan(self, clients: int, dimension: int, shards: int) -> Plan:
        return Plan(
            clients=clients,
            dimension=dimension,
            repeat=self.repeat,
            workers=_WORKERS,
            sketched=self.scheme == SKETCH,
            shards=shards,
            composition=PAPER,
        )

    def every(self) -> list[tuple[int, int]]:
        """All pairs, the smallest first, so that these are measured if time runs out."""
        pairs = [(n, d) for n in self.clients for d in self.dimensions]
        return sorted(pairs, key=lambda pair: (pair[0] * pair[1], pair))

    def sizes(self) -> Iterator[tuple[int, int]]:
        """The pairs that fit."""
        for clients, dimension in self.every():
            fits = needed_bytes(clients, dimension) <= available_bytes()
            if fits and clients * dimension <= self.most:
                yield clients, dimension


# One size, in a process of its own.


def measure(grid: Grid, clients: int, dimension: int, begin: Begin) -> Figures:
    """Measure one size with each number of shards of the grid, there and back: a machine that
    others use is another one half a minute later."""
    served: dict[int, list[Served]] = {count: [] for count in grid.counts}
    turns = (*grid.counts, *reversed(grid.counts))
    for turn, count in enumerate(turns):
        begin(f"{clients} clients of {dimension}, {_shards(count)}", turn, len(turns))
        with tempfile.TemporaryDirectory(prefix="ostraka-bench-") as directory:
            plan = grid.plan(clients, dimension, count)
            served[count].append(serve(plan, Path(directory) / "federation", None))
    plan = grid.plan(clients, dimension, 1)
    return {
        "clients": clients,
        "dimension": dimension,
        "columns": plan.sketch or dimension,
        "runs": {
            str(count): _run(grid.plan(clients, dimension, count), both)
            for count, both in served.items()
        },
        **_agreement([each for both in served.values() for each in both]),
    }


def _shards(count: int) -> str:
    return "one enclave" if count == 1 else f"{count} shards"


def _run(plan: Plan, served: Sequence[Served]) -> Figures:
    """What was measured with one number of shards."""
    shards = [name for name in served[0].peaks if name != LEAD]
    peaks = {name: max(each.peaks[name] for each in served) for name in (LEAD, *shards)}
    return {
        "rounds": [_round(each, shards) for once in served for each in once.rounds[1:]],
        "lead_bytes": peaks[LEAD],
        "shard_bytes": [peaks[name] for name in shards],
        "received_bytes": [
            plan.clients * (span.length * UPDATE_BYTES + span.tiling.count * TAG_BYTES)
            for span in plan.spans
        ],
    }


def _round(each: Round, shards: Sequence[str]) -> Figures:
    return {
        "lead_cpu_s": each.cpu_s[LEAD],
        "lead_parts_s": list(each.parts[LEAD]),
        "shard_cpu_s": [each.cpu_s[name] for name in shards],
        "shard_parts_s": [list(each.parts[name]) for name in shards],
        "client_cpu_s": each.cpu_s["clients"],
        "worker_cpu_s": each.cpu_s["workers"],
    }


def _agreement(served: Sequence[Served]) -> Figures:
    """Whether all numbers of shards gave the same, as clients have verified it."""
    first = served[0]
    largest = float(np.abs(first.model).max())
    return {
        "selected": len(first.selected[-1]),
        "same_selection": all(each.selected == first.selected for each in served),
        "model_difference": max(
            float(np.abs(each.model - first.model).max()) / largest for each in served
        ),
    }


# All sizes, and what they tell.


def run(grid: Grid, budget_s: float, begin: Begin, parts: Parts) -> Figures:
    """Measure all sizes that fit, and give the figures."""
    cells, skipped = _measure(grid, budget_s, begin, parts)
    return tell(grid, cells) | {
        "budget_s": budget_s,
        "skipped": skipped,
        "machine": machine.describe(threads=Plan.threads),
    }


def tell(grid: Grid, cells: Sequence[Figures]) -> Figures:
    """What the cells show: ratios, fits and forecasts."""
    samples = _samples(cells)
    clients, dimension = TARGET
    columns = max(cell["columns"] for cell in cells) if grid.scheme == SKETCH else dimension
    alone = Size(clients, dimension, columns)
    targets = [replace(alone, shards=count) for count in COUNTS]
    fits = {
        cost: [
            fit.extrapolate(samples[cost], names, size) | asdict(size)
            for size in ([alone] if cost == _ALONE else targets)
        ]
        for (scheme, cost), names in _TERMS.items()
        if scheme == grid.scheme
    }
    return {
        "scheme": grid.scheme,
        "counts": list(grid.counts),
        "repeat": grid.repeat,
        "cells": list(cells),
        "shares": [share for cell in cells for share in _shares(cell)],
        "leads": _leads(cells),
        "fits": fits,
        "target": {"clients": clients, "dimension": dimension, "columns": columns},
        "forecasts": [_forecast(grid.scheme, size) for size in targets],
        "int8_rate": INT8_RATE,
    }


def _measure(
    grid: Grid, budget_s: float, begin: Begin, parts: Parts
) -> tuple[list[Figures], list[list[int]]]:
    """Measure the cells. Gives them, and the sizes that lacked time or memory."""
    every = grid.every()
    before = {size: part for size in every if (part := parts.take(_CELL, _words(grid, size)))}
    budget = Budget(budget_s + sum(part.seconds for part in before.values()))
    for size, part in before.items():
        budget.spend(*size, part.seconds)
    found = {size: part.figures for size, part in before.items()}
    for size in grid.sizes():
        if size in found or not budget.allows(*size):
            continue

        def step(what: str, *_: int) -> None:
            begin(what, len(found), len(every))

        part = parts.measure(_CELL, _words(grid, size), step)
        found[size] = part.figures
        budget.spend(*size, part.seconds)
    return (
        [found[size] for size in every if size in found],
        [list(size) for size in every if size not in found],
    )


def _words(grid: Grid, size: tuple[int, int]) -> list[str]:
    return [*(str(each) for each in (*size, grid.repeat)), grid.scheme, *map(str, grid.counts)]


def _samples(cells: Sequence[Figures]) -> dict[str, list[Sample]]:
    """What to fit, by cost: of every size and number of shards, an enclave without any apart."""
    samples: dict[str, list[Sample]] = {name: [] for _, name in _TERMS}
    for cell in cells:
        size = Size(cell["clients"], cell["dimension"], cell["columns"])
        alone = [each["lead_cpu_s"] for each in cell["runs"]["1"]["rounds"]]
        samples[_ALONE].append((size, alone))
        for count, ran in _sharded(cell):
            size, rounds = replace(size, shards=count), ran["rounds"]
            shard = [statistics.mean(each["shard_cpu_s"]) for each in rounds]
            samples["shard_cpu_s"].append((size, shard))
            samples["lead_cpu_s"].append((size, [each["lead_cpu_s"] for each in rounds]))
            samples["shard_bytes"].append((size, ran["shard_bytes"]))
            samples["lead_bytes"].append((size, [ran["lead_bytes"]]))
    return samples


def _sharded(cell: Figures) -> list[tuple[int, Figures]]:
    return [(int(count), ran) for count, ran in cell["runs"].items() if int(count) > 1]


def _shares(cell: Figures) -> list[Figures]:
    """Each shard's CPU over its share of what one enclave spends on the same."""
    alone = _median(cell["runs"]["1"], "lead_cpu_s")
    shown = []
    for count, ran in _sharded(cell):
        by_shard = zip(*(each["shard_cpu_s"] for each in ran["rounds"]), strict=True)
        shards = [statistics.median(seconds) for seconds in by_shard]
        shown.append(
            {
                "clients": cell["clients"],
                "dimension": cell["dimension"],
                "shards": count,
                "enclave_cpu_s": alone,
                "shard_cpu_s": shards,
                "lead_cpu_s": _median(ran, "lead_cpu_s"),
                "x_share": [count * seconds / alone for seconds in shards],
                "lead_bytes": ran["lead_bytes"],
                "shard_bytes": max(ran["shard_bytes"]),
                "enclave_bytes": cell["runs"]["1"]["lead_bytes"],
                "received_bytes": max(ran["received_bytes"]),
                "same_selection": cell["same_selection"],
                "model_difference": cell["model_difference"],
                "equal": cell["same_selection"] and cell["model_difference"] <= _CLOSE,
            }
        )
    return shown


def _median(ran: Figures, name: str) -> float:
    runs: list[float] = [each[name] for each in ran["rounds"]]
    return statistics.median(runs)


def _leads(cells: Sequence[Figures]) -> list[Figures]:
    """The lead's CPU and memory with the longest updates over that with the shortest."""
    found = []
    for clients in sorted({cell["clients"] for cell in cells}):
        mine = sorted(
            (cell for cell in cells if cell["clients"] == clients),
            key=lambda cell: int(cell["dimension"]),
        )
        for count, long in _sharded(mine[-1]) if len(mine) > 1 else ():
            short = mine[0]["runs"][str(count)]
            found.append(
                {
                    "clients": clients,
                    "shards": count,
                    "dimensions": [mine[0]["dimension"], mine[-1]["dimension"]],
                    "cpu_s": [_median(each, "lead_cpu_s") for each in (short, long)],
                    "bytes": [each["lead_bytes"] for each in (short, long)],
                }
            )
    return found


def _forecast(scheme: str, size: Size) -> Figures:
    """What follows from formats and from the assumed rate: no measured time is in it."""
    values = -(-size.dimension // size.shards)
    tiles = -(-values // default_tile(size.dimension, size.shards))
    received = size.clients * (values * UPDATE_BYTES + tiles * TAG_BYTES)
    summed = (
        size.shards * size.clients * size.columns * _FLOAT
        if scheme == SKETCH
        else size.shards * size.clients**2 * _RESIDUE
    )
    operations = 2 * _PRODUCTS * size.clients**2 * size.columns
    return {
        "shards": size.shards,
        "received_bytes": received,
        "receive_s": {str(rate): 8 * received / (rate * 1e9) for rate in GBIT_S},
        "row_bytes": size.clients * values * UPDATE_BYTES,
        "lead_received_bytes": summed,
        "lead_receive_s": {str(rate): 8 * summed / (rate * 1e9) for rate in GBIT_S},
        "lead_budget_bytes": _budget(scheme, size, 0),
        "shard_budget_bytes": _budget(scheme, size, values),
        "worker_operations": operations,
        "worker_gpu_s": operations / INT8_RATE,
    }


def _budget(scheme: str, size: Size, values: int) -> int | None:
    """What the service itself asks of a machine beside the rows; None if it refuses the size."""
    names = [f"client-{number}" for number in range(1, size.clients + 1)]
    try:
        terms = Terms(
            Manifest.flat(size.dimension),
            f=byzantine(size.clients, PAPER),
            rule=PAPER.name,
            pre=PAPER.pre,
            sketch=size.columns if scheme == SKETCH else None,
            workers=_WORKERS,
            tile=default_tile(size.dimension, size.shards),
        )
        members = tuple(
            Member(name, bytes(28) + at.to_bytes(4))
            for at, name in enumerate([*names, *(f"worker-{n}" for n in range(_WORKERS))])
        )
        federation = Federation(
            terms, members[: size.clients], members[size.clients :], bytes(32), bytes(32)
        )
    except ConfigError:
        return None
    return needs(federation, values=values).total


if __name__ == "__main__":
    clients, dimension, repeat = map(int, sys.argv[1:4])
    scheme, counts = sys.argv[4], tuple(map(int, sys.argv[5:]))
    same = Grid((clients,) * 2, (dimension,) * 2, counts, scheme, repeat)
    sys.exit(report(partial(measure, same, clients, dimension)))

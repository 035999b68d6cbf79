"""`ostraka bench ray`: what a worker on Ray takes beside one in a process of its own.

python -m ostraka_lab.bench.ray_cluster CLIENTS DIMENSION NODES REPEAT    measures one size

The cluster has its nodes on this machine, with one processor each. The worker's part of an attempt
is measured: opening the shares, and their inner products. Ray's CPU time is that of all its
processes, also of those that only keep the cluster together.
"""

import os
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ostraka.arrays import AnyArray
from ostraka.config import MAX_PIECE_VALUES, Tiling
from ostraka.core import gram
from ostraka.core.field import P
from ostraka.core.gram import Kernel, NumpyKernel
from ostraka.crypto.aead import SealedGroups
from ostraka.crypto.channel import Channel
from ostraka.errors import ConfigError, LocalProtocolError
from ostraka.protocol.worker import SealedTile
from ostraka.worker import RayKernel, RayOptions
from ostraka_lab.bench.machine import available_bytes, process_cpu_s
from ostraka_lab.bench.process import Begin, Figures, report

_LARGEST_TILE = 65_536
_STORE_BYTES = 2**28
_KINDS = {"ray_driver": "driver", "ray::Actor": "actors"}


@dataclass(frozen=True)
class Plan:
    """What to measure. nodes: of the cluster. repeat: runs of each, whose medians are shown."""

    clients: int = 256
    dimension: int = 1_000_000
    nodes: int = 2
    repeat: int = 3

    def __post_init__(self) -> None:
        if min(self.clients, self.dimension, self.nodes, self.repeat) < 1:
            raise ConfigError("clients, dimension, nodes and repeat must be at least 1")
        if self.clients > MAX_PIECE_VALUES:
            raise ConfigError(f"at most {MAX_PIECE_VALUES} clients; got {self.clients}")

    @property
    def words(self) -> list[str]:
        return [str(each) for each in (self.clients, self.dimension, self.nodes, self.repeat)]

    @property
    def layout(self) -> SealedGroups:
        tile = min(_LARGEST_TILE, MAX_PIECE_VALUES // self.clients, self.dimension)
        return SealedGroups(
            Tiling(self.dimension, tile), self.clients, gram.DTYPES["residues"].itemsize
        )


@dataclass(frozen=True)
class _Run:
    total: AnyArray
    wall_s: float
    cpu_s: dict[str, float]  # by the kind of process


def measure(plan: Plan, begin: Begin) -> Figures:
    """Measure a worker in one process and one on Ray, on the same tiles."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415 (an optional dependency)

    of = 2 * plan.repeat + 2
    begin("sealing tiles", 0, of)
    tiles = _sealed(plan)
    alone = []
    for number in range(plan.repeat):
        begin("one process", 1 + number, of)
        alone.append(_run(plan, NumpyKernel(), tiles))
    begin("starting a cluster", 1 + plan.repeat, of)
    node = {"num_cpus": 1, "object_store_memory": _STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(plan.nodes - 1):
            cluster.add_node(**node)
        kernel = RayKernel(RayOptions(cluster.address))
        try:
            _run(plan, kernel, tiles[:1])  # The first block waits for libraries to load.
            on_ray = []
            for number in range(plan.repeat):
                begin(f"{plan.nodes} nodes", 2 + plan.repeat + number, of)
                on_ray.append(_run(plan, kernel, tiles))
        finally:
            kernel.close()
    finally:
        cluster.shutdown()
    if any(not np.array_equal(alone[0].total, each.total) for each in (*alone, *on_ray)):
        raise LocalProtocolError("the matrix of a worker on Ray is not that of one process")
    return _figures(plan, alone, on_ray)


def _figures(plan: Plan, alone: list[_Run], on_ray: list[_Run]) -> Figures:
    one, ray = (
        statistics.median(sum(run.cpu_s.values()) for run in runs) for runs in (alone, on_ray)
    )
    one_wall, ray_wall = (statistics.median(run.wall_s for run in runs) for runs in (alone, on_ray))
    kinds = sorted({kind for run in on_ray for kind in run.cpu_s})
    return {
        "clients": plan.clients,
        "dimension": plan.dimension,
        "nodes": plan.nodes,
        "tile": plan.layout.columns.tile,
        "tiles": plan.layout.columns.count,
        "one_process": {"cpu_s": one, "wall_s": one_wall},
        "ray_cpu_s": {
            kind: statistics.median(run.cpu_s.get(kind, 0.0) for run in on_ray) for kind in kinds
        },
        "ray": {"cpu_s": ray, "wall_s": ray_wall},
        "added_cpu_s": ray - one,
        "added_part": ray / one - 1,
    }


def _sealed(plan: Plan) -> list[SealedTile]:
    """Seals one block of random residues again and again, under other nonces."""
    layout = plan.layout
    size = sum(layout.size(index) for index in range(layout.columns.count))
    if size + 2**30 > available_bytes():
        raise ConfigError(f"the sealed tiles take {size / 1e9:.1f} GB, and there is less memory")
    channel = Channel(os.urandom(32), b"bench")
    widest = layout.columns.size(0)
    values = np.random.default_rng(0).integers(0, P, (layout.rows, widest), np.uint32)
    return [_seal(channel, layout, values, index) for index in range(layout.columns.count)]


def _seal(channel: Channel, layout: SealedGroups, values: AnyArray, index: int) -> SealedTile:
    block = np.ascontiguousarray(values[:, : layout.columns.size(index)])
    sealed = bytearray(layout.size(index))
    for group in layout.groups():
        out = memoryview(sealed)[layout.part(index, group)]
        channel.seal_share(index, group.start, block[group.start : group.stop], out)
    return SealedTile(channel.shares, layout, index, sealed)


def _run(plan: Plan, kernel: Kernel, tiles: list[SealedTile]) -> _Run:
    space = np.empty((plan.clients, plan.layout.columns.tile), gram.DTYPES["residues"])
    before, start = _family_cpu_s(), time.perf_counter()
    running = kernel.begin(plan.clients, "residues")
    for tile in tiles:
        gram.add_from(running, tile, space)
    total = running.total()
    wall = time.perf_counter() - start
    cpu: defaultdict[str, float] = defaultdict(float)
    for pid, seconds in _family_cpu_s().items():
        cpu[_kind(pid)] += seconds - before.get(pid, 0.0)
    return _Run(total, wall, cpu)


def _kind(pid: int) -> str:
    """Returns which part of a worker a process is."""
    if pid == os.getpid():
        return "worker"
    try:
        line = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        line = ""
    return next((name for mark, name in _KINDS.items() if mark in line), "ray")


def _family_cpu_s() -> dict[int, float]:
    """Returns the CPU time of this process and of all that descend from it."""
    parents = dict(filter(None, map(_parent, Path("/proc").glob("[0-9]*/stat"))))
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return {pid: process_cpu_s(pid, otherwise=0.0) for pid in family}


def _parent(stat: Path) -> tuple[int, int] | None:
    try:
        fields: list[Any] = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return None  # It has just ended.
    return int(stat.parent.name), int(fields[1])


if __name__ == "__main__":
    sys.exit(report(partial(measure, Plan(*map(int, sys.argv[1:])))))

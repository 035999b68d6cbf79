"""`ostraka bench ray`."""

from importlib.util import find_spec
from typing import Annotated, Any

import typer
from rich.table import Table

from ostraka.cli.output import Json, progress, show, table
from ostraka.errors import ConfigError, installing
from ostraka_lab.bench.process import run_module
from ostraka_lab.bench.ray_cluster import Plan

_USUAL = Plan()


def ray(
    *,
    clients: Annotated[int, typer.Option(help="Updates in a round.")] = _USUAL.clients,
    dimension: Annotated[int, typer.Option(help="Values in an update.")] = _USUAL.dimension,
    nodes: Annotated[int, typer.Option(help="Nodes of one processor each.")] = _USUAL.nodes,
    repeat: Annotated[int, typer.Option(help="Runs; medians are shown.")] = _USUAL.repeat,
    as_json: Json = False,
) -> None:
    """Measure what a worker on Ray takes beside one process.

    A Ray cluster is started on this machine, with one processor for each node. The same sealed
    tiles are opened and multiplied by one process and by the cluster, and the two matrices are
    compared to the bit. The difference in CPU time is what Ray adds: its processes, and copies.

    \b
    Examples:
      ostraka bench ray
      ostraka bench ray --clients 64 --dimension 200000 --repeat 1 --json
    """
    if find_spec("ray") is None:
        raise ConfigError(f"ray is not installed: {installing('ray')}")
    plan = Plan(clients, dimension, nodes, repeat)
    with progress() as step:
        figures = run_module("ostraka_lab.bench.ray_cluster", plan.words, step)
    show(_table(figures), _added(figures), figures=figures, as_json=as_json)


def _table(figures: dict[str, Any]) -> Table:
    rows = table(
        "Worker",
        "cpu s",
        "wall s",
        title=f"{figures['clients']} rows of {figures['dimension']} residues, in "
        f"{figures['tiles']} tiles",
    )
    for name, which in (("one process", "one_process"), (f"{figures['nodes']} nodes", "ray")):
        rows.add_row(name, *(f"{figures[which][what]:.3g}" for what in ("cpu_s", "wall_s")))
    return rows


def _added(figures: dict[str, Any]) -> str:
    parts = ", ".join(f"{name} {seconds:.3g}" for name, seconds in figures["ray_cpu_s"].items())
    return (
        f"CPU seconds on Ray: {parts}. Ray adds {figures['added_cpu_s']:.3g} s of CPU time, "
        f"{figures['added_part']:.0%}. "
        "The matrices are equal to the bit."
    )

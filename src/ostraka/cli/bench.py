"""`ostraka bench`, and its two smaller commands."""

import math
from collections.abc import Callable
from typing import Annotated, Any

import click
import typer
from rich.table import Table

from ostraka import calibration
from ostraka.bench.launch import run_calibration, run_kernels
from ostraka.bench.plan import Plan
from ostraka.bench.stages import STAGES
from ostraka.calibration import Costs
from ostraka.cli.bench_check import check
from ostraka.cli.bench_leakage import leakage
from ostraka.cli.bench_paper import paper
from ostraka.cli.bench_peers import peers
from ostraka.cli.bench_scale import scale
from ostraka.cli.output import Json, help_without_command, progress, show, table


def bench(ctx: typer.Context) -> None:
    """Measure what the parts cost on this machine.

    \b
    Examples:
      ostraka bench kernels
      ostraka bench peers
      ostraka bench paper --quick
    """
    help_without_command(ctx)


def kernels(
    *,
    clients: Annotated[int, typer.Option(help="Updates in a round.")] = 64,
    dim: Annotated[int, typer.Option(help="Values in an update.")] = 3_500_000,
    threads: Annotated[int, typer.Option(help="For BLAS and for the enclave.")] = 1,
    repeat: Annotated[int, typer.Option(help="Runs of every stage; medians are shown.")] = 3,
    only: Annotated[
        list[str] | None,
        typer.Option(
            click_type=click.Choice(list(STAGES)),
            metavar="STAGE",
            help=f"Run only this stage, and open; repeatable. Stages: {', '.join(STAGES)}.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """CPU time of each stage of a round.

    In seconds, and as a multiple of opening all updates once. Beside it, the memory that the
    enclave takes in a process of its own.

    \b
    Examples:
      ostraka bench kernels --clients 64 --dim 3500000 --json
      ostraka bench kernels --clients 16 --dim 200000 --repeat 1
      ostraka bench kernels --only gaussian_online --only floor
    """
    plan = Plan(clients, dim, threads, repeat, tuple(only or ()))
    with progress() as step:
        figures = run_kernels(plan, step)
    show(_table(figures), _memory(figures), figures=figures, as_json=as_json)


def calibrate(*, as_json: Json = False) -> None:
    """Measure this machine for distances="auto".

    Keeps the costs in the user's cache, where run_round(distances="auto") finds them.

    \b
    Examples:
      ostraka bench calibrate
      ostraka bench calibrate --json
    """
    with progress() as step:
        costs = run_calibration(step)
    rows = table("Workers", "masks, ns a value", "cheaper than inside from")
    for workers, cost in zip((2, 4, 6), costs.mask, strict=True):
        rows.add_row(f"{workers} or {workers + 1}", f"{cost:.3g}", _clients(costs, workers))
    inside = f"Inside the enclave: {costs.gram:.3g} ns a pair of clients and value."
    kept = _keep(costs)
    figures = {"gram": costs.gram, "mask": list(costs.mask), "path": str(calibration.path())}
    show(rows, inside, kept, figures=figures, as_json=as_json)


def _keep(costs: Costs) -> str:
    """Keep what was measured; a cache that cannot be written must not lose it."""
    try:
        return f"Kept in {calibration.save(costs)}."
    except OSError as unwritable:
        return f"Not kept: {unwritable}."


def _clients(costs: Costs, workers: int) -> str:
    return f"{math.ceil(costs.break_even(workers))} clients"


def _table(figures: dict[str, Any]) -> Table:
    rows = table(
        "Stage",
        "cpu s",
        "x open",
        "spread",
        "What",
        title=f"{figures['clients']} updates of {figures['dim']} values, tiles of "
        f"{figures['tile']}, threads: {figures['threads']}",
    )
    for name, stage in figures["stages"].items():
        rows.add_row(
            name,
            f"{stage['cpu_s']:.3g}",
            f"{stage['x_open']:.2f}",
            f"{stage['spread']:.0%}",
            "\n".join(filter(None, (STAGES[name].what, stage.get("note")))),
        )
    return rows


def _memory(figures: dict[str, Any]) -> str:
    mib = figures["enclave_rss_mib"]
    return "" if mib is None else f"Memory of the enclave's process in a whole round: {mib:.0f} MiB"


COMMANDS: dict[str, Callable[..., None]] = {
    "paper": paper,
    "peers": peers,
    "scale": scale,
    "leakage": leakage,
    "check": check,
    "kernels": kernels,
    "calibrate": calibrate,
}

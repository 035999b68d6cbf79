"""`ostraka bench check`, `kernels` and `calibrate`."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from click.core import ParameterSource
from rich.table import Table

from ostraka import calibration
from ostraka.calibration import Costs
from ostraka.cli.output import Json, progress, show, table
from ostraka.errors import FAILED
from ostraka_lab.bench import check as checks
from ostraka_lab.bench.kernels import STAGES, Plan, run_kernels
from ostraka_lab.commands.bench_results import FOLDER, Out, finish

_NOISY = 0.5


def check(
    ctx: typer.Context,
    *,
    baseline: Annotated[
        Path, typer.Option(metavar="FILE", help="The ratios to compare with.")
    ] = checks.BASELINE,
    save: Annotated[
        bool, typer.Option("--save", help="Store this run as the baseline instead.")
    ] = False,
    clients: Annotated[int, typer.Option(help="Updates in a round.")] = 32,
    dimension: Annotated[int, typer.Option(help="Values in an update.")] = 500_000,
    repeat: Annotated[int, typer.Option(help="Runs of every stage, 3 or more.")] = 5,
    tolerance: Annotated[
        float, typer.Option(help="Change that is allowed beside the noise; 0.1 is 10 %.")
    ] = 0.1,
    out: Out = FOLDER,
    as_json: Json = False,
) -> None:
    """Fail if a stage has become slower.

    The cost of each stage of a round, as a multiple of opening all updates once, is compared with a
    stored baseline. A stage is slower if its cost grew by more than the noise of both runs and the
    tolerance; the exit code is then 1. Sizes are those of the baseline unless they are given.

    \b
    Examples:
      ostraka bench check
      ostraka bench check --save
      ostraka bench check --baseline mine.json --tolerance 0.05 --json
    """
    old = None if save else checks.load(baseline)
    if old is not None:
        clients, dimension = _same_size(ctx, old, clients=clients, dimension=dimension)
    with progress() as step:
        now = checks.run(checks.plan(clients, dimension, repeat), step)
    if old is None:
        checks.save(now, baseline)
        show(f"Stored in {baseline}.", figures=now | {"saved": str(baseline)}, as_json=as_json)
        return
    rows = checks.compare(now, old, tolerance=tolerance)
    slower = [row["stage"] for row in rows if row["slower"]]
    figures = now | {"rows": rows, "slower": slower, "baseline": str(baseline)}
    finish(ctx, figures, _check_table(rows), _verdict(slower), out=out, as_json=as_json)
    _warn_of_another_machine(now, old)
    if slower:
        raise typer.Exit(FAILED)


def _same_size(
    ctx: typer.Context, old: dict[str, Any], *, clients: int, dimension: int
) -> tuple[int, int]:
    """Take the baseline's sizes unless others were given: ratios depend on the size."""

    def given(name: str) -> bool:
        return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE

    return (
        clients if given("clients") else int(old["clients"]),
        dimension if given("dimension") else int(old["dimension"]),
    )


def _check_table(rows: list[dict[str, Any]]) -> Table:
    shown = table("Stage", "x open", "baseline", "change", "allowed", "Verdict")
    for row in rows:
        shown.add_row(
            row["stage"],
            f"{row['ratio']:.2f}",
            f"{row['baseline']:.2f}",
            f"{row['change']:+.0%}",
            f"{row['limit']:.0%}",
            _word(row),
        )
    return shown


def _word(row: dict[str, Any]) -> str:
    if row["slower"]:
        return "slower"
    return "too noisy to tell" if row["limit"] > _NOISY else ""


def _verdict(slower: list[str]) -> str:
    return f"Slower: {', '.join(slower)}." if slower else "Nothing became slower."


def _warn_of_another_machine(now: dict[str, Any], old: dict[str, Any]) -> None:
    for what, name in (("from another processor", "processor"), ("of other loops", "loops")):
        here, there = now["machine"][name], old["machine"].get(name)
        if here != there:
            click.echo(f"warning: the baseline is {what}: {there}", err=True)


def kernels(
    *,
    clients: Annotated[int, typer.Option(help="Updates in a round.")] = 64,
    dimension: Annotated[int, typer.Option(help="Values in an update.")] = 3_500_000,
    threads: Annotated[int, typer.Option(help="Threads for BLAS and for the enclave.")] = 1,
    repeat: Annotated[int, typer.Option(help="Runs of every stage; medians are shown.")] = 3,
    only: Annotated[
        list[str] | None,
        typer.Option(
            click_type=click.Choice(list(STAGES)),
            metavar="STAGE",
            help=f"Run only this stage and open; repeatable. Stages: {', '.join(STAGES)}.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the CPU time of each stage of a round.

    The time is shown in seconds and as a multiple of opening all updates once: of headers, of what
    is done as updates arrive, and of what is left at the close. Beside it is the memory that the
    enclave takes in a process of its own, without the rows that it keeps.

    \b
    Examples:
      ostraka bench kernels --clients 64 --dimension 3500000 --json
      ostraka bench kernels --clients 16 --dimension 200000 --repeat 1
      ostraka bench kernels --only gaussian_online --only floor
    """
    plan = Plan(clients, dimension, threads, repeat, tuple(only or ()))
    with progress() as step:
        figures = run_kernels(plan, step)
    notes = (*_rounds(figures), _memory(figures))
    show(_table(figures), *notes, figures=figures, as_json=as_json)


def calibrate(*, as_json: Json = False) -> None:
    """Measure this machine for distances="auto".

    The costs are kept in the user's cache, where run_round(distances="auto") finds them.

    \b
    Examples:
      ostraka bench calibrate
      ostraka bench calibrate --json
    """
    with progress() as step:
        costs = checks.run_calibration(step)
    rows = table("Uploads", "Workers", "masks, ns a value", "cheaper than inside from")
    for upload, masks in (("float32", costs.mask), ("int8", costs.int8_mask)):
        for workers, cost in zip((3, 5, 7), masks, strict=True):
            even = math.ceil(costs.break_even(workers, integers=upload == "int8"))
            rows.add_row(upload, str(workers), f"{cost:.3g}", f"{even} clients")
    inside = (
        f"Inside the enclave: {costs.gram:.3g} ns a pair of clients and value, and "
        f"{costs.int8_gram:.3g} ns for int8. An even number of workers is never cheaper."
    )
    kept = _keep(costs)
    figures = {**json.loads(costs.to_json()), "path": str(calibration.path())}
    show(rows, inside, kept, figures=figures, as_json=as_json)


def _keep(costs: Costs) -> str:
    """Keep what was measured. If the cache cannot be written, that is said and nothing fails."""
    try:
        return f"Kept in {calibration.save(costs)}."
    except OSError as unwritable:
        return f"Not kept: {unwritable}."


def _table(figures: dict[str, Any]) -> Table:
    rows = table(
        "Stage",
        "cpu s",
        "x open",
        "spread",
        "What",
        title=f"{figures['clients']} updates of {figures['dimension']} values, tiles of "
        f"{figures['tile']}, threads: {figures['threads']}, loops: {figures['loops']}",
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


def _rounds(figures: dict[str, Any]) -> list[str]:
    return [
        f"A whole round, {name}: {each['x_open']:.2f} x open, headers included; of that, "
        f"{each['close_x_open']:.2f} after the close."
        for name, each in figures["rounds"].items()
    ]


def _memory(figures: dict[str, Any]) -> str:
    mib = figures["enclave_rss_mib"]
    return "" if mib is None else f"Memory of the enclave's process, without rows: {mib:.0f} MiB"

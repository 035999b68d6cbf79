"""`ostraka bench check`."""

from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich.table import Table

from ostraka.bench import check as checks
from ostraka.cli.bench_results import FOLDER, Out, finish
from ostraka.cli.exit_codes import FAILED
from ostraka.cli.output import Json, progress, show, table

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
    dim: Annotated[int, typer.Option(help="Values in an update.")] = 500_000,
    repeat: Annotated[int, typer.Option(help="Runs of every stage, 3 or more.")] = 5,
    tolerance: Annotated[
        float, typer.Option(help="Change that is never an alarm, as a part of one.")
    ] = 0.1,
    out: Out = FOLDER,
    as_json: Json = False,
) -> None:
    """Fail if a stage has become slower.

    Compares the ratios of the stages of a round to opening all updates once with those of a stored
    baseline. A stage is slower if that is more than the noise of both runs and the tolerance. The
    exit code is then 1. Sizes are those of the baseline unless they are given.

    \b
    Examples:
      ostraka bench check
      ostraka bench check --save
      ostraka bench check --baseline mine.json --tolerance 0.05 --json
    """
    old = None if save else checks.load(baseline)
    if old is not None:
        clients, dim = _same_size(ctx, old, clients, dim)
    with progress() as step:
        now = checks.run(checks.plan(clients, dim, repeat), step)
    if old is None:
        checks.save(now, baseline)
        show(f"Stored in {baseline}.", figures=now | {"saved": str(baseline)}, as_json=as_json)
        return
    rows = checks.compare(now, old, tolerance=tolerance)
    slower = [row["stage"] for row in rows if row["slower"]]
    figures = now | {"rows": rows, "slower": slower, "baseline": str(baseline)}
    finish(ctx, figures, _table(rows), _verdict(slower), out=out, as_json=as_json)
    _warn_of_another_machine(now, old)
    if slower:
        raise typer.Exit(FAILED)


def _same_size(ctx: typer.Context, old: dict[str, Any], *sizes: int) -> tuple[int, int]:
    """Ratios depend on the size: only like is compared with like."""
    given = [ctx.get_parameter_source(name) for name in ("clients", "dim")]
    clients, dim = (
        size if source and source.name == "COMMANDLINE" else old[name]
        for size, source, name in zip(sizes, given, ("clients", "dim"), strict=True)
    )
    return int(clients), int(dim)


def _table(rows: list[dict[str, Any]]) -> Table:
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
    here, there = now["machine"]["processor"], old["machine"]["processor"]
    if here != there:
        click.echo(f"warning: the baseline is from another processor: {there}", err=True)

"""`ostraka bench scale`."""

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from ostraka.bench.scale.grid import Grid
from ostraka.bench.scale.survey import run
from ostraka.cli.bench_results import FOLDER, Fresh, Out, finish, keeping
from ostraka.cli.output import Json, progress, table

_USUAL = Grid()


def scale(
    ctx: typer.Context,
    *,
    clients: Annotated[
        list[int] | None,
        typer.Option(help="Clients to measure with; repeatable.", show_default="8 to 1,024"),
    ] = None,
    dim: Annotated[
        list[int] | None,
        typer.Option(help="Values of an update; repeatable.", show_default="1e5, 1e6 and 1e7"),
    ] = None,
    repeat: Annotated[int, typer.Option(help="Runs of every size.")] = _USUAL.repeat,
    budget: Annotated[
        float, typer.Option(help="Seconds to spend, about; small sizes come first.")
    ] = 1800.0,
    out: Out = FOLDER,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """How cost grows with clients and with values.

    Whole rounds of every size that memory and budget allow. Fits exponents of the enclave's CPU,
    the workers' CPU, memory and bytes, and a sum of terms that is extended to 10,000 clients and
    1e9 values, with a band; and says what would have to be split for that.

    A run that is stopped keeps in the folder what it has measured: the same command goes on, with
    a budget for what is left.

    \b
    Examples:
      ostraka bench scale --json
      ostraka bench scale --budget 300
      ostraka bench scale --clients 8 --clients 16 --clients 32 --dim 5000 --dim 20000 --repeat 1
    """
    grid = Grid(tuple(clients or _USUAL.clients), tuple(dim or _USUAL.dims), repeat)
    with keeping(ctx, out, asdict(grid), fresh=fresh) as parts, progress() as step:
        figures = run(grid, budget, step, parts)
    shown = (_exponents(figures), _splits(figures), _skipped(figures))
    finish(ctx, figures, *shown, out=out, as_json=as_json, parts=parts)


def _exponents(figures: dict[str, Any]) -> Table:
    target = figures["target"]
    rows = table(
        "Round",
        "Cost",
        "in N, to 256",
        "in N, beyond",
        "in d",
        "at target",
        title=f"Exponents, and {target['clients']} clients of {target['dim']} values",
    )
    for fit in figures["fits"]:
        told = fit["forecast"]
        rows.add_row(
            fit["variant"],
            fit["cost"],
            _exponent(fit["exponents_few"], "N"),
            _exponent(fit["exponents_many"], "N"),
            _exponent(fit["exponents"], "d"),
            f"{told['value']:.3g}",
        )
    return rows


def _exponent(found: dict[str, Any] | None, name: str) -> str:
    return "" if found is None else f"{found[name]['value']:.2f} ± {found[name]['error']:.2f}"


def _splits(figures: dict[str, Any]) -> Table:
    rows = table("To be split", "pieces", "Because")
    for each in figures["splits"]:
        rows.add_row(each["what"], str(each["pieces"]), each["why"])
    return rows


def _skipped(figures: dict[str, Any]) -> str:
    pairs = ", ".join(f"{clients} x {dim}" for clients, dim in figures["skipped"])
    return f"Not measured, for lack of time or memory: {pairs}." if pairs else ""

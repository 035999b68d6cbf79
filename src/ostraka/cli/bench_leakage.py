"""`ostraka bench leakage`."""

from typing import Annotated, Any

import typer
from rich.table import Table

from ostraka.bench import machine
from ostraka.bench.launch import run_module
from ostraka.bench.leakage import Plan
from ostraka.cli.bench_results import FOLDER, Out, finish
from ostraka.cli.output import Json, progress, table

_USUAL = Plan()


def leakage(
    ctx: typer.Context,
    *,
    clients: Annotated[int, typer.Option(help="For the attack on single rows.")] = _USUAL.clients,
    dim: Annotated[int, typer.Option(help="Values in an update.")] = _USUAL.dim,
    trials: Annotated[
        int, typer.Option(help="Suspicions of either kind, for every point.")
    ] = _USUAL.trials,
    seed: Annotated[int, typer.Option(help="Of updates and suspicions.")] = 0,
    out: Out = FOLDER,
    as_json: Json = False,
) -> None:
    """What one worker learns, by attacking.

    For Gaussian masks and a range of sigma, in float32 and float64: the bound of law 6, how well a
    matched filter recognises an update, and the error of decoded distances. Exact masks are the
    point at zero bits. Then the polar attack on both maskings, for 4 to 64 clients.

    \b
    Examples:
      ostraka bench leakage
      ostraka bench leakage --dim 100000 --trials 2048 --json
    """
    plan = Plan(clients=clients, dim=dim, trials=trials, seed=seed)
    with progress() as step:
        figures = run_module("ostraka.bench.leakage", [plan.to_json()], step)
    figures |= {"machine": machine.describe(threads=1)}
    finish(ctx, figures, _against_sigma(figures), _polar(figures), out=out, as_json=as_json)


def _against_sigma(figures: dict[str, Any]) -> Table:
    rows = table("Masks", "sigma", "bound bits", "matched filter AUC", "error of a distance")
    for row in figures["gaussian"]:
        rows.add_row(
            f"Gaussian, {row['dtype']}",
            *(f"{row[name]:.3g}" for name in ("sigma", "bound_bits", "auc", "distance_error")),
        )
    exact = figures["exact"]
    rows.add_row("exact", "", "0", f"{exact['auc']:.3g}", f"{exact['distance_error']:.3g}")
    return rows


def _polar(figures: dict[str, Any]) -> Table:
    rows = table(
        "clients", "Gaussian masks", "as derived", "exact masks", title="Polar attack, AUC"
    )
    for row in figures["polar"]:
        values = (f"{row[name]:.3f}" for name in ("gaussian", "expected", "exact"))
        rows.add_row(str(row["clients"]), *values)
    return rows

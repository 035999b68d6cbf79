"""`ostraka bench leakage`."""

from typing import Annotated, Any

import click
import typer
from rich.table import Table

from ostraka.cli.output import Json, progress, table
from ostraka_lab.bench import leakage as workers
from ostraka_lab.bench import machine
from ostraka_lab.bench.process import run_module
from ostraka_lab.commands.bench_results import FOLDER, Out, finish, require_torch

_USUAL = workers.Plan()
_WORKER, _HOST = "worker", "host"
_BOUNDED = (
    "Momentum: of the clients. Guess: the published aggregate itself, without an attack (median). "
    "The protocol cannot prevent the leave-out attack: only noise bounds what it finds."
)


def leakage(
    ctx: typer.Context,
    *,
    only: Annotated[
        str | None,
        typer.Option(
            click_type=click.Choice([_WORKER, _HOST]),
            help="Whose attacks to run.",
            show_default="both",
        ),
    ] = None,
    clients: Annotated[
        int, typer.Option(help="A worker's attack on single rows: clients.")
    ] = _USUAL.clients,
    dimension: Annotated[
        int, typer.Option(help="A worker's attacks: values in an update.")
    ] = _USUAL.dimension,
    trials: Annotated[
        int,
        typer.Option(
            help="A worker's attacks: true and false suspicions to test, each, for every point."
        ),
    ] = _USUAL.trials,
    rounds: Annotated[
        int, typer.Option(help="The host's attack: rounds to attack, once for every client.")
    ] = 8,
    steps: Annotated[
        int, typer.Option(help="The host's attack: steps of local training in a round.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed of updates, suspicions and training.")] = 0,
    out: Out = FOLDER,
    as_json: Json = False,
) -> None:
    """Attack to see what one worker learns, and what the host does.

    A worker, for Gaussian masks and a range of sigma, in float32 and float64: the bound of law 6
    (the paper's, in bits, if noise is independent), how well a matched filter recognises an update
    (it compares one masked row with a suspected update), and the error of decoded distances. Exact
    masks are the point at zero bits. Then the polar attack (it finds the noise from all rows
    together) on both maskings, for 4 to 64 clients.

    The host leaves one client out of the next round and estimates its update from the difference
    of the two aggregates: the cosine with the update that it sent, for 10 and 25 clients that train
    on digits (Dirichlet 0.3): the mean, the default rule and Multi-Krum, without and with client
    momentum.

    \b
    Examples:
      ostraka bench leakage
      ostraka bench leakage --only host --seed 1
      ostraka bench leakage --only worker --dimension 100000 --trials 2048 --json
    """
    plan = workers.Plan(clients=clients, dimension=dimension, trials=trials, seed=seed)
    host = None if only == _WORKER else _host_plan(rounds=rounds, steps=steps, seed=seed)
    figures: dict[str, Any] = {}
    shown: list[Table | str] = []
    with progress() as step:
        if only != _HOST:
            figures |= run_module("ostraka_lab.bench.leakage", [plan.to_json()], step)
            shown += [_against_sigma(figures), _polar(figures)]
        if host is not None:
            figures["leave_out"] = run_module("ostraka_lab.bench.leave_out", [host], step)
            shown += [_leave_out(figures["leave_out"]), _BOUNDED]
    figures |= {"machine": machine.describe(threads=1)}
    finish(ctx, figures, *shown, out=out, as_json=as_json)


def _host_plan(*, rounds: int, steps: int, seed: int) -> str:
    require_torch()
    from ostraka_lab.bench.leave_out import Plan  # Needs torch, which a worker's attacks do not.

    return Plan(rounds=rounds, steps=steps, seed=seed).to_json()


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


def _leave_out(figures: dict[str, Any]) -> Table:
    rows = table(
        "clients",
        "Rule",
        "momentum",
        "median",
        "quartiles",
        "guess",
        title="Leave-out attack by the host: cosine with the update that was sent",
    )
    for row in figures["rows"]:
        rows.add_row(
            str(row["clients"]),
            f"{row['rule']}, f = {row['f']}" if row["f"] else row["rule"],
            f"{row['momentum']:g}",
            f"{row['median']:.2f}",
            " to ".join(f"{each:.2f}" for each in row["quartiles"]),
            f"{row['guess_median']:.2f}",
        )
    return rows

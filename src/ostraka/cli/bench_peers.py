"""`ostraka bench peers`."""

from typing import Annotated, Any

import click
import typer
from rich.table import Table

from ostraka.bench.peers import installed, match
from ostraka.bench.peers.contest import Contest
from ostraka.cli.bench_results import FOLDER, Out, finish
from ostraka.cli.output import Json, progress, show, table


def peers(
    ctx: typer.Context,
    *,
    clients: Annotated[int, typer.Option(help="Updates in a round.")] = 64,
    dim: Annotated[int, typer.Option(help="Values in an update.")] = 3_500_000,
    threads: Annotated[int, typer.Option(help="For BLAS, torch and the enclave.")] = 1,
    repeat: Annotated[int, typer.Option(help="Runs of everybody; medians are shown.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the updates.")] = 0,
    only: Annotated[
        list[str] | None,
        typer.Option(
            click_type=click.Choice(list(match.NAMES)),
            metavar="NAME",
            help=f"Run only this one; repeatable. Names: {', '.join(match.NAMES)}.",
        ),
    ] = None,
    setup: Annotated[
        bool, typer.Option("--setup", help="Only make the environment that ByzFL runs in.")
    ] = False,
    out: Out = FOLDER,
    as_json: Json = False,
) -> None:
    """The same updates through Flower, ByzFL and Ostraka.

    Multi-Krum over N updates, a fifth of them sign-flipped: Flower's and ByzFL's in the clear on
    whole weights, BLAS in the clear, and Ostraka on sealed updates, by masking, all roles counted.
    CPU and wall seconds, peak memory, and whether the right clients were selected. Everybody runs
    in a process of its own. Who is not installed is reported as absent.

    \b
    Examples:
      ostraka bench peers --setup
      ostraka bench peers --clients 64 --dim 3500000 --json
      ostraka bench peers --only floor --only ostraka-exact-sketch --repeat 5
    """
    if setup:
        with progress() as step:
            folder = installed.setup(step)
        show(f"ByzFL is in {folder}.", figures={"setup": str(folder)}, as_json=as_json)
        return
    contest = Contest(clients, dim, threads, seed)
    with progress() as step:
        figures = match.play(contest, step, names=only or match.NAMES, repeat=repeat)
    finish(ctx, figures, _table(figures), *_absent(figures), _DEFINED, out=out, as_json=as_json)


_DEFINED = (
    "Correct: no attacker is selected, and what is selected is what float64 selects by the same "
    "convention (ByzFL counts one neighbour more). CPU of Ostraka: from sealed updates to the "
    "signed model, all roles; offline work and the clients' sealing are in the report and in JSON."
)


def _table(figures: dict[str, Any]) -> Table:
    rows = table(
        "Name",
        "cpu s",
        "enclave s",
        "wall s",
        "x floor",
        "peak MiB",
        "Correct",
        title=f"{figures['clients']} updates of {figures['dim']} values, "
        f"{figures['byzantine']} attackers, threads: {figures['threads']}",
    )
    rows.columns[0].no_wrap = True
    for row in figures["rows"]:
        rows.add_row(row["name"], *_numbers(row), _verdict(row))
    return rows


def _absent(figures: dict[str, Any]) -> list[str]:
    return [f"{row['name']} is {row['absent']}" for row in figures["rows"] if row["absent"]]


def _numbers(row: dict[str, Any]) -> list[str]:
    shown = {
        "cpu_s": ".3g",
        "enclave_cpu_s": ".3g",
        "wall_s": ".3g",
        "x_floor": ".2f",
        "peak_rss_mib": ".0f",
    }
    return ["" if row[name] is None else format(row[name], how) for name, how in shown.items()]


def _verdict(row: dict[str, Any]) -> str:
    if row["absent"]:
        return "absent"
    if row["correct"] is None:
        return "selects nobody"
    return "yes" if row["correct"] else f"no: {row['attackers_kept']} attackers"

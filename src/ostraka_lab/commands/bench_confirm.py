"""`ostraka bench confirm`."""

from typing import Annotated, Any

import typer
from rich.table import Table

from ostraka.cli.output import Json, progress, show, table
from ostraka_lab.bench.confirmations import STEPS, Plan
from ostraka_lab.bench.process import run_module

_USUAL = Plan()


def confirm(
    *,
    clients: Annotated[int, typer.Option(help="Clients, who all confirm.")] = _USUAL.clients,
    receipts: Annotated[
        int, typer.Option(help="Receipts that a newcomer follows.")
    ] = _USUAL.receipts,
    repeat: Annotated[int, typer.Option(help="Rounds; medians are shown.")] = _USUAL.repeat,
    as_json: Json = False,
) -> None:
    """Measure what it takes to confirm an outcome.

    Shows the CPU and wall time and the bytes of each step: to hold an outcome, to propose it, to
    vote, to count the votes, to certify, and to verify a certificate as a client and as a newcomer
    with a chain of receipts. No network is measured.

    \b
    Examples:
      ostraka bench confirm
      ostraka bench confirm --clients 64 --json
    """
    plan = Plan(clients, receipts, repeat)
    with progress() as step:
        figures = run_module("ostraka_lab.bench.confirmations", plan.words, step)
    show(_table(figures), _sizes(figures), figures=figures, as_json=as_json)


def _table(figures: dict[str, Any]) -> Table:
    rows = table(
        "Step",
        "cpu ms",
        "wall ms",
        "bytes",
        "What",
        title=f"{figures['clients']} clients, of whom {figures['quorum']} must confirm",
    )
    for step, what in STEPS.items():
        took = figures["steps"][step]
        size = f"{took['bytes']:.0f}" if took["bytes"] else ""
        rows.add_row(step, *(f"{1000 * took[n]:.3g}" for n in ("cpu_s", "wall_s")), size, what)
    return rows


def _sizes(figures: dict[str, Any]) -> str:
    steps, clients = figures["steps"], figures["clients"]
    each = steps["propose"]["bytes"] / clients + steps["vote"]["bytes"]
    return (
        f"Each client exchanges {each:.0f} bytes to confirm, and then gets "
        f"{steps['certify']['bytes']:.0f} bytes of receipt and certificate. The newcomer's chain "
        f"has {figures['receipts']} receipts."
    )

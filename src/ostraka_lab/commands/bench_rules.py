"""`ostraka bench rules`."""

from typing import Annotated, Any

import typer
from rich.table import Table

from ostraka.cli.output import Json, progress, show, table
from ostraka_lab.bench.process import run_module
from ostraka_lab.bench.rules import Plan


def rules(
    *,
    clients: Annotated[int, typer.Option(help="Updates in a round.")] = 64,
    dimension: Annotated[int, typer.Option(help="Values in an update.")] = 3_500_000,
    threads: Annotated[int, typer.Option(help="Threads for BLAS and for the enclave.")] = 1,
    repeat: Annotated[int, typer.Option(help="Runs of everything; medians are shown.")] = 3,
    as_json: Json = False,
) -> None:
    """Measure what an aggregation rule costs the enclave.

    Shows what each rule of weights takes to decide, beside the enclave's whole round; the second
    pass of column-wise rules, beside that of weights; and how fast columns are reduced by a sorting
    network and by a sort. All are CPU seconds of the enclave, measured in one run.

    \b
    Examples:
      ostraka bench rules
      ostraka bench rules --clients 16 --dimension 200000 --repeat 1 --json
    """
    plan = Plan(clients, dimension, threads, repeat)
    with progress() as step:
        figures = run_module("ostraka_lab.bench.rules", plan.words, step, threads=threads)
    shown = (_decisions(figures), _last(figures), _columns(figures), _reductions(figures))
    show(*shown, figures=figures, as_json=as_json)


def _decisions(figures: dict[str, Any]) -> Table:
    rounds = figures["rounds"]
    heads = (f"of a round, {kind} ({each['round_s']:.3g} s)" for kind, each in rounds.items())
    rows = table(
        "Rule",
        "f",
        "decide, ms",
        *heads,
        title=f"{figures['clients']} updates of {figures['dimension']} values, threads: "
        f"{figures['threads']}",
    )
    for each in figures["rules"]:
        parts = (f"{each['of_round'][kind]:.2%}" for kind in rounds)
        rows.add_row(each["rule"], str(each["f"]), f"{1000 * each['cpu_s']:.3g}", *parts)
    return rows


def _last(figures: dict[str, Any]) -> str:
    last = figures["last"]
    return (
        f"Inner products with the last aggregate, for centred-clipping, take {last['cpu_s']:.3g} s "
        f"at arrival: {last['of_round']:.2%} of a round with exact masks."
    )


def _columns(figures: dict[str, Any]) -> Table:
    rows = table("Rule", "f", "cpu s", "x weights", title="The pass over the rows")
    for each in figures["columns"]:
        rows.add_row(
            each["rule"], str(each["f"]), f"{each['cpu_s']:.3g}", f"{each['x_weights']:.2f}"
        )
    return rows


def _reductions(figures: dict[str, Any]) -> Table:
    rows = table("Rows", "Reduction", "network", "sort", "Taken", title="Nanoseconds a value")
    for each in figures["reductions"]:
        rows.add_row(
            str(each["rows"]),
            each["reducer"],
            f"{each['network_ns']:.2f}",
            f"{each['sort_ns']:.2f}",
            each["taken"],
        )
    return rows

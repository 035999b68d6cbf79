"""`ostraka bench paper`."""

from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from rich.table import Table

from ostraka.bench.paper.names import MASKINGS
from ostraka.bench.paper.suite import Suite, run
from ostraka.cli.bench_results import FOLDER, Fresh, Out, finish, keeping
from ostraka.cli.output import Json, progress, table


def paper(
    ctx: typer.Context,
    *,
    repeat: Annotated[int, typer.Option(help="Runs of everything; medians are shown.")] = 3,
    bandwidth: Annotated[
        float, typer.Option(help="Of the enclave's link, Gbit/s, for figure 3.")
    ] = 1.0,
    sgx_slowdown: Annotated[
        float | None,
        typer.Option(
            help="Assume an enclave so many times slower, in a table of its own.",
            show_default="no such table",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes, once: to see it work.")
    ] = False,
    out: Out = FOLDER,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """The paper's figures on this machine.

    Figure 2a: distances inside the enclave, by the paper's loop and by BLAS, for 8 to 128 clients
    and four networks. Figure 2b: how much faster a worker's kernel is. Figure 3: where the time of
    an epoch goes. The headline: a round with everything inside the enclave, over one with workers.
    SGX itself is not measured; the report says what that leaves out.

    A run that is stopped keeps in the folder what it has measured: the same command goes on.

    \b
    Examples:
      ostraka bench paper --quick
      ostraka bench paper --json
      ostraka bench paper --bandwidth 10 --sgx-slowdown 1.5
    """
    if quick:
        suite = Suite.quick(bandwidth=bandwidth, slowdown=sgx_slowdown)
    else:
        suite = replace(Suite(), bandwidth=bandwidth, slowdown=sgx_slowdown, repeat=repeat)
    with keeping(ctx, out, asdict(suite), fresh=fresh) as parts, progress() as step:
        figures = run(suite, step, parts)
    headlines = [_headline(each) for each in figures["headline"]]
    epochs = [_figure3(figures, masking) for masking in MASKINGS]
    finish(ctx, figures, *headlines, *epochs, _LIMITS, out=out, as_json=as_json, parts=parts)


_BASELINES = ("naive", "blas64", "blas32")
_LIMITS = "Measured outside of SGX: paging and transitions are in none of these figures."


def _headline(each: dict[str, Any]) -> Table:
    rows = table(
        "Round",
        "enclave cpu s",
        "loop inside, over it",
        "BLAS float64",
        "BLAS float32",
        title=f"{each['clients']} clients of {each['dim']} values: inside, over workers",
    )
    for name, inside in each["inside"].items():
        rows.add_row(f"inside, {name}", f"{inside['enclave_cpu_s']:.3g}", "", "", "")
    for row in each["rows"]:
        _add(rows, f"workers, {row['name']}", row["enclave_cpu_s"], row, "over")
    for row in each["rows"]:
        name = f"outliers alone, {row['name']}"
        _add(rows, name, row["detection_cpu_s"], row, "detection_over")
    return rows


def _add(rows: Table, name: str, seconds: float, row: dict[str, Any], over: str) -> None:
    ratios = (f"{row[f'{over}_{base}']:.2f} x" for base in _BASELINES)
    rows.add_row(name, f"{seconds:.3g}", *ratios)


def _figure3(figures: dict[str, Any], masking: str) -> Table:
    bars = [bar for bar in figures["figure3"] if bar["masking"] == masking]
    rows = table(
        "Part",
        *(bar["network"] for bar in bars),
        title=f"Seconds of an epoch, {bars[0]['clients']} clients, {masking} masks, "
        f"{figures['bandwidth_gbit_s']:g} Gbit/s",
    )
    for part in bars[0]["seconds"]:
        rows.add_row(part, *(f"{bar['seconds'][part]:.2g}" for bar in bars))
    return rows

"""`ostraka bench service`."""

from dataclasses import replace
from typing import Annotated, Any

import typer
from click.core import ParameterSource
from rich.table import Table

from ostraka.cli.output import Json, progress, show, table
from ostraka_lab.bench import service as services
from ostraka_lab.commands.bench_results import SMALL

_USUAL = services.USUAL


def service(
    ctx: typer.Context,
    *,
    clients: Annotated[int, typer.Option(help="Clients, who all send.")] = _USUAL.clients,
    dimension: Annotated[int, typer.Option(help="Values in an update.")] = _USUAL.dimension,
    threads: Annotated[
        int,
        typer.Option(help="Threads of the enclave.", show_default="1, and then 2"),
    ] = _USUAL.threads,
    repeat: Annotated[
        int, typer.Option(help="Rounds that count, after a first one; medians are shown.")
    ] = _USUAL.repeat,
    tls: Annotated[bool, typer.Option("--tls", help="Measure with TLS, too.")] = False,
    small: Annotated[
        bool,
        typer.Option(
            help="Also compare 100 small clients with the same in one process.",
            show_default="small, or no-small with --quick",
        ),
    ] = True,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Run a small size once, to see it work: some ten seconds."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a whole service over loopback, process by process.

    Starts an enclave (simulated), three workers and up to eight processes of clients. Shows what
    the enclave and the clients spend on a received GB, beside a bare loop that receives and opens;
    and what it takes from the last byte to the published outcome, in multiples of opening the same
    bytes on the same number of threads.

    \b
    Examples:
      ostraka bench service --quick
      ostraka bench service --clients 64 --dimension 3500000 --tls --json
    """
    asked: dict[str, Any] = {
        "clients": clients,
        "dimension": dimension,
        "threads": threads,
        "repeat": repeat,
        "small": small,
    }
    given = {name: value for name, value in asked.items() if _is_given(ctx, name)}
    usual = services.QUICK if quick else _USUAL
    two_threads = usual.two_threads and "threads" not in given
    plan = replace(usual, **given, two_threads=two_threads, tls=tls)
    with progress() as step:
        figures = services.measure(plan, step)
    notes = (*_small(figures), _runs(figures), *([SMALL] if quick else []))
    show(_table(figures), *notes, figures=figures, as_json=as_json)


def _is_given(ctx: typer.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _table(figures: dict[str, Any]) -> Table:
    others = {"two threads": figures["two_threads"], "TLS": figures["tls"]}
    ways = {"plain": figures} | {name: way for name, way in others.items() if way}
    rows = table(
        "What",
        *ways,
        title=f"{figures['clients']} clients of {figures['dimension']} values, "
        f"{figures['bytes'] / services.GB:.3g} GB a round, threads: {figures['threads']}",
    )
    for what, name, how in _ROWS:
        rows.add_row(what, *(format(way[name], how) for way in ways.values()))
    return rows


_ROWS = (
    ("received, GB/s", "gb_per_s", ".3g"),
    ("enclave, CPU s/GB", "enclave_cpu_s_per_gb", ".3g"),
    ("bare loop, CPU s/GB", "bare_loop_cpu_s_per_gb", ".3g"),
    ("enclave / bare loop", "enclave_x_bare_loop", ".2f"),
    ("client, CPU s/GB", "client_cpu_s_per_gb", ".3g"),
    ("enclave, CPU s/GB of models sent", "download_cpu_s_per_gb", ".3g"),
    ("opening alone, CPU s/GB", "open_cpu_s_per_gb", ".3g"),
    ("close, CPU s", "close_cpu_s", ".3g"),
    ("close, CPU / opening", "close_cpu_x_open", ".2f"),
    ("close, wall s", "close_wall_s", ".3g"),
    ("close, wall / opening", "close_wall_x_open", ".2f"),
)


def _small(figures: dict[str, Any]) -> list[str]:
    found = figures["small"]
    if found is None:
        return []
    text = (
        f"A round of {found['clients']} clients of {found['dimension']} values, CPU of all "
        f"processes: {found['services_cpu_s']:.3g} s; of the same in one process: "
        f"{found['simulated_cpu_s']:.3g} s."
    )
    if found["x_simulated"] is None:
        return [f"{text} The ratio without training is {found['x_protocol']:.2f}."]
    return [
        f"{text} With {found['training_cpu_s']:.3g} s of training in both, the ratio is "
        f"{found['x_simulated']:.2f}; without, {found['x_protocol']:.2f}."
    ]


def _runs(figures: dict[str, Any]) -> str:
    loops = "native" if figures["native"] else "numpy"
    wide = "has" if figures["vaes"] else "has no"
    return f"Loops: {loops}. The processor {wide} wide AES (vaes)."

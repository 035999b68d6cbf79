"""`ostraka bench paper`, `peers` and `scale`."""

from dataclasses import asdict, replace
from typing import Annotated, Any

import click
import typer
from rich.table import Table

from ostraka.cli.output import Json, progress, show, table
from ostraka.errors import ConfigError
from ostraka_lab.bench import paper as papers
from ostraka_lab.bench import peers as contests
from ostraka_lab.bench import scale as scales
from ostraka_lab.bench.entrants import Contest
from ostraka_lab.bench.paper import Suite
from ostraka_lab.bench.paper_measurements import MASKINGS
from ostraka_lab.bench.parties import SKETCH_INSIDE
from ostraka_lab.bench.scale import Grid
from ostraka_lab.commands import bench_shards
from ostraka_lab.commands.bench_results import (
    FOLDER,
    SMALL,
    Fresh,
    Out,
    finish,
    keeping,
    require_torch,
)

_USUAL = Grid()
_BASELINES = ("naive", "blas64", "blas32")
_OFFLOADED = (*_BASELINES, SKETCH_INSIDE)
_SECONDS = {  # by heading
    "cpu s": "cpu_s",
    "enclave s": "enclave_cpu_s",
    "all roles s": "all_roles_cpu_s",
    "wall s": "wall_s",
}
_LIMITS = "Measured outside of SGX: paging and transitions are in none of these figures."
_DEFINED = (
    "Correct: no attacker is selected, and what is selected is what float64 selects by the same "
    "convention (ByzFL counts one neighbour more). cpu s of Ostraka: the enclave and the workers, "
    "from sealed updates to the signed model, headers, opening and what is prepared included; of "
    "the others aggregation alone. all roles s: that, and what all clients do to send (sealing and "
    "voting, or packing arrays), and the plain server's unpacking. No bytes cross a network and "
    "nothing has TLS: that is in `ostraka bench service`."
)


def paper(
    ctx: typer.Context,
    *,
    repeat: Annotated[int, typer.Option(help="Runs of everything; medians are shown.")] = 3,
    bandwidth: Annotated[
        float,
        typer.Option(
            help="Bandwidth of the enclave's link in Gbit/s, for figure 3. 8 is the paper's 1 GBps."
        ),
    ] = papers.PAPER_GBIT_S,
    sgx_slowdown: Annotated[
        float | None,
        typer.Option(
            help="Also show a table for an enclave that is slower by this factor.",
            show_default="no such table",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Run small sizes, to see it work: some two minutes instead of an hour.",
        ),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            click_type=click.Choice(list(papers.PARTS)),
            metavar="PART",
            help=f"Run only this part; repeatable. Parts: {', '.join(papers.PARTS)}.",
        ),
    ] = None,
    out: Out = FOLDER,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Measure the paper's figures on this machine.

    Figure 2a: distances inside the enclave, by the paper's loop and by BLAS, for 8 to 128 clients
    and four networks. Figure 2b: how much faster a worker's kernel is. Figure 3: where the time of
    an epoch goes. The headline: a round with everything inside the enclave, over one with workers,
    one with a sketch, and one with both. Off-loading: from how many clients on each pays. SGX
    itself is not measured; the report says what that leaves out.

    The folder gets paper.md beside report.html: the figures as tables, with their machine. A run
    that is stopped keeps what it has measured: the same command resumes it.

    \b
    Examples:
      ostraka bench paper --quick
      ostraka bench paper --only offloading --json
      ostraka bench paper --bandwidth 1 --sgx-slowdown 1.5
      ostraka bench paper --out docs/results
    """
    require_torch()
    suite = Suite.quick() if quick else replace(Suite(), repeat=repeat)
    suite = replace(suite, bandwidth=bandwidth, slowdown=sgx_slowdown)
    suite = replace(suite, parts=tuple(only)) if only else suite
    with keeping(ctx, out, asdict(suite), fresh=fresh) as parts, progress() as step:
        figures = papers.run(suite, step, parts)
    shown = [_headline(each) for each in figures["headline"]]
    shown += [_figure3(figures, masking) for masking in MASKINGS if figures["figure3"]]
    shown += [_offloading(figures["offloading"])] if figures["offloading"] else []
    notes = (_LIMITS, *([SMALL] if quick else []))
    finish(ctx, figures, *shown, *notes, out=out, as_json=as_json, parts=parts)


def _headline(each: dict[str, Any]) -> Table:
    rows = table(
        "Round",
        "enclave cpu s",
        "loop inside, over it",
        "BLAS float64",
        "BLAS float32",
        title=f"{each['clients']} clients of {each['dimension']} values",
    )
    for name, inside in each["inside"].items():
        rows.add_row(papers.LABELS[name], f"{inside['enclave_cpu_s']:.3g}", "", "", "")
    for row in each["rows"]:
        _add(rows, papers.LABELS[row["name"]], row["enclave_cpu_s"], row, "over")
    for row in each["rows"]:
        name = f"outliers alone: {papers.LABELS[row['name']]}"
        _add(rows, name, row["detection_cpu_s"], row, "detection_over")
    return rows


def _offloading(found: dict[str, Any]) -> Table:
    """For how many clients a scheme takes the enclave less than each way inside."""
    rows = table(
        "Pays for so many clients",
        "beside the loop",
        "BLAS float64",
        "BLAS float32",
        "the sketch inside",
        title=f"The enclave's CPU of a round, {found['rows'][-1]['dimension']} values",
    )
    for name, pays in found["pays"].items():
        cells = (papers.clients_where(pays[base]) if base in pays else "" for base in _OFFLOADED)
        rows.add_row(papers.LABELS[name], *cells)
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


def peers(
    ctx: typer.Context,
    *,
    clients: Annotated[int, typer.Option(help="Updates in a round.")] = 64,
    dimension: Annotated[int, typer.Option(help="Values in an update.")] = 3_500_000,
    threads: Annotated[int, typer.Option(help="Threads for BLAS, torch and the enclave.")] = 1,
    repeat: Annotated[int, typer.Option(help="Runs of each entrant; medians are shown.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the updates.")] = 0,
    only: Annotated[
        list[str] | None,
        typer.Option(
            click_type=click.Choice(list(contests.NAMES)),
            metavar="NAME",
            help=f"Run only this entrant; repeatable. Names: {', '.join(contests.NAMES)}.",
        ),
    ] = None,
    setup: Annotated[
        bool, typer.Option("--setup", help="Only make the environment that ByzFL runs in.")
    ] = False,
    out: Out = FOLDER,
    as_json: Json = False,
) -> None:
    """Run the same updates through Flower, ByzFL and Ostraka.

    Multi-Krum over N updates, a fifth of them sign-flipped: Flower's and ByzFL's in the clear on
    whole weights, BLAS in the clear, and Ostraka on sealed updates, by masking.
    Shows CPU and wall seconds, peak memory, whether the right clients were selected, and what all
    roles of Ostraka take beside all roles of the others. Each entrant runs in a process of its own.
    One that is not installed is reported as absent.

    \b
    Examples:
      ostraka bench peers --setup
      ostraka bench peers --clients 64 --dimension 3500000 --json
      ostraka bench peers --only floor --only ostraka-exact-sketch --repeat 5
    """
    if setup:
        with progress() as step:
            folder = contests.setup(step)
        show(f"ByzFL is in {folder}.", figures={"setup": str(folder)}, as_json=as_json)
        return
    contest = Contest(clients, dimension, threads, seed)
    with progress() as step:
        figures = contests.play(contest, step, names=only or contests.NAMES, repeat=repeat)
    notes = (*_all_roles(figures), *_enclaves(figures), *_absent(figures), _DEFINED)
    tables = (_costs(figures), _choices(figures))
    finish(ctx, figures, *tables, *notes, out=out, as_json=as_json)


def _costs(figures: dict[str, Any]) -> Table:
    title = (
        f"{figures['clients']} updates of {figures['dimension']} values, "
        f"{figures['byzantine']} attackers, threads: {figures['threads']}"
    )
    rows = _unwrapped("Name", *_SECONDS, "x floor", title=title)
    for row in figures["rows"]:
        numbers = [_three_digits(row[name]) for name in (*_SECONDS.values(), "x_floor")]
        rows.add_row(row["name"], *numbers)
    return rows


def _choices(figures: dict[str, Any]) -> Table:
    rows = _unwrapped("Name", "peak MiB", "Correct")
    for row in figures["rows"]:
        peak = "" if row["peak_rss_mib"] is None else f"{row['peak_rss_mib']:.0f}"
        rows.add_row(row["name"], peak, _verdict(row))
    return rows


def _unwrapped(*headings: str, **options: Any) -> Table:
    """An empty table whose cells are not broken. Keep it within 80 columns."""
    rows = table(*headings, **options)
    for column in rows.columns:
        column.no_wrap = True
    return rows


def _all_roles(figures: dict[str, Any]) -> list[str]:
    """The CPU of all roles of ours beside that of each federation in the clear."""
    return [
        f"All roles of {row['name']}: "
        + ", ".join(f"{ratio:.2f} of {name}'s" for name, ratio in row["all_roles_over"].items())
        + "."
        for row in figures["rows"]
        if row["all_roles_over"]
    ]


def _enclaves(figures: dict[str, Any]) -> list[str]:
    """The enclave's own CPU beside the least that any private round needs, and a plain one."""
    return [
        f"Enclave of {row['name']}: {row['enclave_x_floor']:.2f} floors, "
        f"{row['enclave_x_clear']:.2f} of blas-clear, receiving and headers included."
        for row in figures["rows"]
        if row["enclave_x_floor"] and row["enclave_x_clear"]
    ]


def _absent(figures: dict[str, Any]) -> list[str]:
    return [f"{row['name']} is {row['absent']}" for row in figures["rows"] if row["absent"]]


def _three_digits(number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:.3g}" if number < 1000 else f"{number:.0f}"


def _verdict(row: dict[str, Any]) -> str:
    if row["absent"]:
        return "absent"
    if row["correct"] is None:
        return "selects none"
    return "yes" if row["correct"] else f"no: {row['attackers_kept']} attackers"


def scale(
    ctx: typer.Context,
    *,
    clients: Annotated[
        list[int] | None,
        typer.Option(help="Number of clients; repeatable.", show_default="8 to 1,024"),
    ] = None,
    dimension: Annotated[
        list[int] | None,
        typer.Option(help="Values in an update; repeatable.", show_default="1e5, 1e6 and 1e7"),
    ] = None,
    repeat: Annotated[int, typer.Option(help="Runs of every size.")] = _USUAL.repeat,
    budget: Annotated[
        float, typer.Option(help="About how many seconds to spend; small sizes come first.")
    ] = 1800.0,
    shards: Annotated[
        bool, typer.Option("--shards", help="Measure a lead and its shards, as processes.")
    ] = False,
    count: Annotated[
        list[int] | None,
        typer.Option(
            help="With --shards: number of shards; repeatable. 1 is an enclave without any.",
            show_default="1, 2 and 4",
        ),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="With --shards: exact masks without a sketch.")
    ] = False,
    out: Out = FOLDER,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Measure how cost grows with clients and with values.

    Runs whole rounds of every size that memory and budget allow. Fits exponents of the enclave's
    CPU, the workers' CPU, memory and bytes, and a sum of terms that is extended to 10,000 clients
    and 1e9 values, with a band. Says what would have to be split for that.

    With --shards: starts a lead, its shards, three workers and up to eight processes of clients,
    all on this machine, with each number of shards in turn (16, 64 and 256 clients of 2e5, 1e6 and
    3.5e6 values unless given). Shows each shard's CPU beside its share of one enclave's, what the
    lead takes, and whether models and selections are the same. Forecasts 10,000 clients of 1e8
    values by the number of shards.

    A run that is stopped keeps what it has measured: the same command resumes it, with a budget for
    what is left.

    \b
    Examples:
      ostraka bench scale --json
      ostraka bench scale --budget 300
      ostraka bench scale --clients 8 --clients 16 --dimension 5000 --dimension 20000 --repeat 1
      ostraka bench scale --shards --json
      ostraka bench scale --shards --exact --count 1 --count 2 --clients 16 --clients 32
    """
    if shards:
        bench_shards.measure(
            ctx,
            bench_shards.chosen(clients, dimension, count, exact=exact, repeat=repeat),
            budget,
            out=out,
            fresh=fresh,
            as_json=as_json,
        )
        return
    if count or exact:
        raise ConfigError("--count and --exact are for --shards")
    grid = Grid(tuple(clients or _USUAL.clients), tuple(dimension or _USUAL.dimensions), repeat)
    with keeping(ctx, out, asdict(grid), fresh=fresh) as parts, progress() as step:
        figures = scales.run(grid, budget, step, parts)
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
        "at so many clients",
        title=f"Exponents, and a forecast for updates of {target['dimension']} values",
    )
    for fit in figures["fits"]:
        told = fit["forecast"]
        rows.add_row(
            fit["variant"],
            fit["cost"],
            _exponent(fit["exponents_few"], "N"),
            _exponent(fit["exponents_many"], "N"),
            _exponent(fit["exponents"], "d"),
            f"{told['value']:.3g} at {told['clients']:,}",
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
    pairs = ", ".join(f"{clients} x {dimension}" for clients, dimension in figures["skipped"])
    return f"Not measured, for lack of time or memory: {pairs}." if pairs else ""

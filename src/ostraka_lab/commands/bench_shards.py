"""`ostraka bench scale --shards`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from ostraka.cli.output import progress, table
from ostraka_lab.bench import shards
from ostraka_lab.bench.parties import EXACT, SKETCH
from ostraka_lab.bench.shards import GBIT_S, Grid
from ostraka_lab.commands.bench_results import finish, keeping

_NAME = "shards"  # of the figures: those of `scale` are of another benchmark
_USUAL = Grid()
_MIB, _GB = 2**20, 1e9


def chosen(
    clients: Sequence[int] | None,
    dimensions: Sequence[int] | None,
    counts: Sequence[int] | None,
    *,
    exact: bool,
    repeat: int,
) -> Grid:
    """The sizes that a user asked for. Raises ConfigError."""
    return Grid(
        tuple(clients or _USUAL.clients),
        tuple(dimensions or _USUAL.dimensions),
        tuple(counts or _USUAL.counts),
        EXACT if exact else SKETCH,
        repeat,
    )


def measure(
    ctx: typer.Context, grid: Grid, budget: float, *, out: Path, fresh: bool, as_json: bool
) -> None:
    """Measure, and show what came out."""
    with (
        keeping(ctx, out, asdict(grid), fresh=fresh, name=_NAME) as parts,
        progress() as step,
    ):
        figures = shards.run(grid, budget, step, parts)
    tables = (_shares(figures), _leads(figures), _forecast(figures))
    notes = _notes(figures)
    finish(ctx, figures, *tables, *notes, out=out, as_json=as_json, parts=parts, name=_NAME)


def _shares(figures: dict[str, Any]) -> Table:
    rows = table(
        "N x d",
        "shards",
        "alone s",
        "shard s",
        "x 1/n",
        "lead s",
        "shard MiB",
        "lead MiB",
        "equal",
        title=f"CPU of a round ({figures['scheme']}): one enclave, the busiest shard, the lead",
    )
    rows.columns[0].no_wrap = True
    for each in figures["shares"]:
        rows.add_row(
            f"{each['clients']} x {each['dimension']:,}",
            str(each["shards"]),
            f"{each['enclave_cpu_s']:.3g}",
            f"{max(each['shard_cpu_s']):.3g}",
            f"{max(each['x_share']):.2f}",
            f"{each['lead_cpu_s']:.3g}",
            f"{each['shard_bytes'] / _MIB:.0f}",
            f"{each['lead_bytes'] / _MIB:.0f}",
            "yes" if each["equal"] else "NO",
        )
    return rows


def _leads(figures: dict[str, Any]) -> Table:
    rows = table(
        "N", "shards", "values", "CPU s", "MiB", title="The lead, by the length of updates"
    )
    for each in figures["leads"]:
        rows.add_row(
            str(each["clients"]),
            str(each["shards"]),
            " and ".join(f"{dimension:,}" for dimension in each["dimensions"]),
            " and ".join(f"{seconds:.3g}" for seconds in each["cpu_s"]),
            " and ".join(f"{size / _MIB:.0f}" for size in each["bytes"]),
        )
    return rows


def _forecast(figures: dict[str, Any]) -> Table:
    target, fits = figures["target"], figures["fits"]
    rows = table(
        "shards",
        "a shard's CPU, s",
        "the lead's CPU, s",
        "to a shard, GB",
        *(f"at {rate} Gbit/s, s" for rate in GBIT_S),
        "to the lead, GB",
        title=f"Forecast: {target['clients']:,} clients of {target['dimension']:,} values",
    )
    for at, told in enumerate(figures["forecasts"]):
        rows.add_row(
            str(told["shards"]),
            _band(fits["shard_cpu_s"][at]),
            _band(fits["lead_cpu_s"][at]),
            f"{told['received_bytes'] / _GB:,.0f}",
            *(f"{told['receive_s'][str(rate)]:,.0f}" for rate in GBIT_S),
            f"{told['lead_received_bytes'] / _GB:,.1f}",
        )
    return rows


def _band(fitted: dict[str, Any]) -> str:
    return f"{fitted['value']:,.0f} ({fitted['low']:,.0f} to {fitted['high']:,.0f})"


def _notes(figures: dict[str, Any]) -> list[str]:
    """What the forecast rests on, and what was left out."""
    told, target = figures["forecasts"][0], figures["target"]
    notes = [
        "In brackets: nine in ten fits to runs drawn anew. They know of no effect that no measured "
        f"size showed. The fits miss the measured sizes by {_misfit(figures, 'shard_cpu_s')} "
        f"(shard) and {_misfit(figures, 'lead_cpu_s')} (lead).",
        f"One enclave without shards would take {_band(figures['fits']['enclave_cpu_s'][0])} s.",
        f"Rows at each shard: {_sizes(figures, 'row_bytes')} GB with "
        f"{_counts(figures)} shards. Beside rows a shard asks its machine for "
        f"{_sizes(figures, 'shard_budget_bytes')} GB, and the lead for "
        f"{_sizes(figures, 'lead_budget_bytes')}.",
        f"Each worker's products take {told['worker_operations']:.3g} operations on "
        f"{target['columns']:,} columns: {told['worker_gpu_s']:.3g} s of one GPU that does "
        f"{figures['int8_rate']:.0e} int8 operations a second. That rate is assumed: no GPU was "
        "measured.",
    ]
    if figures["skipped"]:
        pairs = ", ".join(f"{clients} x {dimension:,}" for clients, dimension in figures["skipped"])
        notes.append(f"Not measured, for lack of time or memory: {pairs}.")
    return notes


def _counts(figures: dict[str, Any]) -> str:
    return ", ".join(str(told["shards"]) for told in figures["forecasts"])


def _sizes(figures: dict[str, Any], name: str) -> str:
    """Gigabytes of every forecast. A size that the service refuses is a dash."""
    sizes = [told[name] for told in figures["forecasts"]]
    return ", ".join("-" if size is None else f"{size / _GB:,.1f}" for size in sizes)


def _misfit(figures: dict[str, Any], cost: str) -> str:
    return f"{100 * figures['fits'][cost][0]['misfit']:.0f} %"

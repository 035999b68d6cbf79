"""`ostraka leakage`."""

from typing import Annotated, Any

import click
import numpy as np
import typer
from rich.table import Table

from ostraka.cli.output import Json, show, table
from ostraka.core import leakage as law
from ostraka.errors import ConfigError

_PRECISION = 1e-3


def leakage(
    *,
    dimension: Annotated[int, typer.Option(help="Values in an update.")],
    bits: Annotated[float, typer.Option(help="Budget for one whole update.")] = law.DEFAULT_BITS,
    sigma: Annotated[
        float | None, typer.Option(help="Noise to judge, instead of what the budget needs.")
    ] = None,
    clip_norm: Annotated[float, typer.Option(help="Length of the longest update.")] = 1.0,
    dtype: Annotated[
        str,
        typer.Option(
            click_type=click.Choice(["float64", "float32"]), help="Of shares and workers' sums."
        ),
    ] = "float64",
    precision: Annotated[
        float, typer.Option(help="Largest error of a squared distance, in squared clip norms.")
    ] = _PRECISION,
    as_json: Json = False,
) -> None:
    """Print what Gaussian masks leak, and cost.

    Law 6 bounds what one worker learns of one update, in bits. More noise leaks less, and costs
    more of the distances' precision. The command says whether one sigma meets both demands.

    \b
    Examples:
      ostraka leakage --dimension 3500000
      ostraka leakage --dimension 3500000 --dtype float32
      ostraka leakage --dimension 20000 --sigma 30 --bits 0.01 --json
    """
    if not precision > 0:
        raise ConfigError(f"precision must be positive; got {precision}")
    variance = law.clipped_variance(clip_norm * law.ROW_NORM, dimension)
    needed = law.sigma_for(bits, variance=variance, d=dimension)
    used = needed if sigma is None else sigma
    bound = bits if sigma is None else law.bound_bits(sigma, variance=variance, d=dimension)
    error = law.decoding_error(used / clip_norm, d=dimension, dtype=np.dtype(dtype))
    figures = {
        "dimension": dimension,
        "clip_norm": clip_norm,
        "dtype": dtype,
        "sigma": used,
        "bound_bits": bound,
        "budget_bits": bits,
        "sigma_for_budget": needed,
        "distance_error": error,
        "precision": precision,
        "met": bool(bound <= bits and error <= precision),
    }
    show(_table(figures), _verdict(figures), figures=figures, as_json=as_json)
    click.echo(
        "warning: the bound assumes independent noise, and constant-distance noise is not: the "
        "polar attack recognises updates at any sigma (docs/threat-model.md)",
        err=True,
    )


def _table(figures: dict[str, Any]) -> Table:
    rows = table("Quantity", "value", "Unit", show_header=False)
    for name, value, unit in (
        ("noise (sigma)", figures["sigma"], "units of the update"),
        ("leakage bound (law 6)", figures["bound_bits"], "bits of one whole update"),
        ("leakage budget", figures["budget_bits"], "bits"),
        ("noise that the budget needs", figures["sigma_for_budget"], "units of the update"),
        ("error of decoded distances", figures["distance_error"], "squared clip norms"),
        ("precision asked for", figures["precision"], "squared clip norms"),
    ):
        rows.add_row(name, f"{value:.4g}", unit)
    return rows


def _verdict(figures: dict[str, Any]) -> str:
    if figures["met"]:
        return "Budget and precision are both met."
    missed = [
        what
        for what, value, limit in (
            ("the leakage budget", figures["bound_bits"], figures["budget_bits"]),
            ("the precision", figures["distance_error"], figures["precision"]),
        )
        if not value <= limit
    ]
    return f"Not met: {' and '.join(missed)}, in {figures['dtype']} at this sigma."

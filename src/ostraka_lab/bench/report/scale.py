"""How cost grows with clients and with values."""

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from ostraka_lab.bench.process import Figures
from ostraka_lab.report import Block, Column, Folded, Grid, Paragraph, Plot, Table, drawing, format
from ostraka_lab.report.drawing import SERIES

_FEW = 256


def blocks(figures: Figures) -> list[Block]:
    target = figures["target"]
    return [
        Grid(
            [
                _plot(figures, "enclave_cpu_s", "Enclave's CPU", "exact"),
                _plot(figures, "enclave_cpu_s", "Enclave's CPU on a sketch", "sketch"),
                _plot(figures, "worker_cpu_s", "Workers' CPU", "exact"),
                _memory(figures),
            ]
        ),
        _exponents(figures),
        Paragraph(
            f"Forecasts for {target['clients']:,} clients of {target['dimension']:,} values, and "
            "for as many on a sketch as the terms allow. A cost is taken to be a sum of terms, "
            "fitted to all sizes with no negative term. The band holds nine in ten fits to runs "
            "drawn anew; the misfit is how far the sum misses the sizes that were measured."
        ),
        _forecast(figures),
        _splits(figures),
        Folded("All sizes", [_cells(figures)]),
        *(
            [Paragraph("Not measured, for lack of time or memory: " + _sizes(figures["skipped"]))]
            if figures["skipped"]
            else []
        ),
    ]


def _plot(figures: Figures, cost: str, title: str, variant: str) -> Plot:
    cells = [cell for cell in figures["cells"] if variant in cell["medians"]]
    points = [(cell, cell["medians"][variant][cost]) for cell in cells]
    caption = "One thread, medians; both axes are logarithmic."
    return Plot(title, caption, _growing(points, "seconds"))


def _memory(figures: Figures) -> Plot:
    points = [(cell, cell["enclave_bytes"] / 2**20) for cell in figures["cells"]]
    caption = (
        "Peak of a round with exact masks, in a process of its own; both axes are logarithmic."
    )
    return Plot("Enclave's memory", caption, _growing(points, "MiB"))


def _growing(points: list[tuple[Figures, float]], unit: str) -> Callable[[Figure], None]:
    """Draw a line for each dimension, against the number of clients."""

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        dimensions = sorted({cell["dimension"] for cell, _ in points})
        for colour, dimension in zip(SERIES, dimensions, strict=False):
            mine = sorted(
                (cell["clients"], cost) for cell, cost in points if cell["dimension"] == dimension
            )
            axes.plot(*zip(*mine, strict=True), "o-", color=colour, label=f"d = {dimension:,}")
        axes.set_xscale("log")
        axes.set_yscale("log")
        drawing.powers_of_ten(axes.xaxis)
        drawing.powers_of_ten(axes.yaxis)
        axes.set_xlabel("clients")
        axes.set_ylabel(unit)
        drawing.legend_above(figure)

    return paint


def _exponents(figures: Figures) -> Table:
    columns = [
        Column("Round"),
        Column("cost"),
        Column(f"in N, up to {_FEW}", number=True),
        Column(f"in N, from {_FEW}", number=True),
        Column("in N, all", number=True),
        Column("in d, all", number=True),
    ]
    rows = [
        [
            fit["variant"],
            fit["cost"],
            _exponent(fit["exponents_few"], "N"),
            _exponent(fit["exponents_many"], "N"),
            _exponent(fit["exponents"], "N"),
            _exponent(fit["exponents"], "d"),
        ]
        for fit in figures["fits"]
    ]
    return Table(columns, rows, caption="Fitted exponents, with one standard error")


def _exponent(found: Figures | None, name: str) -> str:
    return "-" if found is None else f"{found[name]['value']:.2f} ± {found[name]['error']:.2f}"


def _forecast(figures: Figures) -> Table:
    columns = [
        Column("Round"),
        Column("cost"),
        Column("clients", number=True),
        Column("forecast", number=True),
        Column("band", number=True),
        Column("misfit", number=True),
        Column("terms"),
    ]
    rows = [_forecast_row(fit) for fit in figures["fits"]]
    return Table(columns, rows)


def _forecast_row(fit: Figures) -> list[str]:
    told = fit["forecast"]
    show: Any = format.size if fit["cost"].endswith("bytes") else format.seconds
    made = " + ".join(f"{c:.3g} {name}" for name, c in told["terms"].items() if c) or "0"
    return [
        fit["variant"],
        fit["cost"],
        f"{told['clients']:,}",
        show(told["value"]),
        f"{show(told['low'])} to {show(told['high'])}",
        format.percent(told["misfit"]),
        made,
    ]


def _splits(figures: Figures) -> Table:
    columns = [Column("To be split"), Column("pieces", number=True), Column("because")]
    rows = [[each["what"], f"{each['pieces']:,}", each["why"]] for each in figures["splits"]]
    return Table(columns, rows, caption="What one enclave and one core could not do in one piece")


def _cells(figures: Figures) -> Table:
    costs = ("enclave_cpu_s", "worker_cpu_s")
    columns = [
        Column("Clients", number=True),
        Column("values", number=True),
        Column("round"),
        *(Column(cost, number=True) for cost in costs),
        Column("uploads", number=True),
        Column("to and from workers", number=True),
        Column("enclave's memory", number=True),
    ]
    rows = [
        [
            str(cell["clients"]),
            f"{cell['dimension']:,}",
            variant,
            *(format.seconds(medians[cost]) for cost in costs),
            format.size(medians["uploaded_bytes"]),
            format.size(medians["shared_bytes"]),
            format.size(cell["enclave_bytes"]) if variant == "exact" else "",
        ]
        for cell in figures["cells"]
        for variant, medians in cell["medians"].items()
    ]
    return Table(columns, rows)


def _sizes(pairs: list[list[int]]) -> str:
    return "; ".join(f"{clients} x {dimension:,}" for clients, dimension in pairs)

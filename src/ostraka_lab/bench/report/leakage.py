"""What one worker learns, why exact masks are the default, and what the host learns."""

from typing import Any

from matplotlib.figure import Figure

from ostraka_lab.bench.process import Figures
from ostraka_lab.report import Block, Column, Folded, Grid, Paragraph, Plot, Table, drawing
from ostraka_lab.report.drawing import BLUE, GREEN, MUTED, ORANGE, VERMILLION

_TYPES = {"float32": ORANGE, "float64": BLUE}
_USEFUL = 0.1  # a distance that is off by more is useless for ranking
_LEAST = 1e-16

_TEXT = (
    "More Gaussian noise hides an update better from a worker that looks at one row, and costs "
    "precision: in float32 distances are useless before the noise is large. Such a worker's best "
    "attack is a matched filter: it multiplies the row with an update that it suspects, value by "
    "value, and a large sum says that this update is in the row. The polar attack looks at all "
    "rows together. The noise of different clients is orthogonal, so the polar decomposition of "
    "the rows gives the noise but for a small rest. The attack subtracts that noise before it "
    "filters, and works however large it is (docs/threat-model.md). AUC is how often a worker "
    "tells a true suspicion from a false one. Exact masks give a worker uniform residues: no "
    "attack beats guessing, and distances are off by the rounding of updates to whole steps alone "
    "(law 7 of docs/protocol.md, which lists all laws)."
)


_LEAVE_OUT_TEXT = (
    "The host can leave one client out of a round, as if it had been late. The difference between "
    "the aggregates of the round before and of this one is then an estimate of the update that the "
    "client sent before, because successive updates of the others are alike. The protocol cannot "
    "prevent that: only noise in the aggregate bounds it."
)


def blocks(figures: Figures) -> list[Block]:
    """Show whose attacks were run: a worker's, the host's, or both."""
    shown = _worker(figures) if "gaussian" in figures else []
    return shown + (_host(figures["leave_out"]) if "leave_out" in figures else [])


def _host(figures: Figures) -> list[Block]:
    return [Paragraph(_LEAVE_OUT_TEXT), _leave_out(figures)]


def _leave_out(figures: Figures) -> Table:
    columns = [
        Column("Clients", number=True),
        Column("Rule"),
        *(
            Column(each, number=True)
            for each in ("client momentum", "lower quartile", "median", "upper quartile", "guess")
        ),
    ]
    rows = [
        [
            str(row["clients"]),
            f"{row['rule']}, f = {row['f']}",
            f"{row['momentum']:g}",
            *(f"{each:.2f}" for each in (row["quartiles"][0], row["median"], row["quartiles"][1])),
            f"{row['guess_median']:.2f}",
        ]
        for row in figures["rows"]
    ]
    caption = (
        f"Cosine of the estimate with the update that was sent: {figures['dataset']}, "
        f"{figures['partition']}, steps of local training a round: {figures['steps']}. The guess "
        "is the aggregate itself, which everybody sees (median)"
    )
    return Table(columns, rows, caption=caption)


def _worker(figures: Figures) -> list[Block]:
    return [
        Paragraph(_TEXT),
        Grid([_trade(figures), _bound(figures), _polar(figures)]),
        Folded("In figures", [_table(figures), _polar_table(figures)]),
    ]


def _trade(figures: Figures) -> Plot:
    exact = figures["exact"]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for name, colour in _TYPES.items():
            rows = _of(figures, name)
            errors = [max(row["distance_error"], _LEAST) for row in rows]
            axes.plot(errors, [row["auc"] for row in rows], "o-", color=colour, label=name)
        point = (max(exact["distance_error"], _LEAST), exact["auc"])
        axes.plot(*point, "*", color=GREEN, markersize=12, label="exact masks")
        axes.axvline(_USEFUL, color=MUTED, linestyle=":")
        axes.set_xscale("log")
        axes.set_ylim(0.4, 1.05)
        axes.set_xlabel("error of a distance, in squared norms")
        axes.set_ylabel("AUC of a matched filter")
        drawing.powers_of_ten(axes.xaxis)
        drawing.legend_above(figure)

    caption = (
        "Every point is one σ. To the left distances are precise, at the bottom (0.5) a worker is "
        f"blind. Right of the dotted line ({_USEFUL:g}) distances are useless for ranking. This "
        "attack looks at one row alone, and compares it with a suspected update; the polar attack "
        "sees more."
    )
    return Plot("Hiding against precision", caption, paint, height=3.2)


def _bound(figures: Figures) -> Plot:
    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        rows = _of(figures, "float64")
        sigmas = [row["sigma"] for row in rows]
        axes.plot(
            sigmas, [row["bound_bits"] for row in rows], "o-", color=BLUE, label="bound, bits"
        )
        for name, colour in _TYPES.items():
            errors = [max(row["distance_error"], _LEAST) for row in _of(figures, name)]
            axes.plot(sigmas, errors, "s--", color=colour, label=f"error, {name}")
        axes.set_xscale("log")
        axes.set_yscale("log")
        drawing.powers_of_ten(axes.xaxis)
        drawing.powers_of_ten(axes.yaxis)
        axes.set_xlabel("σ, in norms of an update")
        drawing.legend_above(figure)

    caption = (
        "The bound is the paper's (law 6 in docs/protocol.md): bits that one worker learns of one "
        "update at most, if rows were masked independently. The error is that of a decoded squared "
        "distance, as measured."
    )
    return Plot("What noise buys and costs", caption, paint, height=3.2)


def _polar(figures: Figures) -> Plot:
    rows = figures["polar"]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        clients = [row["clients"] for row in rows]
        axes.plot(
            clients,
            [row["gaussian"] for row in rows],
            "o-",
            color=VERMILLION,
            label="Gaussian masks",
        )
        expected = [row["expected"] for row in rows]
        axes.plot(clients, expected, ":", color=MUTED, label="as derived")
        axes.plot(clients, [row["exact"] for row in rows], "o-", color=GREEN, label="exact masks")
        axes.set_ylim(0.3, 1.05)
        axes.set_xlabel("clients")
        axes.set_ylabel("AUC of the polar attack")
        drawing.legend_above(figure)

    caption = (
        "One worker alone, which finds the noise from all its rows together, at the noise of the "
        "default budget. 0.5 is guessing; with few trials it scatters around that."
    )
    return Plot("The polar attack", caption, paint, height=3.2)


def _table(figures: Figures) -> Table:
    columns = [
        Column("Masks"),
        *(Column(each, number=True) for each in ("σ", "bound, bits", "AUC", "error", "stated")),
    ]
    rows = [
        [
            f"Gaussian, {row['dtype']}",
            *(
                f"{row[key]:.3g}"
                for key in ("sigma", "bound_bits", "auc", "distance_error", "distance_error_stated")
            ),
        ]
        for row in figures["gaussian"]
    ]
    exact: Any = figures["exact"]
    rows.append(["exact", "", "0", f"{exact['auc']:.3g}", f"{exact['distance_error']:.3g}", ""])
    caption = (
        f"{figures['clients']} clients of {figures['dimension']:,} values, "
        f"{figures['trials']} suspicions of either kind"
    )
    return Table(columns, rows, caption=caption)


def _polar_table(figures: Figures) -> Table:
    columns = [
        *(Column(each, number=True) for each in ("Clients", "Gaussian", "as derived", "exact"))
    ]
    rows = [
        [
            str(row["clients"]),
            *(f"{row[key]:.3f}" for key in ("gaussian", "expected", "exact")),
        ]
        for row in figures["polar"]
    ]
    return Table(columns, rows, caption="AUC of the polar attack")


def _of(figures: Figures, dtype: str) -> list[Figures]:
    return [row for row in figures["gaussian"] if row["dtype"] == dtype]

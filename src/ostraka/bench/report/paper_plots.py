"""The paper's figures as pictures."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from ostraka.bench.child import Figures
from ostraka.report import axes as axis_style
from ostraka.report.blocks import Plot
from ostraka.report.style import INK, SERIES

_NOT_THE_ROUND = ("training", "communication", "offline")


def figure2a(figures: Figures) -> Plot:
    rows = figures["figure2a"]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for colour, network in zip(SERIES, _networks(rows), strict=False):
            mine = [row for row in rows if row["network"] == network]
            clients = [row["clients"] for row in mine]
            axes.plot(clients, [row["naive_s"] for row in mine], "o-", color=colour, label=network)
            axes.plot(clients, [row["blas64_s"] for row in mine], "o--", color=colour)
        _log_log(axes, [row["clients"] for row in rows])
        axes.set_xlabel("clients")
        axes.set_ylabel("seconds inside")
        axis_style.legend_above(figure)

    caption = (
        "Figure 2a: opening and pairwise distances inside the enclave. Solid: the paper's loop "
        "over pairs. Dashed: BLAS in float64."
    )
    return Plot("Distances inside the enclave", caption, paint)


def figure2b(figures: Figures) -> Plot:
    rows = [row for row in figures["figure2b"] if row["network"] == "mobilenetv2"]
    rows = rows or figures["figure2b"]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        kinds = sorted({(row["masking"], row["device"]) for row in rows})
        for colour, (masking, device) in zip(SERIES, kinds, strict=False):
            mine = [r for r in rows if (r["masking"], r["device"]) == (masking, device)]
            clients = [row["clients"] for row in mine]
            label = f"{masking}, {device}"
            axes.plot(clients, [row["over_naive"] for row in mine], "o-", color=colour, label=label)
            axes.plot(clients, [row["over_blas64"] for row in mine], "o--", color=colour)
        axes.axhline(1, color=INK, linewidth=0.8)
        _log_log(axes, [row["clients"] for row in rows])
        axes.set_xlabel("clients")
        axes.set_ylabel("times faster")
        axis_style.legend_above(figure)

    caption = (
        "Figure 2b: a worker's kernel over distances inside the enclave, without opening, for "
        f"{rows[0]['network'] if rows else 'no network'}. Solid: over the paper's loop. Dashed: "
        "over BLAS in float64."
    )
    return Plot("Speed-up of a worker's kernel", caption, paint)


def figure3(figures: Figures, masking: str) -> Plot:
    bars = _bars(figures, masking)
    clients = bars[0]["clients"]
    caption = (
        f"Figure 3 for {clients} clients: one epoch of local training at one client, and one "
        f"round. Communication at {figures['bandwidth_gbit_s']:g} Gbit/s of the enclave's link, "
        "which carries all uploads, shares and models. Training: "
        f"{bars[0]['training_steps_timed']} steps on random pictures of CIFAR-10's shape, "
        f"timed and scaled to {bars[0]['training_steps']}. Distances: the slower worker."
    )
    parts = list(bars[0]["seconds"])
    return Plot(f"An epoch with {masking} masks", caption, _stacked(bars, parts), height=3.2)


def round_alone(figures: Figures, masking: str) -> Plot:
    bars = _bars(figures, masking)
    parts = [part for part in bars[0]["seconds"] if part not in _NOT_THE_ROUND]
    caption = (
        "The same without training, communication and what is made offline: the enclave's parts, "
        "and the slower worker's distances."
    )
    return Plot(f"The round alone with {masking} masks", caption, _stacked(bars, parts), height=3.2)


def _stacked(bars: Sequence[Figures], parts: Sequence[str]) -> Callable[[Figure], None]:
    """A bar a network, made of parts."""

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        left = [0.0] * len(bars)
        for place, part in enumerate(parts):
            widths = [bar["seconds"][part] for bar in bars]
            hatch = "//" if place >= len(SERIES) else None
            colour = SERIES[place % len(SERIES)]
            axes.barh(range(len(bars)), widths, left=left, color=colour, label=part, hatch=hatch)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(bars)), [bar["network"] for bar in bars])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("seconds")
        axis_style.legend_above(figure)

    return paint


def _bars(figures: Figures, masking: str) -> list[Figures]:
    return [bar for bar in figures["figure3"] if bar["masking"] == masking]


def _networks(rows: Sequence[Figures]) -> list[str]:
    return list(dict.fromkeys(row["network"] for row in rows))


def _log_log(axes: Any, clients: Sequence[int]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    every = sorted(set(clients))
    axes.set_xticks(every, [str(each) for each in every], minor=False)
    axes.set_xticks([], minor=True)
    axis_style.powers_of_ten(axes.yaxis)

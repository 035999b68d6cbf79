"""The paper's figures and its headline, in pictures and tables."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from ostraka_lab.bench.parties import EXACT, SKETCH
from ostraka_lab.bench.process import Figures
from ostraka_lab.report import (
    Block,
    Column,
    Folded,
    Grid,
    KeyFigure,
    Notice,
    Paragraph,
    Plot,
    Table,
    drawing,
    format,
)
from ostraka_lab.report.drawing import INK, SERIES

_NOT_THE_ROUND = ("training", "communication", "prepare")
_BASELINES = {"naive": "loop", "blas64": "BLAS float64", "blas32": "BLAS float32"}
_INSIDE_OVER_WORKERS = "the enclave's CPU of a round with the paper's loop inside, over workers"
_COUNTED = (
    "Counted is the enclave's CPU alone: the workers' time and the clients' sealing are not in it. "
    "Gaussian noise is, though the paper makes it offline: a column shows it. The rows with "
    "Gaussian and exact masks show what off-loading gains. A sketch makes distances cheap with or "
    "without workers, so the gain in its row is that of both together."
)


def _figure2a(figures: Figures) -> Plot:
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
        drawing.legend_above(figure)

    caption = (
        "Figure 2a: opening and pairwise distances inside the enclave. Solid: the paper's loop "
        "over pairs. Dashed: BLAS in float64."
    )
    return Plot("Distances inside the enclave", caption, paint)


def _figure2b(figures: Figures) -> Plot:
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
        drawing.legend_above(figure)

    caption = (
        "Figure 2b: a worker's kernel over distances inside the enclave, without opening, for "
        f"{rows[0]['network'] if rows else 'no network'}. Solid: over the paper's loop. Dashed: "
        "over BLAS in float64."
    )
    return Plot("Speed-up of a worker's kernel", caption, paint)


def _figure3(figures: Figures, masking: str) -> Plot:
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


def _round_alone(figures: Figures, masking: str) -> Plot:
    bars = _bars(figures, masking)
    parts = [part for part in bars[0]["seconds"] if part not in _NOT_THE_ROUND]
    caption = (
        "The same without training, communication and noise, which the paper makes offline: the "
        "enclave's parts, and the slower worker's distances."
    )
    return Plot(f"The round alone with {masking} masks", caption, _stacked(bars, parts), height=3.2)


def _stacked(bars: Sequence[Figures], parts: Sequence[str]) -> Callable[[Figure], None]:
    """Draw a bar for each network, made of parts."""

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
        drawing.legend_above(figure)

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
    drawing.powers_of_ten(axes.yaxis)


def blocks(figures: Figures) -> list[Block]:
    return [
        Paragraph(_COUNTED),
        *(
            table
            for each in figures["headline"]
            for table in (_headline(each), _detection(each), _one_after_the_other(each))
        ),
        Grid([_figure2a(figures), _figure2b(figures)]),
        *(
            Grid([_figure3(figures, masking), _round_alone(figures, masking)])
            for masking in _maskings(figures)
        ),
        Folded("Figure 2a in figures", [_table2a(figures)]),
        Folded("Figure 2b in figures", [_table2b(figures)]),
        Folded("Figure 3 in figures", [_table3(figures)]),
        *_slowdown(figures),
        *(Notice("Not measured.", each) for each in figures["not_measured"]),
    ]


def key_figures(figures: Figures) -> list[KeyFigure]:
    if not figures["headline"]:
        return []
    first = figures["headline"][0]
    rows = {row["name"]: format.times(row["over_naive"]) for row in first["rows"]}
    found = []
    if EXACT in rows:
        note = f"{_INSIDE_OVER_WORKERS}, exact masks without a sketch; {_size(first)}"
        found.append(KeyFigure("Off-loading alone", rows[EXACT], note))
    if SKETCH in rows:
        note = f"the same on a sketch: what the two gain together; {_size(first)}"
        found.append(KeyFigure("Sketch and off-loading", rows[SKETCH], note))
    return found


def _headline(each: Figures) -> Table:
    columns = [
        Column("Round"),
        Column("enclave's CPU", number=True),
        Column("of it, noise", number=True),
        Column("spread", number=True),
    ]
    inside = [
        [
            f"inside, {_BASELINES[name]}",
            format.seconds(row["enclave_cpu_s"]),
            "",
            format.percent(row["spread"]),
            *[""] * len(_BASELINES),
        ]
        for name, row in each["inside"].items()
    ]
    rows = [
        [
            f"workers, {_masking(row['name'], each)}",
            format.seconds(row["enclave_cpu_s"]),
            format.seconds(row["prepare_cpu_s"]),
            format.percent(row["spread"]),
            *_ratios(row, "over"),
        ]
        for row in each["rows"]
    ]
    caption = f"The headline, {_size(each)}: a whole round inside the enclave over one with workers"
    return Table([*columns, *_over()], [*inside, *rows], caption=caption)


def _detection(each: Figures) -> Table:
    columns = [Column("First pass"), Column("enclave's CPU", number=True)]
    caption = f"Finding the outliers alone, {_size(each)}: without headers and averaging"
    return _beside(each, columns, "detection_cpu_s", "detection_over", caption)


def _one_after_the_other(each: Figures) -> Folded:
    columns = [Column("Round"), Column("slower worker", number=True)]
    title = f"With the worker's time, if nothing overlapped, {_size(each)}"
    return Folded(title, [_beside(each, columns, "slowest_worker_s", "round_over")])


def _beside(
    each: Figures, columns: list[Column], seconds: str, over: str, caption: str = ""
) -> Table:
    """Show a time of every masking, and the ratios of the ways inside to it."""
    rows = [
        [
            f"workers, {_masking(row['name'], each)}",
            format.seconds(row[seconds]),
            *_ratios(row, over),
        ]
        for row in each["rows"]
    ]
    return Table([*columns, *_over()], rows, caption=caption)


def _over() -> list[Column]:
    return [Column(f"{name} / it", number=True) for name in _BASELINES.values()]


def _ratios(row: Figures, what: str) -> list[str]:
    return [format.times(row[f"{what}_{base}"]) for base in _BASELINES]


def _size(each: Figures) -> str:
    return f"{each['clients']:,} clients of {each['dimension']:,} values"


def _masking(name: str, each: Figures) -> str:
    return f"exact on a sketch of {each['sketch']:,}" if name == SKETCH else name


def _slowdown(figures: Figures) -> list[Block]:
    slowed = figures["slowdown"]
    if slowed is None:
        return []
    columns = [
        Column("Clients", number=True),
        Column("values", number=True),
        Column("masks"),
        *(Column(f"over {name}", number=True) for name in _BASELINES.values()),
    ]
    rows = [
        [
            str(row["clients"]),
            f"{row['dimension']:,}",
            row["name"],
            *(format.times(row[f"round_over_{base}"]) for base in _BASELINES),
        ]
        for row in slowed["rows"]
    ]
    caption = (
        f"Assumed, not measured: the whole round's time if everything in the enclave took "
        f"{slowed['factor']:g} times longer, as was given on the command line"
    )
    return [Table(columns, rows, caption=caption)]


def _table2a(figures: Figures) -> Table:
    columns = [
        Column("Network"),
        Column("clients", number=True),
        Column("values", number=True),
        Column("of them measured", number=True),
        *(Column(name, number=True) for name in _BASELINES.values()),
        *(Column(f"spread, {name}", number=True) for name in _BASELINES.values()),
    ]
    rows = [
        [
            row["network"],
            str(row["clients"]),
            f"{row['dimension']:,}",
            f"{row['columns_measured']:,}",
            *(format.seconds(row[f"{base}_s"]) for base in _BASELINES),
            *(format.percent(row["spread"][base]) for base in _BASELINES),
        ]
        for row in figures["figure2a"]
    ]
    return Table(columns, rows)


def _table2b(figures: Figures) -> Table:
    columns = [
        Column("Network"),
        Column("clients", number=True),
        Column("masks"),
        Column("device"),
        Column("kernel", number=True),
        *(Column(f"over {name}", number=True) for name in _BASELINES.values()),
    ]
    rows = [
        [
            row["network"],
            str(row["clients"]),
            row["masking"],
            row["device"],
            format.seconds(row["kernel_s"]),
            *(format.times(row[f"over_{base}"]) for base in _BASELINES),
        ]
        for row in figures["figure2b"]
    ]
    return Table(columns, rows)


def _table3(figures: Figures) -> Table:
    parts = list(figures["figure3"][0]["seconds"])
    columns = [
        Column("Network"),
        Column("masks"),
        *(Column(part, number=True) for part in parts),
    ]
    rows = [
        [bar["network"], bar["masking"], *(format.seconds(bar["seconds"][part]) for part in parts)]
        for bar in figures["figure3"]
    ]
    return Table(columns, rows)


def _maskings(figures: Figures) -> list[str]:
    return list(dict.fromkeys(bar["masking"] for bar in figures["figure3"]))

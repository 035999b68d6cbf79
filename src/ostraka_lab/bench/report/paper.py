"""The paper's figures and its headline, in pictures and tables."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from matplotlib.figure import Figure

from ostraka_lab.bench.paper import LABELS, clients_where
from ostraka_lab.bench.parties import EXACT, SKETCH, SKETCH_INSIDE
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
BASELINES = {"naive": "loop", "blas64": "BLAS float64", "blas32": "BLAS float32"}
_STYLES = {"naive": "o-", "blas64": "o--", "blas32": "o:"}
_DRAWN = "Solid: the paper's loop over pairs. Dashed: BLAS in float64. Dotted: BLAS in float32."
_COUNTED = (
    "Counted is the enclave's CPU alone: the workers' time and the clients' sealing are not in it. "
    "Gaussian noise is, though the paper makes it offline: a column shows it. Workers without a "
    "sketch show what off-loading gains. A sketch makes distances cheap with or without workers: "
    "the sketch inside shows what it gains alone, and what workers add is the ratio of the last "
    "two rows."
)


def _figure2a(figures: Figures) -> Plot:
    rows = figures["figure2a"]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for colour, network in zip(SERIES, _networks(rows), strict=False):
            mine = [row for row in rows if row["network"] == network]
            _lines(axes, mine, "{}_s", colour, network)
        _log_log(axes, [row["clients"] for row in rows])
        axes.set_xlabel("clients")
        axes.set_ylabel("seconds inside")
        drawing.legend_above(figure)

    caption = f"Figure 2a: opening and pairwise distances inside the enclave. {_DRAWN}"
    return Plot("Distances inside the enclave", caption, paint)


def _figures2b(figures: Figures) -> Iterator[Plot]:
    """One plot for each masking and device, with one series for each network, as in the paper."""
    every = figures["figure2b"]
    for masking, device in dict.fromkeys((row["masking"], row["device"]) for row in every):
        mine = [row for row in every if (row["masking"], row["device"]) == (masking, device)]
        yield _figure2b(mine, masking, device)


def _figure2b(rows: Sequence[Figures], masking: str, device: str) -> Plot:
    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for colour, network in zip(SERIES, _networks(rows), strict=False):
            mine = [row for row in rows if row["network"] == network]
            _lines(axes, mine, "over_{}", colour, network)
        axes.axhline(1, color=INK, linewidth=0.8)
        _log_log(axes, [row["clients"] for row in rows])
        axes.set_xlabel("clients")
        axes.set_ylabel("times faster")
        drawing.legend_above(figure)

    caption = (
        "Figure 2b: distances inside the enclave, without opening, over a worker's kernel on "
        f"{device} ({rows[0]['clock']} time), {masking} masks. {_DRAWN}"
    )
    return Plot(f"Speed-up of a worker's kernel, {masking} masks, {device}", caption, paint)


def _lines(axes: Any, rows: Sequence[Figures], field: str, colour: str, label: str) -> None:
    """Draw what the rows hold for each way inside, against the number of clients."""
    clients = [row["clients"] for row in rows]
    for base, style in _STYLES.items():
        named = {"label": label} if base == "naive" else {}
        axes.plot(clients, [row[field.format(base)] for row in rows], style, color=colour, **named)


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
        *_offloading(figures),
        *([Grid([_figure2a(figures), *_figures2b(figures)])] if figures["figure2a"] else []),
        *(
            Grid([_figure3(figures, masking), _round_alone(figures, masking)])
            for masking in _maskings(figures)
        ),
        *(Folded(f"{title} in figures", [table]) for title, table in _tables(figures)),
        *_slowdown(figures),
        *(Notice("Not measured.", each) for each in figures["not_measured"]),
    ]


def tables(figures: Figures) -> list[Table]:
    """All that was measured, as tables alone."""
    headlines = [table for each in figures["headline"] for table in (_headline(each),)]
    return [*headlines, *_offloading(figures), *(table for _, table in _tables(figures))]


def _tables(figures: Figures) -> Iterator[tuple[str, Table]]:
    if figures["figure2a"]:
        yield "Figure 2a", _table2a(figures)
        yield "Figure 2b", _table2b(figures)
    if figures["figure3"]:
        yield "Figure 3", _table3(figures)


def key_figures(figures: Figures) -> list[KeyFigure]:
    """What workers gain without a sketch, what a sketch gains, and what workers add to it."""
    if not figures["headline"]:
        return []
    first = figures["headline"][0]
    rows = {row["name"]: row for row in first["rows"]}
    found = []
    for name, label in ((EXACT, "Workers, no sketch"), (SKETCH_INSIDE, "Sketch, no workers")):
        if name in rows:
            loop, *blas = _ratios(rows[name], "over")
            note = (
                "the enclave's CPU of a round with the paper's loop inside, over it "
                f"(BLAS float64 {blas[0]}, float32 {blas[1]}); {_size(first)}"
            )
            found.append(KeyFigure(label, loop, note))
    if SKETCH in rows and SKETCH_INSIDE in rows:
        added = rows[SKETCH_INSIDE]["enclave_cpu_s"] / rows[SKETCH]["enclave_cpu_s"]
        note = f"the sketch inside, over the sketch with workers; {_size(first)}"
        found.append(KeyFigure("Workers on a sketch", format.times(added), note))
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
            LABELS[name],
            format.seconds(row["enclave_cpu_s"]),
            "",
            format.percent(row["spread"]),
            *[""] * len(BASELINES),
        ]
        for name, row in each["inside"].items()
    ]
    rows = [
        [
            _scheme(row["name"], each),
            format.seconds(row["enclave_cpu_s"]),
            format.seconds(row["prepare_cpu_s"]),
            format.percent(row["spread"]),
            *_ratios(row, "over"),
        ]
        for row in each["rows"]
    ]
    caption = f"The headline, {_size(each)}: a whole round inside the enclave, over one by a scheme"
    return Table([*columns, *_over()], [*inside, *rows], caption=caption)


def _offloading(figures: Figures) -> list[Table]:
    """By clients: what a round costs the enclave, and from where a scheme pays."""
    found = figures["offloading"]
    if found is None:
        return []
    names = list(found["rows"][-1]["seconds"])
    costs = [
        [LABELS[name], *(format.seconds(row["seconds"].get(name)) for row in found["rows"])]
        for name in names
    ]
    clients = [Column(f"{row['clients']} clients", number=True) for row in found["rows"]]
    values = f"{found['rows'][-1]['dimension']:,} values"
    beside = {**BASELINES, SKETCH_INSIDE: "the sketch inside"}
    pays = [
        [LABELS[name], *(clients_where(row[base]) if base in row else "" for base in beside)]
        for name, row in found["pays"].items()
    ]
    columns = [
        Column("Scheme"),
        *(Column(f"beside {name}", number=True) for name in beside.values()),
    ]
    return [
        Table([Column("Round"), *clients], costs, caption=f"The enclave's CPU, {values}"),
        Table(
            columns,
            pays,
            caption="For how many clients a scheme takes the enclave less, by a fit to these "
            "rounds (a cost per value, and a cost per value and pair of clients)",
        ),
    ]


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
            _scheme(row["name"], each),
            format.seconds(row[seconds]),
            *_ratios(row, over),
        ]
        for row in each["rows"]
    ]
    return Table([*columns, *_over()], rows, caption=caption)


def _over() -> list[Column]:
    return [Column(f"{name} / it", number=True) for name in BASELINES.values()]


def _ratios(row: Figures, what: str) -> list[str]:
    return [format.times(row[f"{what}_{base}"]) for base in BASELINES]


def _size(each: Figures) -> str:
    return f"{each['clients']:,} clients of {each['dimension']:,} values"


def _scheme(name: str, each: Figures) -> str:
    sketch = f"sketch of {each['sketch']:,}" if each["sketch"] else "sketch"
    return LABELS[name].replace("sketch", sketch)


def _slowdown(figures: Figures) -> list[Block]:
    slowed = figures["slowdown"]
    if slowed is None:
        return []
    columns = [
        Column("Clients", number=True),
        Column("values", number=True),
        Column("round"),
        *(Column(f"over {name}", number=True) for name in BASELINES.values()),
    ]
    rows = [
        [
            str(row["clients"]),
            f"{row['dimension']:,}",
            LABELS[row["name"]],
            *(format.times(row[f"round_over_{base}"]) for base in BASELINES),
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
        *(Column(name, number=True) for name in BASELINES.values()),
        *(Column(f"spread, {name}", number=True) for name in BASELINES.values()),
    ]
    rows = [
        [
            row["network"],
            str(row["clients"]),
            f"{row['dimension']:,}",
            f"{row['columns_measured']:,}",
            *(format.seconds(row[f"{base}_s"]) for base in BASELINES),
            *(format.percent(row["spread"][base]) for base in BASELINES),
        ]
        for row in figures["figure2a"]
    ]
    return Table(columns, rows, caption="Figure 2a: opening and distances inside the enclave")


def _table2b(figures: Figures) -> Table:
    columns = [
        Column("Network"),
        Column("clients", number=True),
        Column("masks"),
        Column("device"),
        Column("clock"),
        Column("kernel", number=True),
        *(Column(f"over {name}", number=True) for name in BASELINES.values()),
    ]
    rows = [
        [
            row["network"],
            str(row["clients"]),
            row["masking"],
            row["device"],
            row["clock"],
            format.seconds(row["kernel_s"]),
            *(format.times(row[f"over_{base}"]) for base in BASELINES),
        ]
        for row in figures["figure2b"]
    ]
    caption = "Figure 2b: distances inside the enclave, without opening, over a worker's kernel"
    return Table(columns, rows, caption=caption)


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
    first = figures["figure3"][0]
    caption = (
        f"Figure 3: an epoch of {first['clients']} clients, at "
        f"{figures['bandwidth_gbit_s']:g} Gbit/s"
    )
    return Table(columns, rows, caption=caption)


def _maskings(figures: Figures) -> list[str]:
    return list(dict.fromkeys(bar["masking"] for bar in figures["figure3"]))

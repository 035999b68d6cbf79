"""The paper's figures and its headline, in words and tables."""

from ostraka.bench.child import Figures
from ostraka.bench.report import paper_plots, words
from ostraka.report.blocks import Block, Column, Folded, Grid, KeyFigure, Notice, Table

_BASELINES = {"naive": "loop", "blas64": "BLAS float64", "blas32": "BLAS float32"}


def blocks(figures: Figures) -> list[Block]:
    return [
        *(
            table
            for each in figures["headline"]
            for table in (_headline(each), _detection(each), _one_after_the_other(each))
        ),
        Grid([paper_plots.figure2a(figures), paper_plots.figure2b(figures)]),
        *(
            Grid([paper_plots.figure3(figures, masking), paper_plots.round_alone(figures, masking)])
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
    best = max(first["rows"], key=lambda row: row["over_naive"])
    note = (
        f"the enclave's CPU with the paper's loop inside, over that with {best['name']} masks "
        f"and workers; {first['clients']} clients of {first['dim']:,}"
    )
    return [KeyFigure("Off-loading gains", words.times(best["over_naive"]), note)]


def _headline(each: Figures) -> Table:
    columns = [Column("Round"), Column("enclave's CPU", number=True), Column("spread", number=True)]
    inside = [
        [
            f"inside, {_BASELINES[name]}",
            words.seconds(row["enclave_cpu_s"]),
            words.percent(row["spread"]),
            *[""] * len(_BASELINES),
        ]
        for name, row in each["inside"].items()
    ]
    rows = [
        [
            f"workers, {_masking(row['name'], each)}",
            words.seconds(row["enclave_cpu_s"]),
            words.percent(row["spread"]),
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
    """A time of every masking, and what the ways inside take over it."""
    rows = [
        [
            f"workers, {_masking(row['name'], each)}",
            words.seconds(row[seconds]),
            *_ratios(row, over),
        ]
        for row in each["rows"]
    ]
    return Table([*columns, *_over()], rows, caption=caption)


def _over() -> list[Column]:
    return [Column(f"{name} / it", number=True) for name in _BASELINES.values()]


def _ratios(row: Figures, what: str) -> list[str]:
    return [words.times(row[f"{what}_{base}"]) for base in _BASELINES]


def _size(each: Figures) -> str:
    return f"{each['clients']:,} clients of {each['dim']:,} values"


def _masking(name: str, each: Figures) -> str:
    return f"exact on a sketch of {each['sketch']:,}" if name == "sketch" else name


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
            f"{row['dim']:,}",
            row["name"],
            *(words.times(row[f"round_over_{base}"]) for base in _BASELINES),
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
            f"{row['dim']:,}",
            f"{row['columns_measured']:,}",
            *(words.seconds(row[f"{base}_s"]) for base in _BASELINES),
            *(words.percent(row["spread"][base]) for base in _BASELINES),
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
            words.seconds(row["kernel_s"]),
            *(words.times(row[f"over_{base}"]) for base in _BASELINES),
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
        [bar["network"], bar["masking"], *(words.seconds(bar["seconds"][part]) for part in parts)]
        for bar in figures["figure3"]
    ]
    return Table(columns, rows)


def _maskings(figures: Figures) -> list[str]:
    return list(dict.fromkeys(bar["masking"] for bar in figures["figure3"]))

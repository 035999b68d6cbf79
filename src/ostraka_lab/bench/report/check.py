"""What the figures were measured on."""

from ostraka_lab.bench.process import Figures
from ostraka_lab.report import format
from ostraka_lab.report.page import Block, Column, Notice, Table

_ROWS = {
    "processor": "processor",
    "cores": "cores that it may use",
    "memory_gib": "memory, GiB",
    "available_gib": "of that free at the end, GiB",
    "load": "load average at the end",
    "system": "system",
    "python": "Python",
    "blas": "BLAS",
    "threads": "threads, of BLAS and of every role",
}


def table(found: dict[str, Figures]) -> Table:
    """A column a benchmark: they need not have run on the same machine."""
    machines = {name: figures["machine"] for name, figures in found.items()}
    packages = sorted({each for m in machines.values() for each in m["packages"]})
    rows = [
        [label, *(str(machine[key]) for machine in machines.values())]
        for key, label in _ROWS.items()
    ]
    rows += [
        [name, *(str(machine["packages"].get(name, "-")) for machine in machines.values())]
        for name in packages
    ]
    columns = [Column("What"), *(Column(name) for name in machines)]
    return Table(columns, rows, caption="The machine, and what ran on it")


_COLUMNS = (
    Column("Stage"),
    Column("× open", number=True),
    Column("baseline", number=True),
    Column("change", number=True),
    Column("allowed", number=True),
    Column("slower"),
)


def blocks(figures: Figures) -> list[Block]:
    rows = [
        [
            row["stage"],
            f"{row['ratio']:.2f}",
            f"{row['baseline']:.2f}",
            f"{100 * row['change']:+.0f} %",
            format.percent(row["limit"]),
            format.yes(row["slower"]),
        ]
        for row in figures["rows"]
    ]
    slower = [row["stage"] for row in figures["rows"] if row["slower"]]
    caption = (
        f"{figures['clients']} clients of {figures['dim']:,} values, beside {figures['baseline']}. "
        "Allowed is what the noise of both runs explains, or the tolerance if that is more"
    )
    notices: list[Block] = (
        [Notice("Slower:", ", ".join(slower), tone="bad")]
        if slower
        else [Notice("Nothing became slower.", "", tone="good")]
    )
    return [*notices, Table(_COLUMNS, rows, caption=caption)]

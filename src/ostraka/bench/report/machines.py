"""What the figures were measured on."""

from ostraka.bench.child import Figures
from ostraka.report.blocks import Column, Table

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

"""The page of a folder of results.

This file has the page, the targets, the check against a baseline and the machine. `peers`, `paper`,
`scale`, `shards` and `leakage` have the sections of these benchmarks.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ostraka_lab.bench import results
from ostraka_lab.bench.paper import LABELS
from ostraka_lab.bench.parties import EXACT, SKETCH
from ostraka_lab.bench.process import Figures
from ostraka_lab.bench.report import leakage, paper, peers, scale, shards
from ostraka_lab.bench.scale import UNCHECKED
from ostraka_lab.report import (
    Block,
    Code,
    Column,
    KeyFigure,
    Notice,
    Page,
    Paragraph,
    Section,
    Table,
    format,
    write_page,
)

_LEAD = (
    "Every comparison is a ratio inside one run: all that is compared ran in turn, in every "
    "repetition. Figures are medians; spread is from the fastest to the slowest run, as a part of "
    "the median. Below each section is the command that makes it again."
)
_TITLES = {
    "peers": "Beside its peers",
    "paper": "The paper's figures",
    "scale": "How cost grows",
    "shards": "Shards",
    "leakage": "What a worker and the host learn",
    "check": "Has anything become slower?",
}

_PEERS = (64, 3_500_000)
_MANY = (1024, 250_000)
_PROFILED = ("open", "arrive", "encode", "aggregate")
_TARGET_COLUMNS = (
    Column("Target"),
    Column("wanted", number=True),
    Column("reached", number=True),
    Column("met"),
)
_COUNTED = (
    "What is counted: the CPU of the enclave, or of the enclave and all workers together, from the "
    "first sealed update to the released model, beside the peer's aggregation alone. In brackets "
    "is the ratio of all roles to all roles, with the clients' sealing, and with a plain "
    "federation's packing and unpacking. Where a round on a sketch is compared with one inside the "
    "enclave, the gain is that of sketch and off-loading together: the section on the paper tells "
    "them apart."
)

_CHECK_COLUMNS = (
    Column("Stage"),
    Column("× open", number=True),
    Column("baseline", number=True),
    Column("change", number=True),
    Column("allowed", number=True),
    Column("slower"),
)
_MACHINE_ROWS = {
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


def write(folder: Path) -> Path:
    """Draw the page from all results in the folder, and write paper.md. Raises ConfigError."""
    path, found = folder / results.REPORT, results.load(folder)
    write_page(describe(found), path)
    if "paper" in found:
        (folder / "paper.md").write_text(paper_document(found["paper"]))
    return path


def paper_document(figures: Figures) -> str:
    """The paper's figures as a document of tables, with the command and the machine."""
    lead = (
        f"Measured {figures['measured']} by `{figures['command']}`, medians of "
        f"{figures['repeat']}, one thread. docs/performance.md says what is counted."
    )
    tables = [*paper.tables(figures), _machines({"paper": figures})]
    notes = "\n".join(f"- {each}" for each in figures["not_measured"])
    body = "\n".join(table.markdown() for table in tables)
    text = f"# The paper's figures\n\n{lead}\n\nNot measured:\n\n{notes}\n\n{body}"
    return text.replace(format.SPACE, " ")


def describe(found: dict[str, Figures]) -> Page:
    return Page(
        kind="Ostraka · benchmarks",
        title="What it costs",
        lead=_LEAD,
        figures=_key_figures(found),
        sections=[
            *([Section("Targets", wanted)] if (wanted := _targets(found)) else []),
            *(_section(name, found[name]) for name in results.BENCHMARKS if name in found),
            Section("Machine", [_machines(found)]),
        ],
        footer="Drawn from the JSON files beside this page.",
    )


def _section(name: str, figures: Figures) -> Section:
    draw = {
        "peers": peers.blocks,
        "paper": paper.blocks,
        "scale": scale.blocks,
        "shards": shards.blocks,
        "leakage": leakage.blocks,
        "check": _check,
    }
    blocks: list[Block] = draw[name](figures)
    again = Paragraph(f"Measured {figures.get('measured', '')}, by:")
    return Section(_TITLES[name], [*blocks, again, Code(figures.get("command", ""))])


def _key_figures(found: dict[str, Figures]) -> list[KeyFigure]:
    figures: list[KeyFigure] = []
    if "peers" in found:
        figures += peers.key_figures(found["peers"])
    if "paper" in found:
        figures += paper.key_figures(found["paper"])
    return figures


@dataclass(frozen=True)
class Target:
    """What we want. limit: the most, or with `least` the least. beside: what else to know."""

    what: str
    limit: float
    reached: float
    least: bool = False
    beside: str = ""

    @property
    def met(self) -> bool:
        return self.reached >= self.limit if self.least else self.reached <= self.limit

    def row(self) -> list[str]:
        bound = f"{'≥' if self.least else '≤'} {self.limit:g}"
        what = f"{self.what} ({self.beside})" if self.beside else self.what
        return [what, bound, f"{self.reached:.3g}", format.yes(self.met)]


def _targets(found: dict[str, Figures]) -> list[Block]:
    """Show what we want and what was reached: nothing if no size with a target was measured."""
    targets = [
        *_beside_peers(found.get("peers")),
        *_headlines(found.get("paper")),
        *_growth(found.get("scale")),
        *_shards(found.get("shards")),
    ]
    if not targets:
        return []
    table = Table(_TARGET_COLUMNS, [target.row() for target in targets])
    shown: list[Block] = [table, Paragraph(_COUNTED)]
    if not all(target.met for target in targets):
        shown += [*_profile(found), *_many(found.get("paper"))]
    return shown


def _beside_peers(figures: Figures | None) -> Iterator[Target]:
    if figures is None or (figures["clients"], figures["dimension"]) != _PEERS:
        return
    rows = peers.by_name(figures)
    for name, part, peer, limit in (
        ("ostraka-exact-sketch", "cpu_s", "flower", 0.5),
        ("ostraka-exact-sketch", "cpu_s", "byzfl-torch", 0.35),
        ("ostraka-exact", "enclave_cpu_s", "flower", 1.0),
        ("ostraka-exact-sketch", "enclave_cpu_s", "floor", 2.0),
        ("ostraka-exact-sketch", "enclave_cpu_s", "blas-clear", 0.75),
    ):
        if name in rows and peer in rows:
            counted = "enclave" if part == "enclave_cpu_s" else "enclave and workers"
            right = rows[name]["correct"] is not False
            ratio = rows[name][part] / rows[peer]["cpu_s"] if right else math.inf
            whole = rows[name]["all_roles_cpu_s"] / rows[peer]["all_roles_cpu_s"]
            what = f"CPU of {name}, {counted} / {peer}"
            yield Target(what, limit, ratio, beside=f"all roles {whole:.3g}")


def _headlines(figures: Figures | None) -> Iterator[Target]:
    for each in figures["headline"] if figures else ():
        size = (each["clients"], each["dimension"])
        rows = {row["name"]: row for row in each["rows"]}
        if size == _PEERS:
            ours = [rows[name] for name in (EXACT, SKETCH) if name in rows]
            best = max(ours, key=lambda row: row["over_naive"])
            yield _gain(best, "naive", 8.0, f"the loop inside, {size[0]} clients")
        if size == _MANY and SKETCH in rows:
            yield _gain(rows[SKETCH], "blas64", 6.0, f"float64 BLAS inside, {size[0]} clients")


def _gain(row: Figures, base: str, limit: float, inside: str) -> Target:
    every = [
        f"{name} {row[f'over_{each}']:.3g}, {row[f'detection_over_{each}']:.3g}"
        for each, name in paper.BASELINES.items()
    ]
    beside = f"whole round, outliers alone: {'; '.join(every)}"
    what = f"Enclave's CPU of a round: {inside} / {LABELS[row['name']]}"
    return Target(what, limit, row[f"over_{base}"], least=True, beside=beside)


def _growth(figures: Figures | None) -> Iterator[Target]:
    for fit in figures["fits"] if figures else ():
        if (fit["variant"], fit["cost"]) == (UNCHECKED, "enclave_cpu_s") and fit["exponents_few"]:
            exponents = fit["exponents_few"]
            what = "Exponent of the enclave's CPU, exact masks without the check, up to 256 clients"
            yield Target(f"{what}: in N", 1.1, exponents["N"]["value"])
            yield Target(f"{what}: in d", 1.05, exponents["d"]["value"])


def _shards(figures: Figures | None) -> Iterator[Target]:
    for share in figures["shares"] if figures else ():
        if (share["clients"], share["dimension"]) == _PEERS:
            what = f"CPU of the busiest of {share['shards']} shards / its share of one enclave's"
            yield Target(what, 1.25, max(share["x_share"]))


def _profile(found: dict[str, Figures]) -> Iterator[Block]:
    """Say where the time of a round on a sketch goes, for the network nearest to the targets."""
    bars = [
        bar
        for bar in found.get("paper", {}).get("figure3", ())
        if bar["masking"] == SKETCH and set(_PROFILED) <= bar["seconds"].keys()
    ]
    for bar in sorted(bars, key=lambda bar: abs(bar["dimension"] - _PEERS[1]))[:1]:
        parts = {part: bar["seconds"][part] for part in _PROFILED}
        whole = ", ".join(f"{part} {format.seconds(s)}" for part, s in parts.items())
        yield Paragraph(
            f"Where the enclave's time goes, {bar['clients']} clients of {bar['network']} on a "
            f"sketch: {whole}. Updates are opened once, as they arrive. Arrive is norms, checks "
            "and folding. Encode is masks on sketches. Aggregate reads every update where it lies, "
            "and averages in float64: so the host does not see which updates were selected. "
            "docs/performance.md goes through it part by part."
        )


def _many(figures: Figures | None) -> Iterator[Block]:
    """Say where the time of a round with a thousand clients goes, from the headline."""
    for each in figures["headline"] if figures else ():
        rows = {row["name"]: row for row in each["rows"]}
        if (each["clients"], each["dimension"]) == _MANY and SKETCH in rows:
            whole, first = (rows[SKETCH][name] for name in ("enclave_cpu_s", "detection_cpu_s"))
            yield Paragraph(
                f"With {each['clients']:,} clients the first pass is {format.seconds(first)} of "
                f"{format.seconds(whole)}. The rest, headers and the second pass, is the same "
                "without workers, and keeps the ratio of whole rounds low."
            )


def _check(figures: Figures) -> list[Block]:
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
        f"{figures['clients']} clients of {figures['dimension']:,} values, beside "
        f"{figures['baseline']}. Allowed is what the noise of both runs explains, or the tolerance "
        "if that is more"
    )
    notices: list[Block] = (
        [Notice("Slower:", ", ".join(slower), tone="bad")]
        if slower
        else [Notice("Nothing became slower.", "", tone="good")]
    )
    return [*notices, Table(_CHECK_COLUMNS, rows, caption=caption)]


def _machines(found: dict[str, Figures]) -> Table:
    """Describe the machines, one column per benchmark: they need not have been the same."""
    machines = {name: figures["machine"] for name, figures in found.items()}
    packages = sorted({each for m in machines.values() for each in m["packages"]})
    rows = [
        [label, *(str(machine[key]) for machine in machines.values())]
        for key, label in _MACHINE_ROWS.items()
    ]
    rows += [
        [name, *(str(machine["packages"].get(name, "-")) for machine in machines.values())]
        for name in packages
    ]
    columns = [Column("What"), *(Column(name) for name in machines)]
    return Table(columns, rows, caption="The machine, and what ran on it")

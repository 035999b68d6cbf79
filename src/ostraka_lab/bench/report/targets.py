"""What we want, what was reached, and where the time goes that keeps the two apart."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ostraka_lab.bench.parties import GAUSSIAN, SKETCH
from ostraka_lab.bench.process import Figures
from ostraka_lab.bench.report import peers
from ostraka_lab.bench.scale.cell import UNCHECKED
from ostraka_lab.report import format
from ostraka_lab.report.page import Block, Column, Paragraph, Table

_PEERS = (64, 3_500_000)
_MANY = (1024, 250_000)
_COLUMNS = (
    Column("Target"),
    Column("wanted", number=True),
    Column("reached", number=True),
    Column("met"),
)


@dataclass(frozen=True)
class Target:
    """limit: the most that is wanted, or with `least` the least. beside: what else to know."""

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


def blocks(found: dict[str, Figures]) -> list[Block]:
    """Nothing where no size was measured that has a target."""
    targets = [
        *_beside_peers(found.get("peers")),
        *_headlines(found.get("paper")),
        *_growth(found.get("scale")),
    ]
    if not targets:
        return []
    shown: list[Block] = [Table(_COLUMNS, [target.row() for target in targets])]
    if not all(target.met for target in targets):
        shown += [*_profile(found), *_many(found.get("paper"))]
    return shown


def _beside_peers(figures: Figures | None) -> Iterator[Target]:
    if figures is None or (figures["clients"], figures["dim"]) != _PEERS:
        return
    rows = peers.by_name(figures)
    for name, part, peer, limit in (
        ("ostraka-exact-sketch", "cpu_s", "flower", 0.5),
        ("ostraka-exact-sketch", "cpu_s", "byzfl-torch", 0.35),
        ("ostraka-exact", "enclave_cpu_s", "flower", 1.0),
        ("ostraka-exact-sketch", "enclave_cpu_s", "floor", 3.0),
    ):
        if name in rows and peer in rows:
            who = f"{name}, enclave" if part == "enclave_cpu_s" else f"{name}, all roles"
            right = rows[name]["correct"] is not False
            ratio = rows[name][part] / rows[peer]["cpu_s"] if right else math.inf
            yield Target(f"CPU of {who} / {peer}", limit, ratio)


def _headlines(figures: Figures | None) -> Iterator[Target]:
    for each in figures["headline"] if figures else ():
        size = (each["clients"], each["dim"])
        rows = {row["name"]: row for row in each["rows"]}
        if size == _PEERS:
            ours = [row for name, row in rows.items() if name != GAUSSIAN]
            best = max(ours, key=lambda row: row["over_naive"])
            yield _gain(best, "naive", f"the loop inside, {size[0]} clients")
        if size == _MANY and SKETCH in rows:
            yield _gain(rows[SKETCH], "blas64", f"float64 BLAS inside, {size[0]} clients")


def _gain(row: Figures, base: str, inside: str) -> Target:
    beside = f"outliers alone {row[f'detection_over_{base}']:.3g}"
    if base == "blas64":
        beside += f"; float32 {row['over_blas32']:.3g}, {row['detection_over_blas32']:.3g}"
    what = f"Enclave's CPU of a round: {inside} / {row['name']}"
    return Target(what, 6.0, row[f"over_{base}"], least=True, beside=beside)


def _growth(figures: Figures | None) -> Iterator[Target]:
    for fit in figures["fits"] if figures else ():
        if (fit["variant"], fit["cost"]) == (UNCHECKED, "enclave_cpu_s") and fit["exponents_few"]:
            exponents = fit["exponents_few"]
            what = "Exponent of the enclave's CPU, exact masks without the check, up to 256 clients"
            yield Target(f"{what}: in N", 1.1, exponents["N"]["value"])
            yield Target(f"{what}: in d", 1.05, exponents["d"]["value"])


def _profile(found: dict[str, Figures]) -> Iterator[Block]:
    """Of a round on a sketch, from figure 3: of the network that is nearest to the targets."""
    bars = [
        bar
        for bar in found.get("paper", {}).get("figure3", ())
        if bar["masking"] == SKETCH and {"open", "encode", "aggregate"} <= bar["seconds"].keys()
    ]
    for bar in sorted(bars, key=lambda bar: abs(bar["dim"] - _PEERS[1]))[:1]:
        parts = {part: bar["seconds"][part] for part in ("open", "encode", "aggregate")}
        whole = ", ".join(f"{part} {format.seconds(s)}" for part, s in parts.items())
        yield Paragraph(
            f"Where the enclave's time goes, {bar['clients']} clients of {bar['network']} on a "
            f"sketch: {whole}. Encode is fingerprints, norms and folding. Aggregate opens and "
            "checks every update a second time, so that the host does not see who was selected "
            "and nobody can show the second pass other values, and averages in float64. "
            "docs/performance.md goes through it part by part."
        )


def _many(figures: Figures | None) -> Iterator[Block]:
    """Of a round with a thousand clients, from the headline."""
    for each in figures["headline"] if figures else ():
        rows = {row["name"]: row for row in each["rows"]}
        if (each["clients"], each["dim"]) == _MANY and SKETCH in rows:
            whole, first = (rows[SKETCH][name] for name in ("enclave_cpu_s", "detection_cpu_s"))
            yield Paragraph(
                f"With {each['clients']:,} clients the first pass is {format.seconds(first)} of "
                f"{format.seconds(whole)}; the rest, headers and the second pass, is needed inside "
                "as well, and so keeps the ratio of whole rounds low."
            )

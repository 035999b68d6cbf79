"""`ostraka bench paper`: the paper's figures 2a, 2b and 3 and its headline, on this machine.

Beside them is a table that the paper does not have: from how many clients on each scheme takes the
enclave less than measuring distances inside.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ostraka.errors import ConfigError
from ostraka_lab.bench import fit, machine
from ostraka_lab.bench.fit import Size
from ostraka_lab.bench.paper_measurements import BASELINES, MASKINGS, NETWORKS
from ostraka_lab.bench.parties import EXACT, GAUSSIAN, SKETCH, SKETCH_INSIDE
from ostraka_lab.bench.process import Begin, Figures
from ostraka_lab.bench.results import Parts

NOT_MEASURED = (
    "SGX itself: transitions into the enclave and out of it, and paging where the updates of a "
    "tile do not fit its memory. Everything ran outside of an enclave.",
    "The network: communication is bytes over a stated bandwidth.",
    "Workers on other machines: they ran on the same processor, one after the other.",
)
PARTS = ("figure2", "figure3", "headline", "offloading")
PAPER_GBIT_S = 8.0  # the paper's "1GBps switch"
NOISE_OFFLINE = "gaussian-offline"
LABELS = {
    "naive": "inside: loop over pairs",
    "blas64": "inside: BLAS float64",
    "blas32": "inside: BLAS float32",
    GAUSSIAN: "workers: Gaussian masks",
    NOISE_OFFLINE: "workers: Gaussian masks, noise made offline",
    EXACT: "workers: exact masks",
    SKETCH_INSIDE: "sketch, inside",
    SKETCH: "sketch, workers: exact masks",
}

_MEASUREMENTS = "ostraka_lab.bench.paper_measurements"
_BITS_A_BYTE, _GIGA = 8, 1e9
_QUICK_SHARE = 16
# What a round costs the enclave, at one d: so much for each client, and for each pair of them.
_ROUND_TERMS = ("N d", "N² m")
_MANY = 1_000_000  # clients: a scheme that pays only beyond this never pays


@dataclass(frozen=True)
class Suite:
    """What to run.

    parts: of `PARTS`. clients: of figures 2a and 2b. epoch_clients: of figure 3. headline,
    offloading: clients and dimension of each size. bandwidth: gigabits a second of the enclave's
    link, which carries everything. slowdown: the factor by which an enclave is assumed to be
    slower, for a table of its own; None for no such table. share: networks are divided by this.
    """

    parts: tuple[str, ...] = PARTS
    clients: tuple[int, ...] = (8, 16, 32, 64, 128)
    epoch_clients: int = 64
    headline: tuple[tuple[int, int], ...] = ((64, 3_500_000), (1024, 250_000))
    offloading: tuple[tuple[int, int], ...] = tuple((n, 262_144) for n in (16, 32, 64, 128, 256))
    bandwidth: float = PAPER_GBIT_S
    slowdown: float | None = None
    repeat: int = 3
    training_steps: int = 4
    share: int = 1

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.parts) - set(PARTS)):
            raise ConfigError(f"no part {', '.join(unknown)}; known: {', '.join(PARTS)}")
        if self.repeat < 1:
            raise ConfigError(f"repeat must be at least 1; got {self.repeat}")
        if not self.bandwidth > 0:
            raise ConfigError(f"bandwidth must be above 0; got {self.bandwidth}")
        if self.slowdown is not None and not self.slowdown >= 1:
            raise ConfigError(f"slowdown must be at least 1; got {self.slowdown}")

    @classmethod
    def quick(cls) -> "Suite":
        """A suite to see it work: each network is a sixteenth of its size.

        Updates are still several tiles long, so that the stages cost what they do at full size,
        and networks differ.
        """
        return cls(
            clients=(16, 32),
            epoch_clients=16,
            headline=((32, 3_500_000 // _QUICK_SHARE), (128, 131_072)),
            offloading=((16, 131_072), (64, 131_072), (128, 131_072)),
            repeat=2,
            training_steps=1,
            share=_QUICK_SHARE,
        )

    def sizes(self, part: str) -> tuple[tuple[int, int], ...]:
        """The clients and dimensions of the headline or of off-loading; none if not asked for."""
        every = {"headline": self.headline, "offloading": self.offloading}
        return every[part] if part in self.parts else ()


def run(suite: Suite, begin: Begin, parts: Parts) -> Figures:
    """Run the suite, and give its figures."""
    start = _Starter(suite, begin, parts)
    networks = start("networks")
    sizes = {name: dimension // suite.share for name, dimension in networks.items()}
    cells = [
        {"network": name} | start("distances", clients, dimension, suite.repeat)
        for name, dimension in sizes.items()
        for clients in (suite.clients if "figure2" in suite.parts else ())
    ]
    headlines = [start("headline", *size, suite.repeat) for size in suite.sizes("headline")]
    rounds = [start("headline", *size, suite.repeat) for size in suite.sizes("offloading")]
    epochs = [
        bar
        for name, dimension in (sizes if "figure3" in suite.parts else {}).items()
        for bar in _epochs(suite, name, dimension, start)
    ]
    return {
        "networks": networks,
        "measured_dimensions": sizes,
        "repeat": suite.repeat,
        "figure2a": [_inside(cell) for cell in cells],
        "figure2b": [row for cell in cells for row in _speedups(cell)],
        "figure3": epochs,
        "headline": headlines,
        "offloading": _offloading(rounds) if rounds else None,
        "bandwidth_gbit_s": suite.bandwidth,
        "slowdown": _slowed(suite.slowdown, headlines),
        "not_measured": list(NOT_MEASURED),
        "machine": machine.describe(threads=1),
    }


class _Starter:
    """Starts one measurement after the other, and counts them."""

    def __init__(self, suite: Suite, begin: Begin, parts: Parts) -> None:
        figure2 = len(suite.clients) if "figure2" in suite.parts else 0
        figure3 = len(MASKINGS) + 1 if "figure3" in suite.parts else 0
        rounds = len(suite.sizes("headline")) + len(suite.sizes("offloading"))
        self._of = 1 + rounds + len(NETWORKS) * (figure2 + figure3)
        self._begin = begin
        self._parts = parts
        self._done = 0

    def __call__(self, *words: object) -> Figures:
        def step(what: str, *_: int) -> None:
            self._begin(what, self._done, self._of)

        part = self._parts.measure(_MEASUREMENTS, [str(word) for word in words], step)
        self._done += 1
        return part.figures


def _inside(cell: Figures) -> Figures:
    """Make a point of figure 2a."""
    return {
        "network": cell["network"],
        "clients": cell["clients"],
        "dimension": cell["dimension"],
        "columns_measured": cell["columns"],
        **{f"{name}_s": cell["seconds"][name] for name in BASELINES},
        "spread": {name: cell["spread"][name] for name in BASELINES},
    }


def _speedups(cell: Figures) -> list[Figures]:
    """Make the points of figure 2b, one per kernel and device, with opening subtracted."""
    seconds = cell["seconds"]
    rows = []
    for name in (each for each in seconds if each.startswith("worker-")):
        _, masking, device = name.split("-")
        rows.append(
            {
                "network": cell["network"],
                "clients": cell["clients"],
                "masking": masking,
                "device": device,
                "clock": "cpu" if device == "cpu" else "wall",
                "kernel_s": seconds[name],
                **{
                    f"over_{base}": max(seconds[base] - seconds["open"], 0) / seconds[name]
                    for base in BASELINES
                },
            }
        )
    return rows


def _epochs(suite: Suite, network: str, dimension: int, start: _Starter) -> list[Figures]:
    """Make the bars of figure 3 for one network."""
    trained = start("training", network, suite.epoch_clients, suite.training_steps)
    bars = []
    for masking in MASKINGS:
        figures = start("epoch", suite.epoch_clients, dimension, masking, suite.repeat)
        bars.append(
            {"network": network, "masking": masking} | _bar(suite, dimension, figures, trained)
        )
    return bars


def _bar(suite: Suite, dimension: int, figures: Figures, trained: Figures) -> Figures:
    clients = suite.epoch_clients
    carried = figures["uploaded_bytes"] + figures["shared_bytes"] + 4 * dimension * clients
    return {
        "clients": clients,
        "dimension": dimension,
        "sketch": figures["sketch"],
        "seconds": {
            "training": trained["step_s"] * trained["batches"],
            "communication": carried * _BITS_A_BYTE / (suite.bandwidth * _GIGA),
            **figures["parts"],
        },
        "bytes": carried,
        "training_steps_timed": trained["steps_timed"],
        "training_steps": trained["batches"],
        "spread": figures["spread"],
    }


def _offloading(rounds: Sequence[Figures]) -> Figures:
    """The enclave's CPU of a round by clients and by scheme, and from where each scheme pays.

    Workers on a sketch have one more way to beat: the same sketch without workers.
    """
    rows = [_by_scheme(each) for each in rounds]
    schemes = [name for name in rows[-1]["seconds"] if name not in BASELINES]
    pays = {}
    for name in schemes:
        bases = [*BASELINES, SKETCH_INSIDE] if name == SKETCH else list(BASELINES)
        pays[name] = {base: _pays(rows, name, base) for base in bases}
    return {"rows": rows, "pays": pays}


def clients_where(pays: Sequence[int | None] | None) -> str:
    """What `_pays` gives, in words."""
    if pays is None:
        return "never"
    first, last = pays
    if last is not None:
        return f"up to {last:,}"
    return "always" if first == 1 else f"from {first:,}"


def _by_scheme(each: Figures) -> Figures:
    seconds = {name: inside["enclave_cpu_s"] for name, inside in each["inside"].items()}
    for row in each["rows"]:
        seconds[row["name"]] = row["enclave_cpu_s"]
        if row["name"] == GAUSSIAN:
            seconds[NOISE_OFFLINE] = row["enclave_cpu_s"] - row["prepare_cpu_s"]
    return {"clients": each["clients"], "dimension": each["dimension"], "seconds": seconds}


def _pays(rows: Sequence[Figures], scheme: str, base: str) -> list[int | None] | None:
    """The first and the last number of clients for which the scheme takes less than the base.

    The last is None if there is none, and all is None if it never takes less. Both costs are
    fitted to a cost per value and a cost per value and pair of clients, so that the gain per
    client is a line in N.
    """
    sizes = [Size(row["clients"], row["dimension"], row["dimension"]) for row in rows]
    ours, theirs = (
        fit.terms(sizes, [row["seconds"][name] for row in rows], _ROUND_TERMS)
        for name in (scheme, base)
    )
    by_value, by_pair = (theirs[term] - ours[term] for term in _ROUND_TERMS)
    few, many = by_value + by_pair > 0, by_value + by_pair * _MANY > 0
    if few == many:
        return [1, None] if few else None
    crossing = -by_value / by_pair
    return [math.ceil(crossing), None] if many else [1, math.floor(crossing)]


def _slowed(factor: float | None, headlines: Sequence[Figures]) -> Figures | None:
    """What the whole round would gain if the enclave's work took `factor` times longer.

    The factor is the user's assumption. It is kept apart from what was measured.
    """
    if factor is None:
        return None
    rows = [
        {
            "clients": each["clients"],
            "dimension": each["dimension"],
            "name": row["name"],
            **{
                f"round_over_{base}": factor
                * inside["enclave_cpu_s"]
                / (factor * row["enclave_cpu_s"] + row["slowest_worker_s"])
                for base, inside in each["inside"].items()
            },
        }
        for each in headlines
        for row in each["rows"]
    ]
    return {"factor": factor, "assumed": True, "rows": rows}

"""`ostraka bench paper`: the paper's figures 2a, 2b and 3 and its headline, on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass

from ostraka.errors import ConfigError
from ostraka_lab.bench import machine
from ostraka_lab.bench.paper_measurements import BASELINES, MASKINGS, NETWORKS
from ostraka_lab.bench.process import Begin, Figures
from ostraka_lab.bench.results import Parts

NOT_MEASURED = (
    "SGX itself: transitions into the enclave and out of it, and paging where the updates of a "
    "tile do not fit its memory. Everything ran outside of an enclave.",
    "The network: communication is bytes over a stated bandwidth.",
    "Workers on other machines: they ran on the same processor, one after the other.",
)
_MEASUREMENTS = "ostraka_lab.bench.paper_measurements"
_BITS_A_BYTE, _GIGA = 8, 1e9
_QUICK_DIMENSION = 60_000


@dataclass(frozen=True)
class Suite:
    """What to run.

    clients: of figures 2a and 2b. epoch_clients: of figure 3. headline: clients and dimension of
    each size. bandwidth: gigabits a second of the enclave's link, which carries everything.
    slowdown: the factor by which an enclave is assumed to be slower, for a table of its own; None
    for no such table. longest: the most values of an update.
    """

    clients: tuple[int, ...] = (8, 16, 32, 64, 128)
    epoch_clients: int = 64
    headline: tuple[tuple[int, int], ...] = ((64, 3_500_000), (1024, 250_000))
    bandwidth: float = 1.0
    slowdown: float | None = None
    repeat: int = 3
    training_steps: int = 4
    longest: int | None = None

    def __post_init__(self) -> None:
        if self.repeat < 1:
            raise ConfigError(f"repeat must be at least 1; got {self.repeat}")
        if not self.bandwidth > 0:
            raise ConfigError(f"bandwidth must be above 0; got {self.bandwidth}")
        if self.slowdown is not None and not self.slowdown >= 1:
            raise ConfigError(f"slowdown must be at least 1; got {self.slowdown}")

    @classmethod
    def quick(cls, *, bandwidth: float, slowdown: float | None) -> "Suite":
        """A suite to see it work: everything is small, and runs once."""
        return cls(
            clients=(8, 16),
            epoch_clients=16,
            headline=((16, _QUICK_DIMENSION), (64, 8192)),
            bandwidth=bandwidth,
            slowdown=slowdown,
            repeat=1,
            training_steps=1,
            longest=_QUICK_DIMENSION,
        )


def run(suite: Suite, begin: Begin, parts: Parts) -> Figures:
    """Run the suite, and give its figures."""
    start = _Starter(suite, begin, parts)
    networks = start("networks")
    sizes = {
        name: min(dimension, suite.longest or dimension) for name, dimension in networks.items()
    }
    cells = [
        {"network": name} | start("distances", clients, dimension, suite.repeat)
        for name, dimension in sizes.items()
        for clients in suite.clients
    ]
    headlines = [start("headline", *size, suite.repeat) for size in suite.headline]
    epochs = [
        bar for name, dimension in sizes.items() for bar in _epochs(suite, name, dimension, start)
    ]
    return {
        "networks": networks,
        "measured_dimensions": sizes,
        "repeat": suite.repeat,
        "figure2a": [_inside(cell) for cell in cells],
        "figure2b": [row for cell in cells for row in _speedups(cell)],
        "figure3": epochs,
        "headline": headlines,
        "bandwidth_gbit_s": suite.bandwidth,
        "slowdown": _slowed(suite.slowdown, headlines),
        "not_measured": list(NOT_MEASURED),
        "machine": machine.describe(threads=1),
    }


class _Starter:
    """Starts one measurement after the other, and counts them."""

    def __init__(self, suite: Suite, begin: Begin, parts: Parts) -> None:
        each_network = len(suite.clients) + len(MASKINGS) + 1
        self._of = 1 + len(suite.headline) + len(NETWORKS) * each_network
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

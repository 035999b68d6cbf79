"""All of the paper's experiments, one process after the other."""

from collections.abc import Sequence
from dataclasses import dataclass

from ostraka.errors import ConfigError
from ostraka_lab.bench import machine
from ostraka_lab.bench.paper import MASKINGS, NETWORKS
from ostraka_lab.bench.paper.distances import Size
from ostraka_lab.bench.process import Begin, Figures
from ostraka_lab.bench.resume import Parts

NOT_MEASURED = (
    "SGX itself: transitions into the enclave and out of it, and paging where the updates of a "
    "tile do not fit its memory. Everything ran outside of an enclave.",
    "The network: communication is bytes over a stated bandwidth.",
    "Workers on other machines: theirs ran on the same processor, one after the other.",
)
_BITS_A_BYTE, _GIGA = 8, 1e9
_QUICK_DIM = 60_000


@dataclass(frozen=True)
class Suite:
    """What to run.

    clients: of figures 2a and 2b. epoch_clients: of figure 3. headline: clients and dimension of
    each size. bandwidth: gigabits a second of the enclave's link, which carries everything.
    slowdown: how much slower an enclave is taken to be, for a figure of its own; None: no such one.
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
            raise ConfigError(f"a bandwidth is positive; got {self.bandwidth}")
        if self.slowdown is not None and not self.slowdown >= 1:
            raise ConfigError(f"a slow-down is at least 1; got {self.slowdown}")

    @classmethod
    def quick(cls, *, bandwidth: float, slowdown: float | None) -> "Suite":
        """To see it work: everything small, and once."""
        return cls(
            clients=(8, 16),
            epoch_clients=16,
            headline=((16, _QUICK_DIM), (64, 8192)),
            bandwidth=bandwidth,
            slowdown=slowdown,
            repeat=1,
            training_steps=1,
            longest=_QUICK_DIM,
        )


def run(suite: Suite, begin: Begin, parts: Parts) -> Figures:
    """The figures of `ostraka bench paper`."""
    start = _Starter(suite, begin, parts)
    networks = start("networks")
    sizes = {name: min(dim, suite.longest or dim) for name, dim in networks.items()}
    cells = [
        {"network": name} | start("distances", Size(clients, dim, suite.repeat).to_json())
        for name, dim in sizes.items()
        for clients in suite.clients
    ]
    headlines = [start("headline", *size, suite.repeat) for size in suite.headline]
    epochs = [bar for name, dim in sizes.items() for bar in _epochs(suite, name, dim, start)]
    return {
        "networks": networks,
        "measured_dims": sizes,
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
    """Starts one process after the other, and counts them."""

    def __init__(self, suite: Suite, begin: Begin, parts: Parts) -> None:
        each_network = len(suite.clients) + len(MASKINGS) + 1
        self._of = 1 + len(suite.headline) + len(NETWORKS) * each_network
        self._begin = begin
        self._parts = parts
        self._done = 0

    def __call__(self, module: str, *arguments: object) -> Figures:
        def step(what: str, *_: int) -> None:
            self._begin(what, self._done, self._of)

        words = [str(each) for each in arguments]
        part = self._parts.measure(f"ostraka_lab.bench.paper.{module}", words, step)
        self._done += 1
        return part.figures


def _inside(cell: Figures) -> Figures:
    """A point of figure 2a."""
    names = ("naive", "blas32", "blas64")
    return {
        "network": cell["network"],
        "clients": cell["clients"],
        "dim": cell["dim"],
        "columns_measured": cell["columns"],
        **{f"{name}_s": cell["seconds"][name] for name in names},
        "spread": {name: cell["spread"][name] for name in names},
    }


def _speedups(cell: Figures) -> list[Figures]:
    """Points of figure 2b, one a kernel and device. Opening is taken off first."""
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
                    for base in ("naive", "blas32", "blas64")
                },
            }
        )
    return rows


def _epochs(suite: Suite, network: str, dim: int, start: _Starter) -> list[Figures]:
    """The bars of figure 3 for one network."""
    trained = start("training", network, suite.epoch_clients, suite.training_steps)
    bars = []
    for masking in MASKINGS:
        figures = start("epoch", suite.epoch_clients, dim, masking, suite.repeat)
        bars.append({"network": network, "masking": masking} | _bar(suite, dim, figures, trained))
    return bars


def _bar(suite: Suite, dim: int, figures: Figures, trained: Figures) -> Figures:
    clients = suite.epoch_clients
    carried = figures["uploaded_bytes"] + figures["shared_bytes"] + 4 * dim * clients
    return {
        "clients": clients,
        "dim": dim,
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
    """What the whole round would gain if all that the enclave does took so many times longer.

    A guess of whoever gave the factor, and kept apart from what was measured.
    """
    if factor is None:
        return None
    rows = [
        {
            "clients": each["clients"],
            "dim": each["dim"],
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

"""`ostraka bench kernels`: one small function per stage of a round, and one table of them all.

python -m ostraka_lab.bench.kernels PLAN DIRECTORY

A stage gets the workload and a stopwatch, and runs the clock over what the enclave would do. What
clients and workers do meanwhile is not counted.
"""

import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ostraka.arrays import AnyArray, Float32, Float64
from ostraka.core import gaussian, gram, loops, uploads
from ostraka.crypto import identity
from ostraka.crypto.masks import mask_tile
from ostraka.crypto.stream import SecretStream
from ostraka.errors import ConfigError
from ostraka.protocol.enclave import Inside, gather
from ostraka.protocol.enclave.encoders import LeadingGram
from ostraka_lab.bench.enclave_memory import enclave_peak_bytes
from ostraka_lab.bench.machine import Stopwatch, available_bytes
from ostraka_lab.bench.parties import Attempt, Workload, cast, sketch_size
from ostraka_lab.bench.process import Begin, Figures, report, run_module
from ostraka_lab.bench.results import spread
from ostraka_lab.bench.whole_round import prepared_apart

# All ratios are to this stage, which is always measured.
REFERENCE = "open"
# The stage whose round the enclave's memory is measured in.
WHOLE_ROUND = "gaussian_online"

# Gram-Schmidt runs on fewer columns where rows^2 x columns would exceed this: half a minute.
_MGS_WORK = 16_000_000_000
_BASE_BYTES = 200 * 2**20  # interpreter, numpy and BLAS, twice
_MIB, _GIB = 2**20, 2**30


def open_updates(load: Workload, clock: Stopwatch) -> None:
    raw = np.empty(load.terms.tile, np.float32)
    with clock:
        for index in range(load.tiling.count):
            out = raw[: load.tiling.size(index)].view(np.uint8)
            for row in range(load.clients):
                load.open_row(index, row, out)


def average(load: Workload, clock: Stopwatch) -> None:
    updates, weights = load.updates, _weights(load)
    mean = np.empty(load.dimension, np.float32)
    with clock:
        for index in range(load.tiling.count):
            part = load.tiling.part(index)
            np.matmul(weights, updates[:, part], out=mean[part])


def floor(load: Workload, clock: Stopwatch) -> Float32:
    """Open and average. Gives the mean (d,) of the first k rows."""
    weights, block = _weights(load), _block(load)
    mean = np.empty(load.dimension, np.float32)
    with clock:
        for index in range(load.tiling.count):
            opened = load.open_tile(index, block)
            np.matmul(weights, opened, out=mean[load.tiling.part(index)])
    return mean


def headers(load: Workload, clock: Stopwatch) -> None:
    intake = load.intake()
    identity.forget()  # A service has not seen these headers before.
    with clock:
        for header in load.headers:
            intake.accept(header)


def arrival(load: Workload, clock: Stopwatch) -> None:
    load.receive(clock, sketch=None)
    del load.rows  # They have no sketches, which other stages need.


def arrival_sketch(load: Workload, clock: Stopwatch) -> None:
    load.receive(clock, sketch=load.sketch)


def inside_naive(load: Workload, clock: Stopwatch) -> None:
    _inside(load, clock, gram.add_naive)


def inside_blas32(load: Workload, clock: Stopwatch) -> None:
    _inside(load, clock, gram.add_gram32)


def inside_blas64(load: Workload, clock: Stopwatch) -> None:
    wide = np.empty((load.clients, load.terms.tile))

    def add(total: Float64, block: Float32) -> None:
        widened = wide[:, : block.shape[1]]
        np.copyto(widened, block)
        gram.add_gram(total, widened)

    _inside(load, clock, add)


def inside_int8(load: Workload, clock: Stopwatch) -> None:
    rows = _integers(load)
    total = np.zeros((load.clients, load.clients), np.int64)
    with clock:
        for index in range(load.tiling.count):
            part = load.tiling.part(index)
            loops.add_gram([row[part] for row in rows], total, range(load.clients))


def gaussian_online(load: Workload, clock: Stopwatch) -> None:
    _masked(clock, load.attempt("gaussian"))


def exact_online(load: Workload, clock: Stopwatch) -> None:
    _masked(clock, load.attempt("exact"))


def exact_sketch(load: Workload, clock: Stopwatch) -> None:
    _masked(clock, load.attempt("exact", sketch=True))


def sketch_inside(load: Workload, clock: Stopwatch) -> None:
    inside = Inside(load.attempt("exact", sketch=True).cohort, load.threads)
    with clock:
        inside.measure()


def second_pass(load: Workload, clock: Stopwatch) -> None:
    attempt = load.attempt("exact", sketch=True)
    measured = gather(attempt.cohort, [Inside(attempt.cohort, load.threads).measure()])
    with clock:
        attempt.host(clock).finish(attempt.cohort, measured)


def noise_normals(load: Workload, clock: Stopwatch) -> None:
    seed = bytes(32)
    with clock:
        for index in range(load.tiling.count):
            shape = (load.clients, load.tiling.size(index))
            SecretStream(seed, stream=index).normal(shape)


def noise_orth(load: Workload, clock: Stopwatch) -> None:
    normals, wide = load.updates, np.empty((2, load.clients, load.terms.tile))

    def blocks() -> Iterator[Float64]:
        for index in range(load.tiling.count):
            block = wide[0, :, : load.tiling.size(index)]
            np.copyto(block, normals[:, load.tiling.part(index)])
            yield block

    with clock:
        factors = gaussian.transform(blocks, sigma=1.0)
        for block in blocks():
            gaussian.apply(factors, block, out=wide[1, :, : block.shape[1]])


def noise_mgs(load: Workload, clock: Stopwatch) -> None:
    n, d = load.clients, load.dimension
    columns = min(d, max(n, _MGS_WORK // n**2))
    normals = load.updates[:, :columns]
    with clock:
        gaussian.gram_schmidt(normals, sigma=1.0)
    clock.extrapolate(part=columns, whole=d)


def mask_gram(load: Workload, clock: Stopwatch) -> None:
    leading, seed = LeadingGram(load.clients, load.tiling), bytes(32)
    for index in range(load.tiling.count):
        mask = mask_tile(seed, load.clients, load.tiling, index)
        with clock:
            leading.keep(range(load.clients), mask)
            leading.end_tile()


def _masked(clock: Stopwatch, attempt: Attempt) -> None:
    with prepared_apart(clock.paused), clock:
        attempt.host(clock).measure(attempt.cohort)


def _inside(load: Workload, clock: Stopwatch, add: Callable[[Float64, Float32], None]) -> None:
    block, total = _block(load), np.zeros((load.clients, load.clients))
    with clock:
        for index in range(load.tiling.count):
            add(total, load.open_tile(index, block))


def _integers(load: Workload) -> list[AnyArray]:
    """The updates as int8."""
    fill = SecretStream(bytes(32)).fill
    return [uploads.INT8.encode(row, fill).values for row in load.updates]


def _block(load: Workload) -> Float32:
    return np.empty((load.clients, load.terms.tile), np.float32)


def _weights(load: Workload) -> Float32:
    """The mean of the first k rows, as weights over all of them."""
    k = load.clients - load.terms.f
    weights = np.zeros(load.clients, np.float32)
    weights[:k] = 1 / k
    return weights


@dataclass(frozen=True)
class Stage:
    """A row of the table.

    once: not repeated, because it is costly. extra: bytes of memory per value of an update, beyond
    the updates, their ciphertext and the enclave's rows. sketches: only where updates are long
    enough for a sketch.
    """

    run: Callable[[Workload, Stopwatch], object]
    what: str
    once: bool = False
    extra: int = 0
    sketches: bool = False


STAGES = {
    "open": Stage(open_updates, "open every update once (AES-256-GCM)"),
    "average": Stage(average, "average k updates in the clear"),
    "floor": Stage(floor, "open every update once and average k"),
    "inside_naive": Stage(inside_naive, "open, distances pair by pair in the enclave"),
    "inside_blas32": Stage(inside_blas32, "open, float32 Gram matrix in the enclave"),
    "inside_blas64": Stage(inside_blas64, "open, float64 Gram matrix in the enclave"),
    "inside_int8": Stage(inside_int8, "close: Gram matrix of int8 rows in the enclave", extra=1),
    "headers": Stage(headers, "arrival: check and open the header of every update"),
    "arrival": Stage(arrival, "arrival: open every tile into its row, and check it"),
    "arrival_sketch": Stage(arrival_sketch, "the same, and fold it to a sketch", sketches=True),
    "sketch_inside": Stage(
        sketch_inside, "close: inner products of sketches, no workers", sketches=True
    ),
    "exact_online": Stage(exact_online, "close: exact masks on rows, checked and decoded"),
    "exact_sketch": Stage(exact_sketch, "the same on sketches", sketches=True),
    "gaussian_online": Stage(gaussian_online, "close: Gaussian masks on rows, without the noise"),
    "second_pass": Stage(second_pass, "close: decide, average, sign", sketches=True),
    "mask_gram": Stage(
        mask_gram, "prepare: the Gram matrix of an exact mask, for 2, 4 or 6 workers", once=True
    ),
    "noise_normals": Stage(
        noise_normals, "prepare: secret normals for Gaussian masks, once of twice", once=True
    ),
    "noise_orth": Stage(noise_orth, "prepare: orthogonalise them by CholeskyQR"),
    "noise_mgs": Stage(noise_mgs, "prepare: the same by modified Gram-Schmidt", once=True, extra=8),
}


# What a whole round is made of: what is done as updates arrive, what measures them, and the rest.
ROUNDS = {
    "sketch": ("arrival_sketch", "exact_sketch", "second_pass"),
    "sketch-inside": ("arrival_sketch", "sketch_inside", "second_pass"),
    "exact": ("arrival", "exact_online", "second_pass"),
}


@dataclass(frozen=True)
class Plan:
    """Sizes and stages of one run. only: empty for all stages."""

    clients: int
    dimension: int
    threads: int = 1
    repeat: int = 3
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("threads", "repeat"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1; got {getattr(self, name)}")
        if unknown := sorted(set(self.only) - set(STAGES)):
            raise ConfigError(f"no stage {', '.join(unknown)}; known: {', '.join(STAGES)}")
        cast(self.clients, self.dimension, masking="gaussian")
        if impossible := sorted(set(self.only) - set(self.stages)):
            raise ConfigError(
                f"{', '.join(impossible)} need a sketch, and none is possible for {self.clients} "
                f"clients of {self.dimension} values"
            )

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages to run, in the table's order."""
        wanted = {REFERENCE, *(self.only or STAGES)}
        sketches = sketch_size(self.clients, self.dimension) is not None
        return tuple(
            name
            for name, stage in STAGES.items()
            if name in wanted and (sketches or not stage.sketches)
        )

    @property
    def memory_bytes(self) -> int:
        """About what the run needs: updates, ciphertext, rows, and what the stages add."""
        per_value = 12 + sum(STAGES[name].extra for name in self.stages)
        return self.clients * self.dimension * per_value + _BASE_BYTES

    @property
    def disk_bytes(self) -> int:
        """The disk that the enclave's own process needs: ciphertext of updates."""
        return self.clients * self.dimension * 4 if WHOLE_ROUND in self.stages else 0

    def require_room(self) -> None:
        """Raises ConfigError if this machine is too small."""
        _require("memory", self.memory_bytes, available_bytes(), self)
        free = shutil.disk_usage(tempfile.gettempdir()).free
        _require(f"disk in {tempfile.gettempdir()}", self.disk_bytes, free, self)


def _require(what: str, needed: int, available: int, plan: Plan) -> None:
    if needed > available:
        raise ConfigError(
            f"{plan.clients} clients of {plan.dimension} values need about {needed / _GIB:.1f} GiB "
            f"of {what}; {available / _GIB:.1f} GiB are available: take fewer, or --only some "
            "stages"
        )


def measure(plan: Plan, directory: Path, begin: Begin) -> Figures:
    """Run the plan. directory: for files, which the caller removes."""
    turns = list(_turns(plan))
    steps = 2 + len(turns)
    peak = None
    if WHOLE_ROUND in plan.stages:
        begin("enclave memory", 0, steps)
        peak = enclave_peak_bytes(
            plan.clients, plan.dimension, masking="gaussian", directory=directory
        )

    begin("sealing updates", 1, steps)
    load = Workload(plan.clients, plan.dimension, plan.threads)
    # The first pass over new memory is slower than all others, and is not counted.
    STAGES[REFERENCE].run(load, Stopwatch())
    clocks: dict[str, list[Stopwatch]] = {name: [] for name in plan.stages}
    for done, name in enumerate(turns, 2):
        begin(name, done, steps)
        clock = Stopwatch()
        STAGES[name].run(load, clock)
        clocks[name].append(clock)

    return {
        "clients": plan.clients,
        "dimension": plan.dimension,
        "threads": plan.threads,
        "repeat": plan.repeat,
        "tile": load.terms.tile,
        "loops": loops.kind(),
        "sketch": sketch_size(plan.clients, plan.dimension),
        "enclave_rss_mib": None if peak is None else peak / _MIB,
        "stages": (stages := summary(clocks)),
        "rounds": whole_rounds(stages),
    }


def _turns(plan: Plan) -> Iterator[str]:
    """Yield the stages in the order in which they run.

    Every repetition runs every stage, so that other load on the machine hits all of them alike. The
    reference, by which all others are divided, runs between any two.
    """
    for repeat in range(plan.repeat):
        yield REFERENCE
        for name in plan.stages:
            if name != REFERENCE and (repeat == 0 or not STAGES[name].once):
                yield from (name, REFERENCE)


def summary(clocks: dict[str, list[Stopwatch]]) -> Figures:
    """Give medians in seconds and in multiples of the reference, and the relative range."""
    seconds = {name: [clock.seconds for clock in runs] for name, runs in clocks.items()}
    reference = statistics.median(seconds[REFERENCE])
    stages: Figures = {}
    for name, runs in seconds.items():
        median = statistics.median(runs)
        stages[name] = {
            "cpu_s": median,
            "x_open": median / reference,
            "spread": spread(runs),
        }
        if note := clocks[name][0].note:
            stages[name]["note"] = note
    return stages


def whole_rounds(stages: Figures) -> Figures:
    """Add up the rounds whose stages are all there, in multiples of the reference.

    measure_x_open: arrival and inner products. close_x_open: what is left at the close. x_open: all
    of it, headers included.
    """
    found: Figures = {}
    for name, parts in ROUNDS.items():
        if {"headers", *parts} <= stages.keys():
            arrives, measures, rest = (stages[part]["x_open"] for part in parts)
            found[name] = {
                "measure_x_open": arrives + measures,
                "close_x_open": measures + rest,
                "x_open": stages["headers"]["x_open"] + arrives + measures + rest,
            }
    return found


def _plan(text: str) -> Plan:
    fields = json.loads(text)
    return Plan(**fields | {"only": tuple(fields["only"])})


def main(plan: str, directory: str) -> int:
    return report(lambda begin: measure(_plan(plan), Path(directory), begin))


def run_kernels(plan: Plan, begin: Begin) -> Figures:
    """Measure a plan in a process of its own."""
    plan.require_room()
    with tempfile.TemporaryDirectory(prefix="ostraka-bench-") as directory:
        arguments = [json.dumps(asdict(plan)), directory]
        return run_module("ostraka_lab.bench.kernels", arguments, begin, threads=plan.threads)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

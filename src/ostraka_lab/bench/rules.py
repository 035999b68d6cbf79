"""`ostraka bench rules`: what an aggregation rule costs the enclave, beside its whole round.

python -m ostraka_lab.bench.rules CLIENTS DIMENSION THREADS REPEAT

A rule of weights costs what it takes to decide. A column-wise rule costs a longer second pass. Both
are measured in one process, in turns, on the same sealed updates. Figures are CPU seconds of the
enclave alone, and medians.
"""

import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ostraka.arrays import Float32
from ostraka.core import loops, optimiser, rules
from ostraka.core.columns import Reducer, Reduction, Scratch
from ostraka.core.rules import Composition, Options
from ostraka.errors import ConfigError
from ostraka.protocol.enclave import Cohort, Measured, combine, decide
from ostraka_lab.bench import kernels, machine
from ostraka_lab.bench.machine import Stopwatch, available_bytes
from ostraka_lab.bench.parties import (
    Attempt,
    Cast,
    Workload,
    byzantine,
    cast,
    sketch_size,
    update,
)
from ostraka_lab.bench.process import Begin, Figures, report
from ostraka_lab.bench.whole_round import prepared_apart

EXACT, SKETCH = "exact masks", "sketch inside"
LAST = "last aggregate"
COLUMNWISE = (
    "trimmed-mean",
    "median",
    "meamed",
    "bulyan",
    "nnm+trimmed-mean",
    "nnm+median",
)

_ROOT = "client-0"
_DECISIONS = 3  # in a turn: one takes milliseconds
_ROWS = (16, 32, 64, 128, 256)
_REDUCERS: tuple[Reducer, ...] = ("median", "trimmed", "near-median")
_COLUMNS = 16_384
_GIB = 2**30
_BYTES_A_VALUE = 9  # ciphertext, rows, and what is made of them on the way
_BASE_BYTES = 200 * 2**20  # interpreter, numpy and BLAS


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    clients: int = 64
    dimension: int = 3_500_000
    threads: int = 1
    repeat: int = 3

    def __post_init__(self) -> None:
        for name in ("threads", "repeat"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1; got {getattr(self, name)}")
        cast(self.clients, self.dimension, masking="exact")
        needed = self.clients * self.dimension * _BYTES_A_VALUE + _BASE_BYTES
        if needed > available_bytes():
            raise ConfigError(
                f"{self.clients} clients of {self.dimension} values need about "
                f"{needed / _GIB:.1f} GiB of memory; {available_bytes() / _GIB:.1f} GiB are "
                "available: take fewer"
            )

    @property
    def words(self) -> list[str]:
        return [str(each) for each in (self.clients, self.dimension, self.threads, self.repeat)]


def compositions() -> Iterator[Composition]:
    """One for every rule of weights, after what usually comes before it."""
    for name, rule in rules.RULES.items():
        if not rule.columnwise:
            pre = ("nnm",) if name == "krum" else rules.usual_pre(name)
            yield rules.compose(name, pre, Options(root=_ROOT) if rule.needs_root else None)


@dataclass
class Meter:
    """CPU seconds by what was measured."""

    runs: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))

    def time(self, kind: str, name: str, work: Callable[[Stopwatch], object]) -> None:
        """work runs the clock."""
        clock = Stopwatch()
        work(clock)
        self.runs[kind, name].append(clock.seconds)

    def median(self, kind: str, name: str) -> float:
        return statistics.median(self.runs[kind, name])


def measure(plan: Plan, begin: Begin) -> Figures:
    """Run all of it."""
    begin("sealing updates", 0, plan.repeat + 2)
    # In common, so that no rule takes them for strangers.
    common = update(plan.clients, plan.dimension)
    load = Workload(
        plan.clients,
        plan.dimension,
        plan.threads,
        lambda row: common + update(row, plan.dimension),
    )
    meter = Meter()
    for turn in range(plan.repeat):
        begin(f"rounds and rules, {turn + 1} of {plan.repeat}", turn + 1, plan.repeat + 2)
        measured = _round(load, EXACT, meter)
        if sketch_size(plan.clients, plan.dimension):
            _round(load, SKETCH, meter)
        _decisions(load, measured, meter)
        _second_passes(load, measured, meter)
        meter.time("first", LAST, partial(_compare_to_last, load))
    begin("networks and sorts", plan.repeat + 1, plan.repeat + 2)
    return {
        "clients": plan.clients,
        "dimension": plan.dimension,
        "threads": plan.threads,
        "repeat": plan.repeat,
        "tile": load.terms.tile,
        "machine": machine.describe(threads=plan.threads) | {"vaes": machine.has_flag("vaes")},
        **_summary(load, meter),
        "reductions": [_reduction(n, each) for n in _ROWS for each in _REDUCERS],
    }


def _round(load: Workload, kind: str, meter: Meter) -> Measured:
    """The whole round of the enclave, headers and arrival included, under the default rule."""

    def arrive(clock: Stopwatch) -> None:
        kernels.headers(load, clock)
        (kernels.arrival if kind == EXACT else kernels.arrival_sketch)(load, clock)

    meter.time("arrive", kind, arrive)
    if kind == EXACT:
        attempt, found = load.attempt("exact"), list[Measured]()
    else:
        attempt, found = load.attempt("none", sketch=True), []

    def first(clock: Stopwatch) -> None:
        with prepared_apart(clock.paused), clock:
            found.append(attempt.host(clock).measure(attempt.cohort))

    def second(clock: Stopwatch) -> None:
        with clock:
            attempt.host(clock).finish(attempt.cohort, found[0])

    meter.time("first", kind, first)
    meter.time("rest", kind, second)
    return found[0]


def _decisions(load: Workload, measured: Measured, meter: Meter) -> None:
    for composition in compositions():
        cohort = _under(load, composition)

        def work(clock: Stopwatch, cohort: Cohort = cohort) -> None:
            with clock:
                decide(cohort, measured)

        for _ in range(_DECISIONS):
            meter.time("decide", composition.plain, work)


def _second_passes(load: Workload, measured: Measured, meter: Meter) -> None:
    for name in (rules.DEFAULT, *COLUMNWISE):
        if _f(load, composition := rules.parse(name)) is None:
            continue
        cohort = _under(load, composition)
        plan = decide(cohort, measured)

        def work(clock: Stopwatch, cohort: Cohort = cohort, plan: rules.Plan = plan) -> None:
            with clock:
                combine(cohort, measured.scales, plan, load.threads)

        meter.time("second", name, work)


def _compare_to_last(load: Workload, clock: Stopwatch) -> None:
    """What arrival does besides, for a rule that starts from the last aggregate."""
    pieces, last = load.parties.federation.pieces, np.zeros(load.dimension, np.float32)
    space = np.empty(pieces.tile, np.float32)
    for row in load.rows:
        for index in range(pieces.count):
            values = row.values.read(index, space)
            with clock:
                loops.dot(values, last[pieces.part(index)])


def _f(load: Workload, composition: Composition) -> int | None:
    """A fifth of the clients, or as many as the rule allows; None if it needs more clients."""
    most = range(byzantine(load.clients), -1, -1)
    return next((f for f in most if composition.least(f) <= load.clients), None)


def _under(load: Workload, composition: Composition) -> Cohort:
    """The same rows under another rule."""
    parties = cast(load.clients, load.dimension, masking="exact")
    terms = replace(
        parties.terms,
        f=_f(load, composition) or 0,
        rule=composition.name,
        pre=composition.pre,
        options=composition.options,
        disclose_values=True,
    )
    cohort = Attempt(load, Cast(replace(parties.federation, terms=terms), parties.enclave)).cohort
    state = optimiser.keeping_last(cohort.context.state, composition.needs_last)
    return replace(cohort, context=replace(cohort.context, state=state))


def _summary(load: Workload, meter: Meter) -> Figures:
    kinds = [kind for kind in (EXACT, SKETCH) if ("rest", kind) in meter.runs]
    rounds = {
        kind: {
            "arrive_s": meter.median("arrive", kind),
            "first_s": meter.median("first", kind),
            "rest_s": meter.median("rest", kind),
            "round_s": sum(meter.median(part, kind) for part in ("arrive", "first", "rest")),
        }
        for kind in kinds
    }

    def beside(seconds: float) -> Figures:
        parts = {kind: seconds / each["round_s"] for kind, each in rounds.items()}
        return {"cpu_s": seconds, "of_round": parts}

    added = [
        {"rule": each.plain, "f": _f(load, each)} | beside(meter.median("decide", each.plain))
        for each in compositions()
    ]
    usual = meter.median("second", rules.DEFAULT)
    columns = [
        {
            "rule": name,
            "f": _f(load, rules.parse(name)),
            "cpu_s": meter.median("second", name),
            "x_weights": meter.median("second", name) / usual,
        }
        for name in (rules.DEFAULT, *COLUMNWISE)
        if ("second", name) in meter.runs
    ]
    last = meter.median("first", LAST)
    return {
        "rounds": rounds,
        "rules": added,
        "last": {"cpu_s": last, "of_round": last / rounds[EXACT]["round_s"]},
        "columns": columns,
    }


def _reduction(n: int, reducer: Reducer) -> Figures:
    """Nanoseconds a value, by the network and by the sort; a quarter is left out, where any is."""
    count = {"median": 0, "trimmed": n // 4, "near-median": n - n // 4}[reducer]
    rows = np.random.default_rng(n).standard_normal((n, _COLUMNS), dtype=np.float32)
    usual = Reduction(n, reducer, count)
    found: Figures = {"rows": n, "reducer": reducer, "taken": _name(usual.by_network)}
    for by_network in (True, False):
        reduction = Reduction(n, reducer, count)
        reduction.by_network = by_network
        found[f"{_name(by_network)}_ns"] = min(_reduced(reduction, rows) for _ in range(3))
    return found


def _name(by_network: bool) -> str:
    return "network" if by_network else "sort"


def _reduced(reduction: Reduction, rows: Float32) -> float:
    space, out, clock = Scratch(_COLUMNS), np.empty(_COLUMNS), Stopwatch()
    given = list(rows.copy())
    with clock:
        reduction.apply(given, out, space)
    return clock.seconds * 1e9 / rows.size


if __name__ == "__main__":
    sys.exit(report(partial(measure, Plan(*map(int, sys.argv[1:])))))

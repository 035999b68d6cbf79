"""`ostraka bench service`: the whole service over loopback, in real processes.

python -m ostraka_lab.bench.service    a round of many small updates, with all roles in one process

What receiving and closing take is divided by what a bare loop and opening alone take, in the same
run, before and after. What the enclave spends between rounds, on models that clients download and
on proving itself to them, is no part of receiving: it is shown by the GB of models.
"""

import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ostraka.config import Manifest, Terms, default_tile
from ostraka.core import loops
from ostraka.crypto.aead import TAG_BYTES
from ostraka.protocol.round import enrol, play
from ostraka_lab.bench import machine
from ostraka_lab.bench.parties import byzantine
from ostraka_lab.bench.process import Begin, Figures, report, run_module
from ostraka_lab.bench.results import spread
from ostraka_lab.bench.service_rounds import (
    KEY,
    UPDATE_BYTES,
    Plan,
    Round,
    serve,
    write_certificate,
)
from ostraka_lab.bench.whole_round import repeated

GB = 1e9
_PICTURE, _PICTURES, _CLASSES = (1, 28, 28), 60_000, 10  # of MNIST
_CLIENTS_TIMED = 5

USUAL = Plan(threads=1, two_threads=True)
QUICK = Plan(clients=8, dimension=100_000, threads=1, repeat=1, small=False)
# The lab's MLP for pictures of MNIST, under the terms that `ostraka init` writes.
SMALL = Plan(clients=100, dimension=50_890, workers=2, sketched=False)


def measure(plan: Plan, begin: Begin) -> Figures:
    """Measure all of it."""
    step = _Steps(begin, 3 * (1 + plan.two_threads + plan.tls) + 2 * plan.small)
    plain = _measure_way(plan, step, tls=False)
    two = replace(plan, threads=2)
    return {
        "clients": plan.clients,
        "dimension": plan.dimension,
        "threads": plan.threads,
        "repeat": plan.repeat,
        "sketch": plan.sketch,
        "bytes": plan.sealed_bytes,
        **plain,
        "two_threads": _measure_way(two, step, tls=False) if plan.two_threads else None,
        "tls": _measure_way(plan, step, tls=True) if plan.tls else None,
        "small": _compare_small(step) if plan.small else None,
        "native": loops.NATIVE,
        "vaes": machine.has_flag("vaes"),
        "machine": machine.describe(threads=plan.threads),
    }


class _Steps:
    """Counts the steps of a benchmark."""

    def __init__(self, begin: Begin, count: int) -> None:
        self._begin = begin
        self._count = count
        self._done = 0

    def __call__(self, what: str) -> None:
        self._begin(what, self._done, self._count)
        self._done += 1


def _measure_way(plan: Plan, step: _Steps, *, tls: bool) -> Figures:
    """The figures with TLS or without. What they are divided by is measured before and after."""
    with tempfile.TemporaryDirectory(prefix="ostraka-bench-") as directory:
        folder, certificate = Path(directory), None
        if tls:
            certificate = write_certificate(folder)
        suffix = f", threads: {plan.threads}" + (", with TLS" if tls else "")
        step(f"opening and a bare loop{suffix}")
        bare = [_bare(plan, certificate)]
        step(f"the service{suffix}")
        rounds = serve(plan, folder / "federation", certificate).rounds
        step(f"opening and a bare loop again{suffix}")
        bare.append(_bare(plan, certificate))
    return _figures(plan, rounds[1:], bare)


def _bare(plan: Plan, certificate: Path | None) -> Figures:
    size = default_tile(plan.dimension) * UPDATE_BYTES + TAG_BYTES
    tiles = max(1, round(plan.sealed_bytes / plan.clients / size))
    words = [str(each) for each in (plan.threads, plan.clients, tiles, size, plan.repeat)]
    if certificate is not None:
        words += [str(certificate), str(certificate.parent / KEY)]
    figures = run_module("ostraka_lab.bench.bare_loop", words, lambda *_: None)
    scale = plan.sealed_bytes / figures["bytes"]
    return {
        f"{what}_{which}": [seconds * scale for seconds in figures[what][which]]
        for what in ("open", "loop")
        for which in ("cpu_s", "wall_s")
    }


def _figures(plan: Plan, rounds: Sequence[Round], bare: Sequence[Figures]) -> Figures:
    def median(what: str) -> float:
        runs: list[float] = [getattr(each, what) for each in rounds]
        return statistics.median(runs)

    def before_and_after(what: str) -> float:
        runs: list[float] = [seconds for each in bare for seconds in each[what]]
        return statistics.median(runs)

    gb = plan.sealed_bytes / GB
    opened, opened_wall = before_and_after("open_cpu_s"), before_and_after("open_wall_s")
    loop = before_and_after("loop_cpu_s")
    return {
        "gb_per_s": gb / median("receive_wall_s"),
        "enclave_cpu_s_per_gb": median("receive_cpu_s") / gb,
        "bare_loop_cpu_s_per_gb": loop / gb,
        "enclave_x_bare_loop": median("receive_cpu_s") / loop,
        "client_cpu_s_per_gb": median("client_cpu_s") / gb,
        "client_x_bare_loop": median("client_cpu_s") / loop,
        "download_cpu_s_per_gb": median("join_cpu_s") / (plan.model_bytes / GB),
        "open_cpu_s_per_gb": opened / gb,
        "open_wall_s": opened_wall,
        "close_cpu_s": median("close_cpu_s"),
        "close_wall_s": median("close_wall_s"),
        "close_cpu_x_open": median("close_cpu_s") / opened,
        "close_wall_x_open": median("close_wall_s") / opened_wall,
        "round_cpu_s": _by_party(rounds),
        "spread": {
            what: spread([getattr(each, what) for each in rounds])
            for what in ("receive_cpu_s", "client_cpu_s", "close_cpu_s")
        }
        | {
            what: spread([seconds for each in bare for seconds in each[what]])
            for what in ("loop_cpu_s", "open_cpu_s")
        },
    }


def _by_party(rounds: Sequence[Round]) -> dict[str, float]:
    """CPU of every party, from the end of one round to the end of the next."""
    names = rounds[0].cpu_s
    return {name: statistics.median(each.cpu_s[name] for each in rounds) for name in names}


def _compare_small(step: _Steps) -> Figures:
    """A round of many small updates: CPU of all processes over that of the same round in one.

    x_simulated: with an epoch of training by every client, which costs the same in both; None
    without torch. x_protocol: without training.
    """
    step(f"{SMALL.clients} clients of {SMALL.dimension} values")
    with tempfile.TemporaryDirectory(prefix="ostraka-bench-") as directory:
        rounds = serve(SMALL, Path(directory) / "federation", None).rounds[1:]
    step("the same in one process")
    figures = run_module("ostraka_lab.bench.service", [], lambda *_: None)
    by_party, simulated = _by_party(rounds), figures["cpu_s"]
    services, training = sum(by_party.values()), figures["training_cpu_s"]
    return {
        "clients": SMALL.clients,
        "dimension": SMALL.dimension,
        "services_cpu_s": services,
        "round_cpu_s": by_party,
        "simulated_cpu_s": simulated,
        "training_cpu_s": training,
        "x_protocol": services / simulated,
        "x_simulated": None if training is None else (services + training) / (simulated + training),
    }


def simulate(plan: Plan, begin: Begin) -> Figures:
    """CPU of a round with all roles in this process, and of what all clients' training would be."""
    begin("in one process", 0, 1)
    terms = Terms(
        Manifest.flat(plan.dimension),
        f=byzantine(plan.clients),
        workers=plan.workers,
        sketch=plan.sketch,
        tile=default_tile(plan.dimension),
    )
    parties = enrol(terms, clients=plan.clients)
    rows, runs = np.stack(list(repeated(plan.clients, plan.dimension))), []
    for _ in range(plan.repeat + 1):
        start = time.process_time()
        play(parties, rows)
        runs.append(time.process_time() - start)
    return {"cpu_s": statistics.median(runs[1:]), "training_cpu_s": _training(plan.clients)}


def _training(clients: int) -> float | None:
    """CPU of an epoch on as many pictures as MNIST has, for all clients; None without torch.

    The pictures are random: what they show does not change what a step costs.
    """
    if importlib.util.find_spec("torch") is None:
        return None
    from ostraka_lab import models  # noqa: PLC0415
    from ostraka_lab.training import Recipe, Trainer  # noqa: PLC0415

    model = models.build("mlp", shape=_PICTURE, classes=_CLASSES, seed=0)
    start, rng = models.vector(model), np.random.default_rng(0)
    images = rng.integers(0, 256, (_PICTURES // clients, *_PICTURE), dtype=np.uint8)
    labels = rng.integers(0, _CLASSES, len(images))
    trainer = Trainer(model, images, labels, (0.5,), (0.5,), Recipe(epochs=1))
    runs = []
    for _ in range(_CLIENTS_TIMED):
        begun = time.process_time()
        trainer.update(start, seed=(0,))
        runs.append(time.process_time() - begun)
    return clients * statistics.median(runs)


if __name__ == "__main__":
    sys.exit(report(partial(simulate, SMALL)))

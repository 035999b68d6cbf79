"""Everybody in turn, every repetition everybody, and the table of medians."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from ostraka.core.sketch import MIN_SIZE
from ostraka.errors import ConfigError
from ostraka_lab.bench import machine
from ostraka_lab.bench.machine import available_bytes
from ostraka_lab.bench.peers import installed
from ostraka_lab.bench.peers.contest import SCALE, Contest
from ostraka_lab.bench.peers.peer_process import ENTRANCES
from ostraka_lab.bench.process import Begin, Figures, run_module
from ostraka_lab.bench.results import spread

NAMES = tuple(ENTRANCES)
_FLOOR = "floor"
_ON_WEIGHTS = ("flower", "byzfl-torch", "byzfl-numpy")
_MEDIANS = (
    "cpu_s",
    "enclave_cpu_s",
    "worker_cpu_s",
    "offline_cpu_s",
    "sealing_cpu_s",
    "wall_s",
    "peak_rss_mib",
    "inputs_rss_mib",
)
_BYTES_A_VALUE = 20  # ByzFL's numpy path widens its vectors twice
_BASE_BYTES = 500 * 2**20  # interpreter and torch
_GIB = 2**30
_VERDICTS = ("correct", "attackers_kept", "correct_on_differences")


def play(contest: Contest, begin: Begin, *, names: Sequence[str], repeat: int) -> Figures:
    """The figures of `ostraka bench peers`. names: whom to run."""
    if unknown := sorted(set(names) - set(NAMES)):
        raise ConfigError(f"no peer {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if repeat < 1:
        raise ConfigError(f"repeat must be at least 1; got {repeat}")
    require_room(contest)
    present = [name for name in names if _absence(name, contest) is None]
    on_weights = [name for name in present if name in _ON_WEIGHTS]
    steps = 1 + repeat * len(present) + len(on_weights)
    begin("the selection in float64", 0, steps)
    truth = run_module(
        "ostraka_lab.bench.peers.reference", [contest.to_json()], _quietly, threads=contest.threads
    )
    runs: dict[str, list[Figures]] = {name: [] for name in names}
    for done, name in enumerate(present * repeat, 1):
        begin(name, done, steps)
        runs[name].append(_turn(name, contest))
    centred = replace(contest, centred=True)
    for done, name in enumerate(on_weights, steps - len(on_weights)):
        begin(f"{name} on differences", done, steps)
        truth[name] = _turn(name, centred)["selected"]
    return {
        "clients": contest.clients,
        "dim": contest.dim,
        "byzantine": contest.f,
        "kept": contest.k,
        "update_scale": SCALE,
        "threads": contest.threads,
        "repeat": repeat,
        "seed": contest.seed,
        "rows": _rows(runs, truth, contest),
        "machine": machine.describe(threads=contest.threads),
    }


def require_room(contest: Contest) -> None:
    """ConfigError if this machine is too small for the largest of the processes."""
    needed, there = contest.clients * contest.dim * _BYTES_A_VALUE + _BASE_BYTES, available_bytes()
    if needed > there:
        raise ConfigError(
            f"{contest.clients} clients of {contest.dim} values need about {needed / _GIB:.1f} GiB "
            f"of memory; {there / _GIB:.1f} GiB are available: take fewer"
        )


def _turn(name: str, contest: Contest) -> Figures:
    return run_module(
        "ostraka_lab.bench.peers.peer_process",
        [name, contest.to_json()],
        _quietly,
        threads=contest.threads,
        python=installed.python_for(name),
    )


def _quietly(*_: object) -> None:
    """The process of one turn has no steps of its own."""


def _rows(runs: dict[str, list[Figures]], truth: Figures, contest: Contest) -> list[Figures]:
    floor = _median(runs.get(_FLOOR, []), "cpu_s")
    return [
        _row(name, figures, truth, floor)
        if figures
        else _absent(name, _absence(name, contest) or "")
        for name, figures in runs.items()
    ]


def _row(name: str, runs: list[Figures], truth: Figures, floor: float | None) -> Figures:
    row: Figures = {"name": name} | {what: _median(runs, what) for what in _MEDIANS}
    row["cpu_spread"] = spread([run["cpu_s"] for run in runs])
    row["x_floor"] = row["cpu_s"] / floor if floor else None
    chosen = [set(run["selected"]) for run in runs]
    if name == _FLOOR:
        return row | dict.fromkeys((*_VERDICTS, "absent"))
    expected = set(truth["n-f-1" if name.startswith("byzfl") else "n-f-2"])
    attackers = set(truth["attackers"])
    centred = set(truth[name]) == expected if name in truth else None
    return row | {
        "correct": all(each == expected and not each & attackers for each in chosen),
        "attackers_kept": max(len(each & attackers) for each in chosen),
        "correct_on_differences": centred,
        "absent": None,
    }


def _absent(name: str, why: str) -> Figures:
    nothing = dict.fromkeys((*_MEDIANS, "cpu_spread", "x_floor", *_VERDICTS))
    return {"name": name, **nothing, "absent": why}


def _absence(name: str, contest: Contest) -> str | None:
    """Why a peer does not take part."""
    if "sketch" in name and contest.dim < MIN_SIZE:
        return f"absent: a sketch needs updates of {MIN_SIZE} values or more"
    return installed.advice(name) if installed.python_for(name) is None else None


def _median(runs: list[Figures], what: str) -> float | None:
    found = [run[what] for run in runs if what in run]
    return statistics.median(found) if found else None

"""`ostraka bench peers`: the same updates through Ostraka, Flower and ByzFL, in turn.

python -m ostraka_lab.bench.peers CONTEST    the selection in float64, to judge the peers by

ByzFL asks for torchvision, which does not load beside the processor's build of torch, and loads
seaborn to draw. Neither takes part in its aggregators. So it has an environment of its own, made
without its dependencies: torch, numpy and scipy are those of this interpreter, and stand-ins that
do nothing take the place of what it would load for nothing.
"""

import importlib.util
import json
import statistics
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ostraka.arrays import Float64
from ostraka.calibration import user_cache
from ostraka.core import gram
from ostraka.core.rules import krum
from ostraka.core.sketch import MIN_SIZE
from ostraka.errors import ConfigError, installing
from ostraka_lab.bench import machine
from ostraka_lab.bench.entrants import ENTRANTS, SCALE, Contest
from ostraka_lab.bench.machine import available_bytes
from ostraka_lab.bench.process import Begin, Figures, report, run_module
from ostraka_lab.bench.results import spread

NAMES = tuple(ENTRANTS)
BYZFL = "byzfl==0.0.11"

_SETUP = "ostraka bench peers --setup"
_NEEDED = ("torch", "scipy", "numpy")
_STAND_INS = {
    "torchvision": "from unittest.mock import Mock\ndatasets = transforms = Mock()\n",
    "seaborn": "",
    "matplotlib/pyplot": "",
    "matplotlib/__init__": "",
}

_FLOOR, _CLEAR = "floor", "blas-clear"
_ON_WEIGHTS = ("flower", "byzfl-torch", "byzfl-numpy")
_IN_THE_CLEAR = (*_ON_WEIGHTS, _CLEAR)
_MEDIANS = (
    "cpu_s",
    "enclave_cpu_s",
    "worker_cpu_s",
    "prepare_cpu_s",
    "receiving_cpu_s",
    "sealing_cpu_s",
    "clients_cpu_s",
    "unpacking_cpu_s",
    "all_roles_cpu_s",
    "uploaded_bytes",
    "wall_s",
    "peak_rss_mib",
    "inputs_rss_mib",
)
_VERDICTS = ("correct", "attackers_kept", "correct_on_differences")
_BYTES_A_VALUE = 20  # ByzFL's numpy path widens its vectors twice
_BASE_BYTES = 500 * 2**20  # interpreter and torch
_GIB = 2**30
_COLUMNS = 16_384


def play(contest: Contest, begin: Begin, *, names: Sequence[str], repeat: int) -> Figures:
    """Run every peer in every repetition. Gives a table of medians. names: the peers to run."""
    if unknown := sorted(set(names) - set(NAMES)):
        raise ConfigError(f"no peer {', '.join(unknown)}; known: {', '.join(NAMES)}")
    if repeat < 1:
        raise ConfigError(f"repeat must be at least 1; got {repeat}")
    _require_room(contest)
    present = [name for name in names if _absence(name, contest) is None]
    on_weights = [name for name in present if name in _ON_WEIGHTS]
    steps = 1 + repeat * len(present) + len(on_weights)
    begin("the selection in float64", 0, steps)
    truth = run_module(
        "ostraka_lab.bench.peers", [contest.to_json()], _quietly, threads=contest.threads
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
        "dimension": contest.dimension,
        "byzantine": contest.f,
        "kept": contest.k,
        "update_scale": SCALE,
        "threads": contest.threads,
        "repeat": repeat,
        "seed": contest.seed,
        "rows": _rows(runs, truth, contest),
        "machine": machine.describe(threads=contest.threads),
    }


def _require_room(contest: Contest) -> None:
    """Raises ConfigError if this machine is too small for the largest of the processes."""
    needed = contest.clients * contest.dimension * _BYTES_A_VALUE + _BASE_BYTES
    there = available_bytes()
    if needed > there:
        raise ConfigError(
            f"{contest.clients} clients of {contest.dimension} values need about "
            f"{needed / _GIB:.1f} GiB of memory; {there / _GIB:.1f} GiB are available: take fewer"
        )


def _turn(name: str, contest: Contest) -> Figures:
    return run_module(
        "ostraka_lab.bench.entrants",
        [name, contest.to_json()],
        _quietly,
        threads=contest.threads,
        python=python_for(name),
    )


def _quietly(*_: object) -> None:
    """Ignore the steps of a process: a turn has none."""


def _rows(runs: dict[str, list[Figures]], truth: Figures, contest: Contest) -> list[Figures]:
    bases = {name: _median(runs.get(name, []), "cpu_s") for name in (_FLOOR, _CLEAR)}
    rows = [
        _row(name, figures, truth, bases)
        if figures
        else _absent(name, _absence(name, contest) or "")
        for name, figures in runs.items()
    ]
    plain = {row["name"]: row["all_roles_cpu_s"] for row in rows if row["name"] in _IN_THE_CLEAR}
    return [row | {"all_roles_over": _all_roles_over(row, plain)} for row in rows]


def _all_roles_over(row: Figures, plain: Mapping[str, float | None]) -> dict[str, float]:
    """What all roles of ours cost over those of each that ran in the clear."""
    if not row["name"].startswith("ostraka"):
        return {}
    ratios = {name: _ratio(row["all_roles_cpu_s"], base) for name, base in plain.items()}
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}


def _row(
    name: str, runs: list[Figures], truth: Figures, bases: Mapping[str, float | None]
) -> Figures:
    row: Figures = {"name": name} | {what: _median(runs, what) for what in _MEDIANS}
    row["cpu_spread"] = spread([run["cpu_s"] for run in runs])
    row["x_floor"] = _ratio(row["cpu_s"], bases[_FLOOR])
    row["enclave_x_floor"] = _ratio(row["enclave_cpu_s"], bases[_FLOOR])
    row["enclave_x_clear"] = _ratio(row["enclave_cpu_s"], bases[_CLEAR])
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


def _ratio(seconds: float | None, base: float | None) -> float | None:
    return seconds / base if seconds and base else None


def _absent(name: str, why: str) -> Figures:
    ratios = ("x_floor", "enclave_x_floor", "enclave_x_clear")
    nothing = dict.fromkeys((*_MEDIANS, "cpu_spread", *ratios, *_VERDICTS))
    return {"name": name, **nothing, "absent": why}


def _absence(name: str, contest: Contest) -> str | None:
    """Why a peer does not take part, or None if it does."""
    if "sketch" in name and contest.dimension < MIN_SIZE:
        return f"absent: a sketch needs updates of {MIN_SIZE} values or more"
    return advice(name) if python_for(name) is None else None


def _median(runs: list[Figures], what: str) -> float | None:
    found = [run[what] for run in runs if what in run]
    return statistics.median(found) if found else None


def python_for(name: str) -> Path | None:
    """The interpreter that runs this peer, or None if it is absent."""
    if name.startswith("byzfl"):
        own = _byzfl_python()
        return own if own.exists() and not _missing() else None
    if name == "flower" and importlib.util.find_spec("flwr") is None:
        return None
    return Path(sys.executable)


def advice(name: str) -> str:
    """Say how to get a peer that is absent."""
    if name == "flower":
        return f"absent: {installing('flower')}"
    if missing := _missing():
        return f"absent: it needs {', '.join(missing)} ({installing('lab')}), then {_SETUP}"
    return f"absent: {_SETUP}"


def setup(begin: Begin) -> Path:
    """Make ByzFL's environment anew, and give its folder. Raises ConfigError if that fails."""
    if missing := _missing():
        raise ConfigError(f"ByzFL needs {', '.join(missing)}: {installing('lab')}")
    folder = environment()
    begin("an environment for ByzFL", 0, 2)
    venv.create(folder, clear=True, with_pip=True)
    begin(f"installing {BYZFL}", 1, 2)
    _install()
    _lend_packages(_site_packages(folder))
    return folder


def environment() -> Path:
    return user_cache() / "byzfl"


def _install() -> None:
    command = [str(_byzfl_python()), "-m", "pip", "install", "--quiet", "--no-deps", BYZFL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["pip failed"]
        raise ConfigError(f"{BYZFL} cannot be installed: {last[0]}")


def _lend_packages(site: Path) -> None:
    """Add this interpreter's packages after the environment's, and stand-ins before both."""
    for name, text in _STAND_INS.items():
        path = site / "stand_ins" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    ours = sysconfig.get_paths()["purelib"]
    lines = [
        f"import sys; sys.path.insert(0, {str(site / 'stand_ins')!r})",
        f"import site; site.addsitedir({ours!r})",
    ]
    (site / "lent.pth").write_text("\n".join(lines) + "\n")


def _site_packages(folder: Path) -> Path:
    paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    return Path(paths["purelib"])


def _byzfl_python() -> Path:
    return environment() / "bin" / "python"


def _missing() -> list[str]:
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


def selections(contest: Contest) -> dict[str, list[int]]:
    """Select by Multi-Krum in each convention, from differences in float64.

    Blanchard et al., Flower and Ostraka count the n - f - 2 nearest others; ByzFL n - f - 1.
    """
    measured = _distances(contest)
    return {
        "n-f-2": list(krum.multi_krum(measured, contest.f, contest.k)),
        "n-f-1": list(_one_more(measured, contest.f, contest.k)),
    }


def _distances(contest: Contest) -> Float64:
    rows = np.stack(list(contest.updates()))
    products = np.zeros((contest.clients, contest.clients))
    for start in range(0, contest.dimension, _COLUMNS):
        gram.add_gram(products, rows[:, start : start + _COLUMNS].astype(np.float64))
    return gram.from_gram(products)


def _one_more(measured: Float64, f: int, k: int) -> tuple[int, ...]:
    """Select as ByzFL counts: by one neighbour more than in law 5."""
    others = np.sort(measured + np.diag(np.full(len(measured), np.inf)), axis=1)
    scores = others[:, : len(measured) - f - 1].sum(axis=1)
    return tuple(sorted(np.argsort(scores, kind="stable")[:k].tolist()))


def _figures(contest: Contest, begin: Begin) -> Figures:
    begin("the selection in float64", 0, 1)
    return selections(contest) | {"attackers": sorted(contest.attackers)}


if __name__ == "__main__":
    asked = Contest(**json.loads(sys.argv[1]))
    sys.exit(report(partial(_figures, asked)))

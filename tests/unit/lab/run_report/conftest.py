"""Runs that never happened, as the lab would have written them down."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostraka_lab import run_report
from ostraka_lab.metrics import BaselineMetrics, Metrics, RoundMetrics

STAGES = {"train": 1.6, "send": 0.4, "measure": 0.7, "average": 0.2, "publish": 0.1}
PROVED = "holds a NaN or an infinity"


def experiment(**changes: Any) -> dict[str, Any]:
    """What experiment.json says of the demo's run, but for the changes."""
    fields: dict[str, Any] = {
        "dataset": "digits",
        "model": "mlp",
        "clients": 12,
        "byzantine": 3,
        "attack": "sign-flip",
        "attack_scale": 10.0,
        "know": "all",
        "partition": "iid",
        "rounds": 15,
        "k": None,
        "masking": "exact",
        "distances": "workers",
        "workers": 2,
        "sketch": None,
        "seed": 0,
        "baseline": True,
        "attackers": [3, 7, 11],
        "dimension": 4810,
        "simulated": True,
        "command": "ostraka train --dataset digits --clients 12 --byzantine 3 --baseline",
    }
    fields |= changes
    rng = np.random.default_rng(fields["seed"])
    if "holdings" not in fields:
        shares = rng.dirichlet([0.7] * fields["clients"], size=10).T
        fields["holdings"] = np.round(1 + 145 * shares).astype(int).tolist()
    return fields


def write_run(
    folder: Path,
    *,
    done: int | None = None,
    absent: dict[int, range] | None = None,
    rejected: dict[int, str] | None = None,
    slips: float = 0.0,
    weighs: bool = False,
    backdoor: bool = False,
    seed: int = 0,
    **changes: Any,
) -> Path:
    """done: rounds on record. absent: who, and in which rounds. slips: how often an attacker is
    selected. weighs: the rule gives every update a weight. backdoor: the attack's success is
    measured.
    """
    fields = experiment(**changes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "experiment.json").write_text(json.dumps(fields))
    rng = np.random.default_rng(seed)
    metrics = Metrics(folder)
    for number in range(1, (done or fields["rounds"]) + 1):
        learned = 1 - np.exp(-number / (fields["rounds"] / 4))
        gone = {who for who, when in (absent or {}).items() if number in when}
        fate = _fate(fields, rng, gone, rejected or {}, 1.0 if weighs else slips)
        if weighs:
            everybody = sorted({*fate["selected"], *fate["dropped"]})
            fate |= {"selected": tuple(everybody), "dropped": ()}
        stages = {name: mean * float(rng.uniform(0.8, 1.3)) for name, mean in STAGES.items()}
        metrics.write(
            RoundMetrics(
                round=number,
                accuracy=0.1 + 0.85 * learned,
                loss=2.3 - 2.1 * learned,
                attack_success=0.04 + 0.03 * rng.random() if backdoor else None,
                stages_s=stages,
                wall_s=sum(stages.values()) + 0.05,
                **fate,
            )
        )
        if fields["baseline"]:
            metrics.baseline(
                BaselineMetrics(
                    round=number,
                    accuracy=0.1 + (0.6 if backdoor else 0.0) * learned + 0.03 * rng.random(),
                    loss=float("nan") if number > 6 and not backdoor else 2.3 * 9.0**number,
                    attack_success=0.2 + 0.75 * learned if backdoor else None,
                )
            )
    metrics.close()
    return folder


def _fate(fields, rng, gone, rejected, slips) -> dict[str, Any]:
    """What became of whose update."""
    clients, attackers = range(1, fields["clients"] + 1), fields["attackers"]
    invalid = {who: why for who, why in rejected.items() if who not in gone}
    valid = [who for who in clients if who not in gone and who not in invalid]
    out = {who for who in valid if who in attackers and rng.random() >= slips}
    others = [who for who in valid if who not in out]
    missing = max(0, len(attackers) - len(out) - len(invalid))
    out |= set(rng.choice(others, size=missing, replace=False).tolist())
    selected = tuple(who for who in valid if who not in out)
    return {
        "selected": selected,
        "dropped": tuple(sorted(out)),
        "rejected": invalid,
        "absent": tuple(sorted(gone)),
        "byzantine_selected": len(set(selected) & set(attackers)),
    }


BACKDOOR = [2, 5, 6, 13, 17, 28, 33, 41, 42, 50, 57, 63]

RUNS: dict[str, dict[str, Any]] = {
    "digits": {},
    "backdoor": {
        "dataset": "cifar10",
        "model": "cnn",
        "clients": 64,
        "byzantine": 12,
        "attack": "backdoor",
        "attack_scale": None,
        "attackers": BACKDOOR,
        "rounds": 30,
        "dimension": 62_006,
        "sketch": 16_384,
        "backdoor": True,
        "slips": 0.03,
    },
    "gaussian": {"masking": "gaussian"},
    "weighed": {"weighs": True, "composition": "arc+nnm+geometric-median"},
    "unfinished": {"done": 6, "baseline": False, "masking": "none"},
    "absent": {
        "absent": {2: range(4, 9), 9: range(10, 16)},
        "rejected": {7: PROVED, 11: "<script>alert(1)</script>"},
        "workers": 5,
    },
}


@pytest.fixture
def fabricate(tmp_path: Path) -> Callable[..., Path]:
    """Writes a run and returns its folder."""

    def write(**changes: Any) -> Path:
        return write_run(tmp_path / "run", **changes)

    return write


@pytest.fixture(scope="session")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The report of a run by its name, drawn once."""

    @cache
    def report_of(name: str) -> Path:
        folder = write_run(tmp_path_factory.mktemp(name), **RUNS[name])
        return run_report.write(folder)

    return report_of

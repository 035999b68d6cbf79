"""What holds without the loops in C, as where no compiler was: the demo, rounds, and all tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 600.0
NUMPY = {"OSTRAKA_NATIVE": "0", "OSTRAKA_SOAK": "0"}
ROUNDS = (
    "tests/unit/core/loops",
    "tests/unit/protocol/test_keeping.py",
    *(f"tests/protocol/test_{name}.py" for name in ("arrival", "exact_rounds", "lying_workers")),
    *(f"tests/protocol/test_{name}.py" for name in ("one_result", "uploads", "wire_vectors")),
)


def run(*arguments: str, timeout: float | None = PATIENCE_S) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=os.environ | NUMPY,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    return ended.stdout


@pytest.mark.slow
def test_the_demo_runs_on_numpy(tmp_path):
    assert "numpy" in run("ostraka", "--version")
    few = ("--clients", "5", "--byzantine", "1", "--rounds", "2", "--out", str(tmp_path / "run"))
    figures = json.loads(run("ostraka", "demo", *few, "--json").splitlines()[-1])
    assert figures["rounds"] == 2


@pytest.mark.slow
def test_rounds_hold_on_numpy():
    run("pytest", "-q", "-x", "-n", "0", "-m", "not slow and not soak", *ROUNDS)


@pytest.mark.soak
def test_everything_holds_on_numpy():
    run("pytest", "-q", "-x", "-n", "0", "-m", "not soak", timeout=None)

"""Runs of a comparison: real processes that are killed, fail and go on."""

import json
import signal
import subprocess
import sys
import time

import pytest

from ostraka.errors import ServiceError
from ostraka_lab.compare import Comparison, running
from ostraka_lab.experiment import Experiment
from ostraka_lab.metrics import read
from ostraka_lab.run_report import comparison as comparison_page

DEFAULT = "arc+nnm+geometric-median"


def comparison(root, *, client_momentum=0.5, **fields):
    small = Experiment(clients=5, byzantine=1, rounds=2, steps=1, client_momentum=client_momentum)
    asked = {"attacks": ("sign-flip", "ipm"), "defences": ("plain", DEFAULT), "seeds": (0,)}
    made = Comparison(root, small, **asked | fields, command="ostraka compare")
    made.save()
    return made


def ignore(*_):
    pass


def tables(made):
    """What does not depend on how long it took."""
    comparison_page.write(made)
    lines = (made.root / "table.md").read_text().splitlines()
    return [line for line in lines if not line.startswith(("| plain |", f"| {DEFAULT} |"))]


@pytest.mark.slow
def test_a_grid_that_is_killed_goes_on_and_gives_the_same_tables(tmp_path):
    grid = {"partitions": ("iid", "shards:2"), "worst_seeds": 2}
    whole = comparison(tmp_path / "whole", **grid)
    assert len(list(running.run(whole, jobs=2, tell=ignore))) >= 12
    killed = comparison(tmp_path / "killed", **grid)
    command = [sys.executable, "-m", "ostraka", "compare", "--resume", str(killed.root)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        while len(killed.results()) < 3:
            assert run.poll() is None
            time.sleep(0.05)
        run.kill()
    assert run.returncode == -signal.SIGKILL
    before = len(killed.results())
    assert 3 <= before < 12
    again = list(running.run(Comparison.load(killed.root), jobs=2, tell=ignore))
    assert len(again) >= 12 - before
    assert killed.is_whole(killed.results())
    assert tables(killed) == tables(whole)
    accuracies = [
        [(e["partition"], e["attack"], e["defence"], e["seed"], e["accuracy"]) for e in found]
        for found in (
            json.loads((made.root / "results.json").read_text())["results"]
            for made in (whole, killed)
        )
    ]
    assert accuracies[0] == accuracies[1]


@pytest.mark.slow
def test_a_cell_that_fails_is_told_of_and_the_others_are_run(tmp_path):
    # Without momentum a run can be resumed, and so writes its models down.
    made = comparison(tmp_path / "c", client_momentum=0.0)
    first, second, *_ = made.cells()
    first.folder.root.parent.mkdir()
    # Where it would put its model, something else is in the way.
    (second.folder.root / f"{DEFAULT}-1.f32").mkdir(parents=True)
    with pytest.raises(
        ServiceError, match=r"sign-flip on arc\+nnm\+geometric-median: clear-\d ended"
    ):
        list(running.run(made, jobs=1, tell=ignore))
    assert {(each.attack, each.defence) for each in made.results()} == {
        ("sign-flip", "plain"),
        ("ipm", "plain"),
        ("ipm", DEFAULT),
    }
    (second.folder.root / f"{DEFAULT}-1.f32").rmdir()
    (result,) = running.run(made, tell=ignore)
    assert (result.attack, result.defence) == ("sign-flip", DEFAULT)
    assert len(read(second.folder.root)) == 2

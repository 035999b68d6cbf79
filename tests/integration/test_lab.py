"""Runs of the lab as a user starts them: real processes, and none of them left, however it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from ostraka.model_file import read_model
from ostraka_lab.baselines import Clear
from ostraka_lab.experiment import Experiment
from ostraka_lab.folder import RunFolder
from ostraka_lab.metrics import read
from ostraka_lab.task import Task

PATIENCE_S = 300.0
SMALL = ("--clients", "5", "--byzantine", "1", "--attack", "sign-flip", "--attack-scale", "10")
ONE_PROCESS = ("--processes", "1")
DEFAULT = "arc+nnm+geometric-median"


def ostraka(*arguments: str, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ostraka", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As a shell does it: a group of its own, which the terminal's Ctrl-C goes to.
        process_group=0,
        **options,
    )


def wait_for(condition: Callable):
    until = time.monotonic() + PATIENCE_S
    while not (result := condition()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return result


def stat(pid: int) -> tuple[str, int]:
    """A process's state and its parent."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "gone", 0
    return fields[0], int(fields[1])


def children(parent: int) -> list[int]:
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if stat(pid)[1] == parent]


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def all_gone(pids: list[int]) -> bool:
    """One that has ended and that nobody asks for is gone, too."""
    return all(stat(pid)[0] in ("gone", "Z", "X") for pid in pids)


def train(folder: Path, *arguments: str):
    """A run to its end. Gives what it printed last."""
    process = ostraka("train", *SMALL, "--out", str(folder), "--json", *arguments)
    return figures_of(process)


def figures_of(process):
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def logged(folder: Path, who: str, event: str) -> list[float]:
    """When it has logged that."""
    lines = (folder / "logs" / f"{who}.log").read_text().splitlines()
    found = [json.loads(line) for line in lines if f'"{event}"' in line]
    return [datetime.fromisoformat(each["time"]).timestamp() for each in found]


def final_model(folder: Path):
    return read_model(folder / "model.safetensors")[1]


@pytest.mark.slow
def test_the_demo_shows_one_learning_and_the_other_not(tmp_path):
    demo = ostraka("demo", *SMALL, "--rounds", "4", "--out", str(tmp_path / "run"), "--json")
    figures = figures_of(demo)
    folder = tmp_path / "run"
    assert figures["rounds"] == 4
    assert figures["rule"] == DEFAULT
    assert figures["selective"] is False, "it weighs, and leaves nobody out"
    assert figures["simulated"] is True
    assert figures["accuracy"] > 0.6
    assert figures["baseline_accuracy"] < 0.3
    enclave = {"measure", "average", "hold", "confirm", "publish"}
    assert set(figures["stages_s"]) == {"train", "send"} | enclave
    first = read(folder)[0]
    opened = logged(folder, "enclave", "RoundOpened")[0]
    started = [logged(folder, f"client-{number}", "ClientStarted")[0] for number in range(1, 6)]
    assert figures["start_s"] == first.start_s
    assert first.start_s is not None
    assert first.wall_s is not None
    assert first.start_s >= max(started) - opened > 0, "the round was open before they were there"
    # Clocks of two processes differ by milliseconds, and start-up takes seconds.
    after = logged(folder, "enclave", "RoundPublished")[0] - max(started)
    assert first.wall_s <= after + first.start_s / 4
    assert "<svg" in Path(figures["report"]).read_text()
    assert len(read(folder)) == 4
    assert len((folder / "baseline.jsonl").read_text().splitlines()) == 4
    assert list((folder / "tensorboard").glob("events.out.tfevents.*"))
    assert final_model(folder).size == figures["dimension"]
    # Every client was a process of its own, and so were the services.
    logs = {path.stem for path in (folder / "logs").iterdir()}
    clients = {f"client-{number}" for number in range(1, 6)}
    assert logs == clients | {"enclave", "worker-1", "worker-2", "baseline"}


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["geometric-median", "multi-krum"])
@pytest.mark.parametrize("masking", ["exact", pytest.param("gaussian", marks=pytest.mark.soak)])
def test_masked_or_not_the_models_agree(tmp_path, masking, rule):
    """End to end, with equal seeds: Ostraka in each masking, and the same rule in the clear."""
    rounds = 2
    experiment = Experiment(
        clients=5, byzantine=1, attack="sign-flip", attack_scale=10.0, rounds=rounds, rule=rule
    )
    *_, last = Clear(Task.load(experiment), experiment.defence).rounds()
    arguments = (*ONE_PROCESS, "--rounds", str(rounds), "--masking", masking, "--rule", rule)
    figures = train(tmp_path / "run", *arguments)
    assert figures["masking"] == masking
    off = np.linalg.norm(final_model(tmp_path / "run") - last.model)
    assert off < 1e-4 * np.linalg.norm(last.model)


KINDS = {
    "a root client": ("--rule", "fltrust", "--root-images", "50"),
    "the last aggregate": ("--rule", "centred-clipping(radius=0.05)"),
    "column by column": ("--rule", "trimmed-mean"),
    "single values": ("--rule", "median"),
    "attackers who try out the rule": ("--attack", "optimal-ipm", "--client-momentum", "0.9"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "terms",
    [
        KINDS["attackers who try out the rule"],
        *(pytest.param(each, marks=pytest.mark.soak) for each in list(KINDS.values())[:-1]),
    ],
    ids=[list(KINDS)[-1], *list(KINDS)[:-1]],
)
def test_rules_of_every_kind_agree_with_the_clear(tmp_path, terms):
    """Clients, attackers and the enclave in processes of their own, and all of them in one."""
    arguments = ("--clients", "7", "--rounds", "3", "--steps", "2", *ONE_PROCESS)
    train(tmp_path / "run", *arguments, *terms)
    experiment = RunFolder(tmp_path / "run").load()[0]
    task = Task.load(experiment)
    *_, last = Clear(task, experiment.defence).rounds()
    moved = np.linalg.norm(last.model - task.first()[1])
    assert np.linalg.norm(final_model(tmp_path / "run") - last.model) < 1e-3 * moved


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_three_of_twelve_attack_and_none_is_ever_selected(tmp_path, seed):
    arguments = ("--clients", "12", "--byzantine", "3", "--seed", str(seed), "--baseline")
    terms = ("--rule", "multi-krum", "--processes", "2")
    figures = train(tmp_path / "run", *arguments, *terms)
    assert figures["rounds"] == 15
    assert figures["baseline_accuracy"] < 0.3
    assert figures["accuracy"] > 0.9
    assert figures["byzantine_selected"] == 0


@pytest.mark.slow
def test_attackers_confirm_even_if_their_updates_are_refused(tmp_path):
    """Seven of the nine have to confirm, and three of them never get an update in."""
    arguments = ("--clients", "9", "--byzantine", "3", "--attack", "nan", "--rounds", "2")
    figures = train(tmp_path / "run", *arguments, *ONE_PROCESS)
    assert figures["rounds"] == 2
    assert [len(row.rejected) for row in read(tmp_path / "run")] == [3, 3]


@pytest.mark.slow
def test_a_run_can_be_watched_while_it_runs(tmp_path):
    folder = tmp_path / "run"
    arguments = (*SMALL, *ONE_PROCESS, "--rounds", "500", "--out", str(folder), "--live")
    process = ostraka("train", *arguments, env={**os.environ, "DISPLAY": ""})
    try:
        wait_for(lambda: len(read(folder)) >= 2)
        log = (folder / "logs" / "dashboard.log").read_text()
        address = re.findall(r"http://\S+", log)[0]

        def page() -> str:
            with urllib.request.urlopen(address, timeout=PATIENCE_S) as reply:
                return str(reply.read(), "utf-8")

        wait_for(lambda: "Round 3 of 500" in page() or "receipts verified" in page())
        wait_for(lambda: "Accuracy by round" in page())
        pids = children(process.pid)
        press_ctrl_c(process)
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    assert f"Live, while it runs: {address}" in err
    wait_for(lambda: all_gone(pids))


def published(folder: Path) -> int:
    log = folder / "logs" / "enclave.log"
    return log.read_text().count('"RoundPublished"') if log.exists() else 0


@pytest.mark.slow
def test_a_run_that_was_interrupted_goes_on_as_if_it_had_not_been(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    terms = (*ONE_PROCESS, "--worker-momentum", "0.5", "--attack", "alie", "--baseline")
    expected = train(whole, *terms, "--rounds", "7")
    process = ostraka("train", *SMALL, "--out", str(broken), *terms, "--rounds", "6")
    try:
        wait_for(lambda: len(read(broken)) >= 2)
        press_ctrl_c(process)
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert 2 <= len(read(broken)) < 6
    assert (broken / "report.html").exists()
    figures = figures_of(ostraka("train", "--resume", str(broken), "--rounds", "7", "--json"))
    assert figures["rounds"] == 7
    np.testing.assert_allclose(final_model(broken), final_model(whole), atol=1e-6)
    assert figures["accuracy"] == expected["accuracy"]
    assert figures["baseline_accuracy"] == expected["baseline_accuracy"]


def is_client_2(pid: int) -> bool:
    line = command_line(pid)
    return "ostraka_lab.client" in line and line.endswith(" 2 ")


@pytest.mark.slow
def test_a_client_that_crashes_is_a_drop_out(tmp_path):
    run = tmp_path / "run"
    arguments = ("--clients", "6", "--rounds", "2", "--deadline", "10")
    process = ostraka("train", *SMALL, *arguments, "--out", str(run), "--json")
    try:
        (pid,) = wait_for(lambda: [pid for pid in children(process.pid) if is_client_2(pid)])
        os.kill(pid, signal.SIGKILL)
        figures = figures_of(process)
    finally:
        process.kill()
    assert figures["rounds"] == 2
    rows = read(run)
    assert rows[-1].absent == (2,)
    assert 2 not in rows[-1].selected


@pytest.mark.slow
def test_a_comparison_is_one_table_and_one_plot(tmp_path):
    folder = tmp_path / "comparison"
    arguments = ("--attack", "sign-flip", "--attack", "nan", "--rounds", "2", *ONE_PROCESS)
    small = ("--clients", "5", "--byzantine", "1", "--out", str(folder), "--json")
    figures = figures_of(ostraka("compare", *arguments, *small))
    found = {(each["attack"], each["defence"]): each for each in figures["results"]}
    assert {defence for _, defence in found} == {"plain", "multi-krum", DEFAULT, "exact"}
    assert len(found) == 8
    for attack in ("sign-flip", "nan"):
        # Weights are rounded otherwise than in the clear, so that an image or two may differ.
        clear = found[attack, DEFAULT]["accuracy"]
        assert found[attack, "exact"]["accuracy"] == pytest.approx(clear, abs=0.01)
        assert found[attack, "multi-krum"]["selected"] == 0
        assert found[attack, "plain"]["selected"] == 2
    assert "<svg" in (folder / "compare.html").read_text()
    assert (folder / "table.md").read_text().count("\n| sign-flip |") == 1
    again = figures_of(ostraka("compare", "--resume", str(folder), "--json"))
    assert again["results"] == figures["results"]


def press_ctrl_c(run: subprocess.Popen[str]) -> None:
    os.killpg(run.pid, signal.SIGINT)


def press_ctrl_c_twice(run: subprocess.Popen[str]) -> None:
    press_ctrl_c(run)
    time.sleep(0.1)
    press_ctrl_c(run)


def kill(run: subprocess.Popen[str]) -> None:
    run.kill()


def kill_child(name: str) -> Callable[[subprocess.Popen[str]], None]:
    def act(run: subprocess.Popen[str]) -> None:
        (pid,) = [pid for pid in children(run.pid) if name in command_line(pid)]
        os.kill(pid, signal.SIGKILL)

    return act


ENDS = {
    "Ctrl-C in the terminal": (press_ctrl_c, 130, ""),
    "Ctrl-C by somebody in a hurry": (press_ctrl_c_twice, 130, ""),
    "a kill that nobody can prepare for": (kill, -signal.SIGKILL, ""),
    "a worker that dies": (kill_child("--name worker-1"), 1, "worker-1 was killed by SIGKILL"),
    "the enclave's death": (kill_child("enclave run"), 1, "enclave was killed by SIGKILL"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("end", "code", "words"), ENDS.values(), ids=ENDS.keys())
def test_no_process_is_left(tmp_path, end, code, words):
    folder = tmp_path / "run"
    baseline = ("--baseline",) if end is press_ctrl_c else ()
    arguments = (*SMALL, *ONE_PROCESS, "--rounds", "100000", *baseline)
    run = ostraka("train", *arguments, "--out", str(folder))
    try:
        wait_for(lambda: published(folder))
        started = children(run.pid)
        assert len(started) == 4 + len(baseline)
        end(run)
        _, err = run.communicate(timeout=PATIENCE_S)
    finally:
        run.kill()
    assert run.returncode == code, err
    wait_for(lambda: all_gone(started))
    assert words in err
    assert "Traceback" not in err


# The command, whose evaluation takes so long that a signal comes in the middle of it.
EVALUATING = "evaluating"
SLOW = f"""
import sys, torch
from ostraka import cli
from ostraka_lab import training

tensor = training.Pixels.tensor

def slow(self, images):
    print("{EVALUATING}", file=sys.stderr, flush=True)
    for _ in range(5):
        torch.randn(1000, 1000) @ torch.randn(1000, 1000)
    return tensor(self, images)

training.Pixels.tensor = slow
cli.main()
"""

RUNS = {
    "train": ("", "report.html", ONE_PROCESS),
    "demo": ("", "report.html", ()),
    "compare": (
        "cells/sign-flip-exact-seed-0",
        "compare.html",
        ("--attack", "sign-flip", "--defence", "exact", *ONE_PROCESS),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["train", pytest.param("demo", marks=pytest.mark.soak), "compare"]
)
def test_a_run_that_is_terminated_leaves_a_report(tmp_path, command):
    """A thread that was inside torch when the interpreter ended took the process with it.

    The signal comes more than once, as from `timeout`.
    """
    folder, said = tmp_path / "run", tmp_path / "stderr"
    cell, report, more = RUNS[command]
    small = ("--clients", "3", "--byzantine", "0", "--rounds", "100000", "--out", str(folder))
    with said.open("w") as err:
        run = subprocess.Popen(
            [sys.executable, "-c", SLOW, command, *small, *more],
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
    try:
        metrics = folder / cell / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.read_bytes())
        before = said.read_text().count(EVALUATING)
        wait_for(lambda: said.read_text().count(EVALUATING) > before)
        started = children(run.pid)
        while run.poll() is None:
            run.terminate()
            time.sleep(0.05)
        out, _ = run.communicate(timeout=PATIENCE_S)
    finally:
        run.kill()
    assert all_gone(started)
    shown = said.read_text()
    assert run.returncode == 143, shown
    assert all(line == EVALUATING or line[0] == "[" for line in shown.splitlines()), shown
    assert "<svg" in (folder / report).read_text()
    unwrapped = out.replace("\n", "")
    assert f"Report: {folder / report}" in unwrapped
    assert f"--resume {folder}" in unwrapped

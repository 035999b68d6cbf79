"""The demo as a user runs it: real processes, and none of them left, however it ends."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

PATIENCE_S = 120.0
SMALL = ("--clients", "5", "--byzantine", "1", "--dim", "200")
PROCESSES = [*(f"client-{number}" for number in range(1, 6)), "enclave", "worker-1", "worker-2"]


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


@pytest.mark.slow
def test_a_demo_that_is_kept_can_be_looked_at(tmp_path):
    kept = tmp_path / "a folder"
    demo = ostraka(
        "demo", *SMALL, "--rounds", "2", "--attack", "nan", "--keep", str(kept), "--json"
    )
    out, err = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 0, err
    figures = json.loads(out)
    assert figures["rounds"] == 2
    assert figures["simulated"] is True
    assert figures["byzantine_selected"] == 0
    assert figures["max_relative_difference"] < 1e-6
    assert "No TEE protects this run" in err
    assert "measured by worker-1 and worker-2" in err

    logs = sorted((kept / "logs").iterdir())
    assert [path.stem for path in logs] == PROCESSES
    events = [json.loads(line) for path in logs[:-2] for line in path.read_text().splitlines()]
    assert all(event["simulated"] for event in events)
    assert len(list((kept / "models").iterdir())) == 3

    commands = [shlex.split(line) for line in err.splitlines() if line.startswith("  ostraka ")]
    evidence, show, serve, status = (command[1:] for command in commands)
    ostraka(*evidence).communicate(timeout=PATIENCE_S)
    said, complaint = ostraka(*show).communicate(timeout=PATIENCE_S)
    assert "a SIMULATED enclave" in said, complaint
    enclave = ostraka(*serve)
    try:
        assert enclave.stderr is not None
        assert any("ServiceStarted" in line for line in enclave.stderr)
        said, complaint = ostraka(*status, "--json").communicate(timeout=PATIENCE_S)
        assert json.loads(said)["published"] == 2, complaint
    finally:
        enclave.terminate()
        enclave.communicate(timeout=PATIENCE_S)


def press_ctrl_c(demo: subprocess.Popen[str]) -> None:
    os.killpg(demo.pid, signal.SIGINT)


def press_ctrl_c_twice(demo: subprocess.Popen[str]) -> None:
    press_ctrl_c(demo)
    time.sleep(0.1)
    press_ctrl_c(demo)


def terminate(demo: subprocess.Popen[str]) -> None:
    demo.terminate()


def kill(demo: subprocess.Popen[str]) -> None:
    demo.kill()


def kill_child(name: str) -> Callable[[subprocess.Popen[str]], None]:
    def act(demo: subprocess.Popen[str]) -> None:
        (pid,) = [pid for pid in children(demo.pid) if name in command_line(pid)]
        os.kill(pid, signal.SIGKILL)

    return act


ENDS = {
    "Ctrl-C in the terminal": (press_ctrl_c, 130, ""),
    "Ctrl-C by somebody in a hurry": (press_ctrl_c_twice, 130, ""),
    "SIGTERM": (terminate, 143, ""),
    "a kill that nobody can prepare for": (kill, -signal.SIGKILL, ""),
    "a worker that dies": (kill_child("--name worker-1"), 1, "worker-1 was killed by SIGKILL"),
    "the enclave's death": (kill_child("enclave run"), 1, "enclave was killed by SIGKILL"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("end", "code", "words"), ENDS.values(), ids=ENDS.keys())
def test_no_process_is_left(tmp_path, end, code, words):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    demo = ostraka("demo", *SMALL, "--rounds", "100000", env=environment)
    try:
        (log,) = wait_for(lambda: list(tmp_path.glob("ostraka-*/demo/logs/enclave.log")))
        wait_for(lambda: '"RoundPublished"' in log.read_text())
        started = children(demo.pid)
        assert len(started) == len(PROCESSES)
        end(demo)
        _, err = demo.communicate(timeout=PATIENCE_S)
    finally:
        demo.kill()
    assert demo.returncode == code, err
    wait_for(lambda: all_gone(started))
    assert words in err
    assert "Traceback" not in err
    assert (list(tmp_path.iterdir()) == []) == (end is not kill)

"""Processes that are started, listened to and ended. Real ones, and small."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ostraka.errors import ServiceError
from ostraka_lab.children import Children

MODULES = {
    "talker": """
import sys, time
print('{"event": "Begun", "number": 1, "time": "now"}', flush=True)
print('no event', flush=True)
sys.stdout.write('{"event": "Half')
sys.stdout.flush()
time.sleep(60)
""",
    "failing": """
print('{"event": "Begun", "number": 1, "level": "info"}', flush=True)
raise SystemExit("no luck today")
""",
    "brief": "pass",
    "stubborn": """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('{"event": "Ready"}', flush=True)
time.sleep(60)
""",
    "starter": """
import sys, time
from pathlib import Path
from ostraka_lab.children import Children
with Children(Path(sys.argv[1])) as children:
    child = children.start("talker", "talker", serves=True)
    while not child.events():
        time.sleep(0.02)
    print(child.process.pid, flush=True)
    time.sleep(60)
""",
}


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Programs that a child can run."""
    for name, code in MODULES.items():
        (tmp_path / f"{name}.py").write_text(code)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    return tmp_path


def wait_for(condition):
    until = time.monotonic() + 60
    while not (result := condition()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return result


def is_alive(pid):
    """Whether it runs. A process that has ended and was not waited for does not."""
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_events_are_read_once_and_whole(modules):
    with Children(modules / "logs") as children:
        child = children.start("one", "talker", serves=True)
        assert wait_for(child.events) == [{"event": "Begun", "number": 1, "time": "now"}]
        wait_for(lambda: b"Half" in child.log.read_bytes())
        assert child.events() == []
        children.require_well()
    assert child.process.returncode == -signal.SIGTERM


def test_one_that_fails_is_named_with_its_last_lines(modules):
    with Children(modules / "logs") as children:
        child = children.start("client-3", "failing", serves=False)
        child.process.wait(60)
        with pytest.raises(ServiceError) as failed:
            children.require_well()
    assert str(failed.value).splitlines() == [
        "client-3 ended with exit code 1. Its last lines:",
        "  Begun number=1",
        "  no luck today",
    ]


def test_one_that_is_killed_is_named_with_the_signal(modules):
    with Children(modules / "logs") as children:
        child = children.start("worker-1", "talker", serves=True)
        child.process.kill()
        child.process.wait(60)
        with pytest.raises(ServiceError, match=r"worker-1 was killed by SIGKILL, .* memory"):
            children.require_well()


def test_who_is_done_may_end_and_who_serves_may_not(modules):
    with Children(modules / "logs") as children:
        children.start("client-1", "brief", serves=False)
        children.wait(60)
        service = children.start("enclave", "brief", serves=True)
        service.process.wait(60)
        with pytest.raises(ServiceError, match="enclave ended with exit code 0"):
            children.require_well()


def test_who_does_not_end_is_not_waited_for_for_ever(modules):
    with Children(modules / "logs") as children:
        children.start("client-1", "talker", serves=False)
        with pytest.raises(ServiceError, match="client-1 does not end"):
            children.wait(0.1)


def test_who_does_not_listen_is_killed(modules, monkeypatch):
    monkeypatch.setattr("ostraka_lab.children._STOP_S", 0.2)
    with Children(modules / "logs") as children:
        child = children.start("one", "stubborn", serves=True)
        wait_for(child.events)
    assert child.process.returncode == -signal.SIGKILL


def test_an_interruption_while_they_end_is_their_end(modules, monkeypatch):
    def interrupted(process, seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("ostraka_lab.children._wait", interrupted)
    children = Children(modules)
    child = children.start("one", "stubborn", serves=True)
    wait_for(child.events)
    with pytest.raises(KeyboardInterrupt):
        children.stop()
    assert child.process.returncode == -signal.SIGKILL


def test_a_child_does_not_outlive_a_parent_that_is_killed(modules):
    starter = subprocess.Popen(
        [sys.executable, "-m", "starter", str(modules / "logs")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    with starter.stdout:
        child = int(starter.stdout.readline())
    assert is_alive(child)
    starter.kill()
    starter.wait()
    wait_for(lambda: not is_alive(child))


def test_a_child_whose_parent_is_gone_does_not_begin(modules):
    nobody = str(2**22)
    done = subprocess.run(
        [sys.executable, "-m", "ostraka_lab.children", nobody, "talker"],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")

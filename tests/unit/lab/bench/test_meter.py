"""Whose time it is, and how much of it."""

import subprocess
import sys
import time

import pytest

from ostraka_lab.bench.clock import Ledger, measured


@pytest.fixture
def cpu(monkeypatch):
    """A clock that moves only when a test says so."""

    class Clock:
        now = 100.0

        def work(self, seconds):
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(time, "process_time", lambda: clock.now)
    return clock


def test_the_innermost_party_is_charged(cpu):
    ledger = Ledger()
    cpu.work(100)
    with ledger("enclave"):
        cpu.work(1)
        with ledger("worker-1"):
            cpu.work(2)
        cpu.work(4)
        with ledger("worker-2"):
            cpu.work(8)
    cpu.work(100)
    with ledger("enclave"):
        cpu.work(16)
    assert ledger.seconds == {"enclave": 1 + 4 + 16, "worker-1": 2, "worker-2": 8}


def test_a_party_that_fails_is_charged_too(cpu):
    ledger = Ledger()

    def fail():
        with ledger("enclave"):
            cpu.work(3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert ledger.seconds["enclave"] == 3
    with ledger("host"):
        cpu.work(1)
    assert ledger.seconds == {"enclave": 3, "host": 1}


def test_work_gives_its_result_and_its_cost(cpu):
    result, cost = measured(lambda: cpu.work(5) or "done")
    assert result == "done"
    assert cost.cpu_s == pytest.approx(5)
    assert 0 <= cost.wall_s < 60


def test_the_processes_that_work_has_started_are_counted():
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    _, cost = measured(lambda: subprocess.run([sys.executable, "-c", busy], check=True))
    assert cost.cpu_s > 0.25

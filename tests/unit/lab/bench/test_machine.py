"""CPU time by a stopwatch and by party, memory as /proc tells it, and the machine."""

import json
import subprocess
import sys
import time

import pytest

from ostraka.core import loops
from ostraka.errors import ConfigError
from ostraka_lab.bench import machine
from ostraka_lab.bench.machine import Ledger, Stopwatch, measured


def test_what_a_reader_needs_to_know_is_there():
    told = machine.describe(threads=3)
    assert told["loops"] == loops.kind()
    assert told["threads"] == 3
    assert told["cores"] >= 1
    assert 0 < told["available_gib"] <= told["memory_gib"]
    assert {"numpy", "cryptography"} <= set(told["packages"])
    assert all(told[name] for name in ("processor", "system", "python", "blas"))
    assert json.loads(json.dumps(told)) == told


def test_a_package_that_is_not_there_has_no_version():
    assert machine.installed("no-such-package-at-all") is None


PROBE = """
import numpy as np
from ostraka_lab.bench import machine as memory
before = memory.anonymous_bytes()
with memory.PeakMemory() as watch:
    block = np.ones(64 * 2**20, np.uint8)
    watch._look()
    del block
print(watch.peak - before)
"""


def test_the_peak_is_seen_though_the_memory_is_gone():
    """In a process of its own: what other tests leave behind may be given back meanwhile."""
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=True, text=True)
    size = 64 * 2**20
    assert size * 0.9 < int(done.stdout) < size * 2


def test_there_is_memory_left():
    assert machine.available_bytes() > 2**20


def test_a_machine_without_proc_is_told_so():
    with pytest.raises(ConfigError, match="needs Linux"):
        machine._field("/nowhere/at/all", "RssAnon")
    with pytest.raises(ConfigError, match="has no Nonsense"):
        machine._field("/proc/self/status", "Nonsense")


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


def test_blocks_add_up_and_what_lies_between_is_not_counted(cpu):
    clock = Stopwatch()
    for _ in range(2):
        with clock:
            cpu.work(3)
        cpu.work(100)
    assert clock.seconds == 6


def test_a_paused_clock_stands_still(cpu):
    clock = Stopwatch()
    with clock:
        cpu.work(1)
        for _ in range(3):
            with clock.paused():
                cpu.work(100)
            cpu.work(2)
    assert clock.seconds == 1 + 3 * 2


def test_a_part_is_scaled_to_the_whole_and_says_so(cpu):
    clock = Stopwatch()
    with clock:
        cpu.work(2)
    clock.extrapolate(part=10, whole=40)
    assert clock.seconds == 8
    assert "10 of 40" in str(clock.note)


def test_the_whole_is_not_scaled(cpu):
    clock = Stopwatch()
    with clock:
        cpu.work(2)
    clock.extrapolate(part=40, whole=40)
    assert clock.seconds == 2
    assert clock.note is None

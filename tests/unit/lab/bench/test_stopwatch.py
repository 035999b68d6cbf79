"""The stopwatch counts what it is told to, in CPU seconds."""

import time

import pytest

from ostraka_lab.bench.clock import Stopwatch


@pytest.fixture
def cpu(monkeypatch):
    """A clock that moves only when a test says so."""

    class Clock:
        now = 0.0

        def work(self, seconds):
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(time, "process_time", lambda: clock.now)
    return clock


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

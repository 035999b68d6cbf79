"""Memory as /proc tells it."""

import subprocess
import sys

import pytest

from ostraka.errors import ConfigError
from ostraka_lab.bench import machine

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

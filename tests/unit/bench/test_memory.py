"""Memory as /proc tells it."""

import numpy as np
import pytest

from ostraka.bench import memory
from ostraka.errors import ConfigError


def test_the_peak_is_seen_though_the_memory_is_gone():
    size = 64 * 2**20
    before = memory.anonymous_bytes()
    with memory.PeakMemory() as watch:
        block = np.ones(size, np.uint8)
        watch._look()
        del block
    assert size * 0.9 < watch.peak - before < size * 2


def test_there_is_memory_left():
    assert memory.available_bytes() > 2**20


def test_a_machine_without_proc_is_told_so():
    with pytest.raises(ConfigError, match="needs Linux"):
        memory._field("/nowhere/at/all", "RssAnon")
    with pytest.raises(ConfigError, match="has no Nonsense"):
        memory._field("/proc/self/status", "Nonsense")

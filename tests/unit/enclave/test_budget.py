"""How much memory rows may take, unless the operator says so."""

import os

import pytest

from ostraka.enclave.budget import default_budget

MIB = 2**20
MEMINFO = """MemTotal:       16000000 kB
MemFree:          100000 kB
MemAvailable:    8192000 kB
Buffers:           12345 kB
"""
AVAILABLE = 8_192_000 * 1024


@pytest.fixture
def machine(tmp_path):
    """machine(meminfo, limit, current) is the budget on one that says so. None: no such file."""

    def make(meminfo=MEMINFO, limit=None, current=None):
        files = {"meminfo": meminfo, "memory.max": limit, "memory.current": current}
        for name, text in files.items():
            if text is not None:
                (tmp_path / name).write_text(text)
        return default_budget(tmp_path / "meminfo", tmp_path)

    return make


def test_half_of_what_is_to_spare(machine):
    assert machine() == AVAILABLE // 2


def test_a_control_group_that_has_less_to_spare_decides(machine):
    assert machine(limit=f"{3000 * MIB}\n", current=f"{1000 * MIB}\n") == 1000 * MIB


def test_a_control_group_that_has_more_to_spare_does_not(machine):
    assert machine(limit=f"{10 * AVAILABLE}\n", current="4096\n") == AVAILABLE // 2


def test_a_control_group_above_its_limit_leaves_nothing(machine):
    assert machine(limit=f"{1000 * MIB}\n", current=f"{1001 * MIB}\n") == 0


@pytest.mark.parametrize(
    ("limit", "current"),
    [("max\n", f"{1000 * MIB}\n"), (None, None), ("garbage", "4096"), (f"{MIB}\n", None)],
    ids=["unlimited", "no files", "not a number", "usage unknown"],
)
def test_a_control_group_without_a_known_limit_sets_none(machine, limit, current):
    assert machine(limit=limit, current=current) == AVAILABLE // 2


@pytest.mark.parametrize(
    "meminfo",
    [None, "", "MemTotal: 16000000 kB\n", "MemAvailable:\n", "MemAvailable: much kB\n"],
    ids=["no file", "empty", "another line", "no number", "not a number"],
)
def test_an_unknown_machine_has_no_room(machine, meminfo):
    """All rows are spooled then: slower, and nothing is ended for want of memory."""
    assert machine(meminfo) == 0


def test_this_machine_has_some():
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < default_budget() < whole

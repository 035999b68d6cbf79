"""What was freed goes back to the system, also from between blocks that are still in use."""

import gc
import platform
import subprocess
import sys
import weakref

import pytest

from ostraka.enclave import hardening

SCRIPT = """
from pathlib import Path
from ostraka.enclave import hardening

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

hardening.keep_little()
blocks = [bytearray(60_000) for _ in range(2_000)]
del blocks[:-1]
before = resident()
hardening.give_back()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_given_back():
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert int(run.stdout) > 50_000  # KiB, of 117,000 that were freed


class Node:
    itself: "Node"


def test_what_only_its_own_cycle_holds_is_found():
    node = Node()
    node.itself, gone = node, weakref.ref(node)
    del node
    gc.disable()
    try:
        assert gone() is not None
        hardening.give_back()
        assert gone() is None
    finally:
        gc.enable()


def test_another_c_library_does_no_harm(monkeypatch):
    class Other:
        pass

    monkeypatch.setattr("ctypes.CDLL", lambda _: Other())
    hardening.keep_little()
    hardening.give_back()

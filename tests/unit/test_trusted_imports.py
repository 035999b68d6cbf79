"""Trusted code is small: what a fresh interpreter loads with it is compared with a list."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ostraka

# numpy and cryptography, and the two modules by which cryptography reaches OpenSSL.
ALLOWED = {"numpy", "cryptography", "_cffi_backend", "_openssl"}

PROBE = """
import json, sys
before = set(sys.modules)
import {module}
loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(json.dumps(sorted(loaded - sys.stdlib_module_names - {{"ostraka"}})))
"""


def third_party(module):
    source = str(Path(ostraka.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(module=module)],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        check=True,
        text=True,
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "module", ["ostraka.protocol.enclave", "ostraka.protocol.client", "ostraka.protocol.worker"]
)
def test_a_role_loads_numpy_and_cryptography_and_nothing_else(module):
    loaded = third_party(module)
    assert {"numpy", "cryptography"} <= loaded
    assert loaded <= ALLOWED


def test_the_probe_would_see_another_package():
    assert "hypothesis" in third_party("hypothesis")

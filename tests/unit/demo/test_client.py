"""The client's process: what it loads, and that an attacker sends what it wants."""

import subprocess
import sys

from ostraka.demo.settings import Demo
from ostraka.demo.task import attackers

HEAVY = {"click", "prometheus_client", "rich", "scipy", "torch", "typer"}


def test_it_loads_nothing_heavy():
    """A dozen of these start at one time."""
    code = "import sys, ostraka.demo.client as c; c.ostraka.Client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "grpc" in loaded
    assert not HEAVY & loaded


def test_the_library_would_keep_a_nan_to_itself_and_an_attacker_does_not():
    assert "nan" in attackers(Demo()).values()
    code = """
import numpy as np
from ostraka.config import Manifest
from ostraka.demo import client
from ostraka.errors import ConfigError
bad, manifest = np.full(3, np.nan), Manifest.flat(3)
try:
    client.api.flatten(bad, manifest)
except ConfigError:
    client._drop_own_checks()
    assert np.isnan(client.api.flatten(bad, manifest)).all()
    print("sent")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "sent\n"

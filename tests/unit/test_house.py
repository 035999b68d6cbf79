"""tools/house.py prints its figures. What they are is not asserted."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "house.py"
pytestmark = pytest.mark.skipif(not TOOL.is_file(), reason="only the source tree has tools/")

SIZE = r"\d+ files, \d+ lines, median [\d.]+, largest ostraka\S+ with \d+"
LINES = (
    rf"ostraka +{SIZE}",
    rf"ostraka_lab +{SIZE}",
    rf"both +{SIZE}",
    r"the enclave's entry +\d+ modules, \d+ lines; .+: \d+ of them",
    r"an update's way +\d+ modules from Client\.submit to Outcome",
)


def test_it_prints_every_figure_and_the_modules_of_all_three_roles():
    done = subprocess.run(
        [sys.executable, str(TOOL), "--list"], capture_output=True, check=False, text=True
    )
    assert done.returncode == 0, done.stderr
    figures, names = done.stdout.splitlines()[:5], done.stdout.split()
    for line, expected in zip(figures, LINES, strict=True):
        assert re.fullmatch(expected, line)
    for role in ("ostraka.client.upload", "ostraka.enclave.servicer", "ostraka.worker.session"):
        assert role in names

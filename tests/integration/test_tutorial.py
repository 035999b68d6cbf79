"""The tutorial, as a reader types it: every file and every command is taken from the page."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()
BLOCKS = re.findall(
    r'^```(sh|py|text)(?: title="(.*?)")?\n(.*?)^```', PAGE, re.DOTALL | re.MULTILINE
)
PATIENCE_S = 900.0


def files():
    return {name: text for language, name, text in BLOCKS if language == "py"}


def commands():
    return [text for language, _, text in BLOCKS if language == "sh"]


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def script(port):
    """All commands in their order. The port, which is fixed on the page, may be in use here."""
    typed = "".join(commands()).replace(". .venv/bin/activate\n", "")
    assert typed.count("ostraka init") == 1
    founded = re.sub(
        r"^(ostraka init .*)$",
        rf"\1 && sed -i s/7420/{port}/ network/federation.toml",
        typed,
        flags=re.MULTILINE,
    )
    return "set -e\n" + founded.replace("127.0.0.1:7420", f"127.0.0.1:{port}")


@pytest.mark.slow
def test_the_tutorial_runs_as_it_is_written(tmp_path):
    pytest.importorskip("sklearn")
    port = free_port()
    (tmp_path / "hospitals").mkdir()
    assert list(files()) == ["hospital.py"]
    for name, text in files().items():
        (tmp_path / "hospitals" / name).write_text(
            text.replace("127.0.0.1:7420", f"127.0.0.1:{port}")
        )
    child = subprocess.Popen(
        ["bash", "-c", script(port).replace("mkdir hospitals", "mkdir -p hospitals")],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=os.environ
        | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
    )
    try:
        said, _ = child.communicate(timeout=PATIENCE_S)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    assert child.returncode == 0, said
    learned, plain = map(float, re.findall(r"(?:last round|averaging): accuracy (0\.\d+)", said))
    shown = [float(each) for each in re.findall(r"(?:round|ing): accuracy (0\.\d+)$", PAGE, re.M)]
    assert [learned, plain] == pytest.approx(shown, abs=0.03)
    assert learned > 0.9
    assert plain < 0.5
    words = " ".join(said.split())
    assert "published 10" in words
    assert "arrived client-1, client-2, client-3" in words

"""The pages that a reader follows by hand: every file and every command is taken from the page."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = (DOCS / "tutorial.md").read_text()
FIRST = (DOCS / "first-federation.md").read_text()
PATIENCE_S = 900.0


def blocks(page, wanted):
    """The blocks of code in this language, with their titles."""
    found = re.findall(r'^```(\w+)(?: title="(.*?)")?\n(.*?)^```', page, re.DOTALL | re.MULTILINE)
    return [(title, text) for language, title, text in found if language == wanted]


@pytest.fixture
def port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def script(text, port):
    """Commands as they are typed. The port, which is fixed on a page, may be in use here."""
    founded = re.sub(
        r"^(ostraka init (\S+) .*)$",
        rf"\1 && sed -i s/7420/{port}/ \2/federation.toml",
        text,
        flags=re.MULTILINE,
    )
    return "set -e\n" + founded.replace("127.0.0.1:7420", f"127.0.0.1:{port}")


def write_files(page, folder, port):
    for name, text in blocks(page, "py"):
        (folder / name).write_text(text.replace("127.0.0.1:7420", f"127.0.0.1:{port}"))


class Terminal:
    """A shell that runs these commands; at the end, it goes with all that it has started."""

    def __init__(self, typed, folder):
        self.shown = folder / f"terminal-{len([*folder.glob('terminal-*')])}.log"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        with self.shown.open("w") as screen:
            self.child = subprocess.Popen(
                ["bash", "-c", typed],
                cwd=folder,
                stdout=screen,
                stderr=screen,
                start_new_session=True,
                env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"},
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()

    def said(self):
        """What it shows when its commands have ended well."""
        code = self.child.wait(PATIENCE_S)
        assert code == 0, self.shown.read_text()
        return self.shown.read_text()


@pytest.mark.slow
def test_the_tutorial_runs_as_it_is_written(tmp_path, port):
    pytest.importorskip("sklearn")
    (tmp_path / "hospitals").mkdir()
    assert [name for name, _ in blocks(TUTORIAL, "py")] == ["hospital.py"]
    write_files(TUTORIAL, tmp_path / "hospitals", port)
    typed = "".join(text for _, text in blocks(TUTORIAL, "sh"))
    assert typed.count("ostraka init") == 1
    typed = typed.replace(". .venv/bin/activate\n", "").replace("mkdir hosp", "mkdir -p hosp")
    with Terminal(script(typed, port), tmp_path) as shell:
        said = shell.said()
    learned, plain = map(float, re.findall(r"(?:last round|averaging): accuracy (0\.\d+)", said))
    shown = re.findall(r"(?:round|ing): accuracy (0\.\d+)$", TUTORIAL, re.MULTILINE)
    assert [learned, plain] == pytest.approx([*map(float, shown)], abs=0.03)
    assert learned > 0.9
    assert plain < 0.5
    words = " ".join(said.split())
    assert "published 10" in words
    assert "arrived client-1, client-2, client-3" in words


@pytest.mark.slow
def test_the_first_federation_runs_in_its_four_terminals(tmp_path, port):
    write_files(FIRST, tmp_path, port)
    enclave, workers, clients, looks_on = (
        script(text, port) for title, text in blocks(FIRST, "sh") if title
    )
    with Terminal(enclave, tmp_path):
        until((tmp_path / "first-run" / "state" / "status.token").exists)
        with Terminal(workers, tmp_path), Terminal(clients, tmp_path) as seven:
            said = seven.said()
            with Terminal(looks_on, tmp_path) as last:
                status = " ".join(last.said().split())
    # Seven processes write to one terminal, where two lines may come in one.
    published = re.findall(r"client-\d: round (\d+) published, took part: True", said)
    assert Counter(map(int, published)) == dict.fromkeys(range(1, 11), 7)
    assert "published 10" in status
    assert "doing finished" in status


def until(holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)

"""A real SuperLink on loopback, its SuperNodes, and runs on it, each in its own process."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

APP = Path(__file__).parent / "app"
PATIENCE_S = 300.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Process:
    """A process and its children, which end together. Their output is in a file."""

    name: str
    child: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, name: str, folder: Path, script: str, *arguments: str, **more: str) -> "Process":
        log = folder / f"{name}.log"
        command = [sys.executable, str(Path(sys.executable).parent / script), *arguments]
        with log.open("wb") as out:
            child = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **more},
                start_new_session=True,
            )
        return cls(name, child, log)

    def wait_for(self, wanted: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while wanted not in self.log.read_text(errors="replace"):
            ended = self.child.poll() is not None
            if ended or time.monotonic() > until:
                tail = self.log.read_text(errors="replace")[-4000:]
                raise AssertionError(f"{self.name} never said {wanted!r}:\n{tail}")
            time.sleep(0.2)

    def kill(self) -> None:
        """Kill all of them with SIGKILL."""
        with suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait(PATIENCE_S)


@dataclass
class SuperLink:
    """folder: for its logs and its state."""

    folder: Path
    port: int = field(default_factory=free_port)
    processes: list[Process] = field(default_factory=list)
    nodes: dict[int, Process] = field(default_factory=dict)

    def start(self, *options: str) -> None:
        (self.folder / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n'
            f'[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        self._spawn(
            "superlink",
            "flower-superlink",
            *("--insecure", "--disable-runtime-dependency-installation"),
            *("--port", str(self.port), *options),
        ).wait_for("Uvicorn running")

    def add_node(self, partition: int, **config: Any) -> None:
        config = {"partition-id": partition, "num-partitions": 6} | config
        self.nodes[partition] = self._spawn(
            f"node-{partition}",
            "flower-supernode",
            *("--insecure", "--superlink", f"127.0.0.1:{self.port}"),
            *("--port", str(free_port()), "--node-config", _pairs(config)),
        )

    def run(self, app: Path, *options: str, **config: Any) -> Process:
        more = ("--run-config", _pairs(config)) if config else ()
        return self._spawn("run", "flwr", "run", str(app), "here", "--stream", *more, *options)

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.kill()

    def _spawn(self, name: str, script: str, *arguments: str) -> Process:
        environment = {
            "FLWR_HOME": str(self.folder),
            "FLWR_TELEMETRY_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }
        process = Process.start(name, self.folder, script, *arguments, **environment)
        self.processes.append(process)
        return process


def _pairs(config: dict[str, Any]) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


@pytest.fixture
def superlink(tmp_path) -> Iterator[SuperLink]:
    """Ready to start."""
    folder = tmp_path / "flower"
    folder.mkdir()
    made = SuperLink(folder)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def task() -> ModuleType:
    """Load the app's own task, which knows what its nodes send."""
    spec = importlib.util.spec_from_file_location("held_task", APP / "held/task.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wait_for_file(path: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < until, f"{path.name} never came"
        time.sleep(0.2)


@pytest.fixture
def wait_for() -> Callable[[Path], None]:
    return wait_for_file


@pytest.fixture
def app() -> Path:
    return APP


@pytest.fixture
def multi_krum() -> Callable[[np.ndarray, int], tuple[list[int], np.ndarray]]:
    def from_the_paper(rows: np.ndarray, f: int) -> tuple[list[int], np.ndarray]:
        """Return the rows kept and their mean in float64: clip, score, keep n - f, average."""
        norms = np.linalg.norm(rows, axis=1)
        limit = np.exp2(np.ceil(np.log2(4 * np.median(norms))))
        rows = rows * np.minimum(1, limit / norms)[:, None]
        n = len(rows)
        squares = np.array([[np.square(a - b).sum() for b in rows] for a in rows])
        scores = [np.sort(np.delete(squares[i], i))[: n - f - 2].sum() for i in range(n)]
        kept = sorted(np.argsort(scores, kind="stable")[: n - f].tolist())
        return kept, rows[kept].mean(axis=0)

    return from_the_paper

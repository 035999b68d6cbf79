"""Real processes on loopback: one enclave, its workers and its clients.

`deploy(...)` gives a Deployment in a folder of its own. Everything that it starts, it ends.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostraka.services import federation_file, folder
from ostraka.services.folder import Plan
from ostraka.services.keys import read_identity

PATIENCE_S = 120.0  # after which a test that waits has failed
QUIET = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "GRPC_VERBOSITY": "NONE"}

CLIENT = """
import sys
import numpy as np
import ostraka
address, name, root, rounds, update = sys.argv[1:6]
print("up", flush=True)
with ostraka.Client(
    address, name=name, key=f"{root}/keys/{name}.key", policy=f"{root}/policy.toml",
    unsafe_simulation=True, timeout=120,
) as client:
    for _ in range(int(rounds)):
        model = client.fetch()
        print("fetched", model.round, flush=True)
        outcome = client.submit(np.load(update))
        print("done", outcome.round, outcome.accepted, outcome.reason, flush=True)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Process:
    """A child process whose lines are read as they come."""

    name: str
    child: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            with self.arrived:
                self.lines.append(line.rstrip())
                self.arrived.notify_all()
        with self.arrived:
            self.arrived.notify_all()

    def wait_for(self, wanted: str | Callable[[str], bool], *, after: int = 0) -> int:
        """Until a line has this in it. Gives the place behind it."""
        matches = wanted if callable(wanted) else lambda line: wanted in line
        until = time.monotonic() + PATIENCE_S
        place = after
        with self.arrived:
            while True:
                while place < len(self.lines):
                    place += 1
                    if matches(self.lines[place - 1]):
                        return place
                left = until - time.monotonic()
                ended = self.child.poll() is not None and not self._reader.is_alive()
                if left <= 0 or ended:
                    tail = "\n".join(self.lines[-30:])
                    raise AssertionError(f"{self.name} never said {wanted!r}:\n{tail}")
                self.arrived.wait(min(left, 0.5))

    def kill(self) -> None:
        """As kill -9 does it."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGKILL)
        self._wait()

    def stop(self) -> int:
        """As an operator does it."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        return self._wait()

    def _wait(self) -> int:
        code = self.child.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert self.child.stdout is not None
        self.child.stdout.close()
        return code

    @property
    def rss_mib(self) -> float:
        """The most memory that was resident at any time."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024


@dataclass
class Deployment:
    """A federation in a folder, and the processes of it that run."""

    root: Path
    plan: Plan
    port: int = field(default_factory=free_port)
    processes: list[Process] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.root / "federation.toml"

    @property
    def policy(self) -> Path:
        return self.root / "policy.toml"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def key(self, name: str) -> Path:
        return self.root / "keys" / f"{name}.key"

    def set(self, **settings: Any) -> None:
        """Change lines of the federation file, and sign it anew."""
        text = self.config.read_text()
        for name, value in settings.items():
            line = f"{name} = {json.dumps(value)}"
            text, found = re.subn(rf"(?m)^(# )?{name} = [^#\n]*", f"{line}  ", text, count=1)
            assert found, name
        self.config.write_text(text)
        self.sign()

    def sign(self) -> None:
        authority = read_identity(self.key("authority"))
        charter = federation_file.sign(federation_file.load(self.config), authority)
        federation_file.write_charter(federation_file.charter_path(self.config), charter)

    def spawn(self, name: str, *command: str, **environment: str) -> Process:
        child = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=self.root,
            env={**os.environ, **QUIET, "PYTHONUNBUFFERED": "1", **environment},
        )
        process = Process(name, child)
        self.processes.append(process)
        return process

    def enclave(self, *, wait: bool = True, **environment: str) -> Process:
        process = self.spawn(
            "enclave",
            *("-m", "ostraka", "enclave", "run", "--config", str(self.config)),
            *("--unsafe-simulate", "--log-json"),
            **environment,
        )
        if wait:
            process.wait_for("ServiceStarted")
        return process

    def worker(self, number: int) -> Process:
        name = f"worker-{number}"
        return self.spawn(
            name,
            *("-m", "ostraka", "worker", "run", "--enclave", self.address, "--name", name),
            *("--key", str(self.key(name)), "--device", "cpu", "--log-json"),
        )

    def workers(self) -> list[Process]:
        return [self.worker(number) for number in range(1, self.plan.workers + 1)]

    def client(self, number: int, update: np.ndarray, *, rounds: int = 1) -> Process:
        """A client in a process of its own, which sends the same update in every round."""
        name = f"client-{number}"
        path = self.root / f"{name}.npy"
        np.save(path, update)
        arguments = (self.address, name, str(self.root), str(rounds), str(path))
        return self.spawn(name, "-c", CLIENT, *arguments)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()


@pytest.fixture
def deploy(tmp_path) -> Iterator[Callable[..., Deployment]]:
    deployments: list[Deployment] = []

    def make(*, settings: dict[str, Any] | None = None, **plan: Any) -> Deployment:
        deployment = Deployment(tmp_path / f"federation-{len(deployments)}", Plan(**plan))
        folder.create(deployment.root, deployment.plan, now=int(time.time()) - 60)
        deployments.append(deployment)
        deployment.set(listen=deployment.address, **(settings or {}))
        return deployment

    yield make
    for deployment in deployments:
        deployment.stop()


def events(process: Process, name: str) -> list[dict[str, Any]]:
    """The events of this name that a service has logged."""
    parsed = (json.loads(line) for line in process.lines if line.startswith("{"))
    return [line for line in parsed if line.get("event") == name]


@pytest.fixture
def logged() -> Callable[[Process, str], list[dict[str, Any]]]:
    return events

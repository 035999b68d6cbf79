"""Installs a wheel where nothing of the repository is, and runs a federation with it.

`python tools/try_wheel.py dist/*.whl` makes a new environment in a temporary folder. There it runs
init, an enclave, two workers, five clients that fetch and submit, and status, until a round is
published. With --lab it installs that extra, too, and runs the demo instead of the federation.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
CLIENTS, PATIENCE_S = 5, 600
YES = "--unsafe-simulation"


class Failed(Exception):
    """A command of the installed release did not do what it must."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--lab", action="store_true", help="install the lab, and run its demo")
    asked = parser.parse_args()
    try:
        with TemporaryDirectory(prefix="ostraka-try-") as folder:
            place = Place(Path(folder), asked.wheel.resolve(), "[lab]" if asked.lab else "")
            place.demo() if asked.lab else place.federation()
    except Failed as failed:
        sys.exit(str(failed))


class Place:
    """An environment with the wheel, in a folder from which nothing else can be imported."""

    def __init__(self, folder: Path, wheel: Path, extra: str = "") -> None:
        self.folder, self.wheel = folder, wheel
        ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.environment = {**ours, "HOME": str(folder)}
        venv.create(folder / "venv", with_pip=True)
        pip = (self.program("python"), "-m", "pip", "install", "--quiet", "-c", CONSTRAINTS)
        # Its index and its cache are those of the user.
        self.call(*pip, f"{wheel}{extra}", environment=ours)

    def program(self, name: str) -> Path:
        return self.folder / "venv" / "bin" / name

    def call(self, *command: object, environment: dict[str, str] | None = None) -> str:
        """Run a command to its end, and return what it printed. Raises Failed if it fails."""
        done = subprocess.run(  # noqa: S603 (what we have just installed, and no shell)
            [*map(str, command)],
            cwd=self.folder,
            env=environment or self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if done.returncode:
            raise Failed(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
        return done.stdout

    def ostraka(self, *arguments: object) -> str:
        return self.call(self.program("ostraka"), *arguments)

    def told(self, *arguments: object) -> dict[str, object]:
        """Run a command with --json, and return what it says."""
        said: dict[str, object] = json.loads(self.ostraka(*arguments, "--json").splitlines()[-1])
        return said

    @contextmanager
    def running(self, *arguments: object) -> Iterator[subprocess.Popen[str]]:
        """Run a service, and end it afterwards."""
        with (self.folder / "services.log").open("a") as log:
            command = [str(self.program("ostraka")), *map(str, arguments)]
            process = subprocess.Popen(  # noqa: S603 (as above)
                command, cwd=self.folder, env=self.environment, stdout=log, stderr=log, text=True
            )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE_S)

    def demo(self) -> None:
        self.ostraka("demo", "--rounds", 3)
        say("the demo ran")

    def federation(self) -> None:
        """Run one round, with the commands of the README."""
        expected = self.told("attest", "expect", self.wheel)["measurement"]
        if expected != self.told("attest", "measure")["measurement"]:
            raise Failed(
                "`attest expect` of the wheel is not `attest measure` where it is installed"
            )
        say(f"measurement {expected}")
        size = ("--clients", CLIENTS, "--f", 1, "--dimension", 1000)
        self.ostraka("init", "first-run", *size)
        address = f"127.0.0.1:{free_port()}"
        config = self.folder / "first-run" / "federation.toml"
        config.write_text(config.read_text().replace("127.0.0.1:7420", address))
        with (
            self.running("enclave", "run", "--config", config, YES),
            self.running("worker", "run", *self.as_party(address, "worker-1")),
            self.running("worker", "run", *self.as_party(address, "worker-2")),
        ):
            self.wait_until_published(config, 0)
            self.take_part(address)
            status = self.wait_until_published(config, 1)
        say(f"a round was published: {json.dumps(status)[:200]}")

    def as_party(self, address: str, name: str) -> list[object]:
        folder = self.folder / "first-run"
        key, policy = folder / "keys" / f"{name}.key", folder / "policy.toml"
        return ["--enclave", address, "--name", name, "--key", key, "--policy", policy, YES]

    def take_part(self, address: str) -> None:
        """All clients submit at the same time: a round waits for most of them."""
        code = "import numpy, sys; numpy.save(sys.argv[1], numpy.ones(1000, numpy.float32))"
        self.call(self.program("python"), "-c", code, "update.npy")
        party = self.as_party(address, "client-1")
        self.ostraka("client", "fetch", *party, "--out", "model.safetensors")
        submitted = [
            subprocess.Popen(  # noqa: S603 (as above)
                [
                    *(
                        str(self.program("ostraka")),
                        "client",
                        "submit",
                        "update.npy",
                        "--round",
                        "1",
                    ),
                    *map(str, self.as_party(address, f"client-{number}")),
                ],
                cwd=self.folder,
                env=self.environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for number in range(1, CLIENTS + 1)
        ]
        for each in submitted:
            output, _ = each.communicate(timeout=PATIENCE_S)
            if each.returncode:
                raise Failed(f"a client failed: {output}")

    def wait_until_published(self, config: Path, rounds: int) -> dict[str, object]:
        """Ask for the status until this many rounds are published."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                status = self.told("status", "--config", config)
            except Failed as failed:
                status = {"error": str(failed)}
            if status.get("published") == rounds:
                return status
            if time.monotonic() > deadline:
                log = (self.folder / "services.log").read_text()
                raise Failed(f"{rounds} rounds are not published: {status}\n{log}")
            time.sleep(0.5)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

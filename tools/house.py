"""Print how large the house is: python tools/house.py

Files and lines of both packages; what the enclave's process loads; and which modules one update
passes through, from `Client.submit` to its `Outcome`. For the last, a small federation runs over
loopback with all roles in this process, so that one trace sees all of them.

Lines are counted without the code that protoc generates.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import ostraka
import ostraka_lab
from ostraka.cli.federation_folder import Plan
from ostraka.client.api import Client
from ostraka.enclave.measurement import MEASURED, measured_files
from ostraka.enclave.platform.choose import unsafe_simulated
from ostraka.enclave.platform.simulated import KEY_FILE, PLATFORM_FILE
from ostraka.enclave.service import serve
from ostraka.events import Event, ServiceStarted
from ostraka.files import read_identity
from ostraka.worker import EnclavePin, Staff, Verifier, WorkerService, kernel_for
from ostraka_lab.deployment import found

PACKAGES = tuple(Path(package.__path__[0]) for package in (ostraka, ostraka_lab))
TRUSTED = ("core", "crypto", "protocol", "attestation")
PLAN = Plan(clients=5, f=1, dimension=100_000)
PATIENCE_S = 120.0


def main() -> None:
    """Print every figure."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--list", action="store_true", help="name the modules on an update's way")
    listed = asked.parse_args().list
    for package in PACKAGES:
        _print(package.name, _size(_modules(package)))
    _print("both", _size([path for package in PACKAGES for path in _modules(package)]))
    _print("the enclave's entry", _entry())
    passed = traced_round()
    _print("an update's way", f"{len(passed)} modules from Client.submit to Outcome")
    for name in sorted(passed) if listed else ():
        _print("", name)


def _print(what: str, figures: str) -> None:
    sys.stdout.write(f"{what:<20} {figures}\n")


def _modules(package: Path) -> list[Path]:
    return [path for path in sorted(package.rglob("*.py")) if "_pb2" not in path.stem]


def _lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def _size(paths: Sequence[Path]) -> str:
    lines = {path: _lines(path) for path in paths}
    largest = max(paths, key=lines.__getitem__)
    name = largest.relative_to(PACKAGES[0].parent)
    median = statistics.median(lines.values())
    return (
        f"{len(paths)} files, {sum(lines.values())} lines, median {median:g}, "
        f"largest {name} with {lines[largest]}"
    )


def _entry() -> str:
    paths = [path for path in measured_files() if path.suffix == ".py" and "_pb2" not in path.stem]
    inner = [path for path in paths if path.relative_to(PACKAGES[0]).parts[0] in TRUSTED]
    return (
        f"{len(MEASURED)} modules, {sum(map(_lines, paths))} lines; "
        f"{', '.join(TRUSTED)}: {sum(map(_lines, inner))} of them"
    )


class Trace:
    """Notes which modules of ours execute a function while it is on, in every thread."""

    def __init__(self) -> None:
        self.on = False
        self.names: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.on and event == "call":
            name = frame.f_globals.get("__name__", "")
            if name.split(".")[0] in ("ostraka", "ostraka_lab"):
                self.names.add(name)


def traced_round() -> set[str]:
    """The modules that one client's update passes through, in a round of exact masking."""
    trace = Trace()
    threading.setprofile(trace)
    try:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            root = Path(folder) / "federation"
            address = found(root, PLAN, count=1)
            stack.enter_context(_enclave(root))
            for number in (1, 2):
                stack.enter_context(_worker(root, address, f"worker-{number}"))
            _submit_all(root, address, trace)
    finally:
        threading.setprofile(None)
    return trace.names


@contextmanager
def _enclave(root: Path) -> Iterator[None]:
    """The enclave's service on an event loop of its own. Ends with the block."""
    started = threading.Event()
    loop = asyncio.new_event_loop()
    platform = unsafe_simulated(root / PLATFORM_FILE, root / KEY_FILE)

    def tell(event: Event) -> None:
        if isinstance(event, ServiceStarted):
            started.set()

    service = loop.create_task(serve(root / "federation.toml", platform, tell))

    def run() -> None:
        try:
            loop.run_until_complete(service)
        except asyncio.CancelledError:
            pass
        finally:
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        if not started.wait(PATIENCE_S):
            raise SystemExit("the enclave does not start")
        yield
    finally:
        loop.call_soon_threadsafe(service.cancel)
        thread.join()


@contextmanager
def _worker(root: Path, address: str, name: str) -> Iterator[None]:
    """A worker, in a thread. Ends with the block."""
    key = root / "keys" / f"{name}.key"
    kernel, _ = kernel_for("cpu")
    verifier = Verifier.of(root / "policy.toml", unsafe_simulation=True)
    staff = Staff(name, read_identity(key), kernel, EnclavePin(None, verifier=verifier))
    service = WorkerService(address, staff)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield
    finally:
        service.stop()
        thread.join()


def _submit_all(root: Path, address: str, trace: Trace) -> None:
    """Every client submits once, all at the same time. The first one's way is traced."""

    def begin() -> None:
        trace.on = True

    ready = threading.Barrier(PLAN.clients, action=begin)

    def take_part(number: int) -> None:
        name = f"client-{number}"
        with Client(
            address,
            name=name,
            key=root / "keys" / f"{name}.key",
            policy=root / "policy.toml",
            unsafe_simulation=True,
            timeout=PATIENCE_S,
        ) as client:
            client.fetch()
            ready.wait()
            client.submit(np.full(PLAN.dimension or 0, number, np.float32))
            if number == 1:
                trace.on = False

    with ThreadPoolExecutor(PLAN.clients) as pool:
        list(pool.map(take_part, range(1, PLAN.clients + 1)))


if __name__ == "__main__":
    main()

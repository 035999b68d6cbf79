"""CPU time and memory of this process, and a description of the machine.

Stopwatch    CPU time of the parts of a process that count
Ledger       CPU time by party, where several play in one process
measured     CPU and wall time of one call
process_cpu_s, process_peak_bytes  CPU time and peak memory of another process
PeakMemory   the most memory that a process of its own uses
describe     the machine that figures were measured on
"""

import contextlib
import os
import platform
import resource
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

import numpy as np

from ostraka.core import loops
from ostraka.errors import ConfigError
from ostraka_lab.bench.process import Figures

_KIB, _GIB = 2**10, 2**30
_INTERVAL_S = 0.01
_PACKAGES = ("ostraka", "numpy", "cryptography", "torch", "flwr", "scipy")

T = TypeVar("T")


class Stopwatch:
    """Adds up the CPU seconds of this process, all its threads, between start and stop.

    with clock:           measures a block
    with clock.paused():  leaves out a part of it

    timer: another clock, such as wall time for what is not done by this process.
    """

    def __init__(self, timer: Callable[[], float] | None = None) -> None:
        self._timer = timer or time.process_time
        self.note: str | None = None
        self._elapsed = 0.0
        self._factor = 1.0
        self._started = 0.0

    @property
    def seconds(self) -> float:
        return self._elapsed * self._factor

    def extrapolate(self, *, part: int, whole: int) -> None:
        """Say that only `part` of the columns was measured: `seconds` grows in proportion."""
        if part < whole:
            self._factor = whole / part
            self.note = f"measured on {part} of {whole} columns and scaled: a low estimate"

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def __enter__(self) -> None:
        self._started = self._timer()

    def __exit__(self, *_: object) -> None:
        self._elapsed += self._timer() - self._started


@dataclass(frozen=True)
class Cost:
    """What a call took. cpu_s: of all threads, and of child processes that have ended."""

    cpu_s: float
    wall_s: float


def measured(work: Callable[[], T]) -> tuple[T, Cost]:
    """Call, and measure what the call takes."""
    cpu, wall = _cpu(), time.perf_counter()
    result = work()
    return result, Cost(_cpu() - cpu, time.perf_counter() - wall)


def _cpu() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def process_cpu_s(pid: int, *, otherwise: float) -> float:
    """The CPU seconds of another process, all its threads; `otherwise` if it has ended."""
    try:
        # What clock_getcpuclockid(3) makes of a process's id.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return otherwise


class Ledger:
    """CPU seconds of this process, by party. One works at a time, and the innermost is charged.

    with ledger("enclave"):         charged to the enclave,
        with ledger("worker-1"):    but for this block
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._parties: list[str] = []
        self._since = 0.0

    @contextmanager
    def __call__(self, party: str) -> Iterator[None]:
        self._settle()
        self._parties.append(party)
        try:
            yield
        finally:
            self._settle()
            self._parties.pop()

    def _settle(self) -> None:
        now = time.process_time()
        if self._parties:
            self.seconds[self._parties[-1]] += now - self._since
        self._since = now


def available_bytes() -> int:
    """The memory that new work can use without swapping."""
    return _field("/proc/meminfo", "MemAvailable")


def _total_bytes() -> int:
    return _field("/proc/meminfo", "MemTotal")


def forget_peak() -> None:
    """Make `peak_bytes` count from now on. Where that is not allowed, it counts from the start."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """The most memory of this process that was resident at one time."""
    return _field("/proc/self/status", "VmHWM")


def process_peak_bytes(pid: int) -> int:
    """The most memory of another process that was resident at one time."""
    return _field(f"/proc/{pid}/status", "VmHWM")


def resident_bytes() -> int:
    return _field("/proc/self/status", "VmRSS")


def anonymous_bytes() -> int:
    """The memory of this process that is backed by no file: its data, without code and caches."""
    return _field("/proc/self/status", "RssAnon")


class PeakMemory:
    """Samples `anonymous_bytes` in a thread, and keeps the largest."""

    def __init__(self) -> None:
        self.peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._look()

    def _sample(self) -> None:
        while not self._done.wait(_INTERVAL_S):
            self._look()

    def _look(self) -> None:
        self.peak = max(self.peak, anonymous_bytes())


def _field(path: str, name: str) -> int:
    try:
        text = Path(path).read_text()
    except OSError:
        raise ConfigError(f"the benchmark needs Linux: {path} cannot be read") from None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * _KIB
    raise ConfigError(f"the benchmark needs Linux: {path} has no {name}")


def describe(*, threads: int) -> Figures:
    """Describe this machine, so that a reader can judge its figures."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(_total_bytes() / _GIB, 1),
        "available_gib": round(available_bytes() / _GIB, 1),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "blas": _blas(),
        "loops": loops.kind(),
        "threads": threads,
        "packages": {name: found for name in _PACKAGES if (found := installed(name))},
    }


def installed(package: str) -> str | None:
    """The version of a package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """The model of the processor, or its architecture where Linux names no model."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def has_flag(name: str) -> bool:
    """Whether the processor names this flag, such as vaes."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = (line.partition(":")[2].split() for line in lines if line.startswith("flags"))
    return name in next(flags, [])


def _blas() -> str:
    found = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{found['name']} {found['version']}"

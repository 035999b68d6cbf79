"""The machine that figures were measured on, its memory, and how much of it a process uses."""

import contextlib
import os
import platform
import threading
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from ostraka.errors import ConfigError
from ostraka_lab.bench.process import Figures

_KIB = 1024
_INTERVAL_S = 0.01


def available_bytes() -> int:
    """What new work can use without swapping."""
    return _field("/proc/meminfo", "MemAvailable")


def total_bytes() -> int:
    return _field("/proc/meminfo", "MemTotal")


def forget_peak() -> None:
    """Make `peak_bytes` count from here on. Where that is not allowed, it counts from the start."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """The most that was resident of this process."""
    return _field("/proc/self/status", "VmHWM")


def resident_bytes() -> int:
    return _field("/proc/self/status", "VmRSS")


def anonymous_bytes() -> int:
    """The memory of this process that no file backs: its own data, without code and page cache."""
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


_GIB = 2**30
_PACKAGES = ("ostraka", "numpy", "cryptography", "torch", "flwr", "scipy")


def describe(*, threads: int) -> Figures:
    """What a reader needs to know to believe a figure, or to doubt it."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(total_bytes() / _GIB, 1),
        "available_gib": round(available_bytes() / _GIB, 1),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "blas": _blas(),
        "threads": threads,
        "packages": {name: found for name in _PACKAGES if (found := installed(name))},
    }


def installed(package: str) -> str | None:
    """Its version."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """Linux on some machines names no model."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def _blas() -> str:
    found = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{found['name']} {found['version']}"

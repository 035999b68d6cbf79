"""The machine that figures were measured on."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from ostraka.bench.child import Figures
from ostraka.bench.memory import available_bytes, total_bytes

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

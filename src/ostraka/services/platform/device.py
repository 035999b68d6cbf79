"""Devices that are asked by ioctl, with structures that hold addresses."""

import ctypes
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

# The descriptor, the request's number, and the structure that the device reads and changes.
Ioctl: TypeAlias = Callable[[int, int, Any], None]

_READ_WRITE = 3


def request_number(group: int, number: int, structure: type[ctypes.Structure]) -> int:
    """Linux's _IOWR on x86 and Arm: direction, size, group and number."""
    return _READ_WRITE << 30 | ctypes.sizeof(structure) << 16 | group << 8 | number


def call(path: Path, ioctl: Ioctl, request: int, structure: ctypes.Structure) -> None:
    """Ask a device once. Raises OSError."""
    device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        ioctl(device, request, structure)
    finally:
        os.close(device)


def system_ioctl(device: int, request: int, structure: Any) -> None:
    """The real one. The structure is changed in place."""
    fcntl.ioctl(device, request, structure, True)

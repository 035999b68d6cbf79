"""Files that are there as a whole or not at all, whenever the power goes or the process dies."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ostraka.arrays import Buffer

_PARTIAL = ".partial"


def write(path: Path, pieces: Iterable[Buffer], *, mode: int = 0o600) -> None:
    """Make or replace a file. When this returns, it is on the disk under its name.

    Raises OSError. The name then stands for the old file or the new one, never for a part.
    """
    partial = path.with_name(path.name + _PARTIAL)
    try:
        _write_durably(partial, pieces, mode)
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """For its owner alone, its name durable. One that is there stays as it is."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    sync_folder(path.parent)


def remove_partial(folder: Path) -> int:
    """Delete what writers left behind that died in the middle. Returns how many."""
    leftovers = list(folder.glob(f"*{_PARTIAL}"))
    for leftover in leftovers:
        leftover.unlink()
    return len(leftovers)


def sync_folder(folder: Path) -> None:
    """A new name in a folder survives a loss of power only after this."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _write_durably(path: Path, pieces: Iterable[Buffer], mode: int) -> None:
    path.unlink(missing_ok=True)
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        for piece in pieces:
            _write_all(opened, piece)
        os.fsync(opened)
    finally:
        os.close(opened)


def _write_all(opened: int, piece: Buffer) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(opened, rest) :]

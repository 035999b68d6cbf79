"""Where data sets are kept, and whether what is there is sound."""

import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ostraka.calibration import user_cache
from ostraka.errors import ConfigError, StorageFull
from ostraka_lab.data.catalogue import Entry, Kept


def folder(name: str, cache: Path | None = None) -> Path:
    """Of one data set. cache: instead of the user's."""
    return (cache or user_cache()) / "data" / name


def flaws(entry: Entry, place: Path) -> list[str]:
    """What is wrong with the files in this folder; nothing, if they are all sound."""
    found = ((file.name, _flaw(file, place / file.name)) for file in entry.files)
    return [f"{name} {flaw}" for name, flaw in found if flaw]


def is_absent(entry: Entry, place: Path) -> bool:
    """Whether there is nothing, not even a damaged file."""
    return not any((place / file.name).exists() for file in entry.files)


def require(entry: Entry, place: Path) -> None:
    """Raises ConfigError, with what to run, unless every file is there and sound."""
    wrong = flaws(entry, place)
    if wrong:
        why = "; ".join(wrong)
        what = "is not in" if is_absent(entry, place) else f"cannot be used ({why}) in"
        raise ConfigError(f"{entry.name} {what} {place}: run `ostraka data get {entry.name}`")


def write(target: Path, content: bytes) -> None:
    """In one step, so that nobody ever sees half a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with room_in(target.parent):
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            temporary.chmod(0o644)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def room_in(place: Path) -> Iterator[None]:
    """A full disk is an error of its own: another source would not help."""
    try:
        yield
    except OSError as bad:
        if bad.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise StorageFull(
            f"{place}: {bad.strerror}; free some space, or set OSTRAKA_CACHE to another folder"
        ) from None


def _flaw(file: Kept, path: Path) -> str:
    try:
        with path.open("rb") as opened:
            if os.fstat(opened.fileno()).st_size != file.size:
                return "has the wrong size"
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except FileNotFoundError:
        return "is missing"
    except OSError as bad:
        return f"cannot be read: {bad.strerror}"
    return "" if digest == file.sha256 else "is damaged"

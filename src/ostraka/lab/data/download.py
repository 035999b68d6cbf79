"""Downloads a file, and goes on where an earlier attempt ended."""

import hashlib
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import cast
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from ostraka.errors import ServiceError
from ostraka.lab.data.cache import room_in
from ostraka.lab.data.entry import Remote
from ostraka.lab.data.watch import Watch

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

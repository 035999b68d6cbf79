"""Fakes of the pseudo-files, with the manners of the real ones.

configfs-tsm as in Linux (fs/configfs/file.c, drivers/virt/coco): an entry has its files from the
start, each open-write-close is one counted write, a write that cannot be taken is ignored in
silence when the file is closed, reports are made when they are read, and only rmdir removes.
"""

import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

TSM = Path("/config/tsm/report")
ATTESTATION = Path("/attestation")


def failure(number, path):
    return OSError(number, os.strerror(number), str(path))


@dataclass
class Entry:
    inblob: bytes = b""
    writes: int = 0
    outblob: bytes = b""
    of_write: int | None = None


@dataclass
class FakeConfigfs:
    """driver: who answers, if anybody. certificates: what the host brings for SEV-SNP.

    before: called with (operation, attribute or "", entry) before each call, to play other writers.
    ignoring: the kernel takes no writes. also: other paths that exist. privileged: we are root.
    """

    driver: str | None = "tdx_guest"
    certificates: bytes = b""
    report: Callable[[bytes], bytes] = lambda data: b"report about " + data + b", signed"
    report_error: int | None = None
    ignoring: bool = False
    privileged: bool = True
    root: Path = TSM
    also: set[Path] = field(default_factory=set)
    before: Callable[[str, str, Entry | None], None] = lambda *_: None
    entries: dict[str, Entry] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)

    def exists(self, path):
        return path == self.root or path in self.also

    def mkdir(self, path):
        self.before("mkdir", "", None)
        if path.parent != self.root:
            raise failure(errno.ENOENT, path)
        if not self.privileged:
            raise failure(errno.EACCES, path)
        if path.name in self.entries:
            raise failure(errno.EEXIST, path)
        if self.driver is None:
            raise failure(errno.ENXIO, path)
        self.entries[path.name] = Entry()
        self.made.append(path.name)

    def rmdir(self, path):
        if path.parent.name in self.entries:
            raise failure(errno.ENOTDIR, path)
        if path.name not in self.entries:
            raise failure(errno.ENOENT, path)
        self.before("rmdir", "", self.entries[path.name])
        del self.entries[path.name]

    def unlink(self, path):
        raise failure(errno.EPERM, path)

    def write(self, path, data):
        entry = self._entry(path)
        self.before("write", path.name, entry)
        if path.name != "inblob":
            raise failure(errno.EACCES, path)
        if len(data) > 64:
            raise failure(errno.EFBIG, path)
        self.take(entry, data)

    def take(self, entry, data):
        if not self.ignoring:
            entry.inblob = data
            entry.writes += 1

    def read(self, path):
        entry = self._entry(path)
        self.before("read", path.name, entry)
        match path.name:
            case "provider":
                return f"{self.driver}\n".encode()
            case "generation":
                return f"{entry.writes}\n".encode()
            case "outblob":
                return self._report(entry, path)
            case "auxblob":
                self._report(entry, path)
                return self.certificates
        raise failure(errno.EACCES, path)

    def _entry(self, path):
        names = {"provider", "generation", "inblob", "outblob"}
        names |= {"auxblob"} if self.driver == "sev_guest" else set()
        entry = self.entries.get(path.parent.name)
        if entry is None or path.name not in names:
            raise failure(errno.ENOENT, path)
        return entry

    def _report(self, entry, path):
        if not entry.inblob:
            raise failure(errno.EINVAL, path)
        if entry.of_write != entry.writes:
            if self.report_error is not None:
                raise failure(self.report_error, path)
            entry.outblob = self.report(entry.inblob)
            entry.of_write = entry.writes
        return entry.outblob


@dataclass
class FakeGramine:
    """The files of one process. kind: the attestation type, or None under gramine-direct.

    overlaps: how often somebody wrote before the writer before had its quote.
    """

    kind: str | None = "dcap"
    quoting: bool = True
    key: bytes | None = bytes(range(16))
    slow: bool = False
    root: Path = ATTESTATION
    user_report_data: bytes = bytes(64)
    waiting: int | None = None
    overlaps: int = 0
    written: list[bytes] = field(default_factory=list)

    def exists(self, path):
        return path == self.root / "attestation_type" and self.kind is not None

    def mkdir(self, path):
        raise failure(errno.EACCES, path)

    rmdir = mkdir

    def write(self, path, data):
        if self.kind is None or path != self.root / "user_report_data":
            raise failure(errno.ENOENT, path)
        self.overlaps += self.waiting is not None
        self.waiting = threading.get_ident()
        # Gramine pads with zeros and cuts at 64 bytes, and says nothing of either.
        self.user_report_data = data[:64].ljust(64, b"\0")
        self.written.append(data)
        self._dawdle()

    def read(self, path):
        files = {}
        if self.kind is not None:
            files["attestation_type"] = self.kind.encode()
        if self.kind in ("dcap", "epid"):
            files["quote"] = b"quote about " + self.user_report_data
        if self.key is not None:
            files["keys/_sgx_mrenclave"] = self.key
            files["keys/_sgx_mrsigner"] = b"everybody's key!"
        name = str(path.relative_to(self.root))
        if name not in files:
            raise failure(errno.ENOENT, path)
        if name == "quote":
            self._dawdle()
            self.waiting = None
            if not self.quoting:
                raise failure(errno.EACCES, path)
        return files[name]

    def _dawdle(self):
        if self.slow:
            time.sleep(0.001)


@pytest.fixture
def configfs():
    return FakeConfigfs


@pytest.fixture
def gramine():
    return FakeGramine


@pytest.fixture
def fail():
    """A `before` for FakeConfigfs: one operation fails, with this number."""

    def at(operation, attribute, number):
        def before(this, name, _):
            if (this, name) == (operation, attribute):
                raise failure(number, Path(name or "entry"))

        return before

    return at

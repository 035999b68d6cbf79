"""TDX and SEV-SNP virtual machines: evidence through Linux's configfs-tsm (Linux 6.7 or later).

An entry is made by mkdir, filled by one write, read, and removed by rmdir alone: its files cannot
be unlinked. The kernel counts the writes to an entry, and gives no error when it ignores one, so
the count is the only proof that a report is about what was written.
"""

import errno
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ostraka.enclave.platform.interface import require_about, require_report_data
from ostraka.enclave.platform.linux import OS_FILES, Files
from ostraka.errors import PlatformError
from ostraka.files import explained
from ostraka.messages import Evidence

PLACE = Path("/sys/kernel/config/tsm/report")

_KINDS = {"tdx_guest": "tdx", "sev_guest": "snp"}
_WRITES = 1
_ATTEMPTS = 3

_NO_DRIVER = "no guest driver answers: load tdx_guest or sev-guest, in a confidential VM"
_ROOT_ONLY = "configfs is for root: run as root, or let a service that is root hand evidence over"
_ADVICE = {
    errno.ENOENT: "mount configfs and load the module tsm_report (Linux 6.7 or later)",
    errno.ENXIO: _NO_DRIVER,
    errno.ENOTTY: _NO_DRIVER,
    errno.EACCES: _ROOT_ONLY,
    errno.EPERM: _ROOT_ONLY,
    errno.EBUSY: "another report is under way, or the host never answered one: try again, and "
    "restart the machine if it stays so",
    errno.EWOULDBLOCK: "the report was not ready: try again",
    errno.ETIMEDOUT: "the host's quoting service did not answer: ask the operator of the host",
    errno.EINVAL: "the kernel did not take the report data, or reports are not for this privilege "
    "level: update the kernel, or run at the level that owns the machine",
    errno.EIO: "the firmware or the host refused: the kernel's log says why",
}
_LEFT_BEHIND = {errno.EBUSY: "something holds it open: remove it by rmdir later"}


def find(kind: str, place: Path, files: Files) -> "TsmProvider | None":
    """Returns the provider if this virtual machine is in a TEE of this kind."""
    return TsmProvider(kind, place, files) if present_kind(place, files) == kind else None


def present_kind(root: Path = PLACE, files: Files = OS_FILES) -> str | None:
    """Returns the TEE that this virtual machine is in: "tdx", "snp", or None.

    The folder may be there without a TEE. Only an entry shows it, so one is made and removed.
    """
    if not files.exists(root):
        return None
    with explained("asking configfs-tsm who answers", _ADVICE):
        try:
            with _entry(root, files) as entry:
                return _kind(entry, files)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise


class TsmProvider:
    """Gets quotes and reports. Each request has its own entry, so any number of threads may ask."""

    def __init__(self, kind: str, root: Path = PLACE, files: Files = OS_FILES) -> None:
        self.kind = kind
        self._root = root
        self._files = files

    def evidence(self, report_data: bytes) -> Evidence:
        require_report_data(report_data)
        for _ in range(_ATTEMPTS):
            evidence = self._attempt(report_data)
            if evidence is not None:
                require_about(report_data, evidence.document)
                return evidence
        raise PlatformError(
            f"another process wrote to our entries in {self._root}, {_ATTEMPTS} times in a row: "
            "find out who has root on this machine"
        )

    def _attempt(self, report_data: bytes) -> Evidence | None:
        """Returns None if others wrote to the entry: the report may then be about anything."""
        files = self._files
        with (
            explained("asking configfs-tsm for a report", _ADVICE),
            _entry(self._root, files) as entry,
        ):
            self._require_kind(entry)
            files.write(entry / "inblob", report_data)
            document = files.read(entry / "outblob")
            endorsements = self._endorsements(entry)
            # Last, so that it covers everything that was read.
            writes = _generation(entry, files)
        return Evidence(self.kind, document, endorsements) if writes == _WRITES else None

    def _require_kind(self, entry: Path) -> None:
        found = _kind(entry, self._files)
        if found != self.kind:
            raise PlatformError(f"this machine's evidence is of kind {found!r}, not {self.kind!r}")

    def _endorsements(self, entry: Path) -> tuple[bytes, ...]:
        """Returns AMD's table of certificates, if the host brought one. TDX has none here."""
        try:
            table = self._files.read(entry / "auxblob")
        except FileNotFoundError:
            return ()
        return (table,) if table else ()


@contextmanager
def _entry(root: Path, files: Files) -> Iterator[Path]:
    """Makes an entry under a name that no other process knows, and removes it afterwards."""
    path = root / f"ostraka-{secrets.token_hex(16)}"
    files.mkdir(path)
    try:
        yield path
    finally:
        with explained("removing our entry from configfs-tsm", _LEFT_BEHIND):
            files.rmdir(path)


def _kind(entry: Path, files: Files) -> str:
    name = files.read(entry / "provider").decode(errors="replace").strip()
    if name not in _KINDS:
        known = " and ".join(_KINDS)
        raise PlatformError(f"reports of {name[:32]!r} are not supported, only of {known}")
    return _KINDS[name]


def _generation(entry: Path, files: Files) -> int:
    text = files.read(entry / "generation").strip()
    if not text.isdigit():
        raise PlatformError("the kernel's count of writes is no number")
    return int(text)

"""An append-only ledger: sealed records, one file each, chained.

    ledger/00000000.sealed, ledger/00000001.sealed, ...

Each holds its number and the digest of the file before it inside the seal. The host can take away
the newest ones, which brings back an older state and which clients detect; whatever else it does
(drop one between others, exchange, repeat, splice from elsewhere) is seen here.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ostraka import encoding, files
from ostraka.crypto.sealing import Sealer
from ostraka.encoding import Digest
from ostraka.errors import MalformedMessage, OpenError, StateError
from ostraka.services.storage import records
from ostraka.services.storage.records import Record
from ostraka.services.storage.sealed_file import DOES_NOT_OPEN

_PURPOSE = "ledger"
_NAME = re.compile(r"([0-9]{8})\.sealed")
_BEGINNING = bytes(32)
_AS_IT_WAS = "Bring back the whole folder as it was"


@dataclass(frozen=True)
class _Entry:
    """What one file holds. previous: SHA-256 of the file before it, as it lies on the disk."""

    LABEL: ClassVar[bytes] = b"ostraka/ledger/entry/v1"

    index: int
    previous: Digest
    record: bytes


class Ledger:
    """The records on disk. `read` comes first; it also says whether there are any."""

    def __init__(self, folder: Path, sealer: Sealer) -> None:
        self._folder = folder
        self._sealer = sealer
        self._length = 0
        self._last = _BEGINNING

    def __len__(self) -> int:
        return self._length

    def read(self) -> list[Record]:
        """All records, oldest first. Raises StateError unless they are one whole chain."""
        self._length, self._last = 0, _BEGINNING
        self._require_no_gap()
        found = []
        while (path := self._path(self._length)).exists():
            sealed = path.read_bytes()
            found.append(self._open(path, sealed))
            self._advance(sealed)
        return found

    def append(self, record: Record) -> None:
        """Durable when this returns. Raises OSError; the next append then takes the same place."""
        entry = _Entry(self._length, self._last, encoding.encode(record))
        sealed = self._sealer.seal(_PURPOSE, encoding.encode(entry))
        if not self._length:
            files.make_folder(self._folder)
        files.write(self._path(self._length), [sealed])
        self._advance(sealed)

    def _advance(self, sealed: bytes) -> None:
        self._length += 1
        self._last = hashlib.sha256(sealed).digest()

    def _open(self, path: Path, sealed: bytes) -> Record:
        try:
            entry = encoding.decode(_Entry, self._sealer.open(_PURPOSE, sealed))
            record = records.decode(entry.record)
        except OpenError:
            raise StateError(path, DOES_NOT_OPEN) from None
        except MalformedMessage as unknown:
            raise StateError(
                path,
                f"holds a record of another version ({unknown}): use the release that wrote it",
            ) from None
        if entry.index != self._length:
            raise StateError(
                path, f"holds record {entry.index}: files were exchanged or renamed. {_AS_IT_WAS}"
            )
        if entry.previous != self._last:
            raise StateError(
                path,
                "does not continue the record before it: one of the two is from another ledger, "
                f"or from another time. {_AS_IT_WAS}",
            )
        return record

    def _require_no_gap(self) -> None:
        numbers = sorted(_number(path) for path in self._folder.glob("*.sealed"))
        for expected, number in enumerate(numbers):
            if number != expected:
                raise StateError(
                    self._path(expected), f"is missing, but later ones are there. {_AS_IT_WAS}"
                )

    def _path(self, index: int) -> Path:
        return self._folder / f"{index:08d}.sealed"


def _number(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise StateError(path, "is no record of a ledger: move it away")
    return int(match[1])

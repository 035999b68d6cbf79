"""The append-only ledger: a chain of sealed records, one file each, and what they add up to."""

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeAlias

from ostraka import encoding, files
from ostraka.config import Federation
from ostraka.crypto.identity import check_signature
from ostraka.crypto.sealing import Sealer
from ostraka.enclave.storage.sealed_file import DOES_NOT_OPEN
from ostraka.encoding import Digest, Key, digest
from ostraka.errors import ConfigError, LocalProtocolError, MalformedMessage, OpenError, StateError
from ostraka.messages import Abandon, Certified, Charter, Receipt, genesis
from ostraka.protocol.confirm import require_certified


@dataclass(frozen=True)
class Founded:
    """A new enclave. state: digest of the model and the moments before all its rounds.

    abandon: what its first round follows, if it goes on for an enclave that was lost.
    """

    LABEL: ClassVar[bytes] = b"ostraka/ledger/founded/v5"

    receipt_key: Key
    charter: Charter
    state: Digest
    abandon: Abandon | None = None


@dataclass(frozen=True)
class TakenOver:
    """The life of another enclave goes on here.

    origin: its code id. history: its records, each encoded, from its first to its HandedOver.
    """

    LABEL: ClassVar[bytes] = b"ostraka/ledger/taken-over/v3"

    origin: Digest
    history: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True)
class Adopted:
    """A new revision of the federation holds, from the next round on."""

    LABEL: ClassVar[bytes] = b"ostraka/ledger/adopted/v5"

    charter: Charter


@dataclass(frozen=True)
class Published:
    """A round is over. state: digest of the model and the optimiser's moments after it."""

    LABEL: ClassVar[bytes] = b"ostraka/ledger/published/v5"

    certified: Certified
    state: Digest


@dataclass(frozen=True)
class Skipped:
    """A round was given up. The next one gets its number."""

    LABEL: ClassVar[bytes] = b"ostraka/ledger/skipped/v2"

    number: int
    reason: str


@dataclass(frozen=True)
class HandedOver:
    """The last record: everything went to the enclave of this code id, under this hybrid key.

    Without the key, two machines that run the same code could both become the successor.
    """

    LABEL: ClassVar[bytes] = b"ostraka/ledger/handed-over/v2"

    to: Digest
    key: Digest


Record: TypeAlias = Founded | TakenOver | Adopted | Published | Skipped | HandedOver

_KINDS: dict[bytes, type[Record]] = {
    kind.LABEL: kind for kind in (Founded, TakenOver, Adopted, Published, Skipped, HandedOver)
}


def decode(data: bytes) -> Record:
    """Return the record that these bytes encode. Raises MalformedMessage."""
    label, *_ = encoding.unpack(data) or [b""]
    if label not in _KINDS:
        raise MalformedMessage("not a record of any known kind")
    return encoding.decode(_KINDS[label], data)


_PURPOSE = "ledger"
_NAME = re.compile(r"([0-9]{8})\.sealed")
_BEGINNING = bytes(32)
_AS_IT_WAS = "Bring back the whole folder as it was"


@dataclass(frozen=True)
class _Entry:
    """What one file holds. previous: SHA-256 of the file before it, as it lies on the disk."""

    LABEL: ClassVar[bytes] = b"ostraka/ledger/entry/v2"

    index: int
    previous: Digest
    record: bytes


class Ledger:
    """The records on disk. Call `read` first."""

    def __init__(self, folder: Path, sealer: Sealer) -> None:
        self._folder = folder
        self._sealer = sealer
        self._length = 0
        self._last = _BEGINNING

    def __len__(self) -> int:
        return self._length

    def read(self) -> list[Record]:
        """Return all records, oldest first. Raises StateError unless they are one whole chain."""
        self._length, self._last = 0, _BEGINNING
        self._require_no_gap()
        found = []
        while (path := self._path(self._length)).exists():
            sealed = path.read_bytes()
            found.append(self._open(path, sealed))
            self._advance(sealed)
        return found

    def append(self, record: Record) -> None:
        """Add a record, durable on return. After an OSError, the next append takes its place."""
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
            record = decode(entry.record)
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
        raise StateError(path, "is not a record of a ledger: move it away")
    return int(match[1])


class History:
    """What the records of an enclave add up to. It holds no secret."""

    def __init__(self) -> None:
        self.receipt_key: bytes | None = None
        self.charters: list[Charter] = []
        self.abandon: Abandon | None = None  # what the first receipt follows, if anything
        self.published: list[Certified] = []
        self.state: bytes | None = None  # digest of the state after the last receipt
        self.handed_over: HandedOver | None = None
        self.origin: bytes | None = None  # the predecessor, until a receipt has named it
        self._federations: dict[bytes, Federation] = {}

    @property
    def head(self) -> Receipt | Abandon | None:
        return self.published[-1].receipt if self.published else self.abandon

    @property
    def number(self) -> int:
        """The number of the last round that was published, or abandoned before that."""
        return self.head.number if self.head else 0

    @property
    def stored(self) -> int:
        """The number under which the last state is stored: 0 before the first receipt."""
        return self.number if self.published else 0

    @property
    def electors(self) -> Federation:
        """The federation that the head names: whose voters confirm the next number."""
        return self._federations[self.head.federation] if self.head else self.charters[0].federation

    @property
    def federation(self) -> Federation:
        return self.charters[-1].federation

    def admit(self, record: Record) -> None:
        """Add one record. Raises LocalProtocolError if it cannot follow, and nothing changes."""
        self.check(record)
        match record:
            case Founded(receipt_key, charter, state, abandon):
                self.receipt_key, self.state, self.abandon = receipt_key, state, abandon
                if abandon is not None:
                    self._federations[abandon.federation] = abandon.electors
                self._agree(charter)
            case TakenOver(origin, history):
                self._continue(_handed_over(history), origin)
            case Adopted(charter):
                self._agree(charter)
            case Published(certified, state):
                self.published.append(certified)
                self.state, self.origin = state, None
            case HandedOver():
                self.handed_over = record

    def check(self, record: Record) -> None:
        """Raises LocalProtocolError unless this record can be the next."""
        first = isinstance(record, Founded | TakenOver)
        if first != (self.receipt_key is None):
            raise LocalProtocolError("a ledger begins once, with its founding or a take-over")
        if self.handed_over is not None:
            raise LocalProtocolError("this state was handed over; nothing can be added to it")
        match record:
            case Adopted(charter):
                self._require_revision(charter.federation)
            case Founded(charter=charter, abandon=Abandon() as abandon):
                _require_in_force(charter, abandon)
            case Published(certified):
                self._require_next(certified.receipt)
            case Skipped(number) if number != self.number + 1:
                raise LocalProtocolError(f"round {number} is not the one that was open")

    def verify(self) -> None:
        """Raises OpenError or ReceiptRefused unless all is signed and confirmed as it must be."""
        for signed in (*self.charters, *([self.abandon] if self.abandon else ())):
            check_signature(signed, self.federation.authority)
        key, head = self.receipt_key or b"", self.abandon
        electors = self._federations[head.federation] if head else self.charters[0].federation
        for certified in self.published:
            check_signature(certified.receipt, key)
            require_certified(certified, electors, key)
            electors = self._federations[certified.receipt.federation]

    def _agree(self, charter: Charter) -> None:
        self.charters.append(charter)
        self._federations[charter.federation.digest()] = charter.federation

    def _continue(self, other: "History", origin: bytes) -> None:
        self.receipt_key, self.state = other.receipt_key, other.state
        self.charters, self._federations = other.charters, other._federations
        self.abandon, self.published = other.abandon, other.published
        self.origin = origin

    def _require_revision(self, new: Federation) -> None:
        try:
            new.require_follows(self.federation)
        except ConfigError as unfit:
            raise LocalProtocolError(str(unfit)) from None

    def _require_next(self, receipt: Receipt) -> None:
        previous = digest(self.head) if self.head else genesis(self.electors)
        if receipt.number != self.number + 1 or receipt.previous != previous:
            raise LocalProtocolError(
                f"the receipt of round {receipt.number} does not follow that of {self.number}"
            )
        if receipt.federation not in self._federations:
            raise LocalProtocolError("the receipt is for a federation that was never adopted")


def _require_in_force(charter: Charter, abandon: Abandon) -> None:
    """Raises LocalProtocolError unless this charter can follow the one of an abandoned round."""
    if charter.federation == abandon.electors:
        return
    try:
        charter.federation.require_follows(abandon.electors)
    except ConfigError as unfit:
        raise LocalProtocolError(f"behind an abandoned round: {unfit}") from None


def _handed_over(history: tuple[bytes, ...]) -> History:
    other = History()
    for each in history:
        other.admit(decode(each))
    if other.handed_over is None:
        raise LocalProtocolError("what is taken over must have been handed over")
    return other

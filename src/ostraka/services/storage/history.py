"""What the records of a ledger add up to."""

from ostraka.config import Federation
from ostraka.crypto.identity import check_signature
from ostraka.encoding import digest
from ostraka.errors import ConfigError, LocalProtocolError
from ostraka.messages import Charter, Receipt
from ostraka.protocol.enclave.collecting import GENESIS
from ostraka.services.storage import records
from ostraka.services.storage.records import (
    Adopted,
    Founded,
    HandedOver,
    Published,
    Record,
    Skipped,
    TakenOver,
)


class History:
    """The life of an enclave as far as it is written down. It holds no secret."""

    def __init__(self) -> None:
        self.identity: bytes | None = None
        self.charters: list[Charter] = []
        self.receipts: list[Receipt] = []
        self.state: bytes | None = None  # digest of the state after the last receipt
        self.handed_over: HandedOver | None = None
        self.origin: bytes | None = None  # until a receipt has said so
        self._configs: set[bytes] = set()

    @property
    def head(self) -> Receipt | None:
        return self.receipts[-1] if self.receipts else None

    @property
    def number(self) -> int:
        """Of the last round that was published."""
        return len(self.receipts)

    @property
    def federation(self) -> Federation:
        return self.charters[-1].federation

    def admit(self, record: Record) -> None:
        """One more record. Raises LocalProtocolError if it cannot follow, and nothing changes."""
        self.check(record)
        match record:
            case Founded(identity, charter, state):
                self.identity, self.state = identity, state
                self._agree(charter)
            case TakenOver(origin, history):
                self._continue(_handed_over(history), origin)
            case Adopted(charter):
                self._agree(charter)
            case Published(receipt, state):
                self.receipts.append(receipt)
                self.state, self.origin = state, None
            case HandedOver():
                self.handed_over = record

    def check(self, record: Record) -> None:
        """Raises LocalProtocolError unless this record can be the next."""
        first = isinstance(record, Founded | TakenOver)
        if first != (self.identity is None):
            raise LocalProtocolError("a ledger begins once, with its founding or a take-over")
        if self.handed_over is not None:
            raise LocalProtocolError("this state was handed over; nothing can be added to it")
        match record:
            case Adopted(charter):
                self._require_revision(charter.federation)
            case Published(receipt):
                self._require_next(receipt)
            case Skipped(number) if number != self.number + 1:
                raise LocalProtocolError(f"round {number} is not the one that was open")

    def verify(self) -> None:
        """Raises OpenError unless every charter and every receipt is signed as it must be."""
        for charter in self.charters:
            check_signature(charter, self.federation.authority)
        for receipt in self.receipts:
            check_signature(receipt, self.identity or b"")

    def _agree(self, charter: Charter) -> None:
        self.charters.append(charter)
        self._configs.add(charter.federation.digest())

    def _continue(self, other: "History", origin: bytes) -> None:
        self.identity, self.state = other.identity, other.state
        self.charters, self._configs = other.charters, other._configs
        self.receipts = other.receipts
        self.origin = origin

    def _require_revision(self, new: Federation) -> None:
        try:
            new.require_follows(self.federation)
        except ConfigError as unfit:
            raise LocalProtocolError(str(unfit)) from None

    def _require_next(self, receipt: Receipt) -> None:
        previous = digest(self.head) if self.head else GENESIS
        if receipt.number != self.number + 1 or receipt.previous != previous:
            raise LocalProtocolError(
                f"the receipt of round {receipt.number} does not follow that of {self.number}"
            )
        if receipt.config not in self._configs:
            raise LocalProtocolError("the receipt is for a config that was never adopted")


def _handed_over(history: tuple[bytes, ...]) -> History:
    other = History()
    for each in history:
        other.admit(records.decode(each))
    if other.handed_over is None:
        raise LocalProtocolError("what is taken over must have been handed over")
    return other

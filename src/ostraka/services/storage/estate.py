"""Everything that an enclave leaves to its successor."""

from dataclasses import dataclass, field
from typing import ClassVar

from ostraka.crypto.identity import Identity
from ostraka.encoding import Key
from ostraka.errors import LocalProtocolError, MalformedMessage, OpenError
from ostraka.messages import vector_digest
from ostraka.services.storage import models
from ostraka.services.storage.history import History
from ostraka.services.storage.records import TakenOver


@dataclass(frozen=True)
class Estate:
    """seed: of the identity that signs receipts. records: the whole ledger. state: the last one."""

    LABEL: ClassVar[bytes] = b"ostraka/estate/v1"

    seed: Key = field(repr=False)
    records: tuple[bytes, ...] = field(repr=False)
    state: bytes = field(repr=False)

    def record(self, origin: bytes) -> TakenOver:
        """The first record of the successor's ledger."""
        return TakenOver(origin, self.records)

    def verify(self, origin: bytes) -> History:
        """What it all adds up to. Raises OpenError or MalformedMessage unless it fits together."""
        history = History()
        try:
            history.admit(self.record(origin))
        except LocalProtocolError as broken:
            raise MalformedMessage(f"the ledger is not whole: {broken}") from None
        history.verify()
        if Identity(self.seed).public != history.identity:
            raise OpenError("identity")
        if models.content_digest(self.state) != history.state:
            raise OpenError("state")
        model = models.from_bytes(self.state).model
        if history.head is not None and history.head.model != vector_digest(model):
            raise OpenError("model")
        return history

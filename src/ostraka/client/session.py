"""One call of the user: follow the chain, join the open round, get its model."""

from dataclasses import dataclass, field

from ostraka.arrays import Float32
from ostraka.client import attesting
from ostraka.client.attesting import Verifier
from ostraka.client.connection import Connection, download
from ostraka.client.following import catch_up
from ostraka.client.memory import Memory, MemoryFile
from ostraka.config import Federation
from ostraka.errors import ReceiptRefused, ServiceError
from ostraka.messages import Charter, Receipt, RoundOffer
from ostraka.protocol.client import Client, Joined


@dataclass
class Shelf:
    """The newest model that was downloaded: a round's result is the next one's start."""

    digest: bytes = b""
    vector: Float32 | None = field(default=None, repr=False)


@dataclass
class Session:
    """What is learned is written down before anything is done with it.

    begun: ids of rounds whose enclave has begun to take an update of this client. receipts: those
    that were followed in this session, by number.
    """

    who: Verifier
    connection: Connection
    file: MemoryFile
    shelf: Shelf
    begun: set[bytes] = field(default_factory=set)
    memory: Memory | None = None
    receipts: dict[int, Receipt] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.memory = self.file.load()

    @property
    def last_number(self) -> int:
        """Of the last receipt that is held; 0 if there is none."""
        return self.memory.progress[0] if self.memory else 0

    def join(self, before: RoundOffer | None = None) -> Joined | None:
        """The open round of an enclave that has proved itself; None if all rounds are over.

        before: the round that was joined before. Raises AttestationRefused, ReceiptRefused or Fork.
        """
        self.catch_up(before)
        while (met := attesting.meet(self.connection, self.who)) is not None:
            if met.offer.number > self.last_number + 1 > 1:
                self.catch_up()  # Rounds were published since.
                if self.last_number >= met.offer.number:
                    continue  # That round is over by now.
            self._require_followed(met)
            joined = self._role(met.charter).join(met.offer, met.attested)
            self.remember(joined.client, met.charter)
            return joined
        self.catch_up(before)
        return None

    def join_with_model(self) -> tuple[Joined, Float32] | None:
        """The same with the model that the round starts from."""
        tried = b""
        while (joined := self.join()) is not None:
            try:
                return joined, self.model(joined.offer.model, joined.client.federation)
            except ServiceError as gone:
                # It may have been replaced in between, but not twice in the same round.
                if gone.status != "NOT_FOUND" or joined.offer.round_id == tried:
                    raise
                tried = joined.offer.round_id
        return None

    def catch_up(self, joined: RoundOffer | None = None) -> None:
        """Follow the chain to its end. Raises ReceiptRefused or Fork.

        joined: where the chain begins for a client that holds no receipt.
        """
        if self.memory is None:
            return
        followed = catch_up(
            self.connection,
            self.memory,
            identity=self.who.identity,
            policy=self.who.policy,
            joined=joined,
            begun_anew=self.file.begun_anew,
        )
        self.receipts |= followed.receipts
        self._keep(followed.memory)

    def receipt(self, number: int) -> Receipt | None:
        """Of this round, if it was followed in this session or is the last one."""
        last = self.memory.last if self.memory else None
        return last if last and last.number == number else self.receipts.get(number)

    def model(self, digest: bytes, federation: Federation) -> Float32:
        """A model (d,), not to be written to."""
        if self.shelf.vector is None or self.shelf.digest != digest:
            self.shelf.vector = download(self.connection, digest, federation)
            self.shelf.digest = digest
        return self.shelf.vector

    def remember(self, client: Client, charter: Charter | None = None) -> None:
        """Durable when this returns. charter: if it is a new one."""
        known = charter or (self.memory.charter if self.memory else None)
        # Otherwise another process of this client has gone on, and its memory is the newer one.
        if known is not None and known.federation == client.federation:
            self._keep(Memory.of(client, known))

    def _require_followed(self, met: attesting.Met) -> None:
        """As the role does, which does not know the file."""
        if self.memory is not None and self.memory.receipt_key != met.attested.receipt_key:
            raise ReceiptRefused(
                "this enclave signs with another key than the one that this client follows. "
                f"{self.file.begun_anew}"
            )

    def _keep(self, memory: Memory) -> None:
        if memory != self.memory:
            self.file.save(memory)
            self.memory = memory

    def _role(self, charter: Charter) -> Client:
        if self.memory is None:
            return Client(self.who.name, self.who.identity, charter.federation)
        return self.memory.role(self.who.identity).adopt(charter.federation)

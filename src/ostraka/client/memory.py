"""What a client remembers between runs. Forgetting it would let a host go back to old state."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ostraka import files
from ostraka.crypto.identity import Identity
from ostraka.encoding import Key, decode, encode, pack
from ostraka.errors import ConfigError, Fork, LocalProtocolError, MalformedMessage, StateError
from ostraka.files import locked
from ostraka.messages import Charter, Receipt
from ostraka.protocol.client import Client

SUFFIX = ".memory"
LOCKED_S = 10.0  # A change takes a moment.

_OF_0_1 = pack(b"ostraka/client-memory/v1")

_ADVICE = (
    "bring it back from a copy. Only if there is none, delete it: this client then trusts the next "
    "enclave that proves itself, even one that was set back to an older state"
)


@dataclass(frozen=True)
class Memory:
    """The newest charter agreed to, the key that the enclave signs with, and the last receipt."""

    LABEL: ClassVar[bytes] = b"ostraka/client-memory/v2"

    client: str
    charter: Charter
    receipt_key: Key
    receipts: tuple[Receipt, ...]  # the last one, or none yet

    def __post_init__(self) -> None:
        if len(self.receipts) > 1:
            raise ConfigError(f"one receipt is remembered; got {len(self.receipts)}")

    @property
    def last(self) -> Receipt | None:
        return self.receipts[0] if self.receipts else None

    @classmethod
    def of(cls, client: Client, charter: Charter) -> "Memory":
        """Of a client that knows its enclave; charter: what its federation was signed in."""
        if client.receipt_key is None or charter.federation != client.federation:
            raise LocalProtocolError("a client remembers the enclave and the charter it follows")
        receipts = (client.last,) if client.last else ()
        return cls(client.name, charter, client.receipt_key, receipts)

    @property
    def progress(self) -> tuple[int, int]:
        """Grows with time: the last round, and the revision."""
        return (self.last.number if self.last else 0, self.charter.federation.revision)

    def role(self, identity: Identity) -> Client:
        return Client(self.client, identity, self.charter.federation, self.receipt_key, self.last)


@dataclass(frozen=True)
class ForkProof:
    """Two receipts that one key signed for one round."""

    LABEL: ClassVar[bytes] = b"ostraka/fork-proof/v1"

    held: Receipt
    other: Receipt


@dataclass(frozen=True)
class MemoryFile:
    """One client's memory on disk, durable and whole whenever the process dies.

    Processes of one client change it one after the other.
    """

    path: Path
    client: str

    @property
    def begun_anew(self) -> str:
        """What to do when the enclave is not the one that is remembered."""
        return (
            f"If its operator really began anew, and you believe that, delete {self.path}: this "
            "client then trusts the next enclave that proves itself"
        )

    def load(self) -> Memory | None:
        """None if there is none yet. Raises StateError."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as unreadable:
            raise StateError(self.path, f"cannot be read: {unreadable.strerror}") from None
        if content.startswith(_OF_0_1):
            raise StateError(
                self.path,
                "is a memory of version 0.1, which this version cannot read. If the federation "
                "begins anew with this version, move the file away: this client then trusts the "
                "next enclave that proves itself",
            )
        try:
            memory = decode(Memory, content)
        except MalformedMessage:
            raise StateError(
                self.path, f"is damaged, and holds this client's memory: {_ADVICE}"
            ) from None
        if memory.client != self.client:
            raise StateError(
                self.path, f"is the memory of client {memory.client!r}, not of {self.client!r}"
            )
        return memory

    def save(self, memory: Memory) -> None:
        """Never back to an earlier state: another process of this client may be ahead.

        Raises StateError, or Fork if that process holds another receipt for the same round.
        """
        with self._alone():
            stored = self.load()
            _require_one_chain(stored, memory)
            if stored is None or stored.progress <= memory.progress:
                files.write(self.path, [encode(memory)])

    def prove(self, fork: Fork) -> Path | None:
        """Keep both receipts beside the memory, each proof under a name of its own."""
        if not (isinstance(fork.held, Receipt) and isinstance(fork.other, Receipt)):
            return None
        proof = encode(ForkProof(fork.held, fork.other))
        name = f"fork-{fork.held.number}-{hashlib.sha256(proof).hexdigest()[:8]}"
        path = self.path.with_suffix(f".{name}")
        with self._alone():
            files.write(path, [proof])
        return path

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While this process changes files, no other one of this client does. Raises StateError."""
        try:
            with locked(self.path, seconds=LOCKED_S):
                yield
        except TimeoutError:
            raise StateError(
                self.path, "another process uses this client's memory: run one at a time"
            ) from None
        except OSError as failed:
            raise StateError(
                self.path,
                f"cannot be written ({failed.strerror}): make room, or give another memory",
            ) from None


def _require_one_chain(stored: Memory | None, memory: Memory) -> None:
    """Raises Fork. Both receipts were verified when they were followed."""
    held = stored.last if stored and stored.receipt_key == memory.receipt_key else None
    other = memory.last
    if held and other and held.number == other.number and held != other:
        raise Fork(held, other)

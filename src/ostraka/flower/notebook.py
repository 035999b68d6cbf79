"""What a node remembers: in a file beside its key, or in Flower's context for simulated nodes."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from flwr.app import ConfigRecord, Context

from ostraka.encoding import decode, encode
from ostraka.errors import Fork, MalformedMessage, StateError
from ostraka.flower.messages import RECORD
from ostraka.messages import RoundOffer
from ostraka.services.client.memory import Memory, MemoryFile
from ostraka.services.storage import atomic

SUFFIX = ".joins"

_MEMORY, _JOINS = "memory", "joins"


@dataclass(frozen=True)
class Joins:
    """The round that was joined last, and how often a round of that number was."""

    LABEL: ClassVar[bytes] = b"ostraka/flower-joins/v1"

    offers: tuple[RoundOffer, ...] = ()  # that one, or none yet
    times: int = 0

    @property
    def offer(self) -> RoundOffer | None:
        return self.offers[-1] if self.offers else None

    def and_then(self, offer: RoundOffer) -> "Joins":
        again = self.offer is not None and self.offer.number == offer.number
        return Joins((offer,), self.times + 1 if again else 1)


@dataclass(frozen=True)
class Notes:
    """memory: of the enclave and its chain, None before it was met."""

    memory: Memory | None = None
    joins: Joins = Joins()

    @property
    def after(self) -> int | None:
        """The last receipt that need not be shown; None if there is nothing to go on from."""
        first = (self.memory.last if self.memory else None) or self.joins.offer
        return None if first is None else first.number - 1


class Notebook(Protocol):
    """Durable when `save` returns, as far as it ever is."""

    @property
    def begun_anew(self) -> str: ...
    def load(self) -> Notes: ...
    def save(self, notes: Notes) -> None: ...
    def prove(self, fork: Fork) -> None: ...


@dataclass(frozen=True)
class ContextNotebook:
    """As long as the run lasts: for simulated nodes."""

    context: Context

    @property
    def begun_anew(self) -> str:
        return "Start a new run"

    def load(self) -> Notes:
        record = scratch(self.context)
        memory, joins = record.get(_MEMORY), record.get(_JOINS)
        return Notes(
            decode(Memory, memory) if isinstance(memory, bytes) else None,
            decode(Joins, joins) if isinstance(joins, bytes) else Joins(),
        )

    def save(self, notes: Notes) -> None:
        record = scratch(self.context)
        if notes.memory is not None:
            record[_MEMORY] = encode(notes.memory)
        record[_JOINS] = encode(notes.joins)

    def prove(self, fork: Fork) -> None:
        """A simulated enclave's proof is worth nothing."""


@dataclass(frozen=True)
class FileNotebook:
    """In the file of `ostraka.Client`, and one beside it. Both outlive runs and restarts."""

    file: MemoryFile

    @property
    def begun_anew(self) -> str:
        return self.file.begun_anew

    def load(self) -> Notes:
        """Raises StateError."""
        return Notes(self.file.load(), self._joins())

    def save(self, notes: Notes) -> None:
        """Raises StateError."""
        if notes.memory is not None:
            self.file.save(notes.memory)
        try:
            atomic.write(self._path, [encode(notes.joins)])
        except OSError as failed:
            raise StateError(self._path, f"cannot be written: {failed.strerror}") from None

    def prove(self, fork: Fork) -> None:
        """Keep both receipts. Raises StateError."""
        self.file.prove(fork)

    def _joins(self) -> Joins:
        try:
            return decode(Joins, self._path.read_bytes())
        except FileNotFoundError:
            return Joins()
        except OSError as unreadable:
            raise StateError(self._path, f"cannot be read: {unreadable.strerror}") from None
        except MalformedMessage:
            raise StateError(self._path, "is damaged: bring it back from a copy") from None

    @property
    def _path(self) -> Path:
        return self.file.path.with_suffix(SUFFIX)


def scratch(context: Context) -> ConfigRecord:
    """What this package keeps in Flower's context. It stays at the node, and ends with the run."""
    record = context.state.get(RECORD)
    if not isinstance(record, ConfigRecord):
        record = ConfigRecord()
        context.state[RECORD] = record
    return record

"""What a node remembers: in a file beside its key, or in Flower's context for simulated nodes."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from flwr.app import ConfigRecord, Context

from ostraka import files
from ostraka.client.memory import LOCKED_S, Memory, MemoryFile
from ostraka.encoding import Id, decode, encode
from ostraka.errors import Fork, MalformedMessage, StateError
from ostraka.files import locked
from ostraka.flower.messages import RECORD
from ostraka.messages import RoundOffer

SUFFIX = ".joins"

_MEMORY, _JOINS = "memory", "joins"
_NONCES = 256  # kept of those that were used


@dataclass(frozen=True)
class Joins:
    """The round that an update was sealed for last, and what was sealed since a receipt came.

    held: the number of that receipt, 0 before there is one. Every update since then is for one
    place in the chain, whatever number a host gives to the rounds it opens there. rounds: the ids
    of their rounds. nonces: of the challenges that were used last.
    """

    LABEL: ClassVar[bytes] = b"ostraka/flower-joins/v1"

    offers: tuple[RoundOffer, ...] = ()  # that one, or none yet
    held: int = 0
    rounds: tuple[Id, ...] = ()
    nonces: tuple[Id, ...] = ()

    @property
    def offer(self) -> RoundOffer | None:
        return self.offers[-1] if self.offers else None

    @property
    def reopened(self) -> int:
        """How often the round was opened again after an update had been sealed for it."""
        return len(set(self.rounds)) - 1

    @property
    def repeated(self) -> int:
        """How often one and the same opened round was sealed for again."""
        return self.rounds.count(self.rounds[-1]) - 1

    def and_then(self, offer: RoundOffer, *, held: int, nonce: bytes) -> "Joins":
        before = self.rounds if held == self.held else ()
        nonces = (*self.nonces, nonce)[-_NONCES:]
        return Joins((offer,), held, (*before, offer.round_id), nonces)


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
    """What is written is durable, as far as it ever is, when the call returns.

    alone: while it lasts, no other run of this node reads or writes. begun_anew, counted: what the
    node's owner is told, and nobody else, when the enclave is another one, or asks too often.
    """

    @property
    def begun_anew(self) -> str: ...
    @property
    def counted(self) -> str: ...
    def alone(self) -> AbstractContextManager[None]: ...
    def load(self) -> Notes: ...
    def remember(self, memory: Memory) -> None: ...
    def count(self, joins: Joins) -> None: ...
    def prove(self, fork: Fork) -> None: ...


@dataclass(frozen=True)
class ContextNotebook:
    """As long as the run lasts: for simulated nodes."""

    context: Context

    @property
    def begun_anew(self) -> str:
        return "Start a new run"

    @property
    def counted(self) -> str:
        return "Updates are counted for this run"

    def alone(self) -> AbstractContextManager[None]:
        """Each of its tasks has a copy of the context: two at once know nothing of each other."""
        return nullcontext()

    def load(self) -> Notes:
        record = scratch(self.context)
        memory, joins = record.get(_MEMORY), record.get(_JOINS)
        return Notes(
            decode(Memory, memory) if isinstance(memory, bytes) else None,
            decode(Joins, joins) if isinstance(joins, bytes) else Joins(),
        )

    def remember(self, memory: Memory) -> None:
        scratch(self.context)[_MEMORY] = encode(memory)

    def count(self, joins: Joins) -> None:
        scratch(self.context)[_JOINS] = encode(joins)

    def prove(self, fork: Fork) -> None:
        """A simulated enclave's proof is worth nothing."""


@dataclass(frozen=True)
class FileNotebook:
    """In the file of `ostraka.Client`, and one beside it. Both outlive runs and restarts."""

    file: MemoryFile

    @property
    def begun_anew(self) -> str:
        return self.file.begun_anew

    @property
    def counted(self) -> str:
        return f"Updates are counted in {self._path}. Delete it only when you know why"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Runs of this node, one after the other. Raises StateError."""
        try:
            with locked(self._path, seconds=LOCKED_S):
                yield
        except TimeoutError:
            raise StateError(self._path, "another run of this node does not let go of it") from None
        except OSError as failed:
            raise StateError(self._path, f"cannot be locked: {failed.strerror}") from None

    def load(self) -> Notes:
        """Nothing at all, if the memory was deleted to begin anew. Raises StateError."""
        memory = self.file.load()
        return Notes(memory, self._joins()) if memory else Notes()

    def remember(self, memory: Memory) -> None:
        """Raises StateError, or Fork if a native client of the same key has followed another."""
        self.file.save(memory)

    def count(self, joins: Joins) -> None:
        """Raises StateError."""
        try:
            files.write(self._path, [encode(joins)])
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
        return self.file.path.with_name(self.file.path.name + SUFFIX)


def scratch(context: Context) -> ConfigRecord:
    """What this package keeps in Flower's context. It stays at the node, and ends with the run."""
    record = context.state.get(RECORD)
    if not isinstance(record, ConfigRecord):
        record = ConfigRecord()
        context.state[RECORD] = record
    return record

"""What a node remembers: in files beside its key, or for simulated nodes as long as the run."""

from collections.abc import Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

from ostraka import files
from ostraka.client.memory import LOCKED_S, Memory, MemoryFile
from ostraka.encoding import Id, decode, encode, pack
from ostraka.errors import Fork, MalformedMessage, StateError
from ostraka.files import locked
from ostraka.messages import RoundOffer

SUFFIX = ".joins"

Scratch: TypeAlias = MutableMapping[str, Any]
"""Bytes by name, which the framework keeps at the node from one message to the next of a run."""

_MEMORY, _JOINS = "memory", "joins"
_NONCES = 256  # used ones that are kept
_OF_0_1 = pack(b"ostraka/flower-joins/v1")


@dataclass(frozen=True)
class Joins:
    """The round that an update was sealed for last, and the updates since the last receipt.

    held: the number of that receipt, 0 before there is one. All updates since then are for one
    place in the chain, no matter how a host numbers the rounds that it opens there. rounds: the
    ids of their rounds. nonces: of the challenges that were used last.
    """

    LABEL: ClassVar[bytes] = b"ostraka/carried-joins/v1"

    offers: tuple[RoundOffer, ...] = ()  # of the last round, or empty
    held: int = 0
    rounds: tuple[Id, ...] = ()
    nonces: tuple[Id, ...] = ()

    @property
    def offer(self) -> RoundOffer | None:
        """The offer of the round that an update was sealed for last."""
        return self.offers[-1] if self.offers else None

    @property
    def reopened(self) -> int:
        """How often the round was opened again after an update had been sealed for it."""
        return len(set(self.rounds)) - 1

    @property
    def repeated(self) -> int:
        """How often an update was sealed again for the same open round."""
        return self.rounds.count(self.rounds[-1]) - 1

    def and_then(self, offer: RoundOffer, *, held: int, nonce: bytes) -> "Joins":
        """Count one more update, for this offer."""
        before = self.rounds if held == self.held else ()
        nonces = (*self.nonces, nonce)[-_NONCES:]
        return Joins((offer,), held, (*before, offer.round_id), nonces)


@dataclass(frozen=True)
class Notes:
    """What a notebook holds. memory: of the enclave and its chain, None before it was met."""

    memory: Memory | None = None
    joins: Joins = Joins()

    @property
    def after(self) -> int | None:
        """The last receipt that need not be shown; None if the node has no place in the chain."""
        first = (self.memory.last if self.memory else None) or self.joins.offer
        return None if first is None else first.number - 1


class Notebook(Protocol):
    """Where a node keeps its notes. What is written is durable when the call returns.

    alone: while it lasts, no other run of this node reads or writes. begun_anew, counted: what the
    node's owner alone is told if the enclave is another one, or if it asks too often.
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
class RunNotebook:
    """Notes that end with the run, for simulated nodes."""

    scratch: Scratch = field(repr=False)

    @property
    def begun_anew(self) -> str:
        return "Start a new run"

    @property
    def counted(self) -> str:
        return "Updates are counted for this run"

    def alone(self) -> AbstractContextManager[None]:
        """Lock nothing: each task has its own copy, so tasks at the same time share no notes."""
        return nullcontext()

    def load(self) -> Notes:
        memory, joins = self.scratch.get(_MEMORY), self.scratch.get(_JOINS)
        return Notes(
            decode(Memory, memory) if isinstance(memory, bytes) else None,
            decode(Joins, joins) if isinstance(joins, bytes) else Joins(),
        )

    def remember(self, memory: Memory) -> None:
        self.scratch[_MEMORY] = encode(memory)

    def count(self, joins: Joins) -> None:
        self.scratch[_JOINS] = encode(joins)

    def prove(self, fork: Fork) -> None:
        """Keep nothing: a simulated enclave's proof is worth nothing."""


@dataclass(frozen=True)
class FileNotebook:
    """Notes in the memory file of `ostraka.Client` and in one beside it, which outlive the run."""

    file: MemoryFile

    @property
    def begun_anew(self) -> str:
        return self.file.begun_anew

    @property
    def counted(self) -> str:
        return f"Updates are counted in {self._path}. Delete it only if you know why"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other runs of this node waiting. Raises StateError."""
        try:
            with locked(self._path, seconds=LOCKED_S):
                yield
        except TimeoutError:
            raise StateError(self._path, "another run of this node does not let go of it") from None
        except OSError as failed:
            raise StateError(self._path, f"cannot be locked: {failed.strerror}") from None

    def load(self) -> Notes:
        """Read both files; no notes if the memory was deleted to begin anew. Raises StateError."""
        memory, joins = self.file.load(), self._joins()
        return Notes(memory, joins) if memory else Notes()

    def remember(self, memory: Memory) -> None:
        """Raises StateError, or Fork if a client with the same key has followed another chain."""
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
            content = self._path.read_bytes()
        except FileNotFoundError:
            return Joins()
        except OSError as unreadable:
            raise StateError(self._path, f"cannot be read: {unreadable.strerror}") from None
        if content.startswith(_OF_0_1):
            raise StateError(
                self._path,
                "is of version 0.1, which this version cannot read: move it away together with "
                f"the memory, {self.file.path}",
            )
        try:
            return decode(Joins, content)
        except MalformedMessage:
            raise StateError(self._path, "is damaged: restore it from a copy") from None

    @property
    def _path(self) -> Path:
        return self.file.path.with_name(self.file.path.name + SUFFIX)

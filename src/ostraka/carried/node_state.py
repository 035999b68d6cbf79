"""What a node remembers: in files beside its key, or for simulated nodes as long as the run."""

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from ostraka import files
from ostraka.arrays import Float32
from ostraka.client.kept import Kept, KeptFiles
from ostraka.client.memory import LOCKED_S, NEW_KEY, Memory, MemoryFile
from ostraka.config import Federation
from ostraka.encoding import Id, decode, encode, pack
from ostraka.errors import Fork, MalformedMessage, RolledBack, StateError
from ostraka.files import locked

SUFFIX = ".joins"

Scratch: TypeAlias = MutableMapping[str, Any]
"""Bytes by name, which the framework keeps at the node from one message to the next of a run."""

_MEMORY, _JOINS = "memory", "joins"
_KEPT = 256  # joins
_OF_0_1 = pack(b"ostraka/flower-joins/v1")


@dataclass(frozen=True)
class Join:
    """An update was sealed for this round, after the enclave had answered this challenge."""

    nonce: Id
    round_id: Id


@dataclass(frozen=True)
class Joins:
    """The updates that were sealed last. No challenge is good for two of them."""

    LABEL: ClassVar[bytes] = b"ostraka/carried-joins/v2"

    last: tuple[Join, ...] = ()

    def has(self, nonce: bytes) -> bool:
        """Whether this challenge was used before."""
        return any(each.nonce == nonce for each in self.last)

    def times(self, round_id: bytes) -> int:
        """How often an update was sealed for this opening of a round."""
        return sum(each.round_id == round_id for each in self.last)

    def and_then(self, nonce: bytes, round_id: bytes) -> "Joins":
        return Joins((*self.last, Join(nonce, round_id))[-_KEPT:])


@dataclass(frozen=True)
class Notes:
    """What a notebook holds. memory: of the enclave and its chain, None before it was met."""

    memory: Memory | None = None
    joins: Joins = Joins()

    @property
    def after(self) -> int | None:
        """The last receipt that need not be shown; None if the node has no place in the chain."""
        if self.memory is None:
            return None
        return self.memory.last.number - 1 if self.memory.last else 0


class Notebook(Protocol):
    """Where a node keeps its notes. What is written is durable when the call returns.

    alone: while it lasts, no other run of this node joins, seals or votes. set_back, counted: what
    the node's owner alone is told if the enclave is another one, or if it asks too often.
    """

    @property
    def set_back(self) -> str: ...
    @property
    def counted(self) -> str: ...
    def alone(self) -> AbstractContextManager[None]: ...
    def load(self) -> Notes: ...
    def remember(self, memory: Memory) -> Memory:
        """Keep what was learned, and return what is known now. No vote is forgotten."""

    def change(self, change: Callable[[Memory | None], Memory]) -> Memory: ...
    def count(self, joins: Joins) -> None: ...
    def kept(self, federation: Federation, what: str) -> Kept:
        """Where vectors of this name are kept, such as the node's momentum."""

    def prove(self, refused: Fork | RolledBack) -> None: ...


@dataclass(frozen=True)
class RunNotebook:
    """Notes that end with the run, for simulated nodes."""

    scratch: Scratch = field(repr=False)

    @property
    def set_back(self) -> str:
        return "Start a new run"

    @property
    def counted(self) -> str:
        return "Updates are counted for this run"

    def alone(self) -> AbstractContextManager[None]:
        """Lock nothing: each task has its own copy, so tasks at the same time share no notes."""
        return nullcontext()

    def load(self) -> Notes:
        joins = self.scratch.get(_JOINS)
        return Notes(self._memory(), decode(Joins, joins) if isinstance(joins, bytes) else Joins())

    def remember(self, memory: Memory) -> Memory:
        return self.change(lambda stored: stored.newer(memory) if stored else memory)

    def change(self, change: Callable[[Memory | None], Memory]) -> Memory:
        changed = change(self._memory())
        self.scratch[_MEMORY] = encode(changed)
        return changed

    def count(self, joins: Joins) -> None:
        self.scratch[_JOINS] = encode(joins)

    def kept(self, federation: Federation, what: str) -> Kept:
        return _RunKept(self.scratch, f"{what}-")

    def prove(self, refused: Fork | RolledBack) -> None:
        """Keep nothing: a simulated enclave's proof is worth nothing."""

    def _memory(self) -> Memory | None:
        memory = self.scratch.get(_MEMORY)
        return decode(Memory, memory) if isinstance(memory, bytes) else None


@dataclass(frozen=True)
class _RunKept:
    """What a simulated node keeps, which ends with the run. stem: begins the names of vectors."""

    scratch: Scratch = field(repr=False)
    stem: str

    def alone(self) -> AbstractContextManager[None]:
        return nullcontext()

    def numbers(self) -> set[int]:
        stem = self.stem
        return {int(name.removeprefix(stem)) for name in self.scratch if name.startswith(stem)}

    def read(self, number: int) -> Float32:
        return np.frombuffer(self.scratch[f"{self.stem}{number}"], "<f4")

    def write(self, number: int, vector: Float32) -> None:
        self.scratch[f"{self.stem}{number}"] = vector.tobytes()

    def drop(self, number: int) -> None:
        del self.scratch[f"{self.stem}{number}"]


@dataclass(frozen=True)
class FileNotebook:
    """Notes in the files of `ostraka.Client` and in one beside them, which outlive the run."""

    file: MemoryFile

    @property
    def set_back(self) -> str:
        return self.file.set_back

    @property
    def counted(self) -> str:
        return f"Updates are counted in {self.file.path} and {self._path}"

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
        """Read both files. Raises StateError, also if there is a memory no more."""
        memory, joins = self.file.load(), self._joins()
        if memory is None and joins.last:
            raise StateError(self.file.path, f"is gone, and held this client's memory. {NEW_KEY}")
        return Notes(memory, joins)

    def remember(self, memory: Memory) -> Memory:
        """Raises StateError, or Fork if a client with the same key has followed another chain."""
        return self.file.save(memory)

    def change(self, change: Callable[[Memory | None], Memory]) -> Memory:
        """Raises StateError."""
        return self.file.change(change)

    def count(self, joins: Joins) -> None:
        """Raises StateError."""
        try:
            files.write(self._path, [encode(joins)])
        except OSError as failed:
            raise StateError(self._path, f"cannot be written: {failed.strerror}") from None

    def kept(self, federation: Federation, what: str) -> Kept:
        return KeptFiles.beside(self.file, federation, what)

    def prove(self, refused: Fork | RolledBack) -> None:
        """Keep both receipts, or the proposal. Raises StateError."""
        self.file.prove(refused)

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
            raise StateError(
                self._path, f"is damaged, and is part of this client's memory. {NEW_KEY}"
            ) from None

    @property
    def _path(self) -> Path:
        return self.file.path.with_name(self.file.path.name + SUFFIX)

"""What a client keeps from one number to the next: a vector for each of the last two numbers.

What is kept for a number N is always made from that of an earlier number, and is written before
anything that depends on it goes out. So an update counts once, however often its round is opened
again, its update is submitted again, or the process dies. A client that has missed numbers goes on
from its last one.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

import numpy as np

from ostraka import files
from ostraka.arrays import Float32
from ostraka.client.memory import MemoryFile
from ostraka.config import Federation, Manifest
from ostraka.encoding import Digest, Id, decode, encode, pack
from ostraka.errors import MalformedMessage, StateError
from ostraka.messages import vector_digest

_LOCKED_S = 60.0  # A large model takes a while to write.
_LENGTH_BYTES, _MOST_HEAD_BYTES = 8, 2**16

T = TypeVar("T")


class Kept(Protocol):
    """Vectors by number. What is written is durable when the call returns.

    alone: while it lasts, no other process of this client reads or writes. Raises StateError.
    """

    def alone(self) -> AbstractContextManager[None]: ...
    def numbers(self) -> set[int]: ...
    def read(self, number: int) -> Float32: ...
    def write(self, number: int, vector: Float32) -> None: ...
    def drop(self, number: int) -> None: ...


def require_usable(kept: Kept, number: int) -> None:
    """Raise StateError now if `carry` would for this number: it comes after hours of training.

    Only files can be out of order, and a new one can still fail to be written.
    """
    with kept.alone():
        _before(kept, number)


def carry(kept: Kept, number: int, make: Callable[[Float32 | None], tuple[T, Float32]]) -> T:
    """Keep a vector for this number, and return what goes with it. Raises StateError.

    make: from what was kept for the last number before this one, or None, both of them.
    """
    with kept.alone():
        earlier, before = _before(kept, number)
        made, vector = make(before)
        kept.write(number, vector)
        # Also those of later numbers, which are of another course of events.
        for each in kept.numbers() - {number, earlier}:
            kept.drop(each)
    return made


def clear(kept: Kept) -> None:
    """Forget everything. Nothing is touched where there is nothing."""
    if kept.numbers():
        with kept.alone():
            for each in kept.numbers():
                kept.drop(each)


def _before(kept: Kept, number: int) -> tuple[int, Float32 | None]:
    """The last number before this one that anything is kept for, and what; else 0 and None."""
    earlier = max((each for each in kept.numbers() if each < number), default=0)
    return earlier, kept.read(earlier) if earlier else None


@dataclass(frozen=True)
class InMemory:
    """Kept as long as the process runs."""

    vectors: dict[int, Float32] = field(default_factory=dict, repr=False)

    def alone(self) -> AbstractContextManager[None]:
        return nullcontext()

    def numbers(self) -> set[int]:
        return set(self.vectors)

    def read(self, number: int) -> Float32:
        return self.vectors[number]

    def write(self, number: int, vector: Float32) -> None:
        self.vectors[number] = vector.copy()  # The caller may change what it has.

    def drop(self, number: int) -> None:
        del self.vectors[number]


@dataclass(frozen=True)
class Head:
    """What stands before the values in a file. what: their name. values: their digest."""

    LABEL: ClassVar[bytes] = b"ostraka/client-kept/v1"

    what: str
    client: str
    federation: Id
    number: int
    dimension: int
    manifest: Digest
    values: Digest


@dataclass(frozen=True)
class KeptFiles:
    """Files beside a client's memory, one for each number: the newest, and the one before it.

    They hold updates, and are private. path: without the number. what: the name of what is kept.
    """

    path: Path
    client: str
    federation: bytes
    manifest: Manifest
    what: str

    @classmethod
    def beside(cls, memory: MemoryFile, federation: Federation, what: str) -> "KeptFiles":
        path = memory.path.with_name(f"{memory.path.name}.{what}")
        return cls(path, memory.client, federation.id, federation.terms.manifest, what)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes of this client waiting. Raises StateError."""
        try:
            with files.locked(self.path, seconds=_LOCKED_S):
                yield
        except TimeoutError:
            raise StateError(
                self.path, f"another process uses this client's {self.what}: run one at a time"
            ) from None
        except OSError as failed:
            raise StateError(
                self.path,
                f"cannot be written ({failed.strerror}), and no update goes out without it: make "
                "room, or give another memory",
            ) from None

    def numbers(self) -> set[int]:
        if not self.path.parent.is_dir():
            return set()
        ends = [
            each.name.removeprefix(self._stem)
            for each in self.path.parent.iterdir()
            if each.name.startswith(self._stem)
        ]
        return {int(end) for end in ends if end.isdecimal() and end == str(int(end))}

    def read(self, number: int) -> Float32:
        """Raises StateError, which says what to do."""
        path = self._file(number)
        try:
            head, values = _read(path)
        except OSError as unreadable:
            why = f"cannot be read: {unreadable.strerror}"
            raise StateError(path, f"{why}. {self._delete}") from None
        except MalformedMessage:
            raise self._damaged(path) from None
        ours = self._head(number, head.values)
        if head != ours:
            raise StateError(path, f"holds {_difference(head, ours)}. {self._delete}")
        if vector_digest(values) != head.values or not np.isfinite(values).all():
            raise self._damaged(path)
        return values

    def write(self, number: int, vector: Float32) -> None:
        values = np.ascontiguousarray(vector, "<f4")
        head = self._head(number, vector_digest(values))
        files.remove_partial(self.path.parent, self._stem)  # of a process that died
        files.write(self._file(number), [pack(encode(head)), values.data])

    def drop(self, number: int) -> None:
        self._file(number).unlink(missing_ok=True)

    @property
    def _stem(self) -> str:
        return f"{self.path.name}-"

    def _file(self, number: int) -> Path:
        return self.path.with_name(f"{self._stem}{number}")

    def _damaged(self, path: Path) -> StateError:
        return StateError(path, f"is damaged, and holds a client's {self.what}. {self._delete}")

    @property
    def _delete(self) -> str:
        return f"Delete the file: the {self.what} goes on from the number before, or starts anew"

    def _head(self, number: int, values: bytes) -> Head:
        manifest = self.manifest
        dimension, digest = manifest.dimension, manifest.digest()
        return Head(self.what, self.client, self.federation, number, dimension, digest, values)


def _read(path: Path) -> tuple[Head, Float32]:
    """Read a file, whatever it holds. Raises OSError or MalformedMessage."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "big")
        if length > _MOST_HEAD_BYTES:
            raise MalformedMessage("a head is short")
        head = decode(Head, file.read(length))
        return head, np.fromfile(file, "<f4")


def _difference(head: Head, ours: Head) -> str:
    if head.what != ours.what:
        return f"the {head.what} of this client, not the {ours.what}"
    if head.client != ours.client:
        return f"the {head.what} of client {head.client!r}, not of {ours.client!r}"
    if head.federation != ours.federation:
        return f"the {head.what} of the federation {head.federation.hex()}"
    if head.manifest != ours.manifest:
        return f"the {head.what} of another model, of {head.dimension} values"
    return f"the {head.what} of round {head.number}"

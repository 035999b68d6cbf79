"""Client momentum: every client sends a running mean of its updates.

    m_N = b m_(N-1) + (1 - b) u_N,  from m = u the first time  (Karimireddy, He and Jaggi 2021)

u_N is the update of the number N, m_N is what goes out in its place, and b is `client_momentum` in
the terms of the round. m_N is kept by its number before it goes out, and is always made from what
went out for an earlier number. So u_N counts once, however often its round is opened again, its
update is submitted again, or the process dies. A client that has missed numbers goes on from its
last one.

Statistics of batch norm are sent as they were measured: with momentum, a variance that falls would
go on falling, to below zero. They are known by the names that torch gives them.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np

from ostraka import files
from ostraka.arrays import Float32
from ostraka.client.memory import MemoryFile
from ostraka.config import Federation, Manifest
from ostraka.encoding import Digest, Id, decode, encode, pack
from ostraka.errors import MalformedMessage, StateError
from ostraka.messages import vector_digest

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""How the names of tensors end that are counted or measured, and not learned."""

SUFFIX = ".momentum"

_BLOCK = 2**18  # values at a time, so that float64 copies stay small
_LOCKED_S = 60.0  # A large model takes a while to write.
_LENGTH_BYTES, _MOST_HEAD_BYTES = 8, 2**16
_DELETE = "Delete the file: the momentum goes on from the number before, or starts anew"


class Kept(Protocol):
    """What went out for the last numbers. What is written is durable when the call returns.

    alone: while it lasts, no other process of this client reads or writes. Raises StateError.
    """

    def alone(self) -> AbstractContextManager[None]: ...
    def numbers(self) -> set[int]: ...
    def read(self, number: int) -> Float32: ...
    def write(self, number: int, sent: Float32) -> None: ...
    def drop(self, number: int) -> None: ...


@dataclass(frozen=True)
class Momentum:
    """One client's momentum. beta: from 0 to below 1; with 0, nothing is read and nothing kept."""

    beta: float
    manifest: Manifest
    kept: Kept

    @classmethod
    def of(cls, federation: Federation, kept: Kept) -> "Momentum":
        """By the terms of a federation."""
        return cls(federation.terms.client_momentum, federation.terms.manifest, kept)

    def require_usable(self, number: int) -> None:
        """Raise StateError now if `apply` would for this number: it comes after hours of training.

        Only files can be out of order, and a new one can still fail to be written.
        """
        if self.beta:
            with self.kept.alone():
                self._before(number)

    def apply(self, update: Float32, number: int) -> Float32:
        """Return what goes out (d,) for this number, which is kept by then. Raises StateError.

        update: (d,). One that is not finite would stay so for ever: it is not kept, and returned
        as it is.
        """
        if self.beta == 0 or not np.isfinite(update).all():
            return update
        with self.kept.alone():
            earlier, before = self._before(number)
            sent = update if before is None else moved(update, before, self.beta, self.manifest)
            self.kept.write(number, sent)
            # Also those of later numbers, which are of another course of events.
            for each in self.kept.numbers() - {number, earlier}:
                self.kept.drop(each)
        return sent

    def _before(self, number: int) -> tuple[int, Float32 | None]:
        """The last number before this one that anything went out for, and what; else 0 and None."""
        earlier = max((each for each in self.kept.numbers() if each < number), default=0)
        return earlier, self.kept.read(earlier) if earlier else None


def moved(update: Float32, before: Float32, beta: float, manifest: Manifest) -> Float32:
    """Return beta before + (1 - beta) update (d,), rounded once; statistics as in the update."""
    sent = update.copy()
    for part in _learned(manifest):
        mean = np.multiply(before[part], beta, dtype=np.float64)
        mean += np.multiply(update[part], 1 - beta, dtype=np.float64)
        sent[part] = mean
    return sent


def is_statistic(name: str) -> bool:
    """Tell whether the tensor of this name is counted or measured, and not learned."""
    return name.endswith(STATISTICS)


def _learned(manifest: Manifest) -> Iterator[slice]:
    """Yield where the learned tensors are, in blocks."""
    at = 0
    for tensor in manifest.tensors:
        end = at + math.prod(tensor.shape)
        if not is_statistic(tensor.name):
            yield from (slice(x, min(x + _BLOCK, end)) for x in range(at, end, _BLOCK))
        at = end


@dataclass(frozen=True)
class InMemory:
    """Kept as long as the process runs."""

    sent: dict[int, Float32] = field(default_factory=dict, repr=False)

    def alone(self) -> AbstractContextManager[None]:
        return nullcontext()

    def numbers(self) -> set[int]:
        return set(self.sent)

    def read(self, number: int) -> Float32:
        return self.sent[number]

    def write(self, number: int, sent: Float32) -> None:
        self.sent[number] = sent.copy()  # The caller may change what it has.

    def drop(self, number: int) -> None:
        del self.sent[number]


@dataclass(frozen=True)
class Head:
    """What stands before the values in a file. values: their digest."""

    LABEL: ClassVar[bytes] = b"ostraka/client-momentum/v2"

    client: str
    federation: Id
    number: int
    dimension: int
    manifest: Digest
    values: Digest


@dataclass(frozen=True)
class MomentumFiles:
    """Files beside a client's memory, one for each number: the newest, and the one before it.

    They hold updates, and are private. path: without the number.
    """

    path: Path
    client: str
    federation: bytes
    manifest: Manifest

    @classmethod
    def beside(cls, memory: MemoryFile, federation: Federation) -> "MomentumFiles":
        path = memory.path.with_name(memory.path.name + SUFFIX)
        return cls(path, memory.client, federation.id, federation.terms.manifest)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes of this client waiting. Raises StateError."""
        try:
            with files.locked(self.path, seconds=_LOCKED_S):
                yield
        except TimeoutError:
            raise StateError(
                self.path, "another process uses this client's momentum: run one at a time"
            ) from None
        except OSError as failed:
            raise StateError(
                self.path,
                f"cannot be written ({failed.strerror}), and no update goes out without it: make "
                "room, or give another memory",
            ) from None

    def numbers(self) -> set[int]:
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
            raise StateError(path, f"cannot be read: {unreadable.strerror}. {_DELETE}") from None
        except MalformedMessage:
            raise StateError(path, f"is damaged, and holds a momentum. {_DELETE}") from None
        ours = self._head(number, head.values)
        if head != ours:
            raise StateError(path, f"holds {_difference(head, ours)}. {_DELETE}")
        if vector_digest(values) != head.values or not np.isfinite(values).all():
            raise StateError(path, f"is damaged, and holds a momentum. {_DELETE}")
        return values

    def write(self, number: int, sent: Float32) -> None:
        values = np.ascontiguousarray(sent, "<f4")
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

    def _head(self, number: int, values: bytes) -> Head:
        manifest = self.manifest
        dimension, digest = manifest.dimension, manifest.digest()
        return Head(self.client, self.federation, number, dimension, digest, values)


def _read(path: Path) -> tuple[Head, Float32]:
    """Read a file, whatever it holds. Raises OSError or MalformedMessage."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "big")
        if length > _MOST_HEAD_BYTES:
            raise MalformedMessage("a head is short")
        head = decode(Head, file.read(length))
        return head, np.fromfile(file, "<f4")


def _difference(head: Head, ours: Head) -> str:
    if head.client != ours.client:
        return f"the momentum of client {head.client!r}, not of {ours.client!r}"
    if head.federation != ours.federation:
        return f"the momentum of the federation {head.federation.hex()}"
    if head.manifest != ours.manifest:
        return f"the momentum of another model, of {head.dimension} values"
    return f"the momentum of round {head.number}"

"""What a client remembers between runs: the chain that it follows, and how it voted.

A client that forgets its vote may vote again, and then a host can have two outcomes of one number
confirmed. So a memory that was lost, or restored from a copy, ends the use of the client's key.

The file begins with the whole memory. What a round changes of it is appended, step by step: a
memory has all members of its federation in it, and changes three times in a round. A step that is
not whole was being written when the process died, and has not happened.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from ostraka import files
from ostraka.config import Federation
from ostraka.crypto.identity import Identity
from ostraka.encoding import Id, decode, encode, pack, unpack_whole
from ostraka.errors import (
    ConfigError,
    Fork,
    LocalProtocolError,
    MalformedMessage,
    ReceiptRefused,
    RolledBack,
    StateError,
)
from ostraka.files import locked
from ostraka.messages import Abandon, Charter, Proposal, Receipt
from ostraka.protocol.client import Client, Voted

SUFFIX = ".memory"
LOCKED_S = 10.0  # A change takes a moment.

_MOST_STEPS = 2**16  # bytes, after which the whole memory is written anew
_MOST_MARKS = 2**16

_OLDER = tuple(pack(b"ostraka/client-memory/v%d" % version) for version in (1, 2, 3, 4))

NEW_KEY = (
    "A client that may have forgotten how it voted must not vote again: make a new key (ostraka "
    "client enrol), have the operator enrol it and revoke the old one. Do not bring back a copy"
)


@dataclass(frozen=True)
class Sent:
    """The rounds, all of one number, that an update was sent to."""

    number: int = 0
    rounds: tuple[Id, ...] = ()

    @property
    def progress(self) -> tuple[int, int]:
        return (self.number, len(self.rounds))

    def and_to(self, number: int, round_id: bytes) -> "Sent":
        if number < self.number:
            raise ReceiptRefused(
                f"an update was sent for round {self.number} already: none is sent for {number}"
            )
        before = self.rounds if number == self.number else ()
        return self if round_id in before else Sent(number, (*before, round_id))


NOTHING_SENT = Sent()
_MARK = b"%d is the last round that this client has voted in; its memory must know of that.\n"
_MARKS = re.compile(rb"^%b" % _MARK.replace(b"%d", rb"([0-9]+)"), re.MULTILINE)


@dataclass(frozen=True)
class Memory:
    """What a client knows of one federation.

    charter: the newest one agreed to. electors: who confirms the next number (`Client.electors`).
    receipt_key: of the enclave; empty until the next one proves itself. receipts, abandons: one of
    them holds what the chain has come to, or neither. voted: the vote of the highest number. sent:
    where an update went last.
    """

    LABEL: ClassVar[bytes] = b"ostraka/client-memory/v5"

    client: str
    charter: Charter
    electors: Federation
    receipt_key: bytes
    receipts: tuple[Receipt, ...] = ()
    abandons: tuple[Abandon, ...] = ()
    voted: Voted | None = None
    sent: Sent = NOTHING_SENT

    def __post_init__(self) -> None:
        if len(self.receipts) + len(self.abandons) > 1:
            raise ConfigError("one end of the chain is remembered")

    @property
    def last(self) -> Receipt | Abandon | None:
        ends: tuple[Receipt | Abandon, ...] = (*self.receipts, *self.abandons)
        return ends[0] if ends else None

    @property
    def federation(self) -> Federation:
        return self.charter.federation

    @classmethod
    def of(cls, client: Client, charter: Charter, sent: Sent = NOTHING_SENT) -> "Memory":
        """Of a client that knows its enclave; charter: what its federation was signed in."""
        if charter.federation != client.federation:
            raise LocalProtocolError("a client remembers the charter that it follows")
        last = client.last
        return cls(
            client.name,
            charter,
            client.electors or client.federation,
            client.receipt_key or b"",
            (last,) if isinstance(last, Receipt) else (),
            (last,) if isinstance(last, Abandon) else (),
            client.voted,
            sent,
        )

    @property
    def progress(self) -> tuple[int, int]:
        """Grows with time: the last round, and the revision."""
        return (self.last.number if self.last else 0, self.charter.federation.revision)

    @property
    def proposal(self) -> Proposal | None:
        """What was confirmed last."""
        return self.voted.proposal if self.voted else None

    def role(self, identity: Identity) -> Client:
        return Client(
            self.client,
            identity,
            self.charter.federation,
            self.receipt_key or None,
            self.last,
            self.electors,
            self.voted,
        )

    def newer(self, other: "Memory") -> "Memory":
        """What two processes of one client know together. Neither forgets a vote."""
        chain = other if other.progress >= self.progress else self
        votes = [each.voted for each in (self, other) if each.voted is not None]
        voted = max(votes, key=lambda each: each.number, default=None)
        sent = max(self.sent, other.sent, key=lambda each: each.progress)
        return replace(chain, voted=voted, sent=sent)


@dataclass(frozen=True)
class Step:
    """What a round changes of a memory."""

    LABEL: ClassVar[bytes] = b"ostraka/client-memory-step/v1"

    receipts: tuple[Receipt, ...]
    abandons: tuple[Abandon, ...]
    voted: Voted | None
    sent: Sent

    @classmethod
    def between(cls, before: Memory, after: Memory) -> "Step | None":
        """What leads from one to the other; None if more has changed."""
        step = cls(after.receipts, after.abandons, after.voted, after.sent)
        return step if step.after(before) == after else None

    def after(self, memory: Memory) -> Memory:
        return replace(
            memory,
            receipts=self.receipts,
            abandons=self.abandons,
            voted=self.voted,
            sent=self.sent,
        )


_BEGIN, _BEFORE = pack(Step.LABEL), len(pack(b""))  # how a step begins, and what is before that


@dataclass(frozen=True)
class _Content:
    """What a file holds, up to the end of its last whole step. steps: their bytes."""

    whole: bytes = field(repr=False)
    steps: int
    memory: Memory

    @classmethod
    def of(cls, memory: Memory) -> "_Content":
        return cls(encode(memory), 0, memory)

    @classmethod
    def read(cls, content: bytes) -> "_Content":
        """Raises MalformedMessage."""
        fields, _ = unpack_whole(content)
        known = cls.of(decode(Memory, pack(*fields[:2])))
        for encoded, digest in zip(fields[2::2], fields[3::2], strict=False):
            if hashlib.sha256(encoded).digest() != digest:
                break
            known = known.and_then(decode(Step, encoded))
        # What is left is a step that was being written: a system may have kept any part of it, with
        # zeros for the rest. If another one begins behind that, a step is damaged that was whole.
        if content.find(_BEGIN, len(known.whole) + _BEFORE + 1) >= 0:
            raise MalformedMessage("a step that others follow is damaged")
        return known

    def and_then(self, step: Step) -> "_Content":
        encoded = encode(step)
        framed = pack(encoded, hashlib.sha256(encoded).digest())
        return _Content(self.whole + framed, self.steps + len(framed), step.after(self.memory))


@dataclass(frozen=True)
class ForkProof:
    """Two receipts that one key signed for one round."""

    LABEL: ClassVar[bytes] = b"ostraka/fork-proof/v1"

    held: Receipt
    other: Receipt


@dataclass(frozen=True)
class RollbackProof:
    """A proposal that an enclave has signed and does not know, or not as the only one."""

    LABEL: ClassVar[bytes] = b"ostraka/rollback-proof/v1"

    proposal: Proposal


@dataclass(frozen=True)
class MemoryFile:
    """One client's memory on disk, durable and whole whenever the process dies.

    Processes of one client change it one after the other.
    """

    path: Path
    client: str
    federation: bytes | None = None  # the id that the policy pins
    # The last content that was read or written: it is read at every step, and changes at few.
    _known: list[_Content] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def beside(cls, key: Path, client: str, federation: bytes | None) -> "MemoryFile":
        """The memory of one federation: a key may be enrolled in several."""
        mark = f".{federation.hex()[:16]}" if federation else ""
        return cls(key.with_suffix(f"{mark}{SUFFIX}"), client, federation)

    @property
    def set_back(self) -> str:
        """What to do when the enclave is not the one that is remembered."""
        return (
            "Its operator has to bring back its newest state. If that is lost, the authority can "
            "abandon the round that was open (docs/operations.md); a federation that begins anew "
            "has a new id, and clients get a new policy for it"
        )

    def load(self) -> Memory | None:
        """None if there is none yet. Raises StateError."""
        marked, _ = self._marks()  # first: another process may write both in the meantime
        content = self._read(marked)
        return None if content is None else content.memory

    def _read(self, marked: int) -> _Content | None:
        """The file of a client that has voted for number `marked`, as its mark says."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            if marked:
                raise StateError(
                    self.path, f"is missing, and this client has voted. {NEW_KEY}"
                ) from None
            return None
        except OSError as unreadable:
            raise StateError(self.path, f"cannot be read: {unreadable.strerror}") from None
        if content.startswith(_OLDER):
            raise StateError(
                self.path,
                "is a memory of an older version, which this version cannot read. A federation "
                "begins anew with this version: move the file away",
            )
        try:
            read = self._decoded(content)
        except MalformedMessage:
            raise StateError(
                self.path, f"is damaged, and holds this client's memory. {NEW_KEY}"
            ) from None
        memory = read.memory
        if memory.client != self.client:
            raise StateError(
                self.path, f"is the memory of client {memory.client!r}, not of {self.client!r}"
            )
        if self.federation is not None and memory.federation.id != self.federation:
            raise StateError(
                self.path,
                f"is the memory of the federation {memory.federation.id.hex()}, and the policy "
                f"names {self.federation.hex()}: each has a memory of its own",
            )
        if marked > (memory.voted.number if memory.voted else 0):
            raise StateError(self.path, f"is an older copy: this client has voted since. {NEW_KEY}")
        return read

    def _decoded(self, content: bytes) -> _Content:
        """Raises MalformedMessage."""
        for known in tuple(self._known):
            if known.whole == content:
                return known
        read = _Content.read(content)
        self._known[:] = [read]
        return read

    def save(self, memory: Memory) -> Memory:
        """Never back to an earlier state: another process of this client may be ahead.

        Returns what is stored now. Raises StateError, or Fork if that process holds another receipt
        for the same round.
        """

        def merge(stored: Memory | None) -> Memory:
            _require_one_chain(stored, memory)
            return memory if stored is None else stored.newer(memory)

        return self.change(merge)

    def change(self, change: Callable[[Memory | None], Memory]) -> Memory:
        """Replace what is stored by what `change` makes of it. Durable when this returns."""
        with self._alone():
            marked, at = self._marks()
            content = self._read(marked)
            stored = None if content is None else content.memory
            changed = change(stored)
            if changed != stored:
                self._write(content, changed)
            if changed.voted is not None and changed.voted.number > marked:
                if changed == stored:  # Who wrote it may have died before it was on the disk.
                    files.sync(self.path)
                self._write_mark(changed.voted.number, at=at)
        return changed

    def _write(self, before: _Content | None, changed: Memory) -> None:
        step = None if before is None else Step.between(before.memory, changed)
        if before is not None and step is not None and before.steps < _MOST_STEPS:
            content = before.and_then(step)
            files.append(self.path, content.whole[len(before.whole) :], at=len(before.whole))
        else:
            content = _Content.of(changed)
            files.write(self.path, [content.whole])
        self._known[:] = [content]

    @cached_property
    def _mark(self) -> Path:
        """Says for which number this client has voted last, should its memory be lost.

        The last whole line counts: of one that was being written, any part may be there.
        """
        return self.path.with_name(f"{self.path.name}.voted")

    def _marks(self) -> tuple[int, int]:
        """The number of the mark, and where its last whole line ends; zeros if there is none."""
        try:
            lines = list(_MARKS.finditer(self._mark.read_bytes()))
            return int(lines[-1][1]), lines[-1].end()
        except FileNotFoundError:
            return 0, 0
        except (OSError, IndexError):
            raise StateError(self._mark, f"cannot be read. {NEW_KEY}") from None

    def _write_mark(self, number: int, *, at: int) -> None:
        line = _MARK % number
        if 0 < at < _MOST_MARKS:
            files.append(self._mark, line, at=at)
        else:
            files.write(self._mark, [line])

    def prove(self, error: ReceiptRefused) -> Path | None:
        """Keep what proves a fork or a rollback beside the memory, under a name of its own."""
        match error:
            case Fork(held=Receipt() as held, other=Receipt() as other):
                kind, number, proof = "fork", held.number, encode(ForkProof(held, other))
            case RolledBack(proof=Proposal() as proposal):
                kind, number = "rolled-back", proposal.number
                proof = encode(RollbackProof(proposal))
            case _:
                return None
        name = f"{kind}-{number}-{hashlib.sha256(proof).hexdigest()[:8]}"
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
    """Raises Fork, or ReceiptRefused. Both receipts were verified when they were followed."""
    keys = {each.receipt_key for each in (stored, memory) if each and each.receipt_key}
    if len(keys) > 1:
        raise ReceiptRefused("another process of this client follows another enclave")
    held = stored.last if stored and stored.receipt_key == memory.receipt_key else None
    other = memory.last
    if held and other and held.number == other.number and held != other:
        raise Fork(held, other)

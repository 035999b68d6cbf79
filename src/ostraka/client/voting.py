"""Confirms outcomes between rounds: in a thread of a client, or as a witness's whole work."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event as Signal
from threading import Lock, Thread

import grpc

from ostraka import files
from ostraka.client.attesting import Verifier
from ostraka.client.connection import Connection, Patience
from ostraka.client.events import Event, Reconnecting
from ostraka.client.memory import NEW_KEY, MemoryFile
from ostraka.client.session import Session, Shelf
from ostraka.encoding import digest
from ostraka.errors import OstrakaError, StateError
from ostraka.messages import Proposal
from ostraka.transport.dial import Backoff

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 15.0
_IDLE_S = 2.0  # between two questions to a service that has finished


class _UntilStopped(Patience):
    """Waits as long as it takes, and no longer once the signal has come."""

    def __init__(self, stopped: Signal) -> None:
        super().__init__(math.inf)
        self._stopped = stopped

    @property
    def over(self) -> bool:
        return self._stopped.is_set()

    def sleep(self, seconds: float) -> None:
        self._stopped.wait(seconds)


@dataclass(frozen=True)
class Record:
    """A file with one line for each number that was confirmed. It is only ever added to.

    It is a second memory, for people to read and to copy elsewhere: a vote that contradicts it is
    not given, even if the first memory was lost.
    """

    path: Path

    def note(self, proposal: Proposal) -> None:
        """Write a vote down, durably. Raises StateError for a second one of its number."""
        self.add(proposal.number, digest(proposal), proposal.previous)

    def add(self, number: int, voted: bytes, previous: bytes) -> None:
        """The same for any vote, also for none."""
        for line in self._lines():
            earlier, before = line.split()[:2]
            if int(earlier) == number and before == voted.hex():
                return
            if int(earlier) >= number:
                raise StateError(
                    self.path, f"has a vote for round {earlier} already, {before}. {NEW_KEY}"
                )
        line = f"{number} {voted.hex()} {previous.hex()}\n"
        with self.path.open("a", encoding="ascii") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> list[str]:
        try:
            text = self.path.read_text("ascii")
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as unreadable:
            raise StateError(self.path, f"cannot be read: {unreadable}") from None
        # A line without its end was never finished, and its vote was never given.
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            files.write(self.path, [whole.encode()])
        lines = whole.splitlines()
        if any(len(line.split()) != 3 or not line.split()[0].isdigit() for line in lines):
            raise StateError(self.path, f"is damaged, and holds a witness's votes. {NEW_KEY}")
        return lines


@dataclass
class Voter:
    """Asks a service what waits to be confirmed, and confirms it, until it is stopped.

    record: where votes are noted as well. A service that cannot be reached, or whose chain cannot
    be followed, is told of by `tell` and asked again.
    """

    address: str
    who: Verifier
    file: MemoryFile
    tls_ca: Path | None
    tell: Callable[[Event], None]
    record: Record | None = None
    _stopped: Signal = field(default_factory=Signal)
    _lock: Lock = field(default_factory=Lock)
    _connection: Connection | None = None
    _thread: Thread | None = None

    def start(self) -> None:
        """Go on in a thread of its own."""
        self._stopped.clear()
        self._thread = Thread(target=self.run, name="ostraka-voter", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, from any thread. A vote that is being written is written to its end."""
        self._stopped.set()
        with self._lock:
            if self._connection is not None:
                self._connection.close()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def run(self) -> None:
        backoff = Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S)
        attempt = 0
        while not self._stopped.is_set():
            attempt += 1
            try:
                with self._session() as session:
                    self._attend(session)
                    backoff, attempt = Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S), 0
            except OstrakaError as refused:
                if not self._stopped.is_set():
                    self.tell(Reconnecting(attempt, str(refused)))
            except (grpc.RpcError, ValueError):
                pass  # The connection was closed by `stop`.
            self._stopped.wait(backoff.next())

    def _attend(self, session: Session) -> None:
        while not self._stopped.is_set():
            if session.attend() == "void":
                self._stopped.wait(_IDLE_S)

    @contextmanager
    def _session(self) -> Iterator[Session]:
        connection = Connection(
            self.address,
            tls_ca=self.tls_ca,
            patience=_UntilStopped(self._stopped),
            tell=self.tell,
            greeting=self.who.greeting,
        )
        with self._lock:
            self._connection = connection
        try:
            note = self.record.note if self.record else None
            session = Session(self.who, connection, self.file, Shelf(), note=note)
            with session.proving():
                yield session
        finally:
            with self._lock:
                self._connection = None
            with suppress(ValueError):
                connection.close()

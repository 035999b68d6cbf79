"""A worker's connection to its enclave: one stream after another, until the worker is stopped.

An enclave of several machines, a lead and its shards, has a connection to each.

A stream begins with the enclave's welcome, the worker's hello and the enclave's proof, which says
that the worker is admitted. Offers of work follow.
"""

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Event, Lock, Thread
from typing import Any

import grpc

from ostraka import logs
from ostraka.config import MAX_PIECE_VALUES
from ostraka.errors import RemoteProtocolError
from ostraka.transport import FINISHED
from ostraka.transport.dial import Backoff, dial
from ostraka.transport.ostraka_pb2 import WorkerSays
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub
from ostraka.worker.session import Session, Staff

# A tile of all rows in float64, and a quarter more for tags and framing.
LARGEST_MESSAGE = MAX_PIECE_VALUES * 8 * 5 // 4

_MOST_UNSENT = 64
_LOOK_S = 0.1  # between two looks whether a stream that takes nothing has ended
# A worker that is refused is refused at once. A stream that lasted longer is worth a quick return.
_STABLE_S = 2.0
# An unwanted worker comes back after minutes. Two workers under one name end each other's streams
# after as long as the other one waits, so a stream of twice that length was not ended that way.
_UNWANTED_FIRST_S, _UNWANTED_CAP_S = 1.0, 300.0
_ALONE_S = 2 * _UNWANTED_CAP_S
_LOG = logging.getLogger("ostraka.worker")


@dataclass(frozen=True)
class Connected:
    """The enclave has admitted this worker."""

    enclave: str
    worker: str


@dataclass(frozen=True)
class Disconnected:
    """There is no enclave to serve. retry_s: the seconds until the next attempt to connect."""

    enclave: str
    why: str
    retry_s: float


@dataclass(frozen=True)
class Finished:
    """The enclave has published all its rounds, and needs no worker any more."""

    enclave: str

    def __str__(self) -> str:
        return "finished: the enclave has published its last round"


@dataclass(frozen=True)
class _End:
    """The end of a stream. unwanted: the enclave ended it. served: it was the pinned enclave.

    finished: that enclave has published all its rounds.
    """

    why: str
    unwanted: bool
    served: bool
    finished: bool = False


def serve_all(services: "Sequence[WorkerService]") -> None:
    """Serves all until each is stopped, or has published all its rounds.

    If one can never work, the others are stopped, and this raises its ConfigError.
    """
    failures: list[BaseException] = []

    def serve(service: WorkerService) -> None:
        try:
            service.run()
        except BaseException as failure:  # noqa: BLE001 (raised below, in the caller's thread)
            failures.append(failure)
            for each in services:
                each.stop()

    threads = [Thread(target=serve, args=(each,)) for each in services]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


class WorkerService:
    """Serves the enclave at HOST:PORT.

    tls_ca: certificates (PEM) that vouch for the server, or None for no TLS. backoff: the pauses
    while the enclave is away. unwanted: the pauses while it does not want this worker.
    """

    def __init__(
        self,
        address: str,
        staff: Staff,
        *,
        tls_ca: Path | None = None,
        backoff: Backoff | None = None,
        unwanted: Backoff | None = None,
    ) -> None:
        self._address = address
        self._staff = staff
        self._tls_ca = tls_ca
        self._backoff = backoff or Backoff()
        self._unwanted = unwanted or Backoff(_UNWANTED_FIRST_S, _UNWANTED_CAP_S)
        self._stopping = Event()
        self._lock = Lock()
        self._call: grpc.Call | None = None

    def run(self) -> None:
        """Serves until stopped, or until all rounds are over.

        Raises ConfigError if that can never work.
        """
        while not self._stopping.is_set():
            start = time.monotonic()
            end = self._connect()
            if end.finished:
                logs.event(_LOG, Finished(self._address))
            if self._stopping.is_set() or end.finished:
                return
            delay = self._pause(end, time.monotonic() - start)
            lost = Disconnected(self._address, end.why, round(delay, 2))
            logs.event(_LOG, lost, logging.WARNING)
            self._stopping.wait(delay)

    def stop(self) -> None:
        """Makes `run` return soon. Any thread may call it."""
        self._stopping.set()
        with self._lock:
            if self._call is not None:
                self._call.cancel()

    def _pause(self, end: _End, lasted: float) -> float:
        """Returns the seconds until the next try. lasted: the seconds that the stream lasted."""
        backoff = self._unwanted if end.unwanted else self._backoff
        if end.served or lasted > (_ALONE_S if end.unwanted else _STABLE_S):
            backoff.reset()
        return backoff.next()

    def _connect(self) -> _End:
        """Serves one stream to its end."""
        with dial(
            self._address, tls_ca=self._tls_ca, largest=LARGEST_MESSAGE, transfers=True
        ) as channel:
            outbox: Queue[WorkerSays | None] = Queue(_MOST_UNSENT)
            call: Any = EnclaveStub(channel).Work(iter(outbox.get, None))

            def say(what: WorkerSays) -> None:
                # An enclave that does not read holds this worker up, and does not fill its memory.
                while call.is_active():
                    with suppress(Full):
                        outbox.put(what, timeout=_LOOK_S)
                        return

            session = Session(self._staff, say)
            self._hold(call)
            finished = False
            try:
                self._converse(call, session)
                why, unwanted = self._replaced(), True
            except grpc.RpcError as ended:
                why, unwanted = self._reason(ended)
                finished = session.admitted and ended.details() == FINISHED
            except RemoteProtocolError as refused:
                why, unwanted = str(refused), False
            finally:
                session.close()
                call.cancel()
                _end(outbox)
                self._hold(None)
            return _End(why, unwanted, session.served, finished)

    def _converse(self, call: Any, session: Session) -> None:
        for number, says in enumerate(call):
            match number:
                case 0:
                    session.greet(says)
                case 1:
                    session.admit(says)
                    logs.event(_LOG, Connected(self._address, self._staff.name))
                case _:
                    session.hear(says)

    def _reason(self, ended: grpc.RpcError) -> tuple[str, bool]:
        """Returns why a stream ended, and whether the enclave does not want this worker."""
        call: Any = ended  # the type stubs do not say that it is the call itself
        match call.code():
            case grpc.StatusCode.PERMISSION_DENIED:
                return (
                    f"the enclave does not know {self._staff.name} with this key: enrol it "
                    "(ostraka worker enrol) and sign, or check --name and --key"
                ), True
            case grpc.StatusCode.DEADLINE_EXCEEDED:  # This side has set none.
                return self._replaced(), True
        return f"{call.code().name}: {call.details()}", False

    def _replaced(self) -> str:
        return (
            "the enclave ended the stream: it is stopping, or another process works as "
            f"{self._staff.name}"
        )

    def _hold(self, call: grpc.Call | None) -> None:
        """Remembers the call that `stop` cancels."""
        with self._lock:
            self._call = call
            if call is not None and self._stopping.is_set():
                call.cancel()


def _end(outbox: "Queue[WorkerSays | None]") -> None:
    """Lets the thread that reads this queue end. Nobody puts anything into it any more."""
    with suppress(Empty):
        while True:
            outbox.get_nowait()
    outbox.put(None)

"""Keeps a worker connected, for ever, until somebody stops it."""

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock
from typing import Any

import grpc

from ostraka.config import MAX_TILE_VALUES
from ostraka.errors import ConfigError, RemoteProtocolError
from ostraka.services import logs
from ostraka.services.backoff import Backoff
from ostraka.services.worker.session import Session, Staff
from ostraka.transport.dial import dial
from ostraka.transport.ostraka_pb2 import WorkerSays
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub

# A tile of all rows in float64, and a quarter more for tags and framing.
LARGEST_MESSAGE = MAX_TILE_VALUES * 8 * 5 // 4

_MOST_UNSENT = 64
# Whoever is turned away is so at once. A stream that lasted longer is worth a quick return.
_STABLE_S = 2.0
_LOG = logging.getLogger("ostraka.worker")


@dataclass(frozen=True)
class Connected:
    """The enclave was greeted. It has work for those whom it knows."""

    enclave: str
    worker: str


@dataclass(frozen=True)
class Disconnected:
    """There is no enclave to serve. The next try is in so many seconds."""

    enclave: str
    why: str
    retry_s: float


class WorkerService:
    """Serves the enclave at HOST:PORT.

    tls_ca: certificates (PEM) that vouch for the server, or None for no TLS.
    """

    def __init__(
        self,
        address: str,
        staff: Staff,
        *,
        tls_ca: Path | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._address = address
        self._staff = staff
        self._tls_ca = tls_ca
        self._backoff = backoff or Backoff()
        self._stopping = Event()
        self._lock = Lock()
        self._call: grpc.Call | None = None

    def run(self) -> None:
        """Serve until stopped. Raises ConfigError if that can never work."""
        while not self._stopping.is_set():
            start = time.monotonic()
            why, served = self._connect()
            if served or time.monotonic() - start > _STABLE_S:
                self._backoff.reset()
            if self._stopping.is_set():
                return
            delay = self._backoff.next()
            lost = Disconnected(self._address, why, round(delay, 2))
            logs.event(_LOG, lost, logging.WARNING)
            self._stopping.wait(delay)

    def stop(self) -> None:
        """Leave, from any thread. `run` returns soon after."""
        self._stopping.set()
        with self._lock:
            if self._call is not None:
                self._call.cancel()

    def _connect(self) -> tuple[str, bool]:
        """One stream, to its end: why it ended, and whether this worker's enclave was there."""
        with self._dial() as channel:
            outbox: SimpleQueue[WorkerSays | None] = SimpleQueue()
            call = EnclaveStub(channel).Work(iter(outbox.get, None))

            def say(what: WorkerSays) -> None:
                outbox.put(what)
                if outbox.qsize() > _MOST_UNSENT:
                    call.cancel()  # Whoever does not listen would fill the memory.

            session = Session(self._staff, say)
            self._hold(call)
            try:
                why = self._converse(call, session)
            except grpc.RpcError as ended:
                why = _reason(ended)
            except RemoteProtocolError as refused:
                why = str(refused)
            finally:
                session.close()
                outbox.put(None)
                call.cancel()
                self._hold(None)
            return why, session.served

    def _converse(self, call: Any, session: Session) -> str:
        for number, says in enumerate(call):
            if number:
                session.hear(says)
            else:
                session.greet(says)
                logs.event(_LOG, Connected(self._address, self._staff.name))
        return "the enclave ended the stream"

    def _dial(self) -> grpc.Channel:
        try:
            return dial(self._address, tls_ca=self._tls_ca, largest=LARGEST_MESSAGE)
        except OSError as unreadable:
            raise ConfigError(f"{self._tls_ca}: {unreadable.strerror}") from None

    def _hold(self, call: grpc.Call | None) -> None:
        """What `stop` cancels."""
        with self._lock:
            self._call = call
            if call is not None and self._stopping.is_set():
                call.cancel()


def _reason(ended: grpc.RpcError) -> str:
    call: Any = ended  # the stubs do not say that it is the call itself
    return f"{call.code().name}: {call.details()}"

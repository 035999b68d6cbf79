"""What a worker does with one stream from its enclave: one attempt after another.

An attempt lasts from its offer to the worker's answer, or until it is over.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Event, Lock, Thread

from ostraka import logs
from ostraka.arrays import AnyArray
from ostraka.config import Tiling
from ostraka.core import gram
from ostraka.core.gram import Kernel, Source, Sum, Values
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED, decode, encode
from ostraka.errors import MalformedMessage, OstrakaError
from ostraka.messages import (
    Answer,
    ChannelOffer,
    Charter,
    Deputy,
    Evidence,
    MaskSeed,
    ShareTile,
    WorkerHello,
)
from ostraka.protocol.worker import Worker
from ostraka.transport import ANSWER_PIECE
from ostraka.transport.ostraka_pb2 import AnswerPiece, EnclaveSays, WorkerSays
from ostraka.worker.pin import EnclavePin

_LOG = logging.getLogger("ostraka.worker")
_NONCE_BYTES = 32
_LONGEST_SORRY = 200
_LARGEST_TILE = 2**26


class Abandoned(Exception):
    """The enclave does not wait for the rest of this attempt."""


class Attempt:
    """An offer that this worker accepts. Raises OpenError or MalformedMessage for any other.

    signer: the key that signs offers on this stream: the receipt key, or a deputy's.
    """

    def __init__(
        self, offer: ChannelOffer, identity: Identity, signer: bytes, kernel: Kernel
    ) -> None:
        self.offer = offer
        self._over = Event()
        stoppable = _Stoppable(kernel, self._over)
        worker = Worker(identity, receipt_key=signer, kernel=stoppable)
        self._computing, self.accepted = worker.accept(offer)
        self._left = Tiling(offer.columns, offer.tile).count
        self._seeded = False
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Returns the seconds since the offer was accepted."""
        return round(time.monotonic() - self._start, 3)

    def add(self, tile: ShareTile) -> Answer | None:
        """Takes in one tile. Returns the answer after the last. Raises RemoteProtocolError."""
        if self._seeded:
            raise MalformedMessage("shares for a worker that was given a seed")
        self._computing.add(tile)
        self._left -= 1
        return None if self._left else self._computing.answer()

    def reserve_for_seed(self) -> None:
        """Notes that a seed takes the place of all shares. Raises MalformedMessage for a second."""
        if self._seeded:
            raise MalformedMessage("a second seed in one attempt")
        self._seeded = True

    def add_seed(self, seed: MaskSeed) -> Answer:
        """Computes on the mask of a seed, which takes long, and returns the answer.

        Raises RemoteProtocolError, or Abandoned once the attempt is over.
        """
        self._computing.add_seed(seed)
        return self._computing.answer()

    def abandon(self) -> None:
        """Stops the computation at its next tile."""
        self._over.set()


@dataclass(frozen=True)
class _Stoppable:
    """A kernel whose sums take no more blocks once the attempt is over."""

    kernel: Kernel
    over: Event

    def begin(self, rows: int, values: Values) -> Sum:
        return _StoppableSum(self.kernel.begin(rows, values), self.over)


@dataclass(frozen=True)
class _StoppableSum:
    running: Sum
    over: Event

    def add(self, block: AnyArray) -> None:
        self._check()
        self.running.add(block)

    def add_from(self, source: Source, space: AnyArray) -> None:
        self._check()
        gram.add_from(self.running, source, space)

    def total(self) -> AnyArray:
        return self.running.total()

    def _check(self) -> None:
        if self.over.is_set():
            raise Abandoned


@dataclass(frozen=True)
class EnclaveRemembered:
    """The enclave that this worker serves from now on."""

    key: str


@dataclass(frozen=True)
class EnclaveNotKept:
    """The enclave's key could not be written down, so it is forgotten when this worker stops."""

    key: str
    why: str


@dataclass(frozen=True)
class AttemptAnswered:
    """This worker's part of an attempt is done."""

    attempt: str
    masking: str
    rows: int
    columns: int
    seconds: float


@dataclass(frozen=True)
class AttemptDropped:
    """This worker's part of an attempt ended without an answer."""

    attempt: str
    rows: int
    columns: int
    seconds: float
    why: str


@dataclass(frozen=True)
class MessageRefused:
    """The enclave, or an impostor, sent a message that cannot be used."""

    what: str
    why: str


@dataclass(frozen=True)
class Staff:
    """A worker: its enrolled name and identity, its kernel, and the enclave that it serves."""

    name: str
    identity: Identity
    kernel: Kernel = field(repr=False)
    pin: EnclavePin = field(repr=False)


class Session:
    """Serves one stream. say: sends a message, and waits while too many are not sent.

    There is one attempt at a time, and a new offer replaces the old one. A message that cannot be
    used ends the attempt; the enclave is told why, and the session goes on.
    """

    def __init__(self, staff: Staff, say: Callable[[WorkerSays], None]) -> None:
        self._staff = staff
        self._say = say
        self._receipt_key = b""
        self._deputy: Deputy | None = None  # of a shard
        self._challenge = os.urandom(_NONCE_BYTES)
        self._pieces = bytearray()  # of the ciphertext of a share tile that is not complete
        self._lock = Lock()
        self._attempt: Attempt | None = None
        self.admitted = False
        self.served = False  # whether the enclave has proved to be the one that this worker serves

    def greet(self, says: EnclaveSays) -> None:
        """Answers the first message of a stream. Raises RemoteProtocolError, which ends it."""
        if says.WhichOneof("what") != "welcome":
            raise MalformedMessage("the enclave did not begin with its welcome")
        nonce, federation = says.welcome.nonce, says.welcome.federation
        if not len(nonce) == len(federation) == _NONCE_BYTES:
            raise MalformedMessage(f"a nonce and a federation's id have {_NONCE_BYTES} bytes each")
        self._receipt_key = self._staff.pin.check(says.welcome.receipt_key)
        if says.welcome.deputy:
            deputy = decode(Deputy, says.welcome.deputy)
            self._staff.pin.check_shard(deputy, federation)
            self._deputy = deputy
        hello = WorkerHello(nonce, federation, self._staff.name, self._challenge, UNSIGNED)
        self._say(WorkerSays(hello=encode(self._staff.identity.sign(hello))))

    def admit(self, says: EnclaveSays) -> None:
        """Verifies the second message, by which the enclave takes this worker and proves itself.

        Raises RemoteProtocolError, which ends the stream, and ConfigError.
        """
        if says.WhichOneof("what") != "proof":
            raise MalformedMessage("the enclave did not prove what it is")
        if (verifier := self._staff.pin.verifier) is not None:
            charter, evidence = says.proof.charter, says.proof.evidence
            verifier.verify(
                decode(Charter, charter),
                decode(Evidence, evidence),
                nonce=self._challenge,
                receipt_key=self._receipt_key,
                deputy=self._deputy,
            )
            if self._deputy is None:
                self._remember_enclave()
        self.admitted = True

    def hear(self, says: EnclaveSays) -> None:
        """Does what the enclave says. No message makes it raise."""
        what = says.WhichOneof("what")
        try:
            match what:
                case "offer":
                    self._take_offer(decode(ChannelOffer, says.offer))
                case "share_piece":
                    self._take_piece(says.share_piece)
                case "share":
                    self._take_share(self._whole(decode(ShareTile, says.share)))
                case "seed":
                    self._take_seed(decode(MaskSeed, says.seed))
                case "over":
                    self._end(says.over.attempt_id)
                case _:
                    raise MalformedMessage("a message of no known kind, or out of place")
        except Abandoned:
            pass
        except Exception as failure:  # noqa: BLE001 (a device may fail in any way)
            self._refuse(str(what), failure, self._attempt)

    def close(self) -> None:
        """Drops the attempt, because its stream has ended."""
        self._drop_quietly(self._attempt, "the connection has ended")

    def _take_offer(self, offer: ChannelOffer) -> None:
        staff, deputy = self._staff, self._deputy
        signer = self._receipt_key if deputy is None else deputy.key
        attempt = Attempt(offer, staff.identity, signer, staff.kernel)
        self._drop_quietly(self._attempt, "replaced by a new offer")
        self.served = True
        with self._lock:
            self._attempt = attempt
        self._say(WorkerSays(accept=encode(attempt.accepted)))

    def _take_piece(self, piece: bytes) -> None:
        """Keeps a piece of a tile. Outside of an attempt it belongs to an earlier one."""
        if self._attempt is not None:
            self._pieces += piece
            if len(self._pieces) > _LARGEST_TILE:
                raise MalformedMessage(f"a share tile of more than {_LARGEST_TILE} bytes")

    def _whole(self, last: ShareTile) -> ShareTile:
        """Returns the tile, together with the pieces of it that came before."""
        if not self._pieces:
            return last
        whole = replace(last, ciphertext=bytes(self._pieces + last.ciphertext))
        self._pieces.clear()
        return whole

    def _take_share(self, tile: ShareTile) -> None:
        attempt = self._current(tile.attempt_id)
        if attempt is not None and (answer := attempt.add(tile)) is not None:
            self._finish(attempt, answer)

    def _take_seed(self, seed: MaskSeed) -> None:
        attempt = self._current(seed.attempt_id)
        if attempt is not None:
            attempt.reserve_for_seed()
            work = Thread(target=self._use_seed, args=(attempt, seed), name="seed", daemon=True)
            work.start()

    def _use_seed(self, attempt: Attempt, seed: MaskSeed) -> None:
        try:
            self._finish(attempt, attempt.add_seed(seed))
        except Abandoned:
            pass
        except Exception as failure:  # noqa: BLE001 (as in `hear`)
            self._refuse("seed", failure, attempt)

    def _current(self, attempt_id: bytes) -> Attempt | None:
        """Returns the present attempt, or None if the message belongs to an earlier one."""
        attempt = self._attempt
        return attempt if attempt is not None and attempt.offer.attempt_id == attempt_id else None

    def _end(self, attempt_id: bytes) -> None:
        self._drop_quietly(self._current(attempt_id), "the enclave has ended it")

    def _finish(self, attempt: Attempt, answer: Answer) -> None:
        if not self._release(attempt):
            return
        self._say_answer(answer)
        offer = attempt.offer
        logs.event(
            _LOG,
            AttemptAnswered(
                _short(offer), offer.masking, offer.rows, offer.columns, attempt.seconds
            ),
        )

    def _say_answer(self, answer: Answer) -> None:
        """Sends an answer in pieces: it grows with the square of the rows, and messages do not."""
        whole = memoryview(answer.ciphertext)
        last = len(whole) // ANSWER_PIECE * ANSWER_PIECE
        for start in range(0, last, ANSWER_PIECE):
            data = bytes(whole[start : start + ANSWER_PIECE])
            self._say(WorkerSays(answer_piece=AnswerPiece(attempt_id=answer.attempt_id, data=data)))
        self._say(WorkerSays(answer=encode(replace(answer, ciphertext=whole[last:]))))

    def _drop(self, attempt: Attempt | None, why: str) -> AttemptDropped | None:
        """Drops the attempt. Returns None if there is nothing to drop."""
        if attempt is None or not self._release(attempt):
            return None
        attempt.abandon()
        offer = attempt.offer
        return AttemptDropped(_short(offer), offer.rows, offer.columns, attempt.seconds, why)

    def _drop_quietly(self, attempt: Attempt | None, why: str) -> None:
        if (dropped := self._drop(attempt, why)) is not None:
            logs.event(_LOG, dropped)

    def _release(self, attempt: Attempt) -> bool:
        """Ends the attempt. Only one caller gets True, and decides what becomes of it."""
        with self._lock:
            if self._attempt is not attempt:
                return False
            self._attempt = None
            self._pieces = bytearray()
            return True

    def _refuse(self, what: str, failure: Exception, attempt: Attempt | None) -> None:
        """Logs a failure, and says sorry if the enclave waits for this worker.

        The message names no attempt, so at any other time it would be taken for the next one's.
        """
        foreseen = isinstance(failure, OstrakaError)
        why = str(failure) if foreseen else f"{type(failure).__name__} in this worker"
        dropped = self._drop(attempt, why)
        logs.event(
            _LOG,
            dropped or MessageRefused(what, why),
            logging.WARNING,
            error=None if foreseen else failure,
        )
        if dropped or what == "offer":
            self._say(WorkerSays(sorry=why[:_LONGEST_SORRY]))

    def _remember_enclave(self) -> None:
        key = self._receipt_key.hex()
        try:
            if self._staff.pin.remember(self._receipt_key):
                logs.event(_LOG, EnclaveRemembered(key))
        except OSError as failed:
            logs.event(_LOG, EnclaveNotKept(key, str(failed)), logging.WARNING)


def _short(offer: ChannelOffer) -> str:
    return offer.attempt_id.hex()[:8]

"""Step 2, measure, with workers: mask every update or its sketch, and decode the answers.

    Offload(cohort, ...)   each worker is offered a channel for one attempt
    Offload.connect()      -> Masking
    Masking.decode()       -> Partial, or a Dispute: a worker lied

The pass goes piece by piece across all clients, so that its memory is O(clients x piece), whatever
the dimension.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn

import numpy as np

from ostraka.arrays import AnyArray, Float32, Float64
from ostraka.config import Member
from ostraka.core.gram import from_upper
from ostraka.crypto.aead import KEY_BYTES, SealedGroups
from ostraka.crypto.channel import Channel, PendingChannel
from ostraka.crypto.hpke import HybridKey
from ostraka.encoding import UNSIGNED
from ostraka.errors import LocalProtocolError, OpenError, WorkerError, WorkerLied
from ostraka.messages import Answer, ChannelAccept, ChannelOffer, MaskSeed, ShareTile
from ostraka.protocol.enclave.cohort import Cohort
from ostraka.protocol.enclave.encoders import (
    Auditor,
    Encoder,
    ExactEncoder,
    GaussianEncoder,
)
from ostraka.protocol.enclave.rows import Partial, RowReader
from ostraka.protocol.enclave.threads import Threads

_ID_BYTES = 32


class Offload:
    """Begins an attempt with workers: fresh ids, keys and masks, and a channel offered to each.

    Cohort and workers are fixed by now, and all secrets come from the reader's one draw. A copy of
    the process made before has other masks; one made after it masks the same rows with the same.

    workers: enrolled names, as many as the terms say (None: the first ones).
    """

    def __init__(
        self,
        cohort: Cohort,
        workers: Sequence[str] | None = None,
        threads: Threads | None = None,
    ) -> None:
        self._workers = _enrolled(cohort, workers)
        self._reader = RowReader(cohort, threads or Threads())
        self._attempt = self._reader.entropy(_ID_BYTES)
        self._connected = False
        self._pending = tuple(
            self._offer(point, worker.key) for point, worker in enumerate(self._workers)
        )

    @property
    def offers(self) -> tuple[ChannelOffer, ...]:
        """One per worker, in the order of the attempt's workers."""
        return tuple(pending.offer for pending in self._pending)

    def connect(self, accepts: Sequence[ChannelAccept]) -> "Masking":
        """Raises WorkerError unless every chosen worker accepted its own offer."""
        if self._connected:
            raise LocalProtocolError("this attempt is under way; another takes fresh masks")
        each = zip(self._pending, self._workers, accepts, strict=True)
        channels = tuple(self._finish(*one) for one in each)
        self._connected = True
        names = tuple(worker.name for worker in self._workers)
        return Masking(self._attempt, self._reader, channels, names)

    def _finish(self, pending: PendingChannel, worker: Member, accept: ChannelAccept) -> Channel:
        try:
            return pending.finish(accept)
        except OpenError:
            raise WorkerError(worker.name, "did not accept the offer made to it") from None

    def _offer(self, point: int, worker: bytes) -> PendingChannel:
        context = self._reader.context
        key, terms = HybridKey(self._reader.entropy), context.terms
        blank = ChannelOffer(
            federation=context.federation.digest(),
            round_id=context.round_id,
            attempt_id=self._attempt,
            worker=worker,
            point=point,
            masking=terms.masking,
            rows=len(self._reader.rows),
            columns=self._reader.columns.length,
            tile=self._reader.columns.tile,
            key=key.public,
            signature=UNSIGNED,
        )
        return PendingChannel(blank, context.identity, key, worker)


def _enrolled(cohort: Cohort, names: Sequence[str] | None) -> tuple[Member, ...]:
    """One point per identity: a worker with two shares could take the mask off."""
    roster = {member.name: member for member in cohort.context.federation.workers}
    count = cohort.terms.workers
    chosen = list(roster)[:count] if names is None else list(names)
    if len(chosen) != count or len(set(chosen)) != count or not set(chosen) <= set(roster):
        raise LocalProtocolError(f"an attempt needs {count} different enrolled workers")
    return tuple(roster[name] for name in chosen)


class Masking:
    """Masks each tile once, and decodes what the workers made of it."""

    def __init__(
        self,
        attempt: bytes,
        reader: RowReader,
        channels: tuple[Channel, ...],
        names: tuple[str, ...],
    ) -> None:
        self._attempt = attempt
        self._reader = reader
        self._columns = reader.columns
        self._gaussian = reader.terms.masking == "gaussian"
        self._seed = reader.entropy(KEY_BYTES)
        kind = GaussianEncoder if self._gaussian else ExactEncoder
        self._layout = SealedGroups(self._columns, len(reader.rows), kind.value_type.itemsize)
        self._channels = channels
        self._names = names
        self._sketches = reader.sketches() if reader.terms.sketch else None
        self._integers = reader.terms.counted and not self._gaussian
        self._encoder: Encoder | None = None
        self._encoded = 0
        self._decoded = False

    def seed(self) -> MaskSeed | None:
        """What the last of an odd number of workers gets, instead of shares."""
        if self._gaussian or len(self._channels) % 2 == 0:
            return None
        return MaskSeed(self._attempt, self._channels[-1].seal_seed(self._seed))

    def encode(self) -> Iterator[tuple[ShareTile, ...]]:
        """Mask what is to be measured, and seal it to the workers.

        Yields one share tile per worker: views of reused memory, to be sent before the next ones
        are taken. Raises UpdateRejected as `RowReader.read` does.
        """
        if self._encoder is not None:
            raise LocalProtocolError("this attempt has masked its rows; a mask serves once")
        self._encoder = self._make_encoder()
        sealed = self._room(self._encoder.shares_per_row)
        for index in range(self._columns.count):
            yield self._encode_tile(self._encoder, index, sealed)

    def _room(self, shares: int) -> list[memoryview]:
        """Memory for the largest sealed tile of every share."""
        size = self._layout.size(0)
        words = -(-shares * size // np.dtype(np.float32).itemsize)
        raw = self._reader.context.vectors.take(words).data.cast("B")
        return [raw[share * size : (share + 1) * size] for share in range(shares)]

    def decode(self, answers: Iterable[Answer]) -> "Partial | Dispute":
        """What was measured; or a dispute, if the answers contradict the evidence.

        Raises WorkerError for an answer that is not one on its face.
        """
        if self._decoded:
            raise LocalProtocolError("this attempt was decoded; another takes fresh masks")
        if self._encoder is None or self._encoded != self._columns.count:
            raise LocalProtocolError(f"{self._encoded} of {self._columns.count} tiles are masked")
        matrices = [
            self._open_answer(self._encoder, *each)
            for each in zip(self._channels, self._names, answers, strict=True)
        ]
        # Under one challenge, a second answer could be fitted to what became of the first.
        self._decoded = True
        decoded = self._encoder.decode(matrices)
        if decoded is None:
            return Dispute(self._reader, self._values, self._encoder, matrices, self._names)
        return Partial(decoded, by="workers")

    def _values(self, thread: int, index: int, rows: range) -> Sequence[AnyArray]:
        """What is masked in tile `index` of some rows, (b,) each."""
        if self._sketches is None:
            return self._reader.read(thread, index, rows, integers=self._integers)
        return list(self._sketches[rows.start : rows.stop, self._columns.part(index)])

    def _make_encoder(self) -> Encoder:
        factors, norms = self._reader.factors, self._reader.norms
        if self._sketches is not None:
            factors, norms = np.ones_like(factors), _norms(self._sketches)
        if self._gaussian:
            return GaussianEncoder(self._reader, factors)
        return ExactEncoder(self._reader, self._seed, factors, norms, integers=self._integers)

    def _encode_tile(
        self, encoder: Encoder, index: int, sealed: list[memoryview]
    ) -> tuple[ShareTile, ...]:
        def encode_group(thread: int, rows: range) -> None:
            encoder.load(thread, rows, self._values(thread, index, rows))
            shares = encoder.shares(thread, index, rows)
            encoder.witness(thread, rows)
            part = self._layout.part(index, rows)
            for channel, share, out in zip(self._channels, shares, sealed, strict=False):
                channel.seal_share(index, rows.start, share, out[part])

        encoder.begin_tile(index)
        self._reader.each_group(encode_group)
        encoder.end_tile()
        self._encoded += 1
        used = self._layout.size(index)
        return tuple(ShareTile(self._attempt, index, out[:used]) for out in sealed)

    def _open_answer(
        self, encoder: Encoder, channel: Channel, name: str, answer: Answer
    ) -> AnyArray:
        n, diagonal = len(self._reader.rows), encoder.answer_has_diagonal
        try:
            raw = channel.open_answer(answer.ciphertext)
        except OpenError:
            raise WorkerError(name, "sent an answer that does not open") from None
        if answer.attempt_id != self._attempt:
            raise WorkerError(name, "answered another attempt")
        entries = n * (n + 1) // 2 if diagonal else n * (n - 1) // 2
        if len(raw) != entries * encoder.value_type.itemsize:
            raise WorkerError(name, f"sent {len(raw)} bytes for a matrix of {n} rows")
        upper = np.frombuffer(raw, encoder.value_type)
        if (flaw := encoder.flaw(upper)) is not None:
            raise WorkerError(name, flaw)
        return from_upper(upper, n, diagonal=diagonal)


def _norms(rows: Float32) -> Float64:
    """The norms of sketches (n,), measured; they are never published."""
    return np.array([np.linalg.norm(row.astype(np.float64)) for row in rows])


class Dispute:
    """The answers contradict what the enclave knows of the rows: a worker has lied.

    Nothing of them is used. The rows are read once more and every share is derived again, to find
    out whose answer is false; then the cohort may be measured in a new attempt.
    """

    def __init__(
        self,
        reader: RowReader,
        values: Callable[[int, int, range], Sequence[AnyArray]],
        encoder: Encoder,
        matrices: Sequence[AnyArray],
        names: tuple[str, ...],
    ) -> None:
        self._reader = reader
        self._values = values
        self._encoder = encoder
        self._matrices = matrices
        self._names = names

    def settle(self) -> NoReturn:
        """Raises WorkerLied, naming who did.

        Or UpdateRejected, if the host does not hold the same bytes any more; or LocalProtocolError,
        if every answer is true by itself, which would be this enclave's own fault.
        """
        auditors = self._encoder.auditors()
        for index in range(self._reader.columns.count):
            blocks = self._shares_again(index)
            for auditor, block in zip(auditors, blocks, strict=True):
                auditor.add(block)
        raise WorkerLied(self._liars(auditors))

    def _liars(self, auditors: Sequence[Auditor]) -> tuple[str, ...]:
        """The workers that are surely wrong; or else the one that is most wrong, since one is."""
        doubts = [
            auditor.doubt(matrix) for auditor, matrix in zip(auditors, self._matrices, strict=True)
        ]
        worst = min(max(doubts), 1.0)
        if worst == 0:
            raise LocalProtocolError("the answers are wrong together, and each is right by itself")
        return tuple(
            name for name, doubt in zip(self._names, doubts, strict=True) if doubt >= worst
        )

    def _shares_again(self, index: int) -> list[AnyArray]:
        """What each worker was given in tile `index`: (n, b) a worker."""
        shape = (len(self._reader.rows), self._reader.columns.size(index))
        blocks = [np.empty(shape, self._encoder.value_type) for _ in self._names]

        def derive(thread: int, rows: range) -> None:
            self._encoder.load(thread, rows, self._values(thread, index, rows))
            shares = self._encoder.audited(thread, index, rows)
            for block, share in zip(blocks, shares, strict=True):
                block[rows.start : rows.stop] = share

        self._encoder.begin_tile(index)
        self._reader.each_group(derive)
        return blocks

"""The first pass: open every update, check it, and have the distances measured.

Tile by tile across all clients, so that memory is O(clients x tile) whatever the dimension.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import NoReturn

import numpy as np

from ostraka.arrays import AnyArray, Buffer, Float64
from ostraka.config import Member
from ostraka.core import distances, sketch
from ostraka.crypto.channel import Channel, PendingChannel
from ostraka.crypto.groups import SealedGroups
from ostraka.crypto.hpke import HybridKey
from ostraka.crypto.offline_mask import OfflineMask, SpentMask
from ostraka.crypto.offline_noise import OfflineNoise, SpentNoise
from ostraka.encoding import UNSIGNED
from ostraka.errors import LocalProtocolError, OpenError, WorkerError, WorkerLied
from ostraka.messages import Answer, ChannelAccept, ChannelOffer, MaskSeed, ShareTile
from ostraka.roles.enclave.averaging import Averaging
from ostraka.roles.enclave.context import RoundContext, Row, Standing
from ostraka.roles.enclave.encoding import Encoder, Measured
from ostraka.roles.enclave.exact import ExactEncoder
from ostraka.roles.enclave.folding import Folding
from ostraka.roles.enclave.gaussian import GaussianEncoder
from ostraka.roles.enclave.lanes import Lanes
from ostraka.roles.enclave.rows import RowReader

_ID_BYTES = 32
_PANEL = 4096  # columns of a sketch, between sums in float64
_DEVIATIONS = 6  # of the sketch's error, that the stated one allows for


class Cohort:
    """Who takes part, in which row. An attempt to measure it may begin, and another after it."""

    def __init__(self, context: RoundContext, rows: tuple[Row, ...], standing: Standing) -> None:
        self._context = context
        self._rows = rows
        self._standing = standing

    @property
    def uploads(self) -> tuple[bytes, ...]:
        """The upload of each row, in order: which stored tiles each pass asks for."""
        return tuple(row.upload_id for row in self._rows)

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(row.client for row in self._rows)

    def offload(
        self,
        offline: OfflineNoise | OfflineMask,
        workers: Sequence[str] | None = None,
        lanes: Lanes | None = None,
    ) -> "Connecting":
        """Begin an attempt with these workers: fresh ids, keys and masks, the cohort as it stands.

        workers: enrolled names, as many as the rules say (None: the first ones).
        """
        reader = self.reader(lanes)
        return Connecting(reader, offline, self._enrolled(workers))

    def inside(self, lanes: Lanes | None = None) -> "MeasuringInside":
        """Begin an attempt without workers."""
        return MeasuringInside(self.reader(lanes))

    def reader(self, lanes: Lanes | None) -> RowReader:
        """The rows of this cohort, to be opened once."""
        return RowReader(self._context, self._rows, self._standing, lanes or Lanes())

    def _enrolled(self, names: Sequence[str] | None) -> tuple[Member, ...]:
        """One point per identity: a worker with two shares could take the mask off."""
        roster = {member.name: member for member in self._context.federation.workers}
        count = self._context.rules.workers
        chosen = list(roster)[:count] if names is None else list(names)
        if len(chosen) != count or len(set(chosen)) != count or not set(chosen) <= set(roster):
            raise LocalProtocolError(f"an attempt needs {count} different enrolled workers")
        return tuple(roster[name] for name in chosen)


class Connecting:
    """Each worker was offered a channel for this attempt."""

    def __init__(
        self, reader: RowReader, offline: OfflineNoise | OfflineMask, workers: tuple[Member, ...]
    ) -> None:
        self._reader = reader
        self._offline = offline
        self._workers = workers
        self._attempt = reader.context.entropy(_ID_BYTES)
        self._pending = tuple(
            self._offer(point, worker.key) for point, worker in enumerate(workers)
        )

    @property
    def offers(self) -> tuple[ChannelOffer, ...]:
        """One per worker, in the order of the attempt's workers."""
        return tuple(pending.offer for pending in self._pending)

    def connect(self, accepts: Sequence[ChannelAccept]) -> "Masking":
        """Raises WorkerError unless every chosen worker accepted its own offer."""
        each = zip(self._pending, self._workers, accepts, strict=True)
        channels = tuple(self._finish(*one) for one in each)
        names = tuple(worker.name for worker in self._workers)
        return Masking(self._attempt, self._reader, self._offline, channels, names)

    def _finish(self, pending: PendingChannel, worker: Member, accept: ChannelAccept) -> Channel:
        try:
            return pending.finish(accept)
        except OpenError:
            raise WorkerError(worker.name, "did not accept the offer made to it") from None

    def _offer(self, point: int, worker: bytes) -> PendingChannel:
        context = self._reader.context
        key, rules = HybridKey(context.entropy), context.rules
        blank = ChannelOffer(
            config=context.federation.digest(),
            round_id=context.round_id,
            attempt_id=self._attempt,
            worker=worker,
            point=point,
            masking=rules.masking,
            rows=len(self._reader.rows),
            columns=rules.columns.length,
            tile=rules.tile,
            key=key.public,
            signature=UNSIGNED,
        )
        return PendingChannel(blank, context.identity, key, worker)


class Masking:
    """Masks each tile once, and decodes what the workers made of it."""

    def __init__(
        self,
        attempt: bytes,
        reader: RowReader,
        offline: OfflineNoise | OfflineMask,
        channels: tuple[Channel, ...],
        names: tuple[str, ...],
    ) -> None:
        self._attempt = attempt
        self._reader = reader
        self._columns = reader.rules.columns
        self._spent = offline.spend()
        value_bytes = 8 if isinstance(self._spent, SpentNoise) else 4
        self._layout = SealedGroups(self._columns, len(reader.rows), value_bytes)
        self._channels = channels
        self._names = names
        self._folding = Folding(reader) if reader.rules.sketch else None
        self._encoder: Encoder | None = None
        self._encoded = 0

    def seed(self) -> MaskSeed | None:
        """What the last of an odd number of workers gets, instead of shares."""
        if not isinstance(self._spent, SpentMask) or self._spent.gram is not None:
            return None
        return MaskSeed(self._attempt, self._channels[-1].seal_seed(self._spent.seed))

    def encode(
        self, tiles: Iterable[Sequence[Buffer]], noise: Iterable[Buffer] | None = None
    ) -> Iterator[tuple[ShareTile, ...]]:
        """Open every tile of every row, mask what is to be measured, and seal it to the workers.

        tiles: per tile, one ciphertext a row. noise: the sealed noise of each tile, for Gaussian
        masking. Yields one share tile per worker: views of reused memory, to be sent before the
        next ones are taken.
        """
        if self._encoder is not None:
            raise LocalProtocolError("this attempt has masked its rows; a mask serves once")
        if self._folding is not None:
            self._folding.fold(tiles)
            tiles = repeat((), self._columns.count)
        self._encoder = self._make_encoder()
        largest = self._layout.size(0)
        sealed = [memoryview(bytearray(largest)) for _ in range(self._encoder.shares_per_row)]
        for index, (ciphertexts, sealed_noise) in _tile_by_tile(tiles, noise):
            yield self._encode_tile(self._encoder, index, ciphertexts, sealed_noise, sealed)

    def decode(self, answers: Sequence[Answer]) -> "Averaging | Dispute":
        """Distances and the selection; or a dispute, if the answers contradict the evidence.

        Raises WorkerError for an answer that is not one on its face.
        """
        if self._encoder is None or self._encoded != self._columns.count:
            raise LocalProtocolError(f"{self._encoded} of {self._columns.count} tiles are masked")
        matrices = [
            self._open_answer(self._encoder, *each)
            for each in zip(self._channels, self._names, answers, strict=True)
        ]
        measured = self._encoder.decode(matrices)
        if measured is None:
            # Under the same challenge, a second answer could be fitted to what the first one told.
            self._encoded = 0
            return Dispute(self._reader, self._folding, self._encoder, matrices, self._names)
        return _finish(self._reader, measured, "workers")

    def _make_encoder(self) -> Encoder:
        factors, norms = self._reader.factors, self._reader.norms
        if self._folding is not None:
            factors, norms = np.ones_like(factors), self._folding.norms()
        if isinstance(self._spent, SpentNoise):
            return GaussianEncoder(self._reader, self._spent, factors)
        return ExactEncoder(self._reader, self._spent, factors, norms)

    def _encode_tile(
        self,
        encoder: Encoder,
        index: int,
        ciphertexts: Sequence[Buffer],
        noise: Buffer,
        sealed: list[memoryview],
    ) -> tuple[ShareTile, ...]:
        def encode_group(lane: int, rows: range) -> None:
            if self._folding is None:
                values = self._reader.open(lane, index, rows, ciphertexts)
                self._reader.account(lane, index, rows, *encoder.load(lane, rows, values))
            else:
                encoder.load(lane, rows, self._folding.columns(index, rows))
            shares = encoder.shares(lane, index, rows, noise)
            encoder.witness(lane, rows)
            part = self._layout.part(index, rows)
            for channel, share, out in zip(self._channels, shares, sealed, strict=False):
                channel.seal_share(index, rows.start, share, out[part])

        if self._folding is None:
            self._reader.begin(index, ciphertexts)
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
        return distances.from_upper(upper, n, diagonal=diagonal)


class Dispute:
    """The answers contradict what the enclave knows of the rows: a worker has lied.

    Nothing of them is used. The rows are read once more and every share is derived again, to find
    out whose answer is false; then the cohort may be measured in a new attempt.
    """

    def __init__(
        self,
        reader: RowReader,
        folding: Folding | None,
        encoder: Encoder,
        matrices: Sequence[AnyArray],
        names: tuple[str, ...],
    ) -> None:
        self._reader = reader
        self._folding = folding
        self._encoder = encoder
        self._matrices = matrices
        self._names = names

    def settle(
        self, tiles: Iterable[Sequence[Buffer]], noise: Iterable[Buffer] | None = None
    ) -> NoReturn:
        """Raises WorkerLied, naming who did. tiles, noise: as `Masking.encode` was given them.

        Or OpenError, if the host does not hold the same bytes any more; or LocalProtocolError, if
        every answer is true by itself, which would be this enclave's own fault.
        """
        auditors = self._encoder.auditors()
        if self._folding is not None:
            tiles = repeat((), self._reader.rules.columns.count)
        for index, (ciphertexts, sealed_noise) in _tile_by_tile(tiles, noise):
            blocks = self._shares_again(index, ciphertexts, sealed_noise)
            for auditor, block in zip(auditors, blocks, strict=True):
                auditor.add(block)
        liars = tuple(
            name
            for name, auditor, matrix in zip(self._names, auditors, self._matrices, strict=True)
            if not auditor.accepts(matrix)
        )
        if not liars:
            raise LocalProtocolError("the answers are wrong together, and each is right by itself")
        raise WorkerLied(liars)

    def _shares_again(
        self, index: int, ciphertexts: Sequence[Buffer], noise: Buffer
    ) -> list[AnyArray]:
        """What each worker was given in tile `index`: (n, b) a worker."""
        shape = (len(self._reader.rows), self._reader.rules.columns.size(index))
        blocks = [np.empty(shape, self._encoder.value_type) for _ in self._names]

        def derive(lane: int, rows: range) -> None:
            if self._folding is None:
                values = self._reader.reopen(lane, index, rows, ciphertexts)
            else:
                values = self._folding.columns(index, rows)
            self._encoder.load(lane, rows, values)
            shares = self._encoder.audited(lane, index, rows, noise)
            for block, share in zip(blocks, shares, strict=True):
                block[rows.start : rows.stop] = share

        self._reader.each_group(derive)
        return blocks


class MeasuringInside:
    """Measures the distances in the enclave itself, by a Gram matrix of all rows."""

    def __init__(self, reader: RowReader) -> None:
        self._reader = reader
        self._factors = reader.factors[:, None]
        n = len(reader.rows)
        self._gram = np.zeros((n, n))

    def measure(self, tiles: Iterable[Sequence[Buffer]]) -> Averaging:
        """Open every tile of every row, add up the inner products, and select."""
        add = self._add_sketches if self._reader.rules.sketch else self._add_rows
        error = add(tiles)
        measured = Measured(distances.from_gram(self._gram), np.array(error))
        return _finish(self._reader, measured, "inside")

    def _add_sketches(self, tiles: Iterable[Sequence[Buffer]]) -> float:
        """Products in float32, since a sketch is no better than sqrt(2/m) anyway. Error to expect.

        Without their mean, rows that are nearly equal stay well apart in float32.
        """
        folding = Folding(self._reader)
        folding.fold(tiles)
        rows = folding.rows - folding.rows.mean(axis=0)
        for start in range(0, rows.shape[1], _PANEL):
            distances.add_gram32(self._gram, rows[:, start : start + _PANEL])
        return distances.gram_error(rows.shape[1], tile=_PANEL, dtype=np.float32)

    def _add_rows(self, tiles: Iterable[Sequence[Buffer]]) -> float:
        """Products in float64. Returns the error to expect."""
        space = np.empty((len(self._gram), self._reader.rules.tile))
        for index, ciphertexts in enumerate(tiles):
            self._reader.begin(index, ciphertexts)
            block = space[:, : self._reader.rules.tiling.size(index)]
            self._reader.each_group(partial(self._read_into, block, index, ciphertexts))
            distances.add_gram(self._gram, block)
        tiling = self._reader.rules.tiling
        return distances.gram_error(tiling.length, tile=tiling.tile)

    def _read_into(
        self,
        block: Float64,
        index: int,
        ciphertexts: Sequence[Buffer],
        lane: int,
        rows: range,
    ) -> None:
        part = slice(rows.start, rows.stop)
        values = self._reader.open(lane, index, rows, ciphertexts)
        # An attacker's signalling NaN must not print a warning.
        with np.errstate(all="ignore"):
            scaled = np.multiply(values, self._factors[part], out=block[part])
            squares = np.vecdot(scaled, scaled)
        self._reader.account(lane, index, rows, scaled, squares)


def _tile_by_tile(
    tiles: Iterable[Sequence[Buffer]], noise: Iterable[Buffer] | None
) -> Iterator[tuple[int, tuple[Sequence[Buffer], Buffer]]]:
    """Each tile's number, ciphertexts, and sealed noise if there is any."""
    return enumerate(zip(tiles, noise or repeat(b""), strict=False))


def _finish(reader: RowReader, measured: Measured, measured_by: str) -> Averaging:
    """Add the sketch's own error to the stated one, and go on to the second pass."""
    error = measured.error
    if reader.rules.sketch is not None:
        relative = _DEVIATIONS * sketch.error(reader.rules.sketch)
        error = error + relative * np.abs(measured.distances)
    return reader.finish(measured.distances, error, measured_by=measured_by)

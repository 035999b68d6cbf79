"""The first pass: open every update, check it, and have the distances measured.

Tile by tile across all clients, so that memory is O(clients x tile) whatever the dimension.
"""

from collections.abc import Sequence

import numpy as np

from ostraka.arrays import Buffer, Float64
from ostraka.core import distances, leakage, masking
from ostraka.crypto.aead import TAG_BYTES
from ostraka.crypto.channel import Channel, PendingChannel
from ostraka.crypto.hpke import HybridKey
from ostraka.crypto.offline_noise import OfflineNoise, SpentNoise
from ostraka.encoding import UNSIGNED
from ostraka.errors import LocalProtocolError, OpenError, WorkerError
from ostraka.messages import Answer, ChannelAccept, ChannelOffer, ShareTile
from ostraka.roles.enclave.averaging import Averaging
from ostraka.roles.enclave.context import RoundContext, Row, Standing
from ostraka.roles.enclave.rows import RowReader

_ID_BYTES = 32
_VALUE_BYTES = 8
_POINTS = (0, 1)  # the worker of W + R and the worker of W - R


class Cohort:
    """Who takes part, in which row. An attempt to measure it may begin."""

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

    def offload(self, noise: OfflineNoise) -> "Connecting":
        """Begin an attempt with workers: fresh ids, keys and noise, and this cohort as it stands."""
        return Connecting(self._context, self._reader(), noise.spend())

    def inside(self) -> "MeasuringInside":
        """Begin an attempt without workers."""
        return MeasuringInside(self._reader())

    def _reader(self) -> RowReader:
        return RowReader(self._context, self._rows, self._standing)


class Connecting:
    """Each worker was offered a channel for this attempt."""

    def __init__(self, context: RoundContext, reader: RowReader, noise: SpentNoise) -> None:
        self._reader = reader
        self._noise = noise
        self._workers = context.federation.workers
        self._attempt = context.entropy(_ID_BYTES)
        self._pending = tuple(
            self._offer(context, point, worker.key)
            for point, worker in zip(_POINTS, self._workers, strict=True)
        )

    @property
    def offers(self) -> tuple[ChannelOffer, ...]:
        """One per worker, in the roster's order."""
        return tuple(pending.offer for pending in self._pending)

    def connect(self, accepts: Sequence[ChannelAccept]) -> "Masking":
        """Raises OpenError unless every pinned worker accepted its own offer."""
        channels = tuple(
            pending.finish(accept) for pending, accept in zip(self._pending, accepts, strict=True)
        )
        names = tuple(worker.name for worker in self._workers)
        return Masking(self._attempt, self._reader, self._noise, channels, names)

    def _offer(self, context: RoundContext, point: int, worker: bytes) -> PendingChannel:
        key, rules = HybridKey(context.entropy), context.rules
        blank = ChannelOffer(
            config=context.federation.digest(),
            round_id=context.round_id,
            attempt_id=self._attempt,
            worker=worker,
            point=point,
            masking=rules.masking,
            rows=len(self._reader.rows),
            dimension=rules.dimension,
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
        noise: SpentNoise,
        channels: tuple[Channel, ...],
        names: tuple[str, ...],
    ) -> None:
        rules = reader.rules
        self._attempt = attempt
        self._reader = reader
        self._noise = noise
        self._channels = channels
        self._names = names
        self._step = masking.grid_step(rules.sigma)
        self._mask = np.empty(rules.tile)
        self._shares = (np.empty(rules.tile), np.empty(rules.tile))
        size = len(reader.rows) * (rules.tile * _VALUE_BYTES + TAG_BYTES)
        self._sealed = tuple(bytearray(size) for _ in channels)

    def encode(
        self, index: int, ciphertexts: Sequence[Buffer], noise: Buffer
    ) -> tuple[ShareTile, ...]:
        """Open tile `index` of every row, mask it (law 1), and seal one share to each worker.

        The shares are views of reused memory: send or copy them before the next call.
        """
        self._reader.begin(index, ciphertexts)
        length = self._reader.rules.tile_length(index)
        for row, ciphertext in enumerate(ciphertexts):
            self._encode_row(index, row, ciphertext, noise)
        size = len(ciphertexts) * (length * _VALUE_BYTES + TAG_BYTES)
        return tuple(
            ShareTile(self._attempt, index, memoryview(sealed)[:size]) for sealed in self._sealed
        )

    def decode(self, answers: Sequence[Answer]) -> Averaging:
        """Distances from the workers' matrices (law 3), then the selection. Raises WorkerError."""
        rules = self._reader.rules
        plus, minus = (
            self._open_answer(*each)
            for each in zip(self._channels, self._names, answers, strict=True)
        )
        decoded = masking.decode(plus, minus, sigma=rules.sigma, d=rules.dimension)
        error = leakage.decoding_error(rules.sigma, d=rules.dimension, dtype=np.dtype(np.float64))
        return self._reader.finish(decoded, error, measured_by="workers")

    def _encode_row(self, index: int, row: int, ciphertext: Buffer, noise: Buffer) -> None:
        values = self._reader.read(index, row, ciphertext)
        mask = self._mask[: values.size]
        self._noise.open_into(index, row, noise, mask)
        plus, minus = (share[: values.size] for share in self._shares)
        masking.encode(values, mask, step=self._step, plus=plus, minus=minus)
        size = values.nbytes + TAG_BYTES
        for channel, share, sealed in zip(self._channels, (plus, minus), self._sealed, strict=True):
            out = memoryview(sealed)[row * size : (row + 1) * size]
            channel.seal_share(index, row, share, out)

    def _open_answer(self, channel: Channel, name: str, answer: Answer) -> Float64:
        n = len(self._reader.rows)
        try:
            raw = channel.open_answer(answer.ciphertext)
        except OpenError:
            raise WorkerError(name, "sent an answer that does not open") from None
        if answer.attempt_id != self._attempt:
            raise WorkerError(name, "answered another attempt")
        if len(raw) != n * (n - 1) // 2 * _VALUE_BYTES:
            raise WorkerError(name, f"sent {len(raw)} bytes for a matrix of {n} rows")
        upper = np.frombuffer(raw, np.dtype("<f8"))
        if not np.isfinite(upper).all():
            raise WorkerError(name, "sent distances that are not finite")
        return distances.from_upper(upper, n)


class MeasuringInside:
    """Measures the distances in the enclave itself, by a float64 Gram matrix."""

    def __init__(self, reader: RowReader) -> None:
        self._reader = reader
        n = len(reader.rows)
        self._gram = np.zeros((n, n))
        self._block = np.empty((n, reader.rules.tile))

    def measure(self, index: int, ciphertexts: Sequence[Buffer]) -> None:
        """Open tile `index` of every row and add its inner products."""
        self._reader.begin(index, ciphertexts)
        block = self._block[:, : self._reader.rules.tile_length(index)]
        for row, ciphertext in enumerate(ciphertexts):
            block[row] = self._reader.read(index, row, ciphertext)
        distances.add_gram(self._gram, block)

    def decode(self) -> Averaging:
        """The selection."""
        error = distances.gram_error(self._reader.rules.dimension)
        return self._reader.finish(distances.from_gram(self._gram), error, measured_by="inside")

"""The first pass: open every update, check it, and have the distances measured.

Tile by tile across all clients, so that memory is O(clients x tile) whatever the dimension.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ostraka.arrays import Buffer, Float64
from ostraka.core import distances
from ostraka.crypto.aead import TAG_BYTES
from ostraka.crypto.channel import Channel, PendingChannel
from ostraka.crypto.hpke import HybridKey
from ostraka.crypto.offline_noise import OfflineNoise
from ostraka.encoding import UNSIGNED
from ostraka.errors import OpenError, WorkerError
from ostraka.messages import Answer, ChannelAccept, ChannelOffer, ShareTile
from ostraka.roles.enclave.averaging import Averaging
from ostraka.roles.enclave.context import RoundContext, Row, Standing
from ostraka.roles.enclave.gaussian import GaussianEncoder
from ostraka.roles.enclave.lanes import Lanes
from ostraka.roles.enclave.rows import RowReader

_ID_BYTES = 32
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

    def offload(self, noise: OfflineNoise, lanes: Lanes | None = None) -> "Connecting":
        """Begin an attempt with workers: fresh ids, keys and noise, the cohort as it stands."""
        reader = self._reader(lanes)
        return Connecting(reader, GaussianEncoder(reader, noise.spend()))

    def inside(self, lanes: Lanes | None = None) -> "MeasuringInside":
        """Begin an attempt without workers."""
        return MeasuringInside(self._reader(lanes))

    def _reader(self, lanes: Lanes | None) -> RowReader:
        return RowReader(self._context, self._rows, self._standing, lanes or Lanes())


class Connecting:
    """Each worker was offered a channel for this attempt."""

    def __init__(self, reader: RowReader, encoder: GaussianEncoder) -> None:
        self._reader = reader
        self._encoder = encoder
        self._workers = reader.context.federation.workers
        self._attempt = reader.context.entropy(_ID_BYTES)
        self._pending = tuple(
            self._offer(point, worker.key)
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
        return Masking(self._attempt, self._reader, self._encoder, channels, names)

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
        encoder: GaussianEncoder,
        channels: tuple[Channel, ...],
        names: tuple[str, ...],
    ) -> None:
        self._attempt = attempt
        self._reader = reader
        self._encoder = encoder
        self._channels = channels
        self._names = names
        size = len(reader.rows) * self._sealed_size(reader.rules.tile)
        self._sealed = tuple(memoryview(bytearray(size)) for _ in channels)

    def encode(
        self, tiles: Iterable[Sequence[Buffer]], noise: Iterable[Buffer]
    ) -> Iterator[tuple[ShareTile, ...]]:
        """Open every tile of every row, mask it, and seal one share to each worker.

        tiles: per tile, one ciphertext a row. noise: the sealed noise of each tile. Yields one
        share per worker and tile: views of reused memory, to be sent before the next is taken.
        """
        for index, (ciphertexts, sealed_noise) in enumerate(zip(tiles, noise, strict=True)):
            yield self._encode_tile(index, ciphertexts, sealed_noise)

    def decode(self, answers: Sequence[Answer]) -> Averaging:
        """Distances from the workers' matrices, then the selection. Raises WorkerError."""
        matrices = [
            self._open_answer(*each)
            for each in zip(self._channels, self._names, answers, strict=True)
        ]
        decoded, error = self._encoder.decode(matrices)
        return self._reader.finish(decoded, error, measured_by="workers")

    def _encode_tile(
        self, index: int, ciphertexts: Sequence[Buffer], noise: Buffer
    ) -> tuple[ShareTile, ...]:
        size = self._sealed_size(self._reader.rules.tile_length(index))

        def encode_group(lane: int, rows: range) -> None:
            values = self._reader.scaled(lane, index, rows, ciphertexts)
            shares = self._encoder.shares(lane, index, rows, values, noise)
            for channel, share, sealed in zip(self._channels, shares, self._sealed, strict=True):
                for row, values in zip(rows, share, strict=True):
                    channel.seal_share(index, row, values, sealed[row * size : (row + 1) * size])

        self._reader.each_group(index, ciphertexts, encode_group)
        return tuple(
            ShareTile(self._attempt, index, sealed[: len(ciphertexts) * size])
            for sealed in self._sealed
        )

    def _sealed_size(self, length: int) -> int:
        return length * self._encoder.value_bytes + TAG_BYTES

    def _open_answer(self, channel: Channel, name: str, answer: Answer) -> Float64:
        n = len(self._reader.rows)
        try:
            raw = channel.open_answer(answer.ciphertext)
        except OpenError:
            raise WorkerError(name, "sent an answer that does not open") from None
        if answer.attempt_id != self._attempt:
            raise WorkerError(name, "answered another attempt")
        if len(raw) != n * (n - 1) // 2 * self._encoder.value_bytes:
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

    def measure(self, tiles: Iterable[Sequence[Buffer]]) -> Averaging:
        """Open every tile of every row, add up the inner products, and select."""
        for index, ciphertexts in enumerate(tiles):
            self._add_tile(index, ciphertexts)
        error = distances.gram_error(self._reader.rules.dimension, tile=self._reader.rules.tile)
        return self._reader.finish(distances.from_gram(self._gram), error, measured_by="inside")

    def _add_tile(self, index: int, ciphertexts: Sequence[Buffer]) -> None:
        block = self._block[:, : self._reader.rules.tile_length(index)]

        def read_group(lane: int, rows: range) -> None:
            block[rows.start : rows.stop] = self._reader.scaled(lane, index, rows, ciphertexts)

        self._reader.each_group(index, ciphertexts, read_group)
        distances.add_gram(self._gram, block)

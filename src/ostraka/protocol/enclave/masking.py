"""The first pass with workers: open every update, check it, mask it, and decode the answers.

Tile by tile across all clients, so that memory is O(clients x tile) whatever the dimension.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

import numpy as np

from ostraka.arrays import AnyArray, Buffer
from ostraka.core import gram
from ostraka.crypto.aead import SealedGroups
from ostraka.crypto.channel import Channel
from ostraka.crypto.offline import OfflineMask, OfflineNoise, SpentMask, SpentNoise
from ostraka.errors import LocalProtocolError, OpenError, WorkerError
from ostraka.messages import Answer, MaskSeed, ShareTile
from ostraka.protocol.enclave.averaging import Averaging
from ostraka.protocol.enclave.dispute import Dispute
from ostraka.protocol.enclave.encoder import Encoder, tile_by_tile
from ostraka.protocol.enclave.exact import ExactEncoder
from ostraka.protocol.enclave.folding import Folding
from ostraka.protocol.enclave.gaussian import GaussianEncoder
from ostraka.protocol.enclave.rows import RowReader
from ostraka.protocol.enclave.spans import Span


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
        self._columns = reader.terms.columns
        self._spent = offline.spend()
        self._layout = SealedGroups(self._columns, len(reader.rows), self._spent.value_bytes)
        self._channels = channels
        self._names = names
        self._folding = Folding(reader) if reader.terms.sketch else None
        self._encoder: Encoder | None = None
        self._encoded = 0
        self._decoded = False

    def seed(self) -> MaskSeed | None:
        """What the last of an odd number of workers gets, instead of shares."""
        if not isinstance(self._spent, SpentMask) or self._spent.gram is not None:
            return None
        return MaskSeed(self._attempt, self._channels[-1].seal_seed(self._spent.seed))

    def encode(
        self, tiles: Iterable[Sequence[Buffer]], noise: Iterable[Buffer] | None = None
    ) -> Iterator[tuple[ShareTile, ...]]:
        """Open every tile of every row, mask what is to be measured, and seal it to the workers.

        tiles: per tile, one ciphertext a row, in memory that is not used again during the pass.
        noise: the sealed noise of each tile, for Gaussian masking. Yields one share tile per
        worker: views of reused memory, to be sent before the next ones are taken.
        """
        if self._encoder is not None:
            raise LocalProtocolError("this attempt has masked its rows; a mask serves once")
        spans = self._to_mask(tiles)
        self._encoder = self._make_encoder()
        largest = self._layout.size(0)
        sealed = [memoryview(bytearray(largest)) for _ in range(self._encoder.shares_per_row)]
        for index, (span, sealed_noise) in tile_by_tile(spans, noise):
            yield self._encode_tile(self._encoder, index, span, sealed_noise, sealed)

    def decode(self, answers: Sequence[Answer]) -> "Averaging | Dispute":
        """Distances and the selection; or a dispute, if the answers contradict the evidence.

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
        measured = self._encoder.decode(matrices)
        if measured is None:
            return Dispute(self._reader, self._folding, self._encoder, matrices, self._names)
        return self._reader.finish(measured, measured_by="workers")

    def _to_mask(self, tiles: Iterable[Sequence[Buffer]]) -> Iterable[Span | None]:
        """What is opened as it is masked: nothing, where it was folded before."""
        if self._folding is None:
            return self._reader.spans(tiles)
        self._folding.fold(tiles)
        return repeat(None, self._columns.count)

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
        span: Span | None,
        noise: Buffer,
        sealed: list[memoryview],
    ) -> tuple[ShareTile, ...]:
        def encode_group(lane: int, rows: range) -> None:
            if span is not None:
                values = self._reader.open(lane, span, rows)
                self._reader.account(lane, index, rows, *encoder.load(lane, rows, values))
            elif self._folding is not None:
                encoder.load(lane, rows, self._folding.columns(index, rows))
            shares = encoder.shares(lane, index, rows, noise)
            encoder.witness(lane, rows)
            part = self._layout.part(index, rows)
            for channel, share, out in zip(self._channels, shares, sealed, strict=False):
                channel.seal_share(index, rows.start, share, out[part])

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
        return gram.from_upper(upper, n, diagonal=diagonal)

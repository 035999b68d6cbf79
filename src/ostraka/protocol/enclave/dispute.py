"""Finds out which worker lied, by deriving every share again."""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NoReturn

import numpy as np

from ostraka.arrays import AnyArray, Buffer
from ostraka.errors import LocalProtocolError, WorkerLied
from ostraka.protocol.enclave.encoder import Auditor, Encoder, tile_by_tile
from ostraka.protocol.enclave.folding import Folding
from ostraka.protocol.enclave.rows import RowReader
from ostraka.protocol.enclave.spans import Span, spans


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
        auditors, read = self._encoder.auditors(), 0
        for index, (span, sealed_noise) in tile_by_tile(self._masked(tiles), noise):
            blocks = self._shares_again(index, span, sealed_noise)
            for auditor, block in zip(auditors, blocks, strict=True):
                auditor.add(block)
            read += 1
        if read != (count := self._reader.terms.columns.count):
            raise LocalProtocolError(f"{read} of {count} tiles were read")
        raise WorkerLied(self._liars(auditors))

    def _liars(self, auditors: Sequence[Auditor]) -> tuple[str, ...]:
        """Whoever is surely wrong; or else whoever is most wrong, since somebody is."""
        doubts = [
            auditor.doubt(matrix) for auditor, matrix in zip(auditors, self._matrices, strict=True)
        ]
        worst = min(max(doubts), 1.0)
        if worst == 0:
            raise LocalProtocolError("the answers are wrong together, and each is right by itself")
        return tuple(
            name for name, doubt in zip(self._names, doubts, strict=True) if doubt >= worst
        )

    def _masked(self, tiles: Iterable[Sequence[Buffer]]) -> Iterable[Span | None]:
        if self._folding is None:
            return spans(tiles, self._reader.terms, len(self._reader.rows))
        return repeat(None, self._reader.terms.columns.count)

    def _shares_again(self, index: int, span: Span | None, noise: Buffer) -> list[AnyArray]:
        """What each worker was given in tile `index`: (n, b) a worker."""
        shape = (len(self._reader.rows), self._reader.terms.columns.size(index))
        blocks = [np.empty(shape, self._encoder.value_type) for _ in self._names]

        def derive(lane: int, rows: range) -> None:
            if span is not None:
                self._encoder.load(lane, rows, self._reader.reopen(lane, span, rows))
            elif self._folding is not None:
                self._encoder.load(lane, rows, self._folding.columns(index, rows))
            shares = self._encoder.audited(lane, index, rows, noise)
            for block, share in zip(blocks, shares, strict=True):
                block[rows.start : rows.stop] = share

        self._reader.each_group(derive)
        return blocks

"""The worker: it is not trusted, sees masked rows only, and returns a matrix over them."""

import os
from dataclasses import dataclass, field

import numpy as np

from ostraka.arrays import AnyArray, Buffer, cut
from ostraka.config import MAX_PIECE_VALUES, Tiling
from ostraka.core import gram
from ostraka.core.gram import Kernel, NumpyKernel, Source, Values
from ostraka.crypto.aead import SealedGroups
from ostraka.crypto.channel import Channel, ShareOpener, accept_offer
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.identity import Identity
from ostraka.crypto.masks import mask_tile
from ostraka.errors import LocalProtocolError, MalformedMessage, OpenError
from ostraka.messages import Answer, ChannelAccept, ChannelOffer, MaskSeed, ShareTile

_MOST_TILES = 2**22
_VALUES: dict[str, Values] = {"gaussian": "float64", "exact": "residues"}


@dataclass(frozen=True)
class SealedTile:
    """A tile of shares, with what it takes to open it."""

    shares: ShareOpener
    layout: SealedGroups
    index: int
    ciphertext: Buffer = field(repr=False)

    def make(self, space: AnyArray) -> AnyArray:
        """Opens the tile into `space`. Raises OpenError."""
        layout, sealed = self.layout, memoryview(self.ciphertext)
        block = cut(space, layout.rows, layout.columns.size(self.index))
        for group in layout.groups():
            part, out = layout.part(self.index, group), block[group.start : group.stop]
            self.shares.open(self.index, group.start, sealed[part], out)
        return block


@dataclass(frozen=True)
class MaskTile:
    """A tile of the mask that a seed stands for."""

    seed: bytes = field(repr=False)
    rows: int
    columns: Tiling
    index: int

    def make(self, space: AnyArray) -> AnyArray:
        """Draws the tile, in memory of its own."""
        return mask_tile(self.seed, self.rows, self.columns, self.index)


class Worker:
    """Waits for offers from the one enclave that it serves."""

    def __init__(
        self,
        identity: Identity,
        *,
        receipt_key: bytes,
        kernel: Kernel | None = None,
        entropy: Entropy = os.urandom,
    ) -> None:
        self._identity = identity
        self._receipt_key = receipt_key
        self._kernel = kernel or NumpyKernel()
        self._entropy = entropy

    def accept(self, offer: ChannelOffer) -> tuple["Computing", ChannelAccept]:
        """Joins one attempt. Raises OpenError unless the enclave made this offer to this worker."""
        accepted, channel = accept_offer(
            offer, receipt_key=self._receipt_key, identity=self._identity, entropy=self._entropy
        )
        if offer.masking not in _VALUES:
            raise MalformedMessage(f"this worker does not know {offer.masking!r} masking")
        if min(offer.rows, offer.columns, offer.tile) < 1:
            raise MalformedMessage("an offer of no rows, no columns or no tile")
        if offer.columns > _MOST_TILES * offer.tile:
            raise MalformedMessage(f"more than {_MOST_TILES} tiles are above this worker's means")
        if offer.rows * offer.tile > MAX_PIECE_VALUES:
            raise MalformedMessage(f"{offer.rows} rows x {offer.tile} are above {MAX_PIECE_VALUES}")
        return Computing(offer, channel, self._kernel), accepted


class Computing:
    """Adds up the Gram matrix of its masked rows, tile by tile, in any order."""

    def __init__(self, offer: ChannelOffer, channel: Channel, kernel: Kernel) -> None:
        self._offer = offer
        self._channel = channel
        self._columns = Tiling(offer.columns, offer.tile)
        self._left = set(range(self._columns.count))
        values = _VALUES[offer.masking]
        dtype = gram.DTYPES[values]
        self._layout = SealedGroups(self._columns, offer.rows, dtype.itemsize)
        self._sum = kernel.begin(offer.rows, values)
        self._block = np.empty((offer.rows, min(offer.tile, offer.columns)), dtype)

    def add(self, tile: ShareTile) -> None:
        """Takes in one tile of shares. Raises RemoteProtocolError, and then nothing changes.

        If the sum makes its blocks elsewhere, a tile that does not open may raise at a later call
        instead, and then there is no answer to this attempt.
        """
        if tile.attempt_id != self._offer.attempt_id or tile.index not in self._left:
            raise OpenError("share tile")
        if len(tile.ciphertext) != self._layout.size(tile.index):
            raise MalformedMessage(f"share tile {tile.index} has {len(tile.ciphertext)} bytes")
        self._take(SealedTile(self._channel.shares, self._layout, tile.index, tile.ciphertext))
        self._left.remove(tile.index)

    def add_seed(self, message: MaskSeed) -> None:
        """Makes the mask of a seed, in place of shares. Raises RemoteProtocolError."""
        everything = len(self._left) == self._columns.count
        if message.attempt_id != self._offer.attempt_id or not everything:
            raise OpenError("mask seed")
        seed = self._channel.open_seed(message.ciphertext)
        for index in range(self._columns.count):
            self._take(MaskTile(seed, self._offer.rows, self._columns, index))
        self._left.clear()

    def answer(self) -> Answer:
        """Seals the matrix over all tiles to the enclave: the part above its diagonal, by rows.

        Exact masking needs inner products modulo p, with the diagonal. Gaussian masking needs
        squared distances (law 2).
        """
        if self._left:
            raise LocalProtocolError(f"{len(self._left)} tiles of shares have not arrived")
        total = self._sum.total()
        if self._offer.masking == "exact":
            upper = gram.to_upper(total, diagonal=True)
        else:
            upper = gram.to_upper(gram.from_gram(total))
        sealed = self._channel.seal_answer(upper.tobytes())
        return Answer(self._offer.attempt_id, sealed)

    def _take(self, source: Source) -> None:
        gram.add_from(self._sum, source, self._block)

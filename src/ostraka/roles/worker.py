"""A worker: untrusted, sees masked rows only, and returns the matrix of their distances."""

import os

import numpy as np

from ostraka.core import distances
from ostraka.crypto.aead import TAG_BYTES
from ostraka.crypto.channel import Channel, accept_offer
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.identity import Identity
from ostraka.errors import LocalProtocolError, MalformedMessage, RemoteProtocolError
from ostraka.messages import Answer, ChannelAccept, ChannelOffer, ShareTile

_VALUE_BYTES = 8


class Worker:
    """Waits for offers from the one enclave that it serves."""

    def __init__(
        self, identity: Identity, *, enclave: bytes, entropy: Entropy = os.urandom
    ) -> None:
        self._identity = identity
        self._enclave = enclave
        self._entropy = entropy

    def accept(self, offer: ChannelOffer) -> tuple["Computing", ChannelAccept]:
        """Join one attempt. Raises OpenError unless the enclave made this offer to this worker."""
        accepted, channel = accept_offer(
            offer, enclave=self._enclave, identity=self._identity, entropy=self._entropy
        )
        return Computing(offer, channel), accepted


class Computing:
    """Adds up the Gram matrix of its masked rows, tile by tile, in any order."""

    def __init__(self, offer: ChannelOffer, channel: Channel) -> None:
        self._offer = offer
        self._channel = channel
        self._left = set(range(-(-offer.dimension // offer.tile)))
        self._gram = np.zeros((offer.rows, offer.rows))
        self._block = np.empty((offer.rows, min(offer.tile, offer.dimension)))

    def add(self, tile: ShareTile) -> None:
        """Take in one tile of shares. Raises RemoteProtocolError, and then nothing changes."""
        offer = self._offer
        if tile.attempt_id != offer.attempt_id or tile.index not in self._left:
            raise RemoteProtocolError(f"share tile {tile.index} is not expected in this attempt")
        length = min(offer.tile, offer.dimension - tile.index * offer.tile)
        size = length * _VALUE_BYTES + TAG_BYTES
        if len(tile.ciphertext) != offer.rows * size:
            raise MalformedMessage(f"share tile {tile.index} has {len(tile.ciphertext)} bytes")
        block = self._block[:, :length]
        sealed = memoryview(tile.ciphertext)
        for row in range(offer.rows):
            self._channel.open_share(
                tile.index, row, sealed[row * size : (row + 1) * size], block[row]
            )
        distances.add_gram(self._gram, block)
        self._left.remove(tile.index)

    def answer(self) -> Answer:
        """The squared distances between masked rows (law 2), sealed to the enclave."""
        if self._left:
            raise LocalProtocolError(f"{len(self._left)} tiles of shares have not arrived")
        upper = distances.to_upper(distances.from_gram(self._gram))
        sealed = self._channel.seal_answer(upper.astype("<f8").tobytes())
        return Answer(self._offer.attempt_id, sealed)

"""One attempt at one worker: from the offer to the answer, or to the moment when it is over."""

import time
from threading import Event

from ostraka.arrays import Float64, UInt32
from ostraka.config import Tiling
from ostraka.core.gram import Kernel
from ostraka.crypto.identity import Identity
from ostraka.errors import MalformedMessage
from ostraka.messages import Answer, ChannelOffer, MaskSeed, ShareTile
from ostraka.protocol.worker import Worker


class Abandoned(Exception):
    """Nobody waits for the rest of this attempt."""


class Attempt:
    """An offer that this worker has taken. Raises OpenError or MalformedMessage for any other."""

    def __init__(
        self, offer: ChannelOffer, identity: Identity, enclave: bytes, kernel: Kernel
    ) -> None:
        self.offer = offer
        self._over = Event()
        worker = Worker(identity, enclave=enclave, kernel=_Stoppable(kernel, self._over))
        self._computing, self.accepted = worker.accept(offer)
        self._left = Tiling(offer.columns, offer.tile).count
        self._seeded = False
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the offer was taken."""
        return round(time.monotonic() - self._start, 3)

    def add(self, tile: ShareTile) -> Answer | None:
        """Take in one tile. The answer, if it was the last. Raises RemoteProtocolError."""
        if self._seeded:
            raise MalformedMessage("shares for a worker that was given a seed")
        self._computing.add(tile)
        self._left -= 1
        return None if self._left else self._computing.answer()

    def reserve_for_seed(self) -> None:
        """A seed takes the place of all shares, once."""
        if self._seeded:
            raise MalformedMessage("a second seed in one attempt")
        self._seeded = True

    def add_seed(self, seed: MaskSeed) -> Answer:
        """Takes long. Raises RemoteProtocolError, or Abandoned once the attempt is over."""
        self._computing.add_seed(seed)
        return self._computing.answer()

    def abandon(self) -> None:
        """Stop whatever is being computed, at its next tile."""
        self._over.set()


class _Stoppable:
    """A kernel that refuses more work when the attempt is over."""

    def __init__(self, kernel: Kernel, over: Event) -> None:
        self._kernel = kernel
        self._over = over

    def add_gram(self, total: Float64, block: Float64) -> None:
        self._require_going_on()
        self._kernel.add_gram(total, block)

    def add_field_gram(self, total: UInt32, block: UInt32) -> None:
        self._require_going_on()
        self._kernel.add_field_gram(total, block)

    def _require_going_on(self) -> None:
        if self._over.is_set():
            raise Abandoned

"""A client: seals its update to a round, and follows the chain of receipts."""

import hashlib
import os
from dataclasses import dataclass, field, replace

import numpy as np

from ostraka.arrays import Float32
from ostraka.config import Federation
from ostraka.crypto import updates
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.identity import Identity, check_signature
from ostraka.crypto.updates import SealedUpdate
from ostraka.encoding import digest
from ostraka.errors import Fork, ReceiptRefused
from ostraka.messages import Receipt, RoundOffer


@dataclass(frozen=True)
class Client:
    """A client between rounds. `last` is the newest receipt that it holds."""

    name: str
    identity: Identity
    federation: Federation
    enclave: bytes  # the key that signs offers and receipts
    last: Receipt | None = None
    entropy: Entropy = field(default=os.urandom, repr=False)

    def join(self, offer: RoundOffer) -> "Joined":
        """Take part in a round. Raises OpenError or ReceiptRefused."""
        check_signature(offer, self.enclave)
        self._require_config(offer.config)
        if self.last is not None:
            self._require_next(self.last, offer)
        return Joined(self, offer)

    def follow(self, receipt: Receipt) -> "Client":
        """Accept the next receipt of the chain. Raises OpenError or ReceiptRefused."""
        check_signature(receipt, self.enclave)
        self._require_config(receipt.config)
        if self.last is not None:
            if receipt.number == self.last.number and receipt != self.last:
                raise Fork(self.last, receipt)
            self._require_next(self.last, receipt)
        return replace(self, last=receipt)

    def _require_config(self, config: bytes) -> None:
        if config != self.federation.digest():
            raise ReceiptRefused(
                "the enclave runs another config than the one this client agreed to"
            )

    @staticmethod
    def _require_next(last: Receipt, following: RoundOffer | Receipt) -> None:
        if following.number <= last.number:
            raise ReceiptRefused(
                f"round {following.number} is not newer than round {last.number}, "
                "whose receipt this client holds"
            )
        if following.number > last.number + 1:
            raise ReceiptRefused(
                f"receipts {last.number + 1} to {following.number - 1} are missing: "
                "follow them first"
            )
        if following.previous != digest(last):
            raise ReceiptRefused(
                f"round {following.number} does not continue the chain that this client holds"
            )


@dataclass(frozen=True)
class Joined:
    """A client that has checked an offer and is training."""

    client: Client
    offer: RoundOffer

    def seal(self, update: Float32) -> "Submitted":
        """Seal an update (d,) for this round. The result can be sent any number of times."""
        client = self.client
        sealed = updates.seal(
            update,
            offer=self.offer,
            rules=client.federation.rules,
            client=client.name,
            identity=client.identity,
            entropy=client.entropy,
        )
        return Submitted(client, self.offer, sealed)


@dataclass(frozen=True)
class Submitted:
    """A client that waits for the round's receipt. It keeps its upload until it holds that."""

    client: Client
    offer: RoundOffer
    sealed: SealedUpdate = field(repr=False)

    def finish(self, receipt: Receipt, aggregate: Float32) -> Client:
        """Accept the round's outcome. Raises OpenError or ReceiptRefused."""
        after = self.client.follow(receipt)
        offer = self.offer
        promised = (offer.round_id, offer.number, offer.previous)
        if (receipt.round_id, receipt.number, receipt.previous) != promised:
            raise ReceiptRefused("the receipt is for another round than the one this client joined")
        if aggregate.shape != (self.client.federation.rules.dimension,) or (
            aggregate.dtype != np.dtype("<f4")
        ):
            raise ReceiptRefused("the aggregate is not a vector of float32 of the right dimension")
        if receipt.aggregate != hashlib.sha256(aggregate.tobytes()).digest():
            raise ReceiptRefused("the aggregate is not the one that the receipt vouches for")
        return after

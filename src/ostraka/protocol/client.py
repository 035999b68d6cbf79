"""A client: seals its update to a round, and follows the chain of receipts."""

import os
from dataclasses import dataclass, field, replace

import numpy as np

from ostraka.arrays import Float32
from ostraka.attestation.claims import Attested
from ostraka.config import Federation
from ostraka.crypto import updates
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.identity import Identity, check_signature
from ostraka.crypto.updates import SealedUpdate
from ostraka.encoding import digest
from ostraka.errors import ConfigError, Fork, ReceiptRefused
from ostraka.messages import Receipt, RoundOffer, first_model, vector_digest


@dataclass(frozen=True)
class Client:
    """A client between rounds.

    federation: the newest revision that it agreed to. receipt_key: signs offers and
    receipts, once an enclave has proved that it holds it. last: the newest receipt that it holds.
    """

    name: str
    identity: Identity
    federation: Federation
    receipt_key: bytes | None = None
    last: Receipt | None = None
    entropy: Entropy = field(default=os.urandom, repr=False)

    def adopt(self, federation: Federation) -> "Client":
        """Agree to a newer revision, whose charter was verified. Raises ReceiptRefused."""
        if federation == self.federation:
            return self
        if federation.revision <= self.federation.revision:
            raise ReceiptRefused(
                f"revision {federation.revision} of the federation is not newer than "
                f"revision {self.federation.revision}, which this client agreed to"
            )
        try:
            federation.require_follows(self.federation)
        except ConfigError as unfit:
            raise ReceiptRefused(f"{unfit}, which this client agreed to") from None
        return replace(self, federation=federation)

    def trust(self, attested: Attested) -> "Client":
        """Take the proved enclave's word from here on. Raises ReceiptRefused for a second one."""
        if self.receipt_key not in (None, attested.receipt_key):
            raise ReceiptRefused(
                "this enclave signs with another key than the one that this client follows"
            )
        self._require_federation(attested.federation)
        return replace(self, receipt_key=attested.receipt_key)

    def join(self, offer: RoundOffer, attested: Attested) -> "Joined":
        """Take part in a round of a proved enclave. Raises OpenError or ReceiptRefused."""
        client = self.trust(attested)
        check_signature(offer, attested.receipt_key)
        self._require_federation(offer.federation)
        if offer.key != attested.round_key:
            raise ReceiptRefused("the offer's key is not the one that the enclave has proved")
        if self.last is not None:
            _require_next(self.last, offer)
        # A newcomer to a later round has the word of the proved enclave.
        start = self.last.model if self.last is not None else first_model(self.federation)
        if (self.last is not None or offer.number == 1) and offer.model != start:
            raise ReceiptRefused("the round does not start from the model that it must start from")
        return Joined(client, offer, attested)

    def follow(self, receipt: Receipt) -> "Client":
        """Accept the next receipt of the chain. Raises OpenError or ReceiptRefused."""
        if self.receipt_key is None:
            raise ReceiptRefused("no enclave has proved itself to this client yet")
        check_signature(receipt, self.receipt_key)
        self._require_federation(receipt.federation)
        terms = self.federation.terms
        if (receipt.rule, receipt.masking) != (terms.rule, terms.masking):
            raise ReceiptRefused("the receipt names another rule or masking than the terms")
        if self.last is not None:
            if receipt.number == self.last.number and receipt != self.last:
                raise Fork(self.last, receipt)
            _require_next(self.last, receipt)
        return replace(self, last=receipt)

    def _require_federation(self, digest: bytes) -> None:
        if digest != self.federation.digest():
            raise ReceiptRefused(
                "the enclave runs another federation than the one this client agreed to"
            )


@dataclass(frozen=True)
class Joined:
    """A client that has checked an offer and is training."""

    client: Client
    offer: RoundOffer
    attested: Attested

    def seal(self, update: Float32) -> "Submitted":
        """Seal an update (d,) for this round. The result can be sent any number of times."""
        client = self.client
        sealed = updates.seal(
            update,
            offer=self.offer,
            terms=client.federation.terms,
            client=client.name,
            identity=client.identity,
            entropy=client.entropy,
        )
        return Submitted(self, sealed)


@dataclass(frozen=True)
class Submitted:
    """A client that waits for the round's receipt. It keeps its upload until it holds that."""

    joined: Joined
    sealed: SealedUpdate = field(repr=False)

    def finish(self, receipt: Receipt, model: Float32) -> Client:
        """Accept the round's outcome. Raises OpenError or ReceiptRefused."""
        after, offer = self.joined.client.follow(receipt), self.joined.offer
        promised = (offer.round_id, offer.number, offer.previous)
        if (receipt.round_id, receipt.number, receipt.previous) != promised:
            raise ReceiptRefused("the receipt is for another round than the one this client joined")
        if receipt.evidence != self.joined.attested.kind:
            raise ReceiptRefused("the receipt names other evidence than the enclave has shown")
        require_model(model, receipt.model, after.federation)
        return after


def require_model(model: Float32, promised: bytes, federation: Federation) -> None:
    """Raises ReceiptRefused unless this is the model (d,) that was promised."""
    if model.shape != (federation.terms.dimension,) or model.dtype != np.dtype("<f4"):
        raise ReceiptRefused("the model is not a vector of float32 of the right dimension")
    if vector_digest(np.ascontiguousarray(model)) != promised:
        raise ReceiptRefused("the model is not the one that the enclave vouches for")


def _require_next(last: Receipt, following: RoundOffer | Receipt) -> None:
    if following.number <= last.number:
        raise ReceiptRefused(
            f"round {following.number} is not newer than round {last.number}, "
            "whose receipt this client holds"
        )
    if following.number > last.number + 1:
        raise ReceiptRefused(
            f"receipts {last.number + 1} to {following.number - 1} are missing: follow them first"
        )
    if following.previous != digest(last):
        raise ReceiptRefused(
            f"round {following.number} does not continue the chain that this client holds"
        )

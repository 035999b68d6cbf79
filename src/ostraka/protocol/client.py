"""A client: seals its update to a round, confirms outcomes, and follows the chain of receipts."""

import os
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np

from ostraka.arrays import Float32
from ostraka.attestation.claims import Attested
from ostraka.config import Federation
from ostraka.core.metrics import Values
from ostraka.core.uploads import Encoded
from ostraka.crypto import updates
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.identity import Identity, check_signature
from ostraka.crypto.updates import Sealed, SealedUpdate, Sealing
from ostraka.encoding import digest
from ostraka.errors import ConfigError, Fork, LocalProtocolError, ReceiptRefused, RolledBack
from ostraka.messages import (
    Abandon,
    Certified,
    Confirmation,
    Proposal,
    Receipt,
    RoundOffer,
    first_model,
    genesis,
    vector_digest,
)
from ostraka.protocol.confirm import (
    confirm,
    electorates,
    is_proved,
    leaf,
    require_certified,
)


@dataclass(frozen=True)
class Voted:
    """The one vote for a number. proposal: None if none of this number will ever be confirmed."""

    number: int
    proposal: Proposal | None


@dataclass(frozen=True)
class Client:
    """A client between rounds, or a witness.

    federation: the newest revision that it agreed to. receipt_key: signs offers and
    receipts, once an enclave has proved that it holds it. last: the newest receipt that it holds,
    or the Abandon in its place. electors: the federation that `last` names, whose voters confirm
    the next number; None for `federation`. voted: the vote of the highest number.
    """

    name: str
    identity: Identity
    federation: Federation
    receipt_key: bytes | None = None
    last: Receipt | Abandon | None = None
    electors: Federation | None = None
    voted: Voted | None = None
    entropy: Entropy = field(default=os.urandom, repr=False)

    @property
    def next_number(self) -> int:
        """The number that is not settled yet, as far as this client knows."""
        return self.last.number + 1 if self.last is not None else 1

    @property
    def _electors(self) -> Federation:
        return self.electors or self.federation

    @property
    def _previous(self) -> bytes:
        return digest(self.last) if self.last is not None else genesis(self._electors)

    @property
    def _start(self) -> bytes:
        """The digest of the model that the next number starts from."""
        return self.last.model if self.last is not None else first_model(self.federation)

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
        return replace(self, federation=federation, electors=self._electors)

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
        self._require_next(offer)
        self._require_no_vote(offer.number)
        if offer.model != self._start:
            raise ReceiptRefused("the round does not start from the model that it must start from")
        return Joined(client, offer, attested)

    def vote(self, proposal: Proposal) -> "Client":
        """Decide to confirm this proposal. Raises OpenError, ReceiptRefused or RolledBack.

        The caller makes what this returns durable before it shows `confirmation` to anybody.
        """
        check_signature(proposal, self._known_key())
        if proposal.federation != self.federation.id:
            raise ReceiptRefused("the proposal is of another federation")
        voted = self.voted
        if voted is not None and proposal.number <= voted.number:
            if proposal == voted.proposal:
                return self
            if proposal.number == voted.number and voted.proposal is not None:
                raise RolledBack(proposal.number, voted.proposal)
            raise ReceiptRefused(
                f"this client has no vote left for round {proposal.number}: its last was for round "
                f"{voted.number}"
            )
        self._require_next(proposal)
        if not any(self.name in each.names for each in electorates(self._electors)):
            raise ReceiptRefused(f"this client has no vote in round {proposal.number}")
        return replace(self, voted=Voted(proposal.number, proposal))

    def vote_for_none(self, number: int) -> "Client":
        """Decide never to confirm an outcome of this number, unless one was confirmed before.

        Raises ReceiptRefused for a number that this client knows to be settled.
        """
        if number != self.next_number:
            raise ReceiptRefused(
                f"round {number} is not the one that is open for this client, "
                f"which is round {self.next_number}"
            )
        if self.voted is not None and self.voted.number >= number:
            return self
        return replace(self, voted=Voted(number, None))

    def confirmation(self) -> Confirmation:
        """The vote as it is shown. It is the same bytes each time."""
        if self.voted is None:
            raise LocalProtocolError("this client has not voted")
        return confirm(
            self.voted.proposal,
            self.federation.id,
            self.voted.number,
            voter=self.name,
            identity=self.identity,
        )

    def follow(self, certified: Certified) -> "Client":
        """Accept the next receipt of the chain. Raises OpenError or ReceiptRefused."""
        receipt, key = certified.receipt, self._known_key()
        check_signature(receipt, key)
        named = self._named_by(receipt)
        terms = named.terms
        if (receipt.rule, receipt.masking) != (str(terms.composition), terms.masking):
            raise ReceiptRefused("the receipt names another rule or masking than the terms")
        if not terms.asked.allows(receipt.metrics, terms.least_reports):
            raise ReceiptRefused("the receipt publishes other metrics than the terms name")
        if self.last is not None and receipt.number == self.last.number and receipt != self.last:
            raise Fork(self.last, receipt)
        self._require_next(receipt)
        require_certified(certified, self._electors, key)
        return replace(self, last=receipt, electors=named)

    def abandon(self, abandon: Abandon, *, by_owners_word: bool = False) -> "Client":
        """Go on after a number that the authority has given up. Raises ReceiptRefused or OpenError.

        The next enclave that proves itself is trusted: that it is the only one does not matter,
        since this client has one vote for each number, whoever asks for it.

        Without proof, an outcome of that number may have been released. An update that is trained
        from the same model again may be the same update, so the owner has to agree. Nobody can if
        a newer charter was signed: that outcome may have named it, and its voters may go on.
        """
        check_signature(abandon, self.federation.authority)
        if abandon.electors.id != self.federation.id:
            raise ReceiptRefused("the abandoned round is of another federation")
        if abandon.number < self.next_number:
            raise ReceiptRefused(f"this client holds the receipt of round {abandon.number}")
        if not by_owners_word:
            self._require_abandoned(abandon)
        elif self.federation.revision > abandon.revision and not is_proved(abandon, self._electors):
            raise ReceiptRefused(
                f"round {abandon.number} was abandoned without proof, and revision "
                f"{self.federation.revision} may have been announced in it: the federation has to "
                "begin anew, under a new id"
            )
        return replace(self, last=abandon, electors=abandon.electors, receipt_key=None)

    def _require_abandoned(self, abandon: Abandon) -> None:
        if abandon.number > self.next_number:
            raise ReceiptRefused(
                f"round {abandon.number} was abandoned. The receipts {self.next_number} to "
                f"{abandon.number - 1} are missing, so this client cannot check who confirms what "
                "follows: it takes part again only by its owner's word (ostraka client rejoin)"
            )
        self._require_next(abandon)
        if abandon.electors != self._electors:
            raise ReceiptRefused("an abandoned round brings no new charter")
        if abandon.model != self._start:
            raise ReceiptRefused("what follows an abandoned round starts from the model before it")
        if not is_proved(abandon, self._electors):
            raise ReceiptRefused(
                f"round {abandon.number} was abandoned, and nothing proves that no outcome of it "
                "was released: this client takes part again only by its owner's word "
                "(ostraka client rejoin)"
            )

    def _named_by(self, receipt: Receipt) -> Federation:
        """The federation of the next receipt: the newest, or still the one of its electors.

        A copy of the enclave may have shown a revision that the true one has not adopted yet.
        """
        for each in (self.federation, self._electors):
            if each.digest() == receipt.federation:
                return each
        raise ReceiptRefused(
            "the enclave runs another federation than the one this client agreed to"
        )

    def _known_key(self) -> bytes:
        if self.receipt_key is None:
            raise ReceiptRefused("no enclave has proved itself to this client yet")
        return self.receipt_key

    def _require_no_vote(self, number: int) -> None:
        """Raises if this client has confirmed an outcome of this number, or none, already."""
        if self.voted is None or self.voted.number < number:
            return
        if self.voted.proposal is not None:
            raise RolledBack(number, self.voted.proposal)
        raise ReceiptRefused(f"this client has declared that it confirms no outcome of {number}")

    def _require_next(self, following: RoundOffer | Receipt | Proposal | Abandon) -> None:
        number = self.next_number
        if following.number < number:
            raise ReceiptRefused(
                f"round {following.number} is not newer than round {number - 1}, "
                "whose receipt this client holds"
            )
        if following.number > number:
            raise ReceiptRefused(
                f"receipts {number} to {following.number - 1} are missing: follow them first"
            )
        if following.previous != self._previous:
            raise ReceiptRefused(
                f"round {following.number} does not continue the chain that this client holds"
            )

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

    def encode(self, update: Float32) -> Encoded:
        """Round an update (d,) to the format of the terms. Raises ConfigError beyond its range."""
        return updates.rounded(update, self.client.federation.terms, self.client.entropy)

    def seal(self, update: Float32, metrics: Values | None = None) -> "Submitted[SealedUpdate]":
        """Seal an update (d,) for this round, rounded without regard to earlier ones."""
        return self.seal_encoded(self.encode(update), metrics)

    def seal_encoded(
        self, update: Encoded, metrics: Values | None = None
    ) -> "Submitted[SealedUpdate]":
        """Seal an update for this round. The result can be sent any number of times.

        metrics: what this client reports with it. Raises ConfigError unless the terms take that.
        """
        return Submitted(self, self._seal(update, metrics).whole())

    def sealing(self, update: Encoded, metrics: Values | None = None) -> "Submitted[Sealing]":
        """The same, without a copy: each tile is sealed when it is sent."""
        return Submitted(self, self._seal(update, metrics))

    def _seal(self, update: Encoded, metrics: Values | None) -> Sealing:
        client = self.client
        return updates.seal(
            update,
            offer=self.offer,
            terms=client.federation.terms,
            client=client.name,
            identity=client.identity,
            metrics=metrics,
            entropy=client.entropy,
        )


_SealedT_co = TypeVar("_SealedT_co", bound=Sealed, covariant=True)


@dataclass(frozen=True)
class Submitted(Generic[_SealedT_co]):
    """A client that waits for the round's receipt. It keeps its upload until it holds that."""

    joined: Joined
    sealed: _SealedT_co = field(repr=False)

    @property
    def leaf(self) -> bytes:
        """This upload's place in the tree of the cohort."""
        return leaf(self.sealed.header)

    def vote(self, proposal: Proposal) -> "Submitted[_SealedT_co]":
        """Decide to confirm this proposal, as `Client.vote` does."""
        return replace(self, joined=replace(self.joined, client=self.joined.client.vote(proposal)))

    def finish(self, certified: Certified, model: Float32) -> Client:
        """Accept the round's outcome. Raises OpenError or ReceiptRefused."""
        after, offer = self.joined.client.follow(certified), self.joined.offer
        receipt = certified.receipt
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

"""The long-lived enclave: an identity, a federation, and the head of the receipt chain."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ostraka.arrays import Float32
from ostraka.config import Federation, Span, Terms
from ostraka.core import optimiser
from ostraka.core.optimiser import ServerState
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.identity import Identity, check_signature
from ostraka.encoding import digest
from ostraka.errors import LocalProtocolError
from ostraka.messages import (
    IN_PROCESS,
    Abandon,
    Certified,
    Charter,
    Receipt,
    first_model,
    genesis,
    vector_digest,
)
from ostraka.protocol.confirm import Ballot, electorates, require_certified
from ostraka.protocol.enclave.arrival import Arrivals
from ostraka.protocol.enclave.cohort import Publication, RoundContext
from ostraka.protocol.enclave.intake import Intake, Part
from ostraka.protocol.enclave.keeping import Keeping, Memory, Spool
from ostraka.protocol.enclave.propose import NO_AGGREGATE, Pending
from ostraka.protocol.enclave.shard import square_of

NO_STATE = ServerState(np.empty(0, np.float32))
_ID_BYTES = 32


class Enclave:
    """The long-lived part: an identity, a federation and the head of the receipt chain.

    head: the last receipt, or what took its place. electors: the federation that the head names,
    or the founding one: those who confirm the next number. With the newest revision instead, two
    copies of an enclave under two revisions could release two outcomes. cautions: what the next
    receipt, and no other, has to say besides the usual. leads: shards have the model, and not it.
    """

    def __init__(
        self,
        federation: Federation,
        identity: Identity,
        *,
        head: Receipt | Abandon | None = None,
        electors: Federation | None = None,
        state: ServerState | None = None,
        evidence: str = IN_PROCESS,
        cautions: tuple[str, ...] = (),
        leads: bool = False,
        entropy: Entropy = os.urandom,
    ) -> None:
        self._federation = federation
        self._identity = identity
        self._evidence = evidence
        self._cautions = cautions
        self._entropy = entropy
        if not leads:
            state = state or _from_nothing(federation.terms)
        self._continue(head, state, electors or federation)

    @property
    def receipt_key(self) -> bytes:
        """The key under which offers and receipts are signed."""
        return self._identity.public

    @property
    def next_number(self) -> int:
        """The number of the next round to be published."""
        return self._publication.number

    @property
    def model(self) -> bytes:
        """The digest of the model that the next round starts from."""
        return self._model

    def new_round_id(self) -> bytes:
        return self._entropy(_ID_BYTES)

    def open_round(self, memory: Memory | None = None, spool: Spool | None = None) -> "Intake":
        """A round under a fresh key and a random id, after the last receipt.

        memory: for its rows, which no other round may use meanwhile; its own unless given. spool:
        for what finds no room there.
        """
        memory = memory or Memory()
        terms = self._federation.terms
        state = optimiser.keeping_last(self._own_state(), terms.composition.needs_last)
        context = replace(
            self._context((terms.span,)),
            state=state,
            span=terms.span,
            last_square=square_of(state),
            vectors=memory.vectors,
        )
        keeping = Keeping(self._federation, memory, spool, self._entropy)
        return Intake(context, (Arrivals(context, keeping),))

    def lead_round(
        self,
        spans: Sequence[Span],
        open_part: Callable[[int, RoundContext], Part],
        last_square: float | None = None,
        *,
        round_id: bytes | None = None,
    ) -> "Intake":
        """The same for the lead of shards, which have the values.

        spans: of the shards, in order. open_part: opens a shard's part, by its number. last_square:
        of the last aggregate, if the rule starts from that. round_id: a new one, that shards know.
        """
        context = replace(self._context(tuple(spans)), last_square=last_square)
        if round_id is not None:
            context = replace(context, round_id=round_id)
        return Intake(context, [open_part(each, context) for each in range(len(spans))])

    def _context(self, spans: tuple[Span, ...]) -> RoundContext:
        """Of a round whose values are elsewhere."""
        return RoundContext(
            federation=self._federation,
            identity=self._identity,
            entropy=self._entropy,
            publication=self._publication,
            round_id=self.new_round_id(),
            previous=self._previous,
            confirmed=bool(electorates(self._electors)),
            state=NO_STATE,
            span=Span(0, 0, self._federation.terms.tile),
            spans=spans,
            model=self._model,
            evidence=self._evidence,
            cautions=self._cautions,
        )

    def _own_state(self) -> ServerState:
        if self._state is None:
            raise LocalProtocolError("the model is with the shards of this enclave")
        return self._state

    def adopt(self, charter: Charter) -> None:
        """Change terms or roster from the next round on, by the word of the same authority.

        Raises as `require_adoptable` does.
        """
        self.require_adoptable(charter)
        self._federation = charter.federation
        self._in_force.append(charter.federation)

    def require_adoptable(self, charter: Charter) -> None:
        """Raises OpenError where the authority has not signed, ConfigError for what cannot follow
        the revision in force.
        """
        old, new = self._federation, charter.federation
        check_signature(charter, old.authority)
        new.require_follows(old)

    def ballot(self, pending: Pending) -> Ballot:
        """What counts the confirmations of the next number's outcome. It can be asked for again."""
        check_signature(pending.proposal, self.receipt_key)
        self._named_by(pending.receipt)
        return Ballot(pending.proposal, self._electors)

    def follow(self, certified: Certified, state: ServerState | None) -> None:
        """Go on after an outcome of this enclave that was confirmed. state: None for a lead."""
        receipt = certified.receipt
        check_signature(receipt, self.receipt_key)
        named = self._named_by(receipt)
        require_certified(certified, self._electors, self.receipt_key)
        self._continue(receipt, state, named)
        self._cautions = ()

    @property
    def _previous(self) -> bytes:
        return digest(self._head) if self._head else genesis(self._electors)

    def _named_by(self, receipt: Receipt) -> Federation:
        """The federation of the next receipt: the round may have been opened under an older one
        than the newest. Raises LocalProtocolError unless the receipt is of the open number.
        """
        named = [each for each in self._in_force if each.digest() == receipt.federation]
        if (receipt.number, receipt.previous) != (self._publication.number, self._previous):
            raise LocalProtocolError("a receipt is followed once, after the one it names")
        if not named:
            raise LocalProtocolError("this receipt names another federation than its round has")
        return named[0]

    def _continue(
        self, head: Receipt | Abandon | None, state: ServerState | None, electors: Federation
    ) -> None:
        promised = head.model if head is not None else first_model(self._federation)
        if state is not None:
            state = optimiser.frozen(state)
            if promised != vector_digest(state.model):
                raise LocalProtocolError(
                    "this model is not the one of the last receipt or the charter"
                )
            if state.last is not None and isinstance(head, Receipt):
                _require_last(state.last, head.aggregate)
        self._head = head
        self._electors = electors
        self._in_force = [self._federation]  # since the head; oldest first
        self._model = promised
        self._state = state
        self._publication = Publication(head.number + 1 if head else 1)


def _require_last(last: Float32, aggregate: bytes) -> None:
    """Raises LocalProtocolError for another vector than was last published. aggregate: its digest;
    a null step leaves the one before it.
    """
    if aggregate not in (NO_AGGREGATE, vector_digest(last)):
        raise LocalProtocolError("this last aggregate is not the one of the last receipt")


def _from_nothing(terms: Terms) -> ServerState:
    return optimiser.start(np.zeros(terms.dimension, np.float32), terms.optimiser)

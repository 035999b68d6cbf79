"""The long-lived enclave: an identity, a federation, and the head of the receipt chain."""

import os

import numpy as np

from ostraka.config import Federation, Terms
from ostraka.core import optimiser
from ostraka.core.optimiser import ServerState
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.identity import Identity, check_signature
from ostraka.crypto.offline import OfflineMask, OfflineNoise
from ostraka.encoding import digest
from ostraka.errors import LocalProtocolError
from ostraka.messages import IN_PROCESS, Charter, Receipt, first_model, vector_digest
from ostraka.protocol.enclave.cohort import Publication, RoundContext
from ostraka.protocol.enclave.intake import Intake

GENESIS = bytes(32)  # stands for the receipt before the first round

_ID_BYTES = 32


class Enclave:
    """The long-lived part: an identity, a federation and the head of the receipt chain.

    cautions: what the next receipt, and no other, has to say besides the usual.
    """

    def __init__(
        self,
        federation: Federation,
        identity: Identity,
        *,
        head: Receipt | None = None,
        state: ServerState | None = None,
        evidence: str = IN_PROCESS,
        cautions: tuple[str, ...] = (),
        entropy: Entropy = os.urandom,
    ) -> None:
        self._federation = federation
        self._identity = identity
        self._evidence = evidence
        self._cautions = cautions
        self._entropy = entropy
        self._continue(head, state or _from_nothing(federation.terms))

    @property
    def receipt_key(self) -> bytes:
        """The key under which offers and receipts are signed."""
        return self._identity.public

    def prepare(self) -> OfflineNoise | OfflineMask:
        """What one attempt needs and can be made before its round: noise, or a mask."""
        terms, rows = self._federation.terms, len(self._federation.clients)
        kind = OfflineNoise if terms.masking == "gaussian" else OfflineMask
        return kind(terms, rows, self._entropy)

    def open_round(self) -> "Intake":
        """A round under a fresh key and a random id, after the last receipt."""
        head = self._head
        return Intake(
            RoundContext(
                federation=self._federation,
                identity=self._identity,
                entropy=self._entropy,
                publication=self._publication,
                round_id=self._entropy(_ID_BYTES),
                previous=digest(head) if head else GENESIS,
                state=self._state,
                evidence=self._evidence,
                cautions=self._cautions,
            )
        )

    def adopt(self, charter: Charter) -> None:
        """Change terms or roster from the next round on, by the word of the same authority.

        Raises as `require_adoptable` does.
        """
        self.require_adoptable(charter)
        self._federation = charter.federation

    def require_adoptable(self, charter: Charter) -> None:
        """Raises OpenError where the authority has not signed, ConfigError for what cannot follow
        the revision in force.
        """
        old, new = self._federation, charter.federation
        check_signature(charter, old.authority)
        new.require_follows(old)

    def follow(self, receipt: Receipt, state: ServerState) -> None:
        """Go on after a round that this enclave published."""
        check_signature(receipt, self.receipt_key)
        expected = digest(self._head) if self._head else GENESIS
        if receipt.previous != expected or receipt.number != self._publication.number:
            raise LocalProtocolError("a receipt is followed once, after the one it names")
        self._continue(receipt, state)
        self._cautions = ()

    def _continue(self, head: Receipt | None, state: ServerState) -> None:
        promised = head.model if head is not None else first_model(self._federation)
        if promised != vector_digest(state.model):
            raise LocalProtocolError("this model is not the one of the last receipt or the charter")
        self._head = head
        self._state = state
        self._publication = Publication(head.number + 1 if head else 1)


def _from_nothing(terms: Terms) -> ServerState:
    return optimiser.start(np.zeros(terms.dimension, np.float32), terms.optimiser)

"""A node that doubts: it challenges, verifies, joins, and only then is there anything to train."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ostraka.attestation.attested import Attested
from ostraka.attestation.binding import NONCE_BYTES
from ostraka.attestation.verify import verify, verify_charter
from ostraka.config import Federation
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED, decode
from ostraka.errors import AttestationRefused, Fork, ReceiptRefused, Refusal
from ostraka.flower.messages import Hello, Proof, read_links
from ostraka.flower.notebook import Notebook, Notes
from ostraka.flower.standards import Standards
from ostraka.messages import Challenge, Receipt
from ostraka.roles.client import Client, Joined
from ostraka.services.client.attesting import require_enrolled
from ostraka.services.client.following import follow
from ostraka.services.client.memory import Memory
from ostraka.transport import ostraka_pb2 as wire


@dataclass(frozen=True)
class Node:
    """resends: how often an update goes to a round that was opened again."""

    name: str
    identity: Identity
    standards: Standards
    notebook: Notebook
    resends: int

    def challenge(self) -> Hello:
        """Under a nonce that nobody else could have chosen."""
        blank = Challenge(os.urandom(NONCE_BYTES), self.name, UNSIGNED)
        signed = self.identity.sign(blank)
        return Hello(signed, self.identity.public, self.notebook.load().after)

    def join(self, proof: Proof, nonce: bytes) -> Joined:
        """Take part in the round of an enclave that has proved itself. What was learned is kept.

        nonce: of this node's challenge, used once. Raises AttestationRefused, ReceiptRefused, Fork,
        OpenError, MalformedMessage, and ServiceError for a node that is not enrolled.
        """
        # 1. Rules and roster are signed by the authority, and this node is in the roster.
        policy = self.standards.policy(proof.charter, proof.introduction.evidence)
        federation = verify_charter(proof.charter, policy)
        require_enrolled(federation, self.name, self.identity)

        # 2. The chain goes on from the receipt that is held.
        notes = self._followed(self.notebook.load(), proof.links)

        # 3. The platform vouches for the code, the keys and the rules, for this very challenge.
        attested = verify(
            proof.introduction,
            nonce=nonce,
            federation=federation,
            policy=policy,
            circumstances=self.standards.circumstances(proof),
        )

        # 4. The round is the next one of that chain.
        joined = self._role(notes.memory, federation, attested).join(
            proof.introduction.offer, attested
        )

        # 5. It was not opened again and again, each time for another look at this node's update.
        joins = notes.joins.and_then(joined.offer)
        if joins.times > self.resends + 1:
            raise ReceiptRefused(
                f"round {joined.offer.number} was opened again {self.resends + 1} times after this "
                "node had sent an update for it: ask the operator why"
            )
        self.notebook.save(Notes(Memory.of(joined.client, proof.charter), joins))
        return joined

    def published_model(self, links: tuple[bytes, ...]) -> tuple[Federation, bytes]:
        """The digest of the model after the last round, and what it is a model of.

        Raises as `join` does, and ReceiptRefused for a node that holds no receipt.
        """
        notes = self._followed(self.notebook.load(), links)
        if notes.memory is None or notes.memory.last is None:
            raise ReceiptRefused("this node holds no receipt that would vouch for a model")
        self.notebook.save(notes)
        return notes.memory.charter.federation, notes.memory.last.model

    def _followed(self, notes: Notes, links: tuple[bytes, ...]) -> Notes:
        if notes.memory is None:
            return notes
        if notes.after is None:
            return notes  # It has met the enclave, and has joined no round of it yet.
        try:
            followed = follow(
                _since(notes.after, read_links(links)),
                notes.memory,
                identity=self.identity,
                policy=self.standards.policy(notes.memory.charter),
                joined=notes.joins.offer,
            )
        except Fork as fork:
            self.notebook.prove(fork)
            raise
        except ReceiptRefused as refused:
            refused.add_note(self.notebook.begun_anew)  # names a file, so it stays here
            raise
        return replace(notes, memory=followed.memory)

    def _role(self, memory: Memory | None, federation: Federation, attested: Attested) -> Client:
        if memory is None:
            return Client(self.name, self.identity, federation)
        if memory.enclave != attested.receipt_key:
            refused = ReceiptRefused(
                "this enclave signs with another key than the one that this node follows"
            )
            refused.add_note(self.notebook.begun_anew)
            raise refused
        return memory.role(self.identity).adopt(federation)


def _since(after: int, links: Iterable[wire.ChainLink]) -> Iterator[wire.ChainLink]:
    """Without the receipts that this node has followed before, which it may be shown again."""
    for link in links:
        if not link.receipt or decode(Receipt, link.receipt).number > after:
            yield link


def require_nonce(nonce: object) -> bytes:
    """The challenge that a proof is the answer to. Raises AttestationRefused if there is none."""
    if not isinstance(nonce, bytes):
        raise AttestationRefused(
            Refusal.BINDING, "this node has not challenged, or its challenge was answered before"
        )
    return nonce

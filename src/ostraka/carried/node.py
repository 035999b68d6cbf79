"""A node that doubts: it challenges, verifies, joins, and only then is there anything to train."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ostraka.arrays import Float32
from ostraka.attestation.claims import NONCE_BYTES, Attested
from ostraka.attestation.verify import verify, verify_charter
from ostraka.carried.node_state import Joins, Notebook, Notes
from ostraka.carried.trust import Standards
from ostraka.client.attesting import require_enrolled
from ostraka.client.following import follow
from ostraka.client.memory import Memory
from ostraka.config import Federation
from ostraka.crypto.identity import Identity
from ostraka.crypto.updates import SealedUpdate
from ostraka.encoding import UNSIGNED, decode
from ostraka.errors import AttestationRefused, Fork, ReceiptRefused, Refusal
from ostraka.flower.messages import Hello, Proof, read_links
from ostraka.messages import Challenge, Receipt
from ostraka.protocol.client import Client, Joined
from ostraka.transport import ostraka_pb2 as wire

_MOST_LINKS = 4096  # receipts and charters since the round that a node took part in last


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

        nonce: of this node's challenge. Raises AttestationRefused, ReceiptRefused, Fork,
        OpenError, MalformedMessage, and ServiceError for a node that is not enrolled.
        """
        # 1. Rules and roster are signed by the authority, and this node is in the roster.
        policy = self.standards.policy(proof.charter, proof.introduction.evidence)
        federation = verify_charter(proof.charter, policy)
        require_enrolled(federation, self.name, self.identity)

        # 2. The chain goes on from the receipt that is held.
        with self._following(proof.links) as notes:
            # 3. The platform vouches for the code, the keys and the rules, for this very challenge.
            attested = verify(
                proof.introduction,
                nonce=nonce,
                federation=federation,
                policy=policy,
                circumstances=self.standards.circumstances(proof),
            )

            # 4. The round is the next one of that chain.
            role = self._role(notes.memory, federation, attested)
            joined = role.join(proof.introduction.offer, attested)

            # 5. It was not opened again and again, for one more look at this node's update.
            self._counted(notes.joins, joined, nonce)
            self.notebook.remember(Memory.of(joined.client, proof.charter))
        return joined

    def seal(self, joined: Joined, update: Float32, nonce: bytes) -> SealedUpdate:
        """Seal an update (d,). It is counted before: what was counted need not have left.

        Runs in parallel have joined by the same notes, so what `join` has checked is checked again.
        Raises ReceiptRefused, or AttestationRefused for a nonce that was used meanwhile.
        """
        client = joined.client
        with self.notebook.alone():
            notes = self.notebook.load()
            memory = notes.memory
            if memory is None or (memory.receipt_key, memory.last) != (
                client.receipt_key,
                client.last,
            ):
                raise ReceiptRefused("another run of this node has gone on since this round began")
            self.notebook.count(self._counted(notes.joins, joined, nonce))
        return joined.seal(update).sealed

    def published_model(self, links: tuple[bytes, ...]) -> tuple[Federation, bytes]:
        """The digest of the model after the last round, and what it is a model of.

        Raises as `join` does, and ReceiptRefused for a node that holds no receipt.
        """
        with self._following(links) as notes:
            if notes.memory is None or notes.memory.last is None:
                raise ReceiptRefused("this node holds no receipt that would vouch for a model")
            self.notebook.remember(notes.memory)
        return notes.memory.charter.federation, notes.memory.last.model

    @contextmanager
    def _following(self, links: tuple[bytes, ...]) -> Iterator[Notes]:
        """What is known at the end of these links. No other run goes on meanwhile."""
        with self.notebook.alone():
            try:
                yield self._followed(self.notebook.load(), links)
            except Fork as fork:
                self.notebook.prove(fork)
                raise

    def _followed(self, notes: Notes, links: tuple[bytes, ...]) -> Notes:
        if notes.memory is None:
            return notes
        if notes.after is None:
            return notes  # It has met the enclave, and has sealed for no round of it yet.
        _require_short(links)
        try:
            followed = follow(
                _since(notes.after, read_links(links)),
                notes.memory,
                identity=self.identity,
                policy=self.standards.policy(notes.memory.charter),
                joined=notes.joins.offer,
            )
        except Fork:
            raise
        except ReceiptRefused as refused:
            refused.add_note(self.notebook.begun_anew)  # names a file, so it stays here
            raise
        return replace(notes, memory=followed.memory)

    def _counted(self, joins: Joins, joined: Joined, nonce: bytes) -> Joins:
        """With one more update, for the round that was joined. Raises if that is one too many."""
        offer, last = joined.offer, joined.client.last
        if nonce in joins.nonces:
            raise _answered_before()
        if last is None and joins.offer is not None and offer.number != joins.offer.number:
            raise ReceiptRefused(
                f"round {offer.number} is open, and nobody shows the receipt of round "
                f"{joins.offer.number}"
            )
        after = joins.and_then(offer, held=last.number if last else 0, nonce=nonce)
        if after.reopened > self.resends:
            raise self._too_often(f"round {offer.number} was opened again {after.reopened} times")
        if after.repeated > self.resends:
            raise self._too_often(f"round {offer.number} was asked for {after.repeated} times more")
        return after

    def _too_often(self, what: str) -> ReceiptRefused:
        refused = ReceiptRefused(
            f"{what} after this node had sent an update for it: ask the operator why"
        )
        refused.add_note(self.notebook.counted)
        return refused

    def _role(self, memory: Memory | None, federation: Federation, attested: Attested) -> Client:
        if memory is None:
            return Client(self.name, self.identity, federation)
        if memory.receipt_key != attested.receipt_key:
            refused = ReceiptRefused(
                "this enclave signs with another key than the one that this node follows"
            )
            refused.add_note(self.notebook.begun_anew)
            raise refused
        return memory.role(self.identity).adopt(federation)


def _require_short(links: tuple[bytes, ...]) -> None:
    """Following takes time, and other runs of this node wait for it."""
    if len(links) > _MOST_LINKS:
        raise ReceiptRefused(
            f"the chain has {len(links)} links, and a node follows {_MOST_LINKS}: catch up with "
            "`ostraka client fetch` first"
        )


def _since(after: int, links: Iterable[wire.ChainLink]) -> Iterator[wire.ChainLink]:
    """Without the receipts that this node has followed before, which it may be shown again."""
    for link in links:
        if not link.receipt or decode(Receipt, link.receipt).number > after:
            yield link


def require_nonce(nonce: object) -> bytes:
    """The challenge that a proof is the answer to. Raises AttestationRefused if there is none."""
    if not isinstance(nonce, bytes):
        raise _answered_before()
    return nonce


def _answered_before() -> AttestationRefused:
    return AttestationRefused(
        Refusal.BINDING, "this node has not challenged, or its challenge was answered before"
    )

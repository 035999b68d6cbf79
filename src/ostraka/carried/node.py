"""A node's side: it challenges the enclave, verifies it, joins its round, and seals an update."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ostraka.arrays import Float32
from ostraka.attestation.claims import NONCE_BYTES, Attested
from ostraka.attestation.verify import verify, verify_charter
from ostraka.carried.messages import Hello, Links, Proof, SealedReply, read_links
from ostraka.carried.node_state import FileNotebook, Joins, Notebook, Notes, RunNotebook, Scratch
from ostraka.carried.trust import Listed, Standards, UnsafeFirstSeen
from ostraka.client import memory as client_memory
from ostraka.client.attesting import Verifier, require_enrolled
from ostraka.client.following import follow
from ostraka.client.memory import Memory, MemoryFile
from ostraka.config import Federation
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED, decode, encode
from ostraka.errors import AttestationRefused, Fork, ReceiptRefused, Refusal
from ostraka.files import read_identity, read_policy
from ostraka.messages import Challenge, Receipt
from ostraka.protocol.client import Client, Joined
from ostraka.transport import ostraka_pb2 as wire

DEFAULT_RESENDS = 8

_MOST_LINKS = 4096  # receipts and charters since the round that a node took part in last
_NONCE, _SEED = "nonce", "seed"
_SEED_BYTES = 32


@dataclass(frozen=True)
class Participation:
    """A round that a node has joined. nonce: of the challenge that the enclave answered."""

    joined: Joined
    nonce: bytes

    @property
    def federation(self) -> Federation:
        return self.joined.client.federation


@dataclass(frozen=True)
class Node:
    """A client of a carried federation.

    standards: what it accepts as an enclave. notebook: what it remembers. scratch: what the
    framework keeps for it during a run. resends: how often it seals again for a round that was
    opened again.
    """

    name: str
    identity: Identity
    standards: Standards
    notebook: Notebook
    scratch: Scratch = field(repr=False)
    resends: int = DEFAULT_RESENDS

    def greet(self) -> bytes:
        """Return a Hello with a fresh nonce, which replaces the one before."""
        return encode(self._challenge())

    def join(self, message: bytes) -> Participation:
        """Join the round of an enclave that proves itself, and keep what was learned.

        message: a Proof. Raises AttestationRefused, ReceiptRefused, Fork, OpenError,
        MalformedMessage, and ServiceError if this node is not enrolled.
        """
        proof = decode(Proof, message)
        nonce = self._take_nonce()

        # 1. Terms and roster are signed by the authority, and this node is on the roster.
        policy = self.standards.policy(proof.charter, proof.introduction.evidence)
        federation = verify_charter(proof.charter, policy)
        require_enrolled(federation, self.name, self.identity)

        # 2. The chain goes on from the receipt that this node holds.
        with self._following(proof.links) as notes:
            # 3. The platform vouches for the code, the keys and the terms, for this challenge.
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

            # 5. The round was not opened too often, for one more look at this node's update.
            self._counted(notes.joins, joined, nonce)
            self.notebook.remember(Memory.of(joined.client, proof.charter))
        return Participation(joined, nonce)

    def seal(self, part: Participation, update: Float32) -> bytes:
        """Return the sealed update (d,) with the next Hello. It is counted before it leaves.

        Runs in parallel have joined by the same notes, so what `join` has checked is checked again.
        Raises ReceiptRefused, or AttestationRefused if the nonce was used in the meantime.
        """
        client = part.joined.client
        with self.notebook.alone():
            notes = self.notebook.load()
            held = notes.memory and (notes.memory.receipt_key, notes.memory.last)
            if held != (client.receipt_key, client.last):
                raise ReceiptRefused("another run of this node has gone on since this round began")
            self.notebook.count(self._counted(notes.joins, part.joined, part.nonce))
        sealed = part.joined.seal(update).sealed
        return SealedReply(sealed, self._challenge()).to_bytes()

    def published_model(self, message: bytes) -> tuple[Federation, bytes]:
        """Return the digest of the model after the last round, and the federation it belongs to.

        message: Links. Raises as `join` does, and ReceiptRefused if this node holds no receipt.
        """
        with self._following(decode(Links, message).links) as notes:
            if notes.memory is None or notes.memory.last is None:
                raise ReceiptRefused("this node holds no receipt that would vouch for a model")
            self.notebook.remember(notes.memory)
        return notes.memory.charter.federation, notes.memory.last.model

    def _challenge(self) -> Hello:
        blank = Challenge(os.urandom(NONCE_BYTES), self.name, UNSIGNED)
        signed = self.identity.sign(blank)
        self.scratch[_NONCE] = signed.nonce
        return Hello(signed, self.identity.public, self.notebook.load().after)

    def _take_nonce(self) -> bytes:
        """Return the nonce of the last challenge, which no other proof can answer then."""
        nonce = self.scratch.pop(_NONCE, None)
        if not isinstance(nonce, bytes):
            raise _answered_before()
        return nonce

    @contextmanager
    def _following(self, links: tuple[bytes, ...]) -> Iterator[Notes]:
        """Follow these links, and keep other runs of this node waiting in the meantime."""
        with self.notebook.alone():
            try:
                yield self._followed(self.notebook.load(), links)
            except Fork as fork:
                self.notebook.prove(fork)
                raise

    def _followed(self, notes: Notes, links: tuple[bytes, ...]) -> Notes:
        if notes.memory is None or notes.after is None:
            return notes  # The node has sealed for no round of this enclave yet.
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
            refused.add_note(self.notebook.begun_anew)  # It names a file, so it stays here.
            raise
        return replace(notes, memory=followed.memory)

    def _counted(self, joins: Joins, joined: Joined, nonce: bytes) -> Joins:
        """Count one more update for the joined round. Raises if that is one too many."""
        offer, last = joined.offer, joined.client.last
        if nonce in joins.nonces:
            raise _answered_before()
        if last is None and joins.offer is not None and offer.number != joins.offer.number:
            raise ReceiptRefused(
                f"round {offer.number} is open, but the receipt of round {joins.offer.number} "
                "was never shown"
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


def enrolled_node(
    key: Path,
    policy: Path,
    scratch: Scratch,
    *,
    name: str | None = None,
    memory: Path | None = None,
    unsafe_simulation: bool = False,
    resends: int = DEFAULT_RESENDS,
) -> Node:
    """Make a node from its files. Raises ConfigError or StateError.

    name: by default the name of the key's file. memory: by default beside the key.
    unsafe_simulation: accept an enclave that no TEE protects, if the policy does too.
    """
    who = Verifier(
        name=name or key.stem,
        identity=read_identity(key),
        policy=read_policy(policy),
        policy_file=policy,
        unsafe_simulation=unsafe_simulation,
    )
    file = MemoryFile(memory or key.with_suffix(client_memory.SUFFIX), who.name)
    return Node(who.name, who.identity, Listed(who), FileNotebook(file), scratch, resends)


def unsafe_simulated_node(name: str, scratch: Scratch, resends: int = DEFAULT_RESENDS) -> Node:
    """Make a node with a key of its own making, which lasts as long as the run.

    It trusts the first enclave that it sees, and so protects nothing.
    """
    seed = scratch.get(_SEED)
    if not isinstance(seed, bytes):
        seed = scratch[_SEED] = os.urandom(_SEED_BYTES)
    notebook = RunNotebook(scratch)
    memory = notebook.load().memory
    standards = UnsafeFirstSeen(scratch, memory.charter if memory else None)
    return Node(name, Identity(seed), standards, notebook, scratch, resends)


def _require_short(links: tuple[bytes, ...]) -> None:
    """Raises ReceiptRefused for a long chain: other runs of this node wait while it is followed."""
    if len(links) > _MOST_LINKS:
        raise ReceiptRefused(
            f"the chain has {len(links)} links, and a node follows {_MOST_LINKS}: catch up with "
            "`ostraka client fetch` first"
        )


def _since(after: int, links: Iterable[wire.ChainLink]) -> Iterator[wire.ChainLink]:
    """Leave out receipts that this node has followed before, which it may be shown again."""
    for link in links:
        if not link.receipt or decode(Receipt, link.receipt).number > after:
            yield link


def _answered_before() -> AttestationRefused:
    return AttestationRefused(
        Refusal.BINDING, "this node has not challenged, or its challenge was answered before"
    )

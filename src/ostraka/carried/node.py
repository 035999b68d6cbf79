"""A node's side: it verifies the enclave, joins its round, seals an update, and confirms."""

import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ostraka.arrays import Float32
from ostraka.attestation.claims import NONCE_BYTES, KeyBinding
from ostraka.attestation.policy import Policy
from ostraka.attestation.verify import require_bound, verify, verify_charter, verify_evidence
from ostraka.carried.messages import (
    Hello,
    KeyProof,
    Links,
    Poll,
    Proof,
    SealedReply,
    read_links,
)
from ostraka.carried.node_state import FileNotebook, Joins, Notebook, Notes, RunNotebook, Scratch
from ostraka.carried.trust import Listed, Standards, UnsafeFirstSeen
from ostraka.client.attesting import Verifier, require_enrolled
from ostraka.client.following import begin_with, follow
from ostraka.client.memory import Memory, MemoryFile
from ostraka.client.outgoing import Outgoing
from ostraka.config import Federation
from ostraka.core.metrics import Values
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED, decode, encode
from ostraka.errors import (
    AttestationRefused,
    Fork,
    LocalProtocolError,
    ReceiptRefused,
    Refusal,
    RolledBack,
)
from ostraka.files import read_identity, read_policy
from ostraka.merkle import is_under
from ostraka.messages import Abandon, Certified, Challenge, Charter, Evidence, Proposal
from ostraka.protocol.client import Client, Joined
from ostraka.transport import ostraka_pb2 as wire

DEFAULT_RESENDS = 8

_MOST_LINKS = 4096  # receipts and charters since the last one that a node holds
_NONCE, _SEED, _LEAVES = "nonce", "seed", "leaves"
_SEED_BYTES, _NUMBER_BYTES, _LEAF_BYTES = 32, 8, 32


@dataclass(frozen=True)
class Participation:
    """A round that a node has joined. nonce: of the challenge that the enclave answered."""

    joined: Joined
    nonce: bytes

    @property
    def federation(self) -> Federation:
        return self.joined.client.federation


@dataclass(frozen=True)
class Voted:
    """A vote. message: the Confirmation. left_out: nothing shows that this node's update counts."""

    message: bytes = field(repr=False)
    number: int
    left_out: bool


@dataclass(frozen=True)
class Node:
    """A client of a carried federation.

    standards: what it accepts as an enclave. notebook: what it remembers. scratch: what the
    framework keeps for it during a run. resends: how often it seals again for a round that was
    opened again, and how often for the same opening.
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

        message: a Proof. Raises AttestationRefused, ReceiptRefused, Fork, RolledBack, OpenError,
        MalformedMessage, StateError, and ServiceError if this node is not enrolled.
        """
        proof = decode(Proof, message)
        nonce = self._take_nonce()

        # 1. Terms and roster are signed by the authority, and this node is on the roster.
        policy, federation = self._agreed(proof.charter, proof.introduction.evidence)

        # 2. The platform vouches for the code, the keys and the terms, for this challenge.
        attested = verify(
            proof.introduction,
            nonce=nonce,
            federation=federation,
            policy=policy,
            circumstances=self.standards.circumstances(
                proof.introduction.evidence, proof.collateral
            ),
        )

        with self._alone() as notes:
            # 3. The chain goes on from the receipt that this node holds, or proves the newest one.
            role = self._placed(notes.memory, proof.charter, attested.receipt_key, proof.links)

            # 4. The round is the next one of that chain.
            joined = role.join(proof.introduction.offer, attested)

            # 5. The round was not opened too often, for one more look at this node's update.
            self._counted(notes.joins, joined, nonce)
            kept = self.notebook.remember(Memory.of(joined.client, proof.charter))
            self._sending(kept, joined)
        self._way_out(joined).require_usable(joined.offer.number)
        return Participation(joined, nonce)

    def seal(self, part: Participation, update: Float32, metrics: Values | None = None) -> bytes:
        """Return the sealed update (d,) with the next Hello. It is counted before it leaves.

        What is sealed is made from it by the federation's client momentum and format of uploads.
        metrics: what this node reports with it.
        Runs in parallel have joined by the same notes, so what `join` has checked is checked again.
        Raises ReceiptRefused, StateError, ConfigError for an update beyond that format, or
        AttestationRefused if the nonce was used since. A ConfigError tells about the update, and
        stays at the node.
        """
        client, joined = part.joined.client, part.joined
        with self._alone() as notes:
            known = notes.memory
            held = known and (known.receipt_key, known.last, known.voted)
            if held != (client.receipt_key, client.last, client.voted):
                raise ReceiptRefused("another run of this node has gone on since this round began")
            counted = self._counted(notes.joins, joined, part.nonce)
            self.notebook.change(lambda stored: self._sending(stored, joined))
            self.notebook.count(counted)
        encoded = self._way_out(joined).apply(update, joined.offer.number)
        submitted = joined.seal_encoded(encoded, metrics)
        self._keep_leaf(joined.offer.number, submitted.leaf)
        return SealedReply(submitted.sealed, self._challenge()).to_bytes()

    def confirm(self, message: bytes) -> Voted:
        """Vote for an outcome, durably and once, and return the vote.

        message: a Poll. Raises as `join` does, and RolledBack if this node has confirmed another
        outcome of that number: what it says then is `reminder`.
        """
        poll = decode(Poll, message)
        proposal = poll.proposal
        with self._alone() as notes:
            known = notes.memory and self._followed(notes.memory, poll.links)
            if known is None or not known.receipt_key:
                known = self._met(known, poll.enclave, poll.links)
            self.notebook.remember(known)
            voted = self.notebook.change(lambda stored: self._voting(stored, proposal))
        confirmation = voted.role(self.identity).confirmation()
        return Voted(encode(confirmation), proposal.number, self._is_left_out(poll))

    def published_model(self, message: bytes) -> tuple[Federation, bytes]:
        """Return the digest of the model after the last round, and the federation it belongs to.

        message: Links. Raises as `join` does, and ReceiptRefused if this node holds no receipt.
        """
        links = decode(Links, message).links
        with self._alone() as notes:
            followed = notes.memory and self._followed(notes.memory, links)
            if followed is None or followed.last is None:
                raise ReceiptRefused("this node holds no receipt that would vouch for a model")
            self.notebook.remember(followed)
        return followed.federation, followed.last.model

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

    def _agreed(self, charter: Charter, evidence: Evidence) -> tuple[Policy, Federation]:
        policy = self.standards.policy(charter, evidence)
        federation = verify_charter(charter, policy, int(time.time()))
        require_enrolled(federation, self.name, self.identity)
        return policy, federation

    @contextmanager
    def _alone(self) -> Iterator[Notes]:
        """Load the notes, and keep other runs of this node waiting. Keep proofs that come up."""
        with self.notebook.alone():
            try:
                yield self.notebook.load()
            except (Fork, RolledBack) as refused:
                self.notebook.prove(refused)
                raise

    def _met(
        self, memory: Memory | None, proof: KeyProof | None, links: tuple[bytes, ...]
    ) -> Memory:
        """Follow the chain of an enclave that proves which key is its own."""
        if proof is None:
            raise ReceiptRefused("no enclave has proved itself to this node yet")
        nonce = self._take_nonce()
        policy, federation = self._agreed(proof.charter, proof.evidence)
        circumstances = self.standards.circumstances(proof.evidence, proof.collateral)
        claims = verify_evidence(proof.evidence, policy, circumstances)
        require_bound(claims, KeyBinding(nonce, proof.receipt_key, federation.digest()))
        role = self._placed(memory, proof.charter, proof.receipt_key, links)
        return Memory.of(role, proof.charter)

    def _placed(
        self,
        memory: Memory | None,
        charter: Charter,
        receipt_key: bytes,
        links: tuple[bytes, ...],
    ) -> Client:
        """Where this node is in the chain of the enclave that has proved this key."""
        if memory is None:
            _require_short(links)
            blank = Client(self.name, self.identity, charter.federation, receipt_key)
            return begin_with(read_links(links), blank, policy=self.standards.policy(charter))
        followed = self._followed(memory, links)
        if not followed.receipt_key:  # Behind an Abandon, this enclave goes on.
            followed = self._followed(replace(followed, receipt_key=receipt_key), links)
        if followed.receipt_key != receipt_key:
            raise self._advised(
                ReceiptRefused(
                    "this enclave signs with another key than the one that this node follows"
                )
            )
        return followed.role(self.identity).adopt(charter.federation)

    def _followed(self, memory: Memory, links: tuple[bytes, ...]) -> Memory:
        _require_short(links)
        try:
            return follow(
                _since(Notes(memory).after or 0, read_links(links)),
                memory,
                identity=self.identity,
                policy=self.standards.policy(memory.charter),
            ).memory
        except (Fork, RolledBack):
            raise
        except ReceiptRefused as refused:
            raise self._advised(refused) from None

    def _advised(self, refused: ReceiptRefused) -> ReceiptRefused:
        refused.add_note(self.notebook.set_back)  # It is for the node's owner, so it stays here.
        return refused

    def _voting(self, stored: Memory | None, proposal: Proposal) -> Memory:
        if stored is None:
            raise LocalProtocolError("a node votes when it knows the chain")
        return Memory.of(stored.role(self.identity).vote(proposal), stored.charter, stored.sent)

    def _counted(self, joins: Joins, joined: Joined, nonce: bytes) -> Joins:
        """Count one more update for this opening. Raises if that is one too many."""
        offer = joined.offer
        if joins.has(nonce):
            raise _answered_before()
        times = joins.times(offer.round_id)
        if times > self.resends:
            raise self._too_often(f"round {offer.number} was asked for {times} times more")
        return joins.and_then(nonce, offer.round_id)

    def _sending(self, stored: Memory | None, joined: Joined) -> Memory:
        """Count the opening of the round. Raises if it is one too many."""
        if stored is None:
            raise LocalProtocolError("a node seals when it knows the chain")
        offer, client = joined.offer, joined.client
        asked = (client.federation, client.electors or client.federation)
        unconfirmed = any(each.terms.confirm == "none" for each in asked)
        sent = stored.sent.and_to(offer.number, offer.round_id)
        again = len(sent.rounds) - 1
        if again > (0 if unconfirmed else self.resends):
            raise self._too_often(f"round {offer.number} was opened again {again} times")
        return replace(stored, sent=sent)

    def _too_often(self, what: str) -> ReceiptRefused:
        refused = ReceiptRefused(
            f"{what} after this node had sent an update for it: ask the operator why"
        )
        refused.add_note(self.notebook.counted)
        return refused

    def _way_out(self, joined: Joined) -> Outgoing:
        federation = joined.client.federation
        return Outgoing.of(federation, partial(self.notebook.kept, federation))

    def _keep_leaf(self, number: int, leaf: bytes) -> None:
        """Keep what finds this upload in the cohort, beside others of the same number."""
        self.scratch[_LEAVES] = number.to_bytes(_NUMBER_BYTES, "big") + b"".join(
            (*self._leaves(number), leaf)
        )

    def _leaves(self, number: int) -> list[bytes]:
        kept = self.scratch.get(_LEAVES)
        if not isinstance(kept, bytes) or kept[:_NUMBER_BYTES] != number.to_bytes(
            _NUMBER_BYTES, "big"
        ):
            return []
        return [kept[at : at + _LEAF_BYTES] for at in range(_NUMBER_BYTES, len(kept), _LEAF_BYTES)]

    def _is_left_out(self, poll: Poll) -> bool:
        leaves, root = self._leaves(poll.proposal.number), poll.proposal.cohort
        found = poll.included and any(is_under(root, leaf, poll.path) for leaf in leaves)
        return bool(leaves) and not found


def reminder(copied: RolledBack) -> bytes:
    """What a node says that finds its enclave copied or set back: the proposal of its vote."""
    if not isinstance(copied.proof, Proposal):
        raise copied
    return encode(copied.proof)


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
    federation = who.policy.federation.id
    file = (
        MemoryFile(memory, who.name, federation)
        if memory
        else MemoryFile.beside(key, who.name, federation)
    )
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
    """Leave out what this node has followed before, which it may be shown again."""
    for link in links:
        if _number(link) > after:
            yield link


def _number(link: wire.ChainLink) -> float:
    match link.WhichOneof("link"):
        case "certified":
            return decode(Certified, link.certified).receipt.number
        case "abandon":
            return decode(Abandon, link.abandon).number
    return math.inf  # A charter has none. Older ones are passed over by their revisions.


def _answered_before() -> AttestationRefused:
    return AttestationRefused(
        Refusal.BINDING, "this node has not challenged, or its challenge was answered before"
    )

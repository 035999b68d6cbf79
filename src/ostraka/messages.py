"""What crosses a trust boundary, in the order in which it crosses.

    client                          enclave                            worker
       <------- Charter ---------------
       -------- Challenge ------------>
       <------- Introduction ----------    RoundOffer and Evidence
       -------- UpdateHeader --------->
       -------- UpdateTile, many ----->
                                       <------- WorkerHello -----------
                                       -------- ChannelOffer --------->
                                       <------- ChannelAccept ---------
                                       -------- ShareTile, many ------>   or MaskSeed
                                       <------- Answer ----------------

                                      lead                             shard
                                       -------- ShardWelcome --------->
                                       <------- ShardHello ------------   its evidence
                                       -------- ShardAdmitted -------->   the lead's, and a Deputy

       <------- Proposal --------------    the outcome is sealed, and nothing of it is shown
       -------- Confirmation --------->    of more than (n + f)/2 clients or witnesses
       <------- Certified and model ---    Receipt and Certificate

Every message is frozen, canonically encoded (`ostraka.encoding`) and free of secrets in the clear.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias
from weakref import ref

import numpy as np

from ostraka import merkle
from ostraka.arrays import Float32, is_frozen
from ostraka.config import LEAF_VALUES, Federation
from ostraka.core.metrics import Reported
from ostraka.encoding import Digest, Id, Key, Length, Payload, Signature, pack

HybridKey = Annotated[bytes, Length(1184 + 32)]  # ML-KEM-768 and X25519 public keys

SIMULATION = "simulation"  # evidence that proves nothing but that the protocol works
IN_PROCESS = "in-process"  # no evidence: the client runs the enclave in its own process

_GENESIS = b"ostraka/genesis/v1"
_VECTOR = b"ostraka/vector/v2"

Run: TypeAlias = Callable[[Callable[[int], bytes], Iterable[int]], Iterable[bytes]]

_TOGETHER = 8  # leaves that one thread hashes at a time

# A model is named in a receipt, when it is stored, in the next offer, and when clients ask for it.
_named: deque[tuple[ref[Float32], bytes]] = deque(maxlen=8)


def vector_digest(vector: Float32, run: Run = map) -> bytes:
    """The name of a model or an aggregate (d,) in other messages.

    SHA-256 of a label, d, and the root of the tree over parts of 16,384 values: so a part can be
    checked without the others, and shards can each make their own. It is computed once for an array
    that is frozen, and each time for one that can be written to. run: a `map` that may hash in
    parallel.
    """
    if not is_frozen(vector):
        return joined_digest(len(vector), vector_leaves(vector, run))
    for known, name in tuple(_named):
        if known() is vector:
            return name
    name = joined_digest(len(vector), vector_leaves(vector, run))
    _named.append((ref(vector), name))
    return name


def note_digest(vector: Float32, name: bytes) -> None:
    """Note the name of a frozen array whose leaves were just joined, so that nobody hashes it."""
    if is_frozen(vector):
        _named.append((ref(vector), name))


def vector_leaves(vector: Float32, run: Run = map) -> tuple[bytes, ...]:
    """The leaves of a vector, or of a part of one that begins where a leaf does."""
    values = vector.data
    starts = range(0, len(values), _TOGETHER * LEAF_VALUES)

    def leaves(start: int) -> bytes:
        stop = min(len(values), start + _TOGETHER * LEAF_VALUES)
        each = range(start, stop, LEAF_VALUES)
        return b"".join(merkle.leaf(values[at : min(at + LEAF_VALUES, stop)]) for at in each)

    hashes = b"".join(run(leaves, starts))
    size = merkle.HASH_BYTES
    return tuple(hashes[at : at + size] for at in range(0, len(hashes), size))


def joined_digest(length: int, leaves: Sequence[bytes]) -> bytes:
    """The name of a vector of this length whose leaves these are, whoever made them."""
    return hashlib.sha256(pack(_VECTOR, length.to_bytes(8, "big"), merkle.root(leaves))).digest()


def first_model(federation: Federation) -> bytes:
    """The digest of the model that the first round starts from."""
    if federation.initial:
        return federation.initial
    # All leaves of zeros are equal but the last, so nothing as long as the model is made.
    whole, rest = divmod(federation.terms.dimension, LEAF_VALUES)
    zeros = np.zeros(LEAF_VALUES, "<f4")
    leaves = vector_leaves(zeros) * whole + (vector_leaves(zeros[:rest]) if rest else ())
    return joined_digest(federation.terms.dimension, leaves)


@dataclass(frozen=True)
class Charter:
    """The federation's terms and roster, as its authority signed them."""

    LABEL: ClassVar[bytes] = b"ostraka/charter/v7"

    federation: Federation
    signature: Signature


@dataclass(frozen=True)
class Challenge:
    """A client asks the enclave to prove what it is. The nonce is the client's own, used once.

    Signed, because evidence takes its time to make, and strangers shall not use that up.
    """

    LABEL: ClassVar[bytes] = b"ostraka/challenge/v1"

    nonce: Id
    client: str
    signature: Signature


@dataclass(frozen=True)
class Evidence:
    """What the platform says of the enclave, in the platform's own format.

    endorsements: certificates and collateral that came along. They are signed by the platform's
    maker, so it does not matter who carries them; nothing in them is trusted by itself.

    Evidence is no key of a dictionary and no name of anything, and has no hash for that reason:
    whoever carries a quote can change its bytes so that it verifies as before (its padding, its
    certificates' armour, the sign of a signature's s). What was verified has names: the code id,
    the report data, and the keys that it binds.
    """

    LABEL: ClassVar[bytes] = b"ostraka/evidence/v1"
    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    kind: str
    document: bytes
    endorsements: tuple[bytes, ...]


@dataclass(frozen=True)
class RoundOffer:
    """The enclave opens a round. The client checks it, trains, and seals its update to `key`."""

    LABEL: ClassVar[bytes] = b"ostraka/round-offer/v3"

    number: int
    round_id: Id
    federation: Digest
    previous: Digest  # of the receipt before this round
    model: Digest  # the global model that clients train from
    key: HybridKey
    shards: tuple[int, ...]  # the first tile of each: all up to the next one's are sealed to it
    signature: Signature


@dataclass(frozen=True)
class Introduction:
    """The answer to a challenge: the open round, the key that signs, and the proof of both."""

    LABEL: ClassVar[bytes] = b"ostraka/introduction/v1"

    offer: RoundOffer
    receipt_key: Key
    evidence: Evidence


@dataclass(frozen=True)
class UpdateHeader:
    """Everything about an upload but its tiles. The signature covers all other fields.

    The same fields without `sealed_key` are the context of the HPKE seal and of every tile.
    """

    LABEL: ClassVar[bytes] = b"ostraka/sealed-update/v1"
    WRITTEN_ONCE: ClassVar[bool] = True

    federation: Digest
    round_id: Id
    round_key: Digest
    client: str
    upload_id: Id
    manifest: Digest
    dimension: int
    tile: int
    tiles: int
    sealed_key: bytes  # HPKE: a fresh AES-256 key, the stated norm, the step, and a report
    signature: Signature


@dataclass(frozen=True)
class UpdateTile:
    """One tile of an upload, under the upload's own key with its number as the nonce."""

    LABEL: ClassVar[bytes] = b"ostraka/update-tile/v1"

    upload_id: Id
    index: int
    ciphertext: Payload


@dataclass(frozen=True)
class WorkerHello:
    """A worker offers its service. The nonce is the enclave's, so that it cannot be replayed.

    challenge: the worker's own nonce, which the enclave's evidence has to be about.
    """

    LABEL: ClassVar[bytes] = b"ostraka/worker-hello/v2"

    nonce: Id
    federation: Id
    worker: str
    challenge: Id
    signature: Signature


@dataclass(frozen=True)
class ClientHello:
    """A client, a witness or an observer proves that a connection is its own, by its nonce.

    What else it sends may be carried by others, and replayed; who is here cannot be.
    """

    LABEL: ClassVar[bytes] = b"ostraka/client-hello/v1"

    federation: Id
    nonce: Id
    client: str
    signature: Signature


@dataclass(frozen=True)
class ChannelOffer:
    """The enclave asks one worker to take part in one attempt, under an ephemeral key."""

    LABEL: ClassVar[bytes] = b"ostraka/channel-offer/v1"

    federation: Digest
    round_id: Id
    attempt_id: Id
    worker: Key  # the identity that this offer is for
    point: int  # which share this worker gets
    masking: str
    rows: int
    columns: int  # of the rows, or of their sketches
    tile: int
    key: HybridKey
    signature: Signature


@dataclass(frozen=True)
class ChannelAccept:
    """The worker answers with a secret sealed to the offer's key, and signs both."""

    LABEL: ClassVar[bytes] = b"ostraka/channel-accept/v1"

    offer: Digest
    sealed_secret: bytes
    signature: Signature


@dataclass(frozen=True)
class ShareTile:
    """One tile of every masked row, sealed by the group of rows, one after another."""

    LABEL: ClassVar[bytes] = b"ostraka/share-tile/v1"

    attempt_id: Id
    index: int
    ciphertext: Payload


@dataclass(frozen=True)
class MaskSeed:
    """For the last of 2t + 1 workers: the seed of the leading mask, instead of shares; sealed."""

    LABEL: ClassVar[bytes] = b"ostraka/mask-seed/v1"

    attempt_id: Id
    ciphertext: bytes


@dataclass(frozen=True)
class Answer:
    """A worker's matrix over all tiles, sealed."""

    LABEL: ClassVar[bytes] = b"ostraka/answer/v1"

    attempt_id: Id
    ciphertext: Payload


@dataclass(frozen=True)
class ShardWelcome:
    """The lead's first word to whoever would be a shard. The nonce is for this connection alone.

    federation: the federation id. revision: of the charter in force.
    """

    LABEL: ClassVar[bytes] = b"ostraka/shard-welcome/v1"

    nonce: Id
    federation: Id
    revision: int


@dataclass(frozen=True)
class ShardHello:
    """A shard proves what it is. Its evidence is about the welcome and all other fields.

    federation: the digest of what it would work under. shard: which one it is, from 0. key: signs
    this, and its offers to workers. ephemeral: what the lead seals to. Both are drawn for this
    connection. nonce: its own, which the lead's evidence has to be about.
    """

    LABEL: ClassVar[bytes] = b"ostraka/shard-hello/v1"

    federation: Digest
    revision: int
    shard: int
    key: Key
    ephemeral: HybridKey
    nonce: Id
    evidence: Evidence
    signature: Signature


@dataclass(frozen=True)
class Deputy:
    """The lead lets the holder of `key` make offers to workers. Signed by the receipt key."""

    LABEL: ClassVar[bytes] = b"ostraka/deputy/v1"

    federation: Id
    shard: int
    key: Key
    signature: Signature


@dataclass(frozen=True)
class ShardAdmitted:
    """The lead proves what it is, and gives the secret of their channel. Signed by the receipt key.

    Its evidence is about the welcome, the hello, and all other fields of this.
    """

    LABEL: ClassVar[bytes] = b"ostraka/shard-admitted/v1"

    receipt_key: Key
    sealed_secret: bytes  # HPKE, to the hello's ephemeral key
    deputy: Deputy
    evidence: Evidence
    signature: Signature


@dataclass(frozen=True)
class RejectedClient:
    """A client whose update took no part, and the rule that it broke."""

    client: str
    reason: str


@dataclass(frozen=True)
class Receipt:
    """What the enclave vouches for about a finished round, chained to the receipt before it.

    It names who was selected only where the terms disclose that; `commitment` binds the enclave
    to the selection either way, under a salt that stays inside. failure: why the round is a null
    step, which leaves the model as it was; empty if it is none. cohort: as in the proposal.
    metrics: the means of what clients reported; None if the terms name none, or too few did.
    """

    LABEL: ClassVar[bytes] = b"ostraka/receipt/v6"
    WRITTEN_ONCE: ClassVar[bool] = True

    number: int
    round_id: Id
    previous: Digest
    federation: Digest
    revision: int  # of the federation
    evidence: str  # what the enclave proves itself by
    failure: str
    aggregate: Digest  # zeros of a null step, and where the next round does not start from it
    model: Digest  # the global model after this round
    cohort: Digest
    participants: int
    kept: int
    rejected: tuple[RejectedClient, ...]
    commitment: Digest
    disclosed: bool
    selected: tuple[str, ...]  # empty unless disclosed
    rule: str  # the composition, with its options
    note: str  # what the rule says of how it came to its weights; usually nothing
    masking: str
    distances: str
    cautions: tuple[str, ...]
    metrics: Reported | None
    signature: Signature


@dataclass(frozen=True)
class Proposal:
    """The enclave asks whether it may publish an outcome, and shows nothing of it.

    federation: the federation id. previous: of the receipt before, or `genesis`. outcome: of the
    receipt, under a salt, since a host that guesses an aggregate could test its guess against a
    bare digest. cohort: the root of the tree of all signed headers that take part.
    """

    LABEL: ClassVar[bytes] = b"ostraka/proposal/v1"
    WRITTEN_ONCE: ClassVar[bool] = True

    federation: Id
    number: int
    previous: Digest
    outcome: Digest
    cohort: Digest
    signature: Signature


NO_PROPOSAL = bytes(32)  # what is confirmed by a voter that will confirm no proposal of a number


@dataclass(frozen=True)
class Confirmation:
    """The one vote that a client or a witness has for a number. proposal: its digest."""

    LABEL: ClassVar[bytes] = b"ostraka/confirmation/v1"

    federation: Id
    number: int
    proposal: Digest
    voter: str
    signature: Signature


@dataclass(frozen=True)
class Vote:
    """What a certificate keeps of a confirmation; the proposal says the rest."""

    voter: str
    signature: Signature


@dataclass(frozen=True)
class Certificate:
    """Proves that an outcome was confirmed. salt: what opens the proposal's commitment."""

    LABEL: ClassVar[bytes] = b"ostraka/certificate/v1"

    proposal: Proposal
    salt: Id
    votes: tuple[Vote, ...]


@dataclass(frozen=True)
class Certified:
    """A receipt as it is served. certificate: None if the terms ask nobody to confirm."""

    LABEL: ClassVar[bytes] = b"ostraka/certified/v1"

    receipt: Receipt
    certificate: Certificate | None


@dataclass(frozen=True)
class Abandon:
    """The authority gives up a number whose enclave is lost. A new enclave goes on after it.

    It takes the place of the number's receipt. previous: as there. electors: the federation whose
    voters were asked about this number, and who are asked about the next: it brings no new charter,
    else two of them could. model: what the next number starts from. votes: proof that no proposal
    of this number was or will be confirmed; without that it counts as a release.
    """

    LABEL: ClassVar[bytes] = b"ostraka/abandon/v4"

    number: int
    previous: Digest
    electors: Federation
    model: Digest
    votes: tuple[Confirmation, ...]
    signature: Signature

    @property
    def federation(self) -> bytes:
        """The digest of the federation that it names, as a receipt has it."""
        return self.electors.digest()

    @property
    def revision(self) -> int:
        return self.electors.revision


def genesis(federation: Federation) -> bytes:
    """What stands for the receipt before the first: so the chain names its founding charter."""
    return hashlib.sha256(pack(_GENESIS, federation.digest())).digest()


Settled: TypeAlias = Certified | Abandon
"""How a number of the chain has ended."""

Link: TypeAlias = Charter | Settled


def chain(charters: Iterable[Charter], settled: Iterable[Settled]) -> Iterator[Link]:
    """Yields links as a client follows them: each charter before the first number under it.

    Both in their own order. Charters that no number was settled under yet come last.
    """
    left = list(charters)
    for each in settled:
        revision = each.receipt.revision if isinstance(each, Certified) else each.revision
        while left and left[0].federation.revision <= revision:
            yield left.pop(0)
        yield each
    yield from left


def milestones(published: Sequence[Certified]) -> tuple[Certified, ...]:
    """What proves the newest receipt: it, the first one, and both sides of a change of charters."""
    last = len(published) - 1
    revisions = [each.receipt.revision for each in published]
    return tuple(
        each
        for at, each in enumerate(published)
        if at in (0, last)
        or revisions[at - 1] != revisions[at]
        or revisions[at + 1] != revisions[at]
    )

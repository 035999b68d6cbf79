"""The enclave opens a round and takes in sealed updates."""

import math
import os
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from ostraka.attestation.claims import Binding
from ostraka.config import Federation, Terms
from ostraka.core import optimiser
from ostraka.core.optimiser import ServerState
from ostraka.crypto import updates
from ostraka.crypto.aead import TAG_BYTES
from ostraka.crypto.hpke import Entropy, HybridKey, fingerprint
from ostraka.crypto.identity import Identity, check_signature
from ostraka.crypto.offline import OfflineMask, OfflineNoise
from ostraka.encoding import UNSIGNED, digest
from ostraka.errors import LocalProtocolError, NotEnrolled, OpenError, Rejection, UpdateRejected
from ostraka.messages import (
    IN_PROCESS,
    Charter,
    Receipt,
    RoundOffer,
    UpdateHeader,
    UpdateTile,
    first_model,
    vector_digest,
)
from ostraka.protocol.enclave.cohort import Cohort
from ostraka.protocol.enclave.context import Publication, RoundContext, Row, Standing

GENESIS = bytes(32)  # stands for the receipt before the first round

_ID_BYTES = 32
_VALUE_BYTES = 4
_SMALLEST_NORM = 2.0**-149  # of a float32 vector that is not zero
_MOST_UPLOADS = 64  # of one client in one round, each replacing an incomplete one


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

    def open_round(self) -> "Collecting":
        """A round under a fresh key and a random id, after the last receipt."""
        head = self._head
        return Collecting(
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
        """Change rules or roster from the next round on, by the word of the same authority.

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


@dataclass
class _Upload:
    """A client's upload as far as it has arrived."""

    row: Row
    missing: set[int] = field(repr=False)


class Collecting:
    """Accepts headers and tiles until the round closes. Whoever drives it stores the tiles."""

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._key = HybridKey(context.entropy)
        self._key_hash = fingerprint(self._key.public)
        self._digest = context.federation.digest()
        self._manifest = context.terms.manifest.digest()
        self._members = {member.name: member.key for member in context.federation.clients}
        self._revoked = {member.name: member.key for member in context.federation.revoked}
        self._uploads: dict[str, _Upload] = {}
        self._clients: dict[bytes, str] = {}  # by upload id, replaced uploads included
        self._begun: Counter[str] = Counter()  # uploads, by client
        self._last = context.terms.tiling.count - 1
        self._whole, self._rest = (self._sealed_size(index) for index in (0, self._last))
        self._liars: dict[str, Rejection] = {}
        self._closed = False
        self.offer = context.identity.sign(
            RoundOffer(
                number=context.number,
                round_id=context.round_id,
                federation=self._digest,
                previous=context.previous,
                model=vector_digest(context.state.model),
                key=self._key.public,
                signature=UNSIGNED,
            )
        )

    def binding(self, nonce: bytes) -> Binding:
        """What evidence for this challenge must be about."""
        return Binding(nonce, self._key.public, self._context.identity.public, self._digest)

    def accept(self, header: UpdateHeader) -> None:
        """Begin a client's upload. Raises OpenError or UpdateRejected, and no upload changes.

        A header that its own client has spoilt is remembered until that client sends a good one.
        """
        self._authenticate(header)
        self._require_fresh(header)
        try:
            row = self._read(header)
        except UpdateRejected as rejected:
            self._liars[header.client] = rejected.reason
            raise
        self._liars.pop(header.client, None)
        self._clients[header.upload_id] = header.client
        self._begun[header.client] += 1
        self._uploads[header.client] = _Upload(row, set(range(header.tiles)))

    def accept_tile(self, tile: UpdateTile) -> None:
        """Count a tile in. Its content is authenticated when the round is measured."""
        client = self._clients.get(tile.upload_id)
        upload = self._uploads.get(client) if client is not None else None
        if client is None or upload is None or not self._fits(tile):
            raise OpenError("tile")
        if self._closed:
            raise UpdateRejected(client, Rejection.LATE)
        if upload.row.upload_id != tile.upload_id or tile.index not in upload.missing:
            raise UpdateRejected(client, Rejection.DUPLICATE)
        upload.missing.remove(tile.index)

    def missing(self, upload_id: bytes) -> frozenset[int] | None:
        """The tiles of a current upload that have not arrived; None if it is not a current one."""
        client = self._clients.get(upload_id)
        upload = self._uploads.get(client) if client is not None else None
        if upload is None or upload.row.upload_id != upload_id:
            return None
        return frozenset(upload.missing)

    def require_opens(self, tile: UpdateTile) -> None:
        """Raises OpenError unless this is a current upload's tile, just as its client sealed it.

        Nothing is counted, and any thread may ask. Whoever takes tiles from a network asks first:
        else anybody who has seen an upload's id could fill its places with rubbish.
        """
        upload = self._uploads.get(self._clients.get(tile.upload_id, ""))
        current = upload is not None and upload.row.upload_id == tile.upload_id
        if upload is None or not current or not self._fits(tile):
            raise OpenError("tile")
        opened = np.empty(len(tile.ciphertext) - TAG_BYTES, np.uint8)
        upload.row.opener.open_into(tile.index, tile.ciphertext, opened)

    @property
    def complete(self) -> frozenset[str]:
        """Clients whose uploads are whole."""
        return frozenset(name for name, upload in self._uploads.items() if not upload.missing)

    @property
    def spoilt(self) -> dict[str, Rejection]:
        """Clients that have sent nothing but headers which they spoilt themselves."""
        return {name: why for name, why in self._liars.items() if name not in self.complete}

    def close(self) -> Cohort:
        """Fix who takes part: every complete upload, in the roster's order.

        Raises TooFewUpdates where Multi-Krum could not stand; the round then stays open.
        """
        if self._closed:
            raise LocalProtocolError("this round was closed before")
        rows = tuple(
            self._uploads[member.name].row
            for member in self._context.federation.clients
            if member.name in self._uploads and not self._uploads[member.name].missing
        )
        complete = {row.client for row in rows}
        incomplete = dict.fromkeys(self._uploads.keys() - complete, Rejection.INCOMPLETE)
        rejected = {
            client: reason
            for client, reason in (incomplete | self._liars).items()
            if client not in complete
        }
        standing = Standing(self._context.terms, rejected)
        standing.require(len(rows))
        self._closed = True
        return Cohort(self._context, rows, standing)

    def _authenticate(self, header: UpdateHeader) -> None:
        name = header.client
        key = self._members.get(name) or self._revoked.get(name)
        if key is None:
            raise NotEnrolled(name)
        check_signature(header, key)
        if name in self._revoked:
            raise UpdateRejected(name, Rejection.REVOKED)

    def _require_fresh(self, header: UpdateHeader) -> None:
        """Raises unless this is a new upload for this round, by a client that has none complete."""
        client = header.client
        for expected, got, reason in (
            (self._digest, header.federation, Rejection.FOREIGN_FEDERATION),
            (self._context.round_id, header.round_id, Rejection.FOREIGN_ROUND),
            (self._key_hash, header.round_key, Rejection.FOREIGN_KEY),
        ):
            if got != expected:
                raise UpdateRejected(client, reason)
        if self._closed:
            raise UpdateRejected(client, Rejection.LATE)
        upload = self._uploads.get(client)
        complete = upload is not None and not upload.missing
        # A replayed header must not displace the upload that replaced it.
        if complete or header.upload_id in self._clients or self._begun[client] >= _MOST_UPLOADS:
            raise UpdateRejected(client, Rejection.DUPLICATE)

    def _read(self, header: UpdateHeader) -> Row:
        """Open the header. What is wrong from here on, the client itself has signed."""
        terms = self._context.terms
        shape = (header.manifest, header.dimension, header.tile, header.tiles)
        if shape != (self._manifest, terms.dimension, terms.tile, terms.tiling.count):
            raise UpdateRejected(header.client, Rejection.WRONG_SHAPE)
        try:
            opener, norm = updates.open_header(header, self._key)
        except OpenError:
            raise UpdateRejected(header.client, Rejection.UNOPENABLE_KEY) from None
        if not _possible_norm(norm, terms.dimension):
            raise UpdateRejected(header.client, Rejection.BAD_NORM)
        return Row(header.client, header.upload_id, opener, norm)

    def _fits(self, tile: UpdateTile) -> bool:
        size = self._rest if tile.index == self._last else self._whole
        return 0 <= tile.index <= self._last and len(tile.ciphertext) == size

    def _sealed_size(self, index: int) -> int:
        return self._context.terms.tiling.size(index) * _VALUE_BYTES + TAG_BYTES


def _from_nothing(terms: Terms) -> ServerState:
    return optimiser.start(np.zeros(terms.dimension, np.float32), terms.optimiser)


def _possible_norm(norm: float, d: int) -> bool:
    return norm == 0 or _SMALLEST_NORM <= norm <= 2.0**128 * math.sqrt(d)

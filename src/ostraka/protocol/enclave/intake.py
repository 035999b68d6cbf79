"""Step 1, intake: takes headers and tiles, and fixes who takes part. The outcome is a `Cohort`."""

from dataclasses import dataclass, field

import numpy as np

from ostraka.attestation.claims import Binding
from ostraka.crypto import updates
from ostraka.crypto.aead import TAG_BYTES
from ostraka.crypto.hpke import HybridKey, fingerprint
from ostraka.crypto.identity import check_signature
from ostraka.encoding import UNSIGNED
from ostraka.errors import LocalProtocolError, NotEnrolled, OpenError, Rejection, UpdateRejected
from ostraka.messages import RoundOffer, UpdateHeader, UpdateTile, vector_digest
from ostraka.protocol.confirm import leaf
from ostraka.protocol.enclave.cohort import Cohort, RoundContext, Row, Standing

_MOST_UPLOADS = 64  # of one client in one round, each replacing an incomplete one


@dataclass
class _Upload:
    """A client's upload as far as it has arrived."""

    row: Row
    missing: set[int] = field(repr=False)


class Intake:
    """Accepts headers and tiles until the round closes. Its driver stores the tiles.

    An upload is known by its client and its id: ids are public, and anyone may choose one that
    another client uses.
    """

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._key = HybridKey(context.entropy)
        self._key_hash = fingerprint(self._key.public)
        self._digest = context.federation.digest()
        self._manifest = context.terms.manifest.digest()
        self._members = {member.name: member.key for member in context.federation.clients}
        self._revoked = {member.name: member.key for member in context.federation.revoked}
        self._uploads: dict[str, _Upload] = {}
        self._begun: dict[str, set[bytes]] = {name: set() for name in self._members}
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
        self.require_current(header)
        self._require_fresh(header)
        try:
            row = self._read(header)
        except UpdateRejected as rejected:
            self._liars[header.client] = rejected.reason
            raise
        self._liars.pop(header.client, None)
        self._begun[header.client].add(header.upload_id)
        self._uploads[header.client] = _Upload(row, set(range(header.tiles)))

    def require_current(self, header: UpdateHeader) -> None:
        """Raises OpenError or UpdateRejected unless the client signed this for this very round."""
        self._authenticate(header)
        for expected, got, reason in (
            (self._digest, header.federation, Rejection.FOREIGN_FEDERATION),
            (self._context.round_id, header.round_id, Rejection.FOREIGN_ROUND),
            (self._key_hash, header.round_key, Rejection.FOREIGN_KEY),
        ):
            if got != expected:
                raise UpdateRejected(header.client, reason)

    def accept_tile(self, client: str, tile: UpdateTile) -> None:
        """Count in a tile of this client. It is authenticated when the round is measured."""
        upload = self._uploads.get(client)
        known = tile.upload_id in self._begun.get(client, ())
        if upload is None or not known or not self._fits(tile):
            raise OpenError("tile")
        if self._closed:
            raise UpdateRejected(client, Rejection.LATE)
        if upload.row.upload_id != tile.upload_id or tile.index not in upload.missing:
            raise UpdateRejected(client, Rejection.DUPLICATE)
        upload.missing.remove(tile.index)

    def missing(self, client: str, upload_id: bytes) -> frozenset[int] | None:
        """The tiles of a current upload that have not arrived; None if it is not a current one."""
        upload = self._uploads.get(client)
        if upload is None or upload.row.upload_id != upload_id:
            return None
        return frozenset(upload.missing)

    def require_opens(self, client: str, tile: UpdateTile) -> None:
        """Raises OpenError unless this is a tile of the client's upload, just as it was sealed.

        Nothing is counted, and any thread may ask. A service that takes tiles from a network asks
        first: otherwise anyone who has seen an upload's id could fill its places with rubbish.
        """
        upload = self._uploads.get(client)
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

        Raises TooFewUpdates where the rule could not stand; the round then stays open.
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
        """Raises unless this is a new upload, by a client that has none complete."""
        client = header.client
        if self._closed:
            raise UpdateRejected(client, Rejection.LATE)
        upload = self._uploads.get(client)
        complete = upload is not None and not upload.missing
        begun = self._begun[client]
        # A replayed header must not displace the upload that replaced it.
        if complete or header.upload_id in begun or len(begun) >= _MOST_UPLOADS:
            raise UpdateRejected(client, Rejection.DUPLICATE)

    def _read(self, header: UpdateHeader) -> Row:
        """Open the header. What is wrong from here on, the client itself has signed."""
        terms = self._context.terms
        shape = (header.manifest, header.dimension, header.tile, header.tiles)
        if shape != (self._manifest, terms.dimension, terms.tile, terms.tiling.count):
            raise UpdateRejected(header.client, Rejection.WRONG_SHAPE)
        try:
            opener, norm, step = updates.open_header(header, self._key)
        except OpenError:
            raise UpdateRejected(header.client, Rejection.UNOPENABLE_KEY) from None
        flaw = terms.format.header_flaw(norm, step, terms.dimension)
        if flaw is not None:
            raise UpdateRejected(header.client, flaw)
        return Row(header.client, header.upload_id, leaf(header), opener, norm, step)

    def _fits(self, tile: UpdateTile) -> bool:
        size = self._rest if tile.index == self._last else self._whole
        return 0 <= tile.index <= self._last and len(tile.ciphertext) == size

    def _sealed_size(self, index: int) -> int:
        return self._context.terms.tile_bytes(index) + TAG_BYTES

"""Step 1, intake: takes headers and tiles, and fixes who takes part. The outcome is a `Cohort`."""

from ostraka.attestation.claims import Binding
from ostraka.crypto import updates
from ostraka.crypto.aead import TAG_BYTES
from ostraka.crypto.hpke import HybridKey, fingerprint
from ostraka.crypto.identity import check_signature
from ostraka.encoding import UNSIGNED
from ostraka.errors import LocalProtocolError, NotEnrolled, OpenError, Rejection, UpdateRejected
from ostraka.messages import RoundOffer, UpdateHeader, UpdateTile, vector_digest
from ostraka.protocol.enclave.arrival import Arrival, Arrivals
from ostraka.protocol.enclave.cohort import Cohort, RoundContext, Standing
from ostraka.protocol.enclave.keeping import Keeping

_MOST_UPLOADS = 64  # of one client in one round, each replacing an incomplete one


class Intake:
    """Accepts headers and tiles until the round closes. Tiles may come from any thread, and
    everything else from one.

    An upload is known by its client and its id: ids are public, and anyone may choose one that
    another client uses.
    """

    def __init__(self, context: RoundContext, keeping: Keeping) -> None:
        self._context = context
        self._arrivals = Arrivals(context, keeping)
        self._key = HybridKey(context.entropy)
        self._key_hash = fingerprint(self._key.public)
        self._digest = context.federation.digest()
        self._manifest = context.terms.manifest.digest()
        self._members = {member.name: member.key for member in context.federation.clients}
        self._revoked = {member.name: member.key for member in context.federation.revoked}
        self._uploads: dict[str, Arrival] = {}
        self._begun: dict[str, set[bytes]] = {name: set() for name in self._members}
        self._last = context.terms.tiling.count - 1
        self._whole, self._rest = (
            context.terms.tile_bytes(index) + TAG_BYTES for index in (0, self._last)
        )
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
            arrival = self._read(header)
        except UpdateRejected as rejected:
            self._liars[header.client] = rejected.reason
            raise
        self._liars.pop(header.client, None)
        self._begun[header.client].add(header.upload_id)
        self._uploads[header.client] = arrival

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

    def take(self, client: str, tile: UpdateTile) -> None:
        """Open the next tile of this client's upload, check it, and keep it.

        Raises OpenError unless it is a tile of it, just as it was sealed: anyone who has seen an
        upload's id could bring another. Otherwise raises as `Arrival.take` does.
        """
        arrival = self._uploads.get(client)
        known = tile.upload_id in self._begun.get(client, ())
        if arrival is None or not known or not self._fits(tile):
            raise OpenError("tile")
        if self._closed:
            raise UpdateRejected(client, Rejection.LATE)
        if arrival.row.upload_id != tile.upload_id:
            raise UpdateRejected(client, Rejection.DUPLICATE)
        if tile.index > arrival.next and arrival.spoilt is None:
            raise OpenError("tile")
        arrival.take(tile.index, tile.ciphertext)

    def arrival(self, client: str, upload_id: bytes) -> Arrival | None:
        """What takes the tiles of a client's current upload; None if this is not it."""
        arrival = self._uploads.get(client)
        return arrival if arrival is not None and arrival.row.upload_id == upload_id else None

    def next_tile(self, client: str, upload_id: bytes) -> int | None:
        """The number of the tile that comes next in a current upload; None if it is not one."""
        arrival = self.arrival(client, upload_id)
        return arrival.next if arrival is not None and arrival.spoilt is None else None

    def sealed_size(self, index: int) -> int:
        """How many bytes a sealed tile has."""
        return self._rest if index == self._last else self._whole

    @property
    def complete(self) -> frozenset[str]:
        """Clients whose uploads are whole."""
        return frozenset(name for name, arrival in list(self._uploads.items()) if arrival.complete)

    @property
    def bytes_in(self) -> int:
        """How many bytes of sealed tiles the current uploads consist of so far."""
        arrived = [arrival.next for arrival in list(self._uploads.values())]
        whole = sum(min(count, self._last) for count in arrived) * self._whole
        return whole + sum(count > self._last for count in arrived) * self._rest

    @property
    def spooled(self) -> frozenset[str]:
        """Clients whose rows found no room in memory."""
        uploads = list(self._uploads.items())
        return frozenset(name for name, each in uploads if not each.row.values.resident)

    @property
    def spoilt(self) -> dict[str, Rejection]:
        """Clients that have sent nothing but what they spoilt themselves."""
        uploads = list(self._uploads.items())
        tiles = {name: each.spoilt for name, each in uploads if each.spoilt is not None}
        liars = self._liars | tiles
        complete = self.complete if liars else frozenset()
        return {name: why for name, why in liars.items() if name not in complete}

    def close(self) -> Cohort:
        """Fix who takes part: every complete upload, in the roster's order.

        Raises TooFewUpdates where the rule could not stand; the round then stays open.
        """
        if self._closed:
            raise LocalProtocolError("this round was closed before")
        complete, spoilt = self.complete, self.spoilt
        incomplete = dict.fromkeys(self._uploads.keys() - complete, Rejection.INCOMPLETE)
        standing = Standing(self._context.terms, incomplete | spoilt)
        standing.require(len(complete))
        self.stop()
        clients = (member.name for member in self._context.federation.clients)
        rows = tuple(self._uploads[name].row for name in clients if name in complete)
        return Cohort(self._context, rows, standing)

    def stop(self) -> None:
        """Take no more. Afterwards no thread writes into the round's memory."""
        self._closed = True
        for arrival in list(self._uploads.values()):
            arrival.end()

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
        complete = upload is not None and upload.complete
        begun = self._begun[client]
        # A replayed header must not displace the upload that replaced it.
        if complete or header.upload_id in begun or len(begun) >= _MOST_UPLOADS:
            raise UpdateRejected(client, Rejection.DUPLICATE)

    def _read(self, header: UpdateHeader) -> Arrival:
        """Open the header. What is wrong from here on, the client itself has signed.

        The upload that it replaces gives its place back first.
        """
        terms = self._context.terms
        shape = (header.manifest, header.dimension, header.tile, header.tiles)
        if shape != (self._manifest, terms.dimension, terms.tile, terms.tiling.count):
            raise UpdateRejected(header.client, Rejection.WRONG_SHAPE)
        try:
            opener, norm, step, report = updates.open_header(header, self._key, terms.asked.size)
        except OpenError:
            raise UpdateRejected(header.client, Rejection.UNOPENABLE_KEY) from None
        if (flaw := terms.format.header_flaw(norm, step, terms.dimension)) is not None:
            raise UpdateRejected(header.client, flaw)
        replaced = self._uploads.get(header.client)
        if replaced is not None and replaced.end() is not None:
            # A thread has brought its last tile since, and a complete upload stays.
            raise UpdateRejected(header.client, Rejection.DUPLICATE)
        return self._arrivals.begin(header, opener, norm, step, terms.asked.read(report))

    def _fits(self, tile: UpdateTile) -> bool:
        size = self.sealed_size(tile.index)
        return 0 <= tile.index <= self._last and len(tile.ciphertext) == size

"""Step 1, intake: takes headers and tiles, and fixes who takes part. The outcome is a `Cohort`.

The lead takes headers. Tiles come to the shards, each of which has a `Part` of every row. An
enclave without shards is both, and its one part has all values.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from ostraka.attestation.claims import Binding
from ostraka.crypto import updates
from ostraka.crypto.aead import TAG_BYTES
from ostraka.crypto.hpke import HybridKey, fingerprint
from ostraka.crypto.identity import check_signature
from ostraka.encoding import UNSIGNED
from ostraka.errors import LocalProtocolError, NotEnrolled, OpenError, Rejection, UpdateRejected
from ostraka.messages import RoundOffer, UpdateHeader, UpdateTile
from ostraka.protocol.confirm import leaf
from ostraka.protocol.enclave.arrival import Arrival, Arrivals, Arrived, Begun, square_bounds
from ostraka.protocol.enclave.cohort import Cohort, RoundContext, Row, Standing

_MOST_UPLOADS = 64  # of one client in one round, each replacing an incomplete one


class Part(Protocol):
    """The values of one shard's tiles, as the lead of a round sees them come: `Arrivals`, or what
    stands for those of another machine. An upload is known by its client and its id.
    """

    def begin(self, begun: Begun, row: Row | None = None) -> None:
        """Let an upload in, in the place of an earlier one. Raises StorageFull.

        row: the lead's own, for a part that has all values.
        """

    def taken(self, client: str, upload_id: bytes) -> int:
        """How many of its tiles are here."""

    def arrived(self, client: str, upload_id: bytes) -> Arrived | None:
        """What is known of its row; None before it is complete."""

    def spoilt(self, client: str, upload_id: bytes) -> Rejection | None:
        """What its client has done wrong, if anything."""

    def resident(self, client: str, upload_id: bytes) -> bool:
        """Whether its values found room in memory."""

    def end(self, client: str, upload_id: bytes) -> bool:
        """Take no more of it. Tells whether all of it is here, which then stays."""

    def stop(self) -> None:
        """Take no more of any."""


class Intake:
    """Accepts headers and tiles until the round closes. Tiles may come from any thread, and
    everything else from one.

    An upload is known by its client and its id: ids are public, and anyone may choose one that
    another client uses.
    """

    def __init__(self, context: RoundContext, parts: Sequence[Part]) -> None:
        """parts: one for each span of the context, in the same order."""
        self._context = context
        self._parts = tuple(parts)
        self._key = HybridKey(context.entropy)
        self._key_hash = fingerprint(self._key.public)
        self._digest = context.federation.digest()
        self._manifest = context.terms.manifest.digest()
        self._members = {member.name: member.key for member in context.federation.clients}
        self._revoked = {member.name: member.key for member in context.federation.revoked}
        self._complete: set[str] = set()
        self._uploads: dict[str, Row] = {}
        self._flaws: dict[tuple[str, bytes], Rejection | None] = {}  # of uploads that are whole
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
                model=context.model,
                key=self._key.public,
                shards=tuple(span.first for span in context.spans),
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
        self._uploads[header.client] = row

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
        row = self._uploads.get(client)
        known = tile.upload_id in self._begun.get(client, ())
        if row is None or not known or not self._fits(tile):
            raise OpenError("tile")
        if self._closed:
            raise UpdateRejected(client, Rejection.LATE)
        shard = self._owner(tile.index)
        arrival = self.arrival(client, tile.upload_id, shard)
        if arrival is None:
            raise UpdateRejected(client, Rejection.DUPLICATE)
        index = tile.index - self._context.spans[shard].first
        if index > arrival.next and arrival.spoilt is None:
            raise OpenError("tile")
        arrival.take(index, tile.ciphertext)

    def arrival(self, client: str, upload_id: bytes, shard: int = 0) -> Arrival | None:
        """What takes the tiles of a client's current upload, in one part; None if this is not it.

        Only for parts in this process.
        """
        part = self._parts[shard]
        if not isinstance(part, Arrivals):
            raise LocalProtocolError("these tiles come to another process")
        row = self._uploads.get(client)
        if row is None or row.upload_id != upload_id:
            return None
        return part.upload(client, upload_id)

    def next_tile(self, client: str, upload_id: bytes, shard: int = 0) -> int | None:
        """The number of the tile that comes next in a part of a current upload; None if it is not
        one."""
        arrival = self.arrival(client, upload_id, shard)
        if arrival is None or arrival.spoilt is not None:
            return None
        return self._context.spans[shard].first + arrival.next

    def sealed_size(self, index: int) -> int:
        """How many bytes a sealed tile has."""
        return self._rest if index == self._last else self._whole

    @property
    def complete(self) -> frozenset[str]:
        """Clients whose uploads are whole. They stay so, and are not looked at again."""
        self._complete |= {name for name, row in self._unfinished() if self._is_whole(row)}
        return frozenset(self._complete)

    def _unfinished(self) -> list[tuple[str, Row]]:
        """The uploads that were not known to be whole."""
        return [each for each in list(self._uploads.items()) if each[0] not in self._complete]

    @property
    def bytes_in(self) -> int:
        """How many bytes of sealed tiles the current uploads consist of so far."""
        uploads, spans = list(self._uploads.items()), self._context.spans
        arrived = [
            part.taken(name, row.upload_id) + span.first
            for name, row in uploads
            for part, span in zip(self._parts, spans, strict=True)
        ]
        before = len(uploads) * sum(span.first for span in spans)
        short = sum(count > self._last for count in arrived)
        return (sum(arrived) - before - short) * self._whole + short * self._rest

    @property
    def spooled(self) -> frozenset[str]:
        """Clients whose rows found no room in memory, in one part at least."""
        return frozenset(
            name
            for name, row in list(self._uploads.items())
            if not all(part.resident(name, row.upload_id) for part in self._parts)
        )

    @property
    def spoilt(self) -> dict[str, Rejection]:
        """Clients that have sent nothing but what they spoilt themselves."""
        flaws = {name: self._flaw(row) for name, row in self._unfinished()}
        liars = self._liars | {name: flaw for name, flaw in flaws.items() if flaw is not None}
        complete = self.complete if liars else frozenset()
        return {name: why for name, why in liars.items() if name not in complete}

    def flaw(self, client: str) -> Rejection | None:
        """What a client has done wrong with its current upload, as far as that is here."""
        row = self._uploads.get(client)
        return None if row is None else self._flaw(row)

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
        rows = tuple(self._uploads[name] for name in clients if name in complete)
        for row in rows:
            row.along = sum(each.along for each in self._arrived(row))
        return Cohort(self._context, rows, standing)

    def stop(self) -> None:
        """Take no more. Afterwards no thread writes into the round's memory."""
        self._closed = True
        for part in self._parts:
            part.stop()

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
        row = self._uploads.get(client)
        complete = row is not None and self._is_whole(row)
        begun = self._begun[client]
        # A replayed header must not displace the upload that replaced it.
        if complete or header.upload_id in begun or len(begun) >= _MOST_UPLOADS:
            raise UpdateRejected(client, Rejection.DUPLICATE)

    def _read(self, header: UpdateHeader) -> Row:
        """Open the header. What is wrong from here on, the client itself has signed.

        The upload that it replaces gives its place back first.
        """
        terms, client = self._context.terms, header.client
        shape = (header.manifest, header.dimension, header.tile, header.tiles)
        if shape != (self._manifest, terms.dimension, terms.tile, terms.tiling.count):
            raise UpdateRejected(client, Rejection.WRONG_SHAPE)
        try:
            opened = updates.open_header(header, self._key, terms.asked.size)
        except OpenError:
            raise UpdateRejected(client, Rejection.UNOPENABLE_KEY) from None
        flaw = terms.format.header_flaw(opened.norm, opened.step, terms.dimension)
        if flaw is not None:
            raise UpdateRejected(client, flaw)
        self._replace(client)
        report = terms.asked.read(opened.report)
        row = Row(client, header.upload_id, leaf(header), opened.norm, opened.step, report=report)
        for part, span in zip(self._parts, self._context.spans, strict=True):
            begun = Begun(
                client,
                row.upload_id,
                row.header,
                row.norm,
                row.step,
                opened.key.of(span),
                opened.key.bound,
            )
            part.begin(begun, row if len(self._parts) == 1 else replace(row))
        return row

    def _replace(self, client: str) -> None:
        """End the upload that is replaced. Raises UpdateRejected if it is complete by now."""
        replaced = self._uploads.get(client)
        if replaced is None:
            return
        ended = [part.end(client, replaced.upload_id) for part in self._parts]
        if all(ended) and self._flaw(replaced) is None:
            # A thread has brought its last tile since, and a complete upload stays.
            raise UpdateRejected(client, Rejection.DUPLICATE)

    def _arrived(self, row: Row) -> list[Arrived]:
        """What the parts know of a row, if they all have it."""
        arrived = [part.arrived(row.client, row.upload_id) for part in self._parts]
        known = [each for each in arrived if each is not None]
        return known if len(known) == len(arrived) else []

    def _is_whole(self, row: Row) -> bool:
        return bool(self._arrived(row)) and self._flaw(row) is None

    def _flaw(self, row: Row) -> Rejection | None:
        """What its client has done wrong with a row, as far as it is here."""
        for part in self._parts:
            if (flaw := part.spoilt(row.client, row.upload_id)) is not None:
                return flaw
        if len(self._parts) == 1 or not (arrived := self._arrived(row)):
            return None  # A part that has all values has compared their sum itself.
        upload = row.client, row.upload_id
        if upload not in self._flaws:
            integers = self._context.terms.format.integers
            least, most = square_bounds(row.norm, row.step, integers=integers)
            true = least <= sum(each.squares for each in arrived) <= most
            self._flaws[upload] = None if true else Rejection.FALSE_NORM
        return self._flaws[upload]

    def _owner(self, index: int) -> int:
        """The part that a tile belongs to."""
        return max(at for at, span in enumerate(self._context.spans) if span.first <= index)

    def _fits(self, tile: UpdateTile) -> bool:
        size = self.sealed_size(tile.index)
        return 0 <= tile.index <= self._last and len(tile.ciphertext) == size

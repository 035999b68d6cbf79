"""Multi-Krum on the decoded distances, the second pass, and the receipt."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ostraka.arrays import Buffer, Float32, Float64, cut
from ostraka.core import optimiser
from ostraka.core.optimiser import ServerState
from ostraka.core.rules import krum
from ostraka.crypto.aead import Fingerprints
from ostraka.crypto.updates import UncheckedOpener
from ostraka.encoding import UNSIGNED, pack
from ostraka.errors import OpenError, Rejection, UpdateRejected
from ostraka.messages import SIMULATION, Receipt, RejectedClient, vector_digest
from ostraka.protocol.enclave.context import RoundContext, Row, Standing
from ostraka.protocol.enclave.lanes import Lanes
from ostraka.protocol.enclave.spans import Span, spans

_ROWS = 8  # that are added at a time
_SALT_BYTES = 32
_COMMITMENT = b"ostraka/selection/v1"
_LEAKY = "gaussian masking: a single worker can recognise updates by the polar attack"
_UNCHECKED = "the workers' answers were not checked"
_SIMULATED = "simulated: no TEE protects this enclave, and its host can read every update"


@dataclass(frozen=True)
class Published:
    """The outcome of a round. `selected` stays inside unless the config discloses it."""

    aggregate: Float32
    state: ServerState
    receipt: Receipt
    selected: tuple[str, ...] = field(repr=False)
    rejected: dict[str, Rejection]
    distance_error: float = field(repr=False)  # tells something of the distances; stays inside


class Averaging:
    """Knows who was selected, and averages them in a second pass over the same bytes."""

    def __init__(
        self,
        context: RoundContext,
        rows: tuple[Row, ...],
        standing: Standing,
        fingerprints: Fingerprints,
        lanes: Lanes,
        *,
        scales: Float64,
        distances: Float64,
        distance_error: float,
        measured_by: str,
    ) -> None:
        self._context = context
        self._rows = rows
        self._standing = standing
        self._fingerprints = fingerprints
        self._lanes = lanes
        self._scales = scales
        self._distances = distances
        self._distance_error = distance_error
        self._measured_by = measured_by
        width = context.terms.spans.tile
        self._raw = np.empty((lanes.count, width), np.float32)
        self._wide = np.empty((lanes.count, _ROWS, width))
        self._sums = np.empty((lanes.count, 2, width))
        self._openers: list[dict[int, UncheckedOpener]] = [{} for _ in range(lanes.count)]
        self._select()

    def average(self, tiles: Iterable[Sequence[Buffer]]) -> Published:
        """Average the selected rows, reading every row alike; then sign what was done.

        Raises UpdateRejected if any row's tile is not what the first pass read. That client is then
        out, whatever its weight was, the rest is selected anew from the same matrix, and the second
        pass can start over; or TooFewUpdates, if the rest is too few. Several tiles may be held at
        a time, so their memory must not be used again during the pass.
        """
        self._select()  # Again, because the last call may have ended in TooFewUpdates.
        config = self._context.terms
        aggregate = np.empty(config.dimension, np.float32)

        def average_span(lane: int, index: int, span: Span) -> None:
            aggregate[config.spans.part(index)] = self._mean(lane, span)

        try:
            self._lanes.batches(spans(tiles, config, len(self._rows)), average_span)
        except UpdateRejected as changed:
            self._standing.reject(changed.client, changed.reason)
            self._select()
            raise
        self._context.publication.claim()
        return self._publish(aggregate)

    def _select(self) -> None:
        """Multi-Krum (law 5) among the rows still standing."""
        alive = [row for row, member in enumerate(self._rows) if member.client in self._standing]
        self._standing.require(len(alive))
        among = self._distances[np.ix_(alive, alive)]
        kept = krum.multi_krum(among, self._standing.f, self._standing.kept(len(alive)))
        self._alive = alive
        self._selected = tuple(alive[place] for place in kept)
        self._weights = np.zeros(len(self._rows))
        for row in self._selected:
            self._weights[row] = self._scales[row] / len(kept)

    def _mean(self, lane: int, span: Span) -> Float64:
        """The weighted sum of one span. All rows are opened; those not selected weigh nothing."""
        size = self._context.terms.spans.size(span.index)
        total: Float64 = self._sums[lane, 0, :size]
        more = self._sums[lane, 1, :size]
        total.fill(0)
        for start in range(0, len(self._alive), _ROWS):
            rows = self._alive[start : start + _ROWS]
            wide = cut(self._wide[lane], len(rows), size)
            for row, out in zip(rows, wide, strict=True):
                np.copyto(out, self._reopen(lane, span, row, size))
            np.matmul(self._weights[rows], wide, out=more)
            total += more
        return total

    def _reopen(self, lane: int, span: Span, row: int, size: int) -> Float32:
        raw: Float32 = self._raw[lane, :size]
        opener = self._openers[lane].get(row)
        if opener is None:
            opener = self._openers[lane][row] = self._rows[row].opener.unchecked()
        try:
            tags = span.open_row(row, opener.open_into, raw.view(np.uint8))
            if not self._fingerprints.same(row, span.index, raw, tags):
                raise OpenError("tile")
        except OpenError:
            raise UpdateRejected(self._rows[row].client, Rejection.CHANGED) from None
        return raw

    def _cautions(self) -> tuple[str, ...]:
        config = self._context.terms
        leaky = (_LEAKY,) if config.masking == "gaussian" and not config.inside else ()
        unchecked = (_UNCHECKED,) if self._measured_by == "workers" and not config.verify else ()
        simulated = (_SIMULATED,) if self._context.evidence == SIMULATION else ()
        return leaky + unchecked + simulated + self._context.cautions

    def _rejected(self) -> dict[str, Rejection]:
        """In the roster's order, so that the same round has the same receipt."""
        rejected, roster = self._standing.rejected, self._context.federation.clients
        return {each.name: rejected[each.name] for each in roster if each.name in rejected}

    def _publish(self, aggregate: Float32) -> Published:
        selected = tuple(self._rows[row].client for row in self._selected)
        state = optimiser.advance(self._context.state, aggregate, self._context.terms.optimiser)
        return Published(
            aggregate=aggregate,
            state=state,
            receipt=self._context.identity.sign(self._receipt(aggregate, state, selected)),
            selected=selected,
            rejected=self._rejected(),
            distance_error=self._distance_error,
        )

    def _receipt(
        self, aggregate: Float32, state: ServerState, selected: tuple[str, ...]
    ) -> Receipt:
        context, config = self._context, self._context.terms
        salt = context.entropy(_SALT_BYTES)
        names = pack(*(client.encode() for client in selected))
        return Receipt(
            number=context.number,
            round_id=context.round_id,
            previous=context.previous,
            federation=context.federation.digest(),
            revision=context.federation.revision,
            evidence=context.evidence,
            aggregate=vector_digest(aggregate),
            model=vector_digest(state.model),
            participants=len(self._alive),
            kept=len(selected),
            rejected=tuple(
                RejectedClient(client, reason) for client, reason in self._rejected().items()
            ),
            commitment=hashlib.sha256(pack(_COMMITMENT, salt, names)).digest(),
            disclosed=config.disclose_selection,
            selected=selected if config.disclose_selection else (),
            masking=config.masking,
            distances=self._measured_by,
            cautions=self._cautions(),
            signature=UNSIGNED,
        )

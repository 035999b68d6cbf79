"""Multi-Krum on the decoded distances, the second pass, and the receipt."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ostraka.arrays import Buffer, Float32, Float64
from ostraka.core import rules
from ostraka.crypto.fingerprints import Fingerprints
from ostraka.encoding import UNSIGNED, pack
from ostraka.errors import LocalProtocolError, OpenError, Rejection, UpdateRejected
from ostraka.messages import Receipt, RejectedClient
from ostraka.roles.enclave.context import RoundContext, Row, Standing

_SALT_BYTES = 32
_COMMITMENT = b"ostraka/selection/v1"
_CAUTIONS = {
    "gaussian": ("gaussian masking: a single worker can recognise updates by the polar attack",),
}


@dataclass(frozen=True)
class Published:
    """The outcome of a round. `selected` stays inside unless the config discloses it."""

    aggregate: Float32
    receipt: Receipt
    selected: tuple[str, ...]
    rejected: dict[str, Rejection]
    distance_error: float


class Averaging:
    """Knows who was selected, and averages them in a second pass over the same bytes."""

    def __init__(
        self,
        context: RoundContext,
        rows: tuple[Row, ...],
        standing: Standing,
        fingerprints: Fingerprints,
        *,
        scales: Sequence[float],
        distances: Float64,
        distance_error: float,
        measured_by: str,
    ) -> None:
        self._context = context
        self._rows = rows
        self._standing = standing
        self._fingerprints = fingerprints
        self._scales = scales
        self._distances = distances
        self._distance_error = distance_error
        self._measured_by = measured_by
        self._aggregate = np.empty(context.rules.dimension, np.float32)
        self._raw = np.empty(context.rules.tile, np.float32)
        self._scaled = np.empty(context.rules.tile)
        self._start()

    def average(self, index: int, ciphertexts: Sequence[Buffer]) -> None:
        """Average tile `index` over the selected rows, reading every row alike.

        Raises UpdateRejected if any row's tile is not what the first pass read. That client is then
        out, whatever its weight was, the rest is selected anew from the same matrix, and the second
        pass starts over.
        """
        if index not in self._left:
            raise LocalProtocolError(f"tile {index} is not there to be averaged, or was before")
        length = self._context.rules.tile_length(index)
        raw, scaled, total = self._raw[:length], self._scaled[:length], np.zeros(length)
        for row, ciphertext in zip(self._alive, self._chosen(ciphertexts), strict=True):
            self._reopen(index, row, ciphertext, raw)
            np.multiply(raw, self._weights[row], out=scaled, dtype=np.float64)
            total += scaled
        self._aggregate[self._context.rules.tile_slice(index)] = total
        self._left.remove(index)

    def publish(self) -> Published:
        """The aggregate, and a signed receipt chained to the last one."""
        if self._left:
            raise LocalProtocolError(f"{len(self._left)} tiles were not averaged")
        selected = tuple(self._rows[row].client for row in self._selected)
        return Published(
            aggregate=self._aggregate,
            receipt=self._context.identity.sign(self._receipt(selected)),
            selected=selected,
            rejected=dict(self._standing.rejected),
            distance_error=self._distance_error,
        )

    def _start(self) -> None:
        """Select among the rows still standing (law 5), and begin the second pass."""
        alive = [row for row, member in enumerate(self._rows) if member.client in self._standing]
        self._standing.require(len(alive))
        among = self._distances[np.ix_(alive, alive)]
        kept = rules.multi_krum(among, self._standing.f, self._standing.kept(len(alive)))
        self._alive = alive
        self._selected = tuple(alive[place] for place in kept)
        self._weights = np.zeros(len(self._rows))
        for row in self._selected:
            self._weights[row] = self._scales[row] / len(kept)
        self._left = set(range(self._context.rules.tiles))

    def _chosen(self, ciphertexts: Sequence[Buffer]) -> list[Buffer]:
        """The tiles of the rows still standing: all of them, selected or not."""
        return [ciphertexts[row] for row in self._alive]

    def _reopen(self, index: int, row: int, ciphertext: Buffer, out: Float32) -> None:
        member = self._rows[row]
        try:
            if not self._fingerprints.same(row, index, ciphertext):
                raise OpenError("tile")
            member.opener.open_into(index, ciphertext, out)
        except OpenError:
            self._standing.reject(member.client, Rejection.CHANGED)
            self._start()
            raise UpdateRejected(member.client, Rejection.CHANGED) from None

    def _receipt(self, selected: tuple[str, ...]) -> Receipt:
        context, config = self._context, self._context.rules
        salt = context.entropy(_SALT_BYTES)
        names = pack(*(client.encode() for client in selected))
        return Receipt(
            number=context.number,
            round_id=context.round_id,
            previous=context.previous,
            config=context.federation.digest(),
            aggregate=hashlib.sha256(self._aggregate.data).digest(),
            participants=len(self._alive),
            kept=len(selected),
            rejected=tuple(
                RejectedClient(client, reason) for client, reason in self._standing.rejected.items()
            ),
            commitment=hashlib.sha256(pack(_COMMITMENT, salt, names)).digest(),
            disclosed=config.disclose_selection,
            selected=selected if config.disclose_selection else (),
            masking=config.masking,
            distances=self._measured_by,
            cautions=_CAUTIONS.get(config.masking, ()),
            signature=UNSIGNED,
        )

"""Opens the rows of a cohort, tile by tile, and holds each to its stated norm."""

from collections.abc import Sequence

import numpy as np

from ostraka.arrays import Buffer, Float32, Float64
from ostraka.crypto.fingerprints import Fingerprints
from ostraka.errors import LocalProtocolError, OpenError, Rejection
from ostraka.roles.enclave.averaging import Averaging
from ostraka.roles.enclave.context import RoundContext, Row, Standing
from ostraka.roles.enclave.lanes import Lanes

_NORM_TOLERANCE = 2.0**-10


class RowReader:
    """The first pass over one cohort. Rows come out scaled to the unit ball.

    A row that proves to be bad is read as zeros from then on and deleted from the matrix at the end:
    nothing is rerun, and no other row is affected.
    """

    def __init__(
        self, context: RoundContext, rows: tuple[Row, ...], standing: Standing, lanes: Lanes
    ) -> None:
        self.context = context
        self.rules = context.rules
        self.rows = rows
        self.lanes = lanes
        self._standing = standing
        self._clip = self.rules.clipping_norm([row.norm for row in rows])
        # Dividing by the larger of the two scales short rows with the federation, and long ones
        # down to the sphere.
        self._factors = [1.0 / max(self._clip, row.norm) for row in rows]
        self._squares = np.zeros(len(rows))
        self._fingerprints = Fingerprints(context.entropy)
        self._read = 0
        self._raw = np.empty((lanes.count, self.rules.tile), np.float32)
        self._scaled = np.empty((lanes.count, self.rules.tile))

    def begin(self, index: int, ciphertexts: Sequence[Buffer]) -> None:
        """Every tile is read once, in order, for all rows together: no mask may serve twice."""
        if index != self._read:
            raise LocalProtocolError(f"tile {self._read} is next to be read; got tile {index}")
        if len(ciphertexts) != len(self.rows):
            raise LocalProtocolError(f"{len(self.rows)} rows; got {len(ciphertexts)} tiles")
        self._read += 1

    def read(self, lane: int, index: int, row: int, ciphertext: Buffer) -> Float64:
        """One tile of one row, opened, checked and scaled: a view of the lane's scratch memory."""
        length = self.rules.tile_length(index)
        raw, scaled = self._raw[lane, :length], self._scaled[lane, :length]
        member = self.rows[row]
        flaw = self._standing.rejected.get(member.client)
        if flaw is None:
            self._fingerprints.keep(row, index, ciphertext)
            try:
                member.opener.open_into(index, ciphertext, raw)
                flaw = self._scale(row, raw, scaled)
            except OpenError:
                flaw = Rejection.UNOPENABLE_TILE
        if flaw is not None:
            self._standing.reject(member.client, flaw)
            scaled.fill(0)
        return scaled

    def finish(self, distances: Float64, error: float, *, measured_by: str) -> Averaging:
        """Judge the norms and hand the matrix over. `distances` and `error` are in unit balls."""
        if self._read != self.rules.tiles:
            raise LocalProtocolError(f"{self._read} of {self.rules.tiles} tiles were read")
        for row, member in enumerate(self.rows):
            # Written as a positive condition: a NaN fails it.
            if not abs(np.sqrt(self._squares[row]) - self.norm(row)) <= self._tolerance(row):
                self._standing.reject(member.client, Rejection.FALSE_NORM)
        return Averaging(
            self.context,
            self.rows,
            self._standing,
            self._fingerprints,
            self.lanes,
            scales=[factor * self._clip for factor in self._factors],
            distances=distances,
            distance_error=error * self._clip**2,
            measured_by=measured_by,
        )

    def norm(self, row: int) -> float:
        """The stated norm, scaled as the row is: at most 1."""
        return self.rows[row].norm * self._factors[row]

    def _scale(self, row: int, raw: Float32, scaled: Float64) -> Rejection | None:
        # An attacker's signalling NaN must not print a warning.
        with np.errstate(all="ignore"):
            np.multiply(raw, self._factors[row], out=scaled, dtype=np.float64)
            self._squares[row] += scaled @ scaled
        if not np.isfinite(self._squares[row]):
            return Rejection.NOT_FINITE
        # A row that is already too long cannot become short again, and must not be masked.
        if np.sqrt(self._squares[row]) > self.norm(row) + self._tolerance(row):
            return Rejection.FALSE_NORM
        return None

    def _tolerance(self, row: int) -> float:
        return self.norm(row) * _NORM_TOLERANCE

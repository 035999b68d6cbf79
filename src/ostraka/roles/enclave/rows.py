"""Opens the rows of a cohort, tile by tile, and holds each to its stated norm."""

from collections.abc import Sequence

import numpy as np

from ostraka.arrays import Buffer, Float64
from ostraka.crypto.fingerprints import Fingerprints
from ostraka.errors import LocalProtocolError, OpenError, Rejection
from ostraka.roles.enclave.averaging import Averaging
from ostraka.roles.enclave.context import RoundContext, Row, Standing

_NORM_TOLERANCE = 2.0**-10


class RowReader:
    """The first pass over one cohort. Rows come out scaled to the unit ball.

    A row that proves to be bad is read as zeros from then on and deleted from the matrix at the end:
    nothing is rerun, and no other row is affected.
    """

    def __init__(self, context: RoundContext, rows: tuple[Row, ...], standing: Standing) -> None:
        self.rules = context.rules
        self.rows = rows
        self._context = context
        self._standing = standing
        self._clip = self.rules.clipping_norm([row.norm for row in rows])
        # Dividing by the larger of the two scales short rows with the federation, and long ones
        # down to the sphere.
        self._factors = [1.0 / max(self._clip, row.norm) for row in rows]
        self._squares = np.zeros(len(rows))
        self._fingerprints = Fingerprints(context.entropy)
        self._unread = set(range(self.rules.tiles))
        self._raw = np.empty(self.rules.tile, np.float32)
        self._scaled = np.empty(self.rules.tile)

    def begin(self, index: int, ciphertexts: Sequence[Buffer]) -> None:
        """Every tile is read once, for all rows together: a mask must never serve twice."""
        if index not in self._unread:
            raise LocalProtocolError(f"tile {index} is not there to be read, or was read before")
        if len(ciphertexts) != len(self.rows):
            raise LocalProtocolError(f"{len(self.rows)} rows; got {len(ciphertexts)} tiles")
        self._unread.remove(index)

    def read(self, index: int, row: int, ciphertext: Buffer) -> Float64:
        """One tile of one row, opened, checked and scaled: a view of reused memory."""
        length = self.rules.tile_length(index)
        raw, scaled = self._raw[:length], self._scaled[:length]
        flaw = self._open(index, row, ciphertext)
        if flaw is None:
            # An attacker's signalling NaN must not print a warning.
            with np.errstate(all="ignore"):
                np.multiply(raw, self._factors[row], out=scaled, dtype=np.float64)
                self._squares[row] += scaled @ scaled
            flaw = self._flaw_so_far(row)
        if flaw is not None:
            self._standing.reject(self.rows[row].client, flaw)
            scaled.fill(0)
        return scaled

    def finish(self, distances: Float64, error: float, *, measured_by: str) -> Averaging:
        """Judge the norms and hand the matrix over. `distances` and `error` are in unit balls."""
        if self._unread:
            raise LocalProtocolError(f"{len(self._unread)} tiles were not read")
        for row, member in enumerate(self.rows):
            # Written as a positive condition: a NaN fails it.
            if not abs(np.sqrt(self._squares[row]) - self._norm(row)) <= self._tolerance(row):
                self._standing.reject(member.client, Rejection.FALSE_NORM)
        return Averaging(
            self._context,
            self.rows,
            self._standing,
            self._fingerprints,
            scales=[factor * self._clip for factor in self._factors],
            distances=distances,
            distance_error=error * self._clip**2,
            measured_by=measured_by,
        )

    def _open(self, index: int, row: int, ciphertext: Buffer) -> Rejection | None:
        member = self.rows[row]
        if member.client not in self._standing:
            return self._standing.rejected[member.client]
        self._fingerprints.keep(row, index, ciphertext)
        try:
            member.opener.open_into(index, ciphertext, self._raw[: self.rules.tile_length(index)])
        except OpenError:
            return Rejection.UNOPENABLE_TILE
        return None

    def _flaw_so_far(self, row: int) -> Rejection | None:
        """A row that is already too long cannot become short again, and must not be masked."""
        if not np.isfinite(self._squares[row]):
            return Rejection.NOT_FINITE
        if np.sqrt(self._squares[row]) > self._norm(row) + self._tolerance(row):
            return Rejection.FALSE_NORM
        return None

    def _norm(self, row: int) -> float:
        """The stated norm, scaled as the row is."""
        return self.rows[row].norm * self._factors[row]

    def _tolerance(self, row: int) -> float:
        return self._norm(row) * _NORM_TOLERANCE

"""Who takes part in a round: its fixed facts, its rows, and which of them still stand."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ostraka.arrays import Float32, Float64, Spares
from ostraka.config import Federation, Span, Terms, Tiling
from ostraka.core.metrics import Levels
from ostraka.core.optimiser import ServerState
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.identity import Identity
from ostraka.errors import LocalProtocolError, Rejection, TooFewUpdates
from ostraka.protocol.enclave.keeping import ELSEWHERE, Kept


class Publication:
    """The right to publish round `number`. There is one, however many attempts were made.

    Two results for one round would be a fork, and their difference may be a single update.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._claimed = False

    def claim(self) -> None:
        if self._claimed:
            raise LocalProtocolError(f"round {self.number} was published; it is published once")
        self._claimed = True


@dataclass(frozen=True)
class RoundContext:
    """The round's fixed facts. confirmed: whether anybody has to confirm the outcome. vectors: the
    memory for what it computes.

    span: the values of an update that are at hand here, and state: of these, before the round. An
    enclave without shards has all of them, and the lead of shards has none. spans: of all shards.
    model: the digest of the whole model before the round. last_square: of the whole last aggregate;
    None if the rule does not start from that.
    """

    federation: Federation
    identity: Identity = field(repr=False)
    entropy: Entropy = field(repr=False)
    publication: Publication
    round_id: bytes
    previous: bytes
    confirmed: bool
    state: ServerState = field(repr=False)
    span: Span
    spans: tuple[Span, ...]
    model: bytes
    evidence: str
    last_square: float | None = field(default=None, repr=False)
    cautions: tuple[str, ...] = ()
    vectors: Spares = field(default_factory=Spares, repr=False)

    @property
    def number(self) -> int:
        return self.publication.number

    @property
    def terms(self) -> Terms:
        return self.federation.terms


@dataclass
class Row:
    """One client's upload: its place in every matrix of the round.

    header: the leaf of its signed header in the cohort's tree. step: of integers, 0 for others.
    values: those of the context's span. sketch: (m,) what they are folded to, at the scale
    `scale_of(norm)`. along: their inner product with the last aggregate. report: its metrics, which
    no step but the last looks at; None if it reports none.
    """

    client: str
    upload_id: bytes
    header: bytes
    norm: float = field(repr=False)
    step: float = field(repr=False)
    values: Kept = field(default=ELSEWHERE, repr=False)
    sketch: Float32 | None = field(default=None, repr=False)
    along: float = field(default=0.0, repr=False)
    report: Levels | None = field(default=None, repr=False)


class Standing:
    """Which clients were rejected, and what is left of N and f.

    No veto: an update that its sender provably spoiled lowers N and f together, so that f liars
    cannot push N below what the rule needs. What the host could have caused lowers N alone.

    No shrinking: the signed terms' least number must have answered, and at most f of it with a
    lie. Otherwise f liars and a host that keeps the honest away would get an average of very few.
    """

    def __init__(self, terms: Terms, rejected: dict[str, Rejection]) -> None:
        self._terms = terms
        self.rejected = dict(rejected)

    def reject(self, client: str, reason: Rejection) -> None:
        self.rejected.setdefault(client, reason)

    def __contains__(self, client: str) -> bool:
        return client not in self.rejected

    @property
    def f(self) -> int:
        return self._terms.f - self._excused

    @property
    def _excused(self) -> int:
        """Return how many provable lies stand for an update; beyond f they stand for nothing."""
        liars = sum(reason.provable for reason in self.rejected.values())
        return min(liars, self._terms.f)

    def require(self, n: int) -> None:
        """Raises TooFewUpdates unless the rule stands on n updates, and the terms allow so few."""
        least = max(self._terms.least(self.f), self._terms.least(self._terms.f) - self._excused)
        if n < least:
            raise TooFewUpdates(str(self._terms.composition), least, n, self.f, dict(self.rejected))


@dataclass(frozen=True)
class Cohort:
    """Who takes part, in which row. Only `standing` changes from here on."""

    context: RoundContext
    rows: tuple[Row, ...]
    standing: Standing

    @property
    def terms(self) -> Terms:
        return self.context.terms

    @property
    def columns(self) -> Tiling:
        """What is measured here, and how that is cut."""
        return Tiling(self.terms.sketch or self.context.span.length, self.pieces.tile)

    @property
    def pieces(self) -> Tiling:
        """How passes over all rows cut what is here of them."""
        return Tiling(self.context.span.length, self.context.federation.pieces.tile)

    @cached_property
    def norms(self) -> Float64:
        """The rows' lengths (n,), as their headers state them."""
        return np.array([row.norm for row in self.rows])

    @cached_property
    def clip(self) -> float:
        """The clipping norm."""
        return self.terms.clipping_norm(self.norms)

    @cached_property
    def factors(self) -> Float64:
        """What each row (n,) is multiplied by to lie in the unit ball.

        Dividing by the larger of the two scales short rows with the federation, and long ones down
        to the sphere.
        """
        factors: Float64 = 1.0 / np.maximum(self.clip, self.norms)
        return factors

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(row.client for row in self.rows)

    @property
    def alive(self) -> list[int]:
        """The rows that still stand, in order."""
        return [row for row, member in enumerate(self.rows) if member.client in self.standing]

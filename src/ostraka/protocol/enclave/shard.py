"""One shard: a range of every update's values, and of the model.

The lead takes headers, decides and signs. A shard opens, checks, folds and keeps its tiles,
measures and combines its columns, and holds its slice of the model. It draws fold, masks, dither
and challenges itself: a seed from the lead would be used twice if the shard was started again.
"""

import os
from collections.abc import Sequence

import numpy as np

from ostraka.config import Federation, Span
from ostraka.core import optimiser
from ostraka.core.optimiser import ServerState
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.identity import Identity
from ostraka.errors import LocalProtocolError
from ostraka.protocol.enclave.arrival import Arrivals
from ostraka.protocol.enclave.cohort import Cohort, Publication, RoundContext, Standing
from ostraka.protocol.enclave.keeping import Keeping, Memory, Spool


class Shard:
    """A shard between rounds. state: of its span, after the last round."""

    def __init__(
        self,
        federation: Federation,
        identity: Identity,
        span: Span,
        state: ServerState,
        entropy: Entropy = os.urandom,
    ) -> None:
        if state.model.shape != (span.length,):
            raise LocalProtocolError(
                f"a slice of {len(state.model)} values is not one of {span.length}"
            )
        self.federation = federation
        self.span = span
        self.state = optimiser.frozen(state)
        self._identity = identity
        self._entropy = entropy

    def open_round(
        self,
        number: int,
        round_id: bytes,
        memory: Memory | None = None,
        spool: Spool | None = None,
    ) -> "ShardRound":
        """Take part in a round of the lead. Its secrets are drawn here, and end with it.

        memory, spool: as `Enclave.open_round` takes them.
        """
        memory = memory or Memory()
        federation = self.federation
        needed = federation.terms.composition.needs_last
        context = RoundContext(
            federation=federation,
            identity=self._identity,
            entropy=self._entropy,
            publication=Publication(number),
            round_id=round_id,
            previous=b"",
            confirmed=False,
            state=optimiser.keeping_last(self.state, needed),
            span=self.span,
            spans=(self.span,),
            model=b"",
            evidence="",
            vectors=memory.vectors,
        )
        keeping = Keeping(federation, memory, spool, self._entropy, self.span)
        return ShardRound(context, Arrivals(context, keeping))


class ShardRound:
    """A shard in an open round. part: takes its tiles."""

    def __init__(self, context: RoundContext, part: Arrivals) -> None:
        self.context = context
        self.part = part

    @property
    def last_square(self) -> float | None:
        """Of its slice of the last aggregate; None if the rule does not start from that."""
        return square_of(self.context.state)

    def close(self, uploads: Sequence[tuple[str, bytes]]) -> Cohort:
        """Fix the rows, by client and upload id, in the lead's order.

        Raises LocalProtocolError unless all of them are complete here.
        """
        self.part.stop()
        rows = self.part.rows(uploads)
        return Cohort(self.context, rows, Standing(self.context.terms, {}))


def square_of(state: ServerState) -> float | None:
    """The square of the last aggregate, or None if the rule does not start from it."""
    if state.last is None:
        return None
    return float(np.square(state.last, dtype=np.float64).sum())

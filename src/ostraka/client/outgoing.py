"""What goes out in place of a client's update: momentum, then error feedback, then the format.

    t_N = m_N + r_(N-1),  q_N = t_N rounded to the format,  r_N = t_N - q_N
    (error feedback: Seide et al. 2014; Karimireddy et al. 2019)

m_N is what momentum makes of the update of the number N, q_N is what goes out, and r_N, the
residual, is kept by its number (`kept`). So over many rounds all of every update goes out, however
coarse the format is. A residual belongs to one format: where the terms name another, it is dropped.

Statistics of batch norm are measured anew in each round, as a difference from the model: what
rounding took from them is in the next update by itself.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ostraka.arrays import Float32
from ostraka.client import kept, momentum
from ostraka.client.kept import Kept
from ostraka.client.momentum import Momentum
from ostraka.config import Federation, Terms
from ostraka.core import uploads
from ostraka.core.uploads import Encoded
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.updates import rounded


@dataclass(frozen=True)
class Feedback:
    """One client's error feedback.

    kept: the residuals of the format of the terms. others: those of other formats, until they are
    dropped.
    """

    terms: Terms
    kept: Kept
    others: list[Kept] = field(default_factory=list)
    entropy: Entropy = field(default=os.urandom, repr=False)

    def require_usable(self, number: int) -> None:
        """Raise StateError now if `apply` would for this number."""
        if self._rounds:
            kept.require_usable(self.kept, number)

    def apply(self, update: Float32, number: int) -> Encoded:
        """Round an update (d,), and keep what that took. Raises StateError and ConfigError.

        One that is not finite leaves the residual as it is; the enclave rejects it.
        """
        while self.others:
            kept.clear(self.others[-1])
            self.others.pop()
        if not self._rounds or not np.isfinite(update).all():
            return rounded(update, self.terms, self.entropy)
        return kept.carry(self.kept, number, lambda before: self._round(update, before))

    @property
    def _rounds(self) -> bool:
        return self.terms.upload != uploads.DEFAULT

    def _round(self, update: Float32, before: Float32 | None) -> tuple[Encoded, Float32]:
        target = update if before is None else update + before
        encoded = rounded(target, self.terms, self.entropy)
        sent, residual = encoded.widened(), np.zeros_like(target)
        for part in momentum.learned(self.terms.manifest):
            np.subtract(target[part], sent[part], out=residual[part])
        return encoded, residual


@dataclass(frozen=True)
class Outgoing:
    """Everything that happens to one client's updates before they are sealed."""

    momentum: Momentum
    feedback: Feedback

    @classmethod
    def of(
        cls, federation: Federation, keeping: Callable[[str], Kept], entropy: Entropy = os.urandom
    ) -> "Outgoing":
        """By the terms of a federation. keeping: where vectors of this name are kept."""
        terms = federation.terms
        residuals = {name: keeping(f"{name}-residual") for name in uploads.FORMATS}
        own = residuals.pop(terms.upload)
        return cls(
            Momentum.of(federation, keeping(momentum.WHAT)),
            Feedback(terms, own, list(residuals.values()), entropy),
        )

    def require_usable(self, number: int) -> None:
        """Raise StateError now if `apply` would for this number, after hours of training."""
        self.momentum.require_usable(number)
        self.feedback.require_usable(number)

    def apply(self, update: Float32, number: int) -> Encoded:
        """Return what goes out for this number in place of an update (d,). Raises as they do."""
        return self.feedback.apply(self.momentum.apply(update, number), number)

"""Client momentum: every client sends a running mean of its updates.

    m_N = b m_(N-1) + (1 - b) u_N,  from m = u the first time  (Karimireddy, He and Jaggi 2021)

u_N is the update of the number N, m_N is what goes out in its place, and b is `client_momentum` in
the terms of the round. m_N is kept by its number (`kept`), so that u_N counts once.

Statistics of batch norm are sent as they were measured: with momentum, a variance that falls would
go on falling, to below zero. They are known by the names that torch gives them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ostraka.arrays import Float32
from ostraka.client.kept import Kept, carry, require_usable
from ostraka.config import Federation, Manifest

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""How the names of tensors end that are counted or measured, and not learned."""

WHAT = "momentum"

_BLOCK = 2**18  # values at a time, so that float64 copies stay small


@dataclass(frozen=True)
class Momentum:
    """One client's momentum. beta: from 0 to below 1; with 0, nothing is read and nothing kept."""

    beta: float
    manifest: Manifest
    kept: Kept

    @classmethod
    def of(cls, federation: Federation, kept: Kept) -> "Momentum":
        """By the terms of a federation."""
        return cls(federation.terms.client_momentum, federation.terms.manifest, kept)

    def require_usable(self, number: int) -> None:
        """Raise StateError now if `apply` would for this number."""
        if self.beta:
            require_usable(self.kept, number)

    def apply(self, update: Float32, number: int) -> Float32:
        """Return what goes out (d,) for this number, which is kept by then. Raises StateError.

        update: (d,). One that is not finite would stay so for ever: it is not kept, and returned
        as it is.
        """
        if self.beta == 0 or not np.isfinite(update).all():
            return update

        def make(before: Float32 | None) -> tuple[Float32, Float32]:
            sent = update if before is None else moved(update, before, self.beta, self.manifest)
            return sent, sent

        return carry(self.kept, number, make)


def moved(update: Float32, before: Float32, beta: float, manifest: Manifest) -> Float32:
    """Return beta before + (1 - beta) update (d,), rounded once; statistics as in the update."""
    sent = update.copy()
    for part in learned(manifest):
        mean = np.multiply(before[part], beta, dtype=np.float64)
        mean += np.multiply(update[part], 1 - beta, dtype=np.float64)
        sent[part] = mean
    return sent


def is_statistic(name: str) -> bool:
    """Tell whether the tensor of this name is counted or measured, and not learned."""
    return name.endswith(STATISTICS)


def learned(manifest: Manifest) -> Iterator[slice]:
    """Yield where the learned tensors are, in blocks."""
    at = 0
    for tensor in manifest.tensors:
        end = at + math.prod(tensor.shape)
        if not is_statistic(tensor.name):
            yield from (slice(x, min(x + _BLOCK, end)) for x in range(at, end, _BLOCK))
        at = end

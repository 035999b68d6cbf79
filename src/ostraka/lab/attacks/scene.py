"""What an attacker sees when it chooses what to send."""

import math
from dataclasses import dataclass

import numpy as np

from ostraka.arrays import Float32
from ostraka.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Scene:
    """One attacker in one round.

    own: (d,), what it would have sent if it were honest, but for poisoned data if it has any.
    known: (m, d), honest updates that it knows; attackers that collude know the same ones, in the
    same order. round: from 1. clients, byzantine: the federation's n and f. scale: how strong the
    attack is; each attack says what that multiplies. rng: this attacker's own in this round.
    """

    own: Float32
    known: Float32
    round: int
    clients: int
    byzantine: int
    scale: float
    rng: np.random.Generator

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale >= 0):
            raise ConfigError(f"the scale of an attack is finite and not negative: {self.scale}")
        if len(self.known) and self.known.shape != (len(self.known), *self.own.shape):
            raise ConfigError(
                f"updates have one dimension d; got own {self.own.shape}, known {self.known.shape}"
            )

    def honest(self, least: int) -> Float32:
        """The known updates (m, d). Raises ConfigError if they are fewer than an attack needs."""
        if len(self.known) < least:
            raise ConfigError(
                f"this attack needs at least {least} known honest updates; got {len(self.known)}: "
                "let the attackers know more (--know all), or choose one that needs none: sign-flip"
            )
        return self.known

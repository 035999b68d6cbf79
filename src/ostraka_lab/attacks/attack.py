"""What all attacks have in common: what an attacker sees, and what it may change."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ostraka.arrays import Float32, Float64, Int64
from ostraka.errors import ConfigError
from ostraka_lab.data import Split
from ostraka_lab.data.dataset import UInt8
from ostraka_lab.defence import Defence

TARGET = 0  # the class that the backdoor leads to

DefaultScale: TypeAlias = Callable[[int, int], float]
"""The scale of an attack, from the numbers of clients and of attackers."""


def _no_backdoor(model: Float32) -> float:
    return 0.0


@dataclass(frozen=True, eq=False)
class Poison:
    """What becomes of an attacker's examples.

    share: how many of them carry the trigger. Bagdasaryan et al. put 20 in a batch of 64. number:
    which of the attackers it is, from 0.
    """

    classes: int
    rng: np.random.Generator
    target: int = TARGET
    share: float = 20 / 64
    number: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.target < self.classes:
            raise ConfigError(f"there is no class {self.target} among {self.classes}")
        if not 0 <= self.share <= 1:
            raise ConfigError(f"share must be from 0 to 1; got {self.share}")


@dataclass(frozen=True, eq=False)
class Scene:
    """One attacker in one round.

    own: (d,), what it would have sent if it were honest, but for poisoned data if it has any.
    known: (m, d), honest updates that it knows; attackers that collude know the same ones, in the
    same order. round: from 1. clients, byzantine: how many there are, and how many attack. scale:
    how strong the attack is; each attack says what that multiplies. rng: this attacker's own in
    this round. defence: what becomes of updates, which is public. root: the row of `known` that a
    defence with a root client trusts. model: (d,), from which all clients train in this round.
    layers: the sizes of its tensors, in their order. last: (d,), the last aggregate, which is
    public as well. memory: what the attack has learnt in rounds up to this one; None for nothing.
    works: how often a backdoor works with a model (d,), on examples of the attacker's own.
    """

    own: Float32
    known: Float32
    round: int
    clients: int
    byzantine: int
    scale: float
    rng: np.random.Generator
    defence: Defence
    model: Float32
    layers: tuple[int, ...]
    root: int | None = None
    last: Float64 | None = None
    memory: object = None
    works: Callable[[Float32], float] = _no_backdoor

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale >= 0):
            raise ConfigError(f"an attack's scale must be finite and at least 0; got {self.scale}")
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


@dataclass(frozen=True, eq=False)
class Course:
    """The line v(s) = start + s direction on which attackers choose what to send; both (d,).

    usual: steps s that a fixed form of the attack takes, for one that chooses s to try as well.
    """

    start: Float64
    direction: Float64
    usual: tuple[float, ...] = ()

    def at(self, step: float) -> Float32:
        return (self.start + step * self.direction).astype(np.float32)


def always(scale: float) -> DefaultScale:
    return lambda clients, byzantine: scale


_as_it_is = always(1.0)


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack on what a client sends, on what it trains with, or on both.

    send: what goes out in place of the update; None if the update itself does. poison: what becomes
    of the attacker's examples before it trains; None if they stay. trigger: what puts on images
    (n, c, h, w) what opens its backdoor; None if it has none. hold: the coordinates that its
    training leaves as they are, from the last aggregate (d,); None for none of them. learn: what it
    keeps of a round for the next ones, from a scene whose memory is that of the round before; None
    if it keeps nothing. least_known: how many honest updates it must know. scale_means: what the
    scale of the scene is to it; empty if nothing. default_scale: the scale from the numbers of
    clients and of attackers, if none is asked for. alike: whether attackers that know the same send
    the same to the bit.
    """

    name: str
    summary: str
    paper: str
    send: Callable[[Scene], Float32] | None = None
    poison: Callable[[Split, Poison], Split] | None = None
    trigger: Callable[[UInt8], UInt8] | None = None
    hold: Callable[[Float64], Int64] | None = None
    learn: Callable[[Scene], object] | None = None
    least_known: int = 0
    scale_means: str = ""
    default_scale: DefaultScale = _as_it_is
    alike: bool = False

    @property
    def needs_of_task(self) -> str:
        """What it needs that only a task of the lab shows to attackers; empty for nothing."""
        if self.trigger is not None:
            return "images on which it can put a trigger"
        if self.poison is not None:
            return "training examples that it can change"
        return "single steps of training" if self.hold is not None else ""

    @property
    def needs_known(self) -> bool:
        return self.least_known > 0

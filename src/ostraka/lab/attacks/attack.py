"""What all attacks have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ostraka.arrays import Float32
from ostraka.lab.attacks.poisoning import Poison
from ostraka.lab.attacks.scene import Scene
from ostraka.lab.data import Split

DefaultScale: TypeAlias = Callable[[int, int], float]


def always(scale: float) -> DefaultScale:
    return lambda clients, byzantine: scale


_as_it_is = always(1.0)


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack on what a client sends, on what it trains with, or on both.

    send: what goes out in place of the update; None if the update itself does. poison: what becomes
    of the attacker's examples before it trains; None if they stay. least_known: how many honest
    updates it must know. scale_means: what the scale of the scene is to it; empty if nothing.
    default_scale: the scale from the numbers of clients and of attackers, if none is asked for.
    """

    name: str
    summary: str
    paper: str
    send: Callable[[Scene], Float32] | None = None
    poison: Callable[[Split, Poison], Split] | None = None
    least_known: int = 0
    scale_means: str = ""
    default_scale: DefaultScale = _as_it_is

    @property
    def needs_known(self) -> bool:
        return self.least_known > 0

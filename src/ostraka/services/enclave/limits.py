"""No peer starves the others: so many at a time, so much a minute, so long for each."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

_MOST_PEERS = 4096  # remembered at a time; the longest silent one is forgotten first


class TooMany(Exception):
    """A peer asks for more than its share. It may come again later."""


@dataclass
class Rate:
    """So many requests a minute for each peer, in bursts of at most as many."""

    per_minute: int
    clock: Callable[[], float] = time.monotonic
    _buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def spend(self, peer: str) -> None:
        """One request. Raises TooMany."""
        now = self.clock()
        tokens, then = self._buckets.pop(peer, (float(self.per_minute), now))
        tokens = min(self.per_minute, tokens + (now - then) * self.per_minute / 60)
        self._buckets[peer] = (max(tokens - 1, 0) if tokens >= 1 else tokens, now)
        if len(self._buckets) > _MOST_PEERS:
            self._buckets.popitem(last=False)
        if tokens < 1:
            raise TooMany(f"more than {self.per_minute} requests a minute")


@dataclass
class Share:
    """So many at a time for each holder of a name."""

    most: int
    _held: dict[str, int] = field(default_factory=dict)

    def take(self, name: str) -> None:
        """Raises TooMany. Whoever takes gives back."""
        if self._held.get(name, 0) >= self.most:
            raise TooMany(f"more than {self.most} at a time")
        self._held[name] = self._held.get(name, 0) + 1

    def give_back(self, name: str) -> None:
        self._held[name] -= 1
        if not self._held[name]:
            del self._held[name]

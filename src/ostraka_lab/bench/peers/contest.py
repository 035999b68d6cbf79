"""The updates that everybody gets: a function of the seed, made row by row.

Weights are standard normals. An honest update is half a direction that all share and half its own
(by energy), so that a robust rule can tell it from its opposite; its norm is a ten-thousandth of
that of the weights. An attacker sends the opposite of its honest update.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from ostraka.arrays import Float32
from ostraka.core import rules
from ostraka.errors import ConfigError
from ostraka_lab.bench.parties import byzantine

SCALE = 1e-4  # of an update, beside the weights
_WEIGHTS, _COMMON, _OWN, _CAST = range(4)
_ROOM = 16  # columns a client, to find out afterwards who was averaged


@dataclass(frozen=True)
class Contest:
    """Sizes and seed. centred: the weights are zeros, so that all get differences."""

    clients: int
    dim: int
    threads: int = 1
    seed: int = 0
    centred: bool = False

    def __post_init__(self) -> None:
        rules.require_enough(rules.DEFAULT, self.clients, 1)
        if self.dim < _ROOM * self.clients:
            raise ConfigError(
                f"updates have at least {_ROOM} values a client, {_ROOM * self.clients} here; "
                f"got dim={self.dim}"
            )
        if self.threads < 1:
            raise ConfigError(f"threads must be at least 1; got {self.threads}")

    @property
    def f(self) -> int:
        return max(1, byzantine(self.clients))

    @property
    def k(self) -> int:
        return self.clients - self.f

    @cached_property
    def attackers(self) -> frozenset[int]:
        drawn = self._stream(_CAST).choice(self.clients, size=self.f, replace=False)
        return frozenset(drawn.tolist())

    @cached_property
    def weights(self) -> Float32:
        """The global model (d,), which is public."""
        return np.zeros(self.dim, np.float32) if self.centred else self._normals(_WEIGHTS)

    def update(self, row: int) -> Float32:
        """One client's difference from the weights (d,)."""
        size = math.sqrt(0.5) * SCALE * (-1 if row in self.attackers else 1)
        both = self._common + self._normals(_OWN, row)
        both *= np.float32(size)
        return both

    def updates(self) -> Iterator[Float32]:
        return map(self.update, range(self.clients))

    def trained(self, row: int) -> Float32:
        """One client's whole weights after training (d,), as Flower's clients send them."""
        return self.weights + self.update(row)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @cached_property
    def _common(self) -> Float32:
        return self._normals(_COMMON)

    def _normals(self, *purpose: int) -> Float32:
        return self._stream(*purpose).standard_normal(self.dim, dtype=np.float32)

    def _stream(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *purpose])

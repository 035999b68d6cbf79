"""Ways to split a data set among clients.

Every example goes to exactly one client, and every client gets at least one. The same seed gives
the same parts.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ostraka.errors import ConfigError
from ostraka_lab.data.dataset import Int64
from ostraka_lab.names import find

Parts = list[Int64]
_Generator = np.random.Generator


@dataclass(frozen=True)
class Partition:
    """A kind, and how strong it is. amount: None for the kind's own default, if it has one."""

    kind: str
    amount: float | None = None

    def __post_init__(self) -> None:
        rule = find("partition", self.kind, _RULES)
        if self.amount is None:
            object.__setattr__(self, "amount", rule.default)
        elif rule.default is None:
            raise ConfigError(f"{self.kind} takes no number; got {self.amount:g}")
        if self.amount is not None and not (math.isfinite(self.amount) and rule.fits(self.amount)):
            raise ConfigError(f"{self.kind} takes {rule.takes}; got {self.amount:g}")

    def __str__(self) -> str:
        return self.kind if self.amount is None else f"{self.kind}:{self.amount:g}"


def parse(text: str) -> Partition:
    """Parse what a user writes: iid, dirichlet:0.5, shards:2, quantity:1. Raises ConfigError."""
    kind, colon, amount = text.partition(":")
    if not colon:
        return Partition(kind)
    try:
        return Partition(kind, float(amount))
    except ConfigError:
        raise
    except ValueError:
        raise ConfigError(f"{text!r}: a number must follow the colon") from None


def split(labels: Int64, clients: int, partition: Partition, seed: int) -> Parts:
    """Give every client its examples, as indices in rising order. labels: (n,).

    Raises ConfigError if there are not enough examples to go round.
    """
    if not 1 <= clients <= len(labels):
        raise ConfigError(f"{len(labels)} examples cannot be split among {clients} clients")
    if seed < 0:
        raise ConfigError(f"seed must be at least 0; got {seed}")
    rule = _RULES[partition.kind]
    parts = rule.split(labels, clients, partition.amount or 0.0, np.random.default_rng(seed))
    return [np.sort(part) for part in _none_empty(parts)]


def holdings(labels: Int64, parts: Sequence[Int64], classes: int) -> Int64:
    """Count the examples of each class at every client: (clients, classes)."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def _iid(labels: Int64, clients: int, _: float, rng: _Generator) -> Parts:
    """Draw equal parts at random."""
    return np.array_split(rng.permutation(len(labels)), clients)


def _dirichlet(labels: Int64, clients: int, alpha: float, rng: _Generator) -> Parts:
    """Share out each class by proportions drawn from Dirichlet(alpha, ..., alpha).

    Yurochkin et al. 2019. The smaller alpha is, the fewer classes a client has; how many examples
    it has varies too.
    """
    pieces = [
        _by_proportion(rng.permutation(np.flatnonzero(labels == label)), shares)
        for label in np.unique(labels)
        for shares in [rng.dirichlet(np.full(clients, alpha))]
    ]
    return [np.concatenate(own) for own in zip(*pieces, strict=True)]


def _shards(labels: Int64, clients: int, per_client: float, rng: _Generator) -> Parts:
    """Cut the examples, sorted by label, into equal shards, and deal each client some of them.

    McMahan et al. 2017: with two shards, most clients have examples of two classes only.
    """
    each = int(per_client)
    if clients * each > len(labels):
        raise ConfigError(
            f"{len(labels)} examples cannot be cut into {clients} x {each} shards: ask for fewer"
        )
    shuffled = rng.permutation(len(labels))
    ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
    shards = np.array_split(ordered, clients * each)
    dealt = rng.permutation(clients * each).reshape(clients, each)
    return [np.concatenate([shards[number] for number in own]) for own in dealt]


def _quantity(labels: Int64, clients: int, skew: float, rng: _Generator) -> Parts:
    """Draw parts of different sizes: the i-th largest is in proportion to i^-skew (Zipf).

    Which client has the largest part is drawn too. Zero skew makes equal parts.
    """
    weights = np.arange(1, clients + 1, dtype=np.float64) ** -skew
    shares = rng.permutation(weights / weights.sum())
    return _by_proportion(rng.permutation(len(labels)), shares)


def _by_proportion(examples: Int64, shares: np.ndarray) -> Parts:
    """Cut into consecutive pieces in these proportions, as near as whole numbers come."""
    ends = np.rint(np.cumsum(shares)[:-1] * len(examples)).astype(np.int64)
    return np.split(examples, ends)


def _none_empty(parts: Parts) -> Parts:
    """Give each client without examples one from the client that then has the most."""
    parts = list(parts)
    for empty in [number for number, part in enumerate(parts) if not len(part)]:
        richest = max(range(len(parts)), key=lambda number: len(parts[number]))
        parts[empty], parts[richest] = parts[richest][-1:], parts[richest][:-1]
    return parts


@dataclass(frozen=True)
class _Rule:
    """How one kind splits. default: None for a kind that takes no number."""

    split: Callable[[Int64, int, float, _Generator], Parts]
    default: float | None = None
    takes: str = ""
    fits: Callable[[float], bool] = lambda _: True


_RULES = {
    "iid": _Rule(_iid),
    "dirichlet": _Rule(_dirichlet, 0.5, "an alpha above zero", lambda alpha: alpha > 0),
    "shards": _Rule(
        _shards, 2, "a number of shards per client", lambda each: each >= 1 and each % 1 == 0
    ),
    "quantity": _Rule(_quantity, 1.0, "a skew of zero or more", lambda skew: skew >= 0),
}
KINDS = tuple(_RULES)

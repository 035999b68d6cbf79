"""`ostraka bench leakage`: what one worker learns by attacking, and how precisely distances decode.

python -m ostraka_lab.bench.leakage PLAN

Updates are made up, and a worker is given its share of them, under Gaussian and under exact masks.
"""

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from dataclasses import field as entry
from functools import partial
from typing import Any

import numpy as np

from ostraka.arrays import AnyArray, Float64, UInt32
from ostraka.core import exact, field, gaussian, gram, leakage, loops
from ostraka.core.field import P
from ostraka.crypto.stream import SecretStream
from ostraka.errors import ConfigError
from ostraka_lab.bench.process import Begin, Figures, report

_TILE = 1024
_KEY_BYTES = 32
_TYPES = ("float32", "float64")
# Residues divided by p lie evenly between -1/2 and 1/2.
_EVEN_DEVIATION = 1 / math.sqrt(12)
_SIGMA, _EXACT, _POLAR = range(3)


def _even_updates(n: int, d: int, rng: np.random.Generator) -> Float64:
    """Draw random signs of norm 1: by Jensen's inequality the updates that leak most."""
    return np.asarray(rng.choice([-1.0, 1.0], (n, d)) / math.sqrt(d))


def _grid_noise(n: int, d: int, sigma: float, rng: np.random.Generator) -> Float64:
    """Draw noise by law 4, on the grid of the shares."""
    rows = gaussian.constant_distance(rng.standard_normal((n, d)), sigma=sigma)
    return gaussian.to_grid(rows, gaussian.grid_step(sigma), out=rows)


def _gaussian_shares(updates: Float64, mask: Float64, sigma: float) -> tuple[Float64, Float64]:
    """Give what the two workers see, by law 1."""
    plus, minus = np.empty_like(mask), np.empty_like(mask)
    gaussian.encode(updates, mask, step=gaussian.grid_step(sigma), plus=plus, minus=minus)
    return plus, minus


def _gaussian_error(updates: Float64, shares: Sequence[AnyArray], sigma: float) -> float:
    """Find the largest error of a decoded distance, from sums of the shares' type."""
    matrices = [_distances(share) for share in shares]
    decoded = gaussian.decode(*matrices, sigma=sigma, d=updates.shape[1])
    return float(np.abs(decoded - gram.naive(updates)).max())


def _exact_share(updates: Float64, rng: np.random.Generator) -> tuple[Float64, float]:
    """Give one worker's residues as signed numbers, by laws 7 to 10, and the largest error.

    updates: (n, d). Returns (n, d).
    """
    n, d = updates.shape
    stream = SecretStream(rng.bytes(_KEY_BYTES))
    steps = exact.step(np.linalg.norm(updates, axis=1), d)
    dither = np.frombuffer(stream.bytes(2 * n * d), np.uint16).reshape(n, d)
    mask = stream.uniform((n, d), field.P)
    plus, minus = shares = np.empty((2, n, d), np.uint32)
    rows = list(updates.astype(np.float32))
    s, v, _ = loops.share(rows, exact.scale(steps), dither, mask[None], shares)
    leading, *grams = (_field_gram(each) for each in (mask, plus, minus))
    decoded = exact.decode(dict(zip(exact.points(1), grams, strict=True)), leading)
    measured = gram.from_gram(exact.products(field.signed(decoded), steps, s, v))
    error = float(np.abs(measured - gram.naive(updates)).max())
    return field.signed(plus).astype(np.float64), error


def _distances(share: AnyArray) -> Float64:
    products: AnyArray = np.zeros((len(share), len(share)), share.dtype)
    for start in range(0, share.shape[1], _TILE):
        part = share[:, start : start + _TILE]
        products += part @ part.T
    return gram.from_gram(products).astype(np.float64)


def _field_gram(rows: UInt32) -> UInt32:
    products = np.zeros((len(rows), len(rows)), np.uint32)
    field.add_gram(products, rows)
    return products


@dataclass(frozen=True)
class Plan:
    """What to measure.

    clients, dimension: of the picture against sigma. powers: of two, for sigma in norms of an
    update. polar_clients: of the picture against clients. trials: suspicions of either kind.
    """

    clients: int = 16
    dimension: int = 20_000
    powers: tuple[int, ...] = tuple(range(-4, 25, 2))
    polar_clients: tuple[int, ...] = (4, 8, 16, 32, 64)
    trials: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        counts = (self.clients, *self.polar_clients)
        if min(counts) < 3 or max(counts) > self.dimension:
            raise ConfigError(
                f"clients must be from 3 to d = {self.dimension}; "
                f"got {min(counts)} to {max(counts)}"
            )
        if self.trials < 1:
            raise ConfigError(f"trials must be at least 1; got {self.trials}")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        fields: dict[str, Any] = json.loads(text)
        for name in ("powers", "polar_clients"):
            fields[name] = tuple(fields[name])
        return cls(**fields)

    @property
    def variance(self) -> float:
        """The variance of a coordinate of an update of norm 1, for law 6."""
        return leakage.clipped_variance(1.0, self.dimension)

    @property
    def usual_sigma(self) -> float:
        """The sigma that the default budget needs."""
        return leakage.sigma_for(leakage.DEFAULT_BITS, variance=self.variance, d=self.dimension)

    def stream(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *purpose])

    def suspicions(self, n: int, rng: np.random.Generator) -> Iterator[tuple[Float64, Float64]]:
        """Yield updates (n, d), and others that were not sent, until there are enough trials."""
        for _ in range(max(1, round(self.trials / n))):
            yield _even_updates(n, self.dimension, rng), _even_updates(n, self.dimension, rng)


@dataclass(frozen=True)
class _Attack:
    """The scores of an attack for true and for false suspicions."""

    true: list[float] = entry(default_factory=list)
    false: list[float] = entry(default_factory=list)

    def add(self, seen: Float64, updates: Float64, others: Float64) -> None:
        """Score one suspicion of either kind per row."""
        self.true.extend(map(leakage.matched_filter, seen, updates))
        self.false.extend(map(leakage.matched_filter, seen, others))

    @property
    def auc(self) -> float:
        return leakage.auc(np.array(self.true), np.array(self.false))


def measure(plan: Plan, begin: Begin) -> Figures:
    def counted(what: str, steps: Iterable[int]) -> Iterator[int]:
        for step in steps:
            begin(what.format(step), next(done), of)
            yield step

    of = len(plan.powers) + len(plan.polar_clients) + 1
    done = iter(range(of))
    against_sigma = [
        row for power in counted("sigma = 2^{}", plan.powers) for row in _gaussian(plan, power)
    ]
    begin("exact masks", next(done), of)
    return {
        "clients": plan.clients,
        "dimension": plan.dimension,
        "trials": plan.trials,
        "default_sigma": plan.usual_sigma,
        "gaussian": against_sigma,
        "exact": _exact(plan),
        "polar": [_polar(plan, n) for n in counted("polar attack, {} clients", plan.polar_clients)],
    }


def _gaussian(plan: Plan, power: int) -> list[Figures]:
    """Measure one point for each type of share. All see the same updates and the same noise."""
    sigma, rng = 2.0**power, plan.stream(_SIGMA, 1024 + power)
    mask = _grid_noise(plan.clients, plan.dimension, sigma, rng)
    seen = {name: _Attack() for name in _TYPES}
    # A row of noise serves many trials: projections on fresh updates are nearly independent.
    for updates, others in plan.suspicions(plan.clients, rng):
        shares = _gaussian_shares(updates, mask, sigma)
        for name, attack in seen.items():
            attack.add(shares[0].astype(name).astype(np.float64), updates, others)
    bound = leakage.bound_bits(sigma, variance=plan.variance, d=plan.dimension)
    return [
        {
            "dtype": name,
            "sigma": sigma,
            "bound_bits": bound,
            "auc": attack.auc,
            "distance_error": _gaussian_error(
                updates, [share.astype(name) for share in shares], sigma
            ),
            "distance_error_stated": leakage.decoding_error(
                sigma, d=plan.dimension, dtype=np.dtype(name), tile=_TILE
            ),
        }
        for name, attack in seen.items()
    ]


def _exact(plan: Plan) -> Figures:
    """Make the same attack on a share of exact masks, read as signed numbers."""
    rng, attack, errors = plan.stream(_EXACT), _Attack(), []
    for updates, others in plan.suspicions(plan.clients, rng):
        share, error = _exact_share(updates, rng)
        attack.add(share, updates, others)
        errors.append(error)
    return {"bound_bits": 0.0, "auc": attack.auc, "distance_error": max(errors)}


def _polar(plan: Plan, clients: int) -> Figures:
    """Make the polar attack on both maskings, at the noise of the default budget."""
    sigma, rng = plan.usual_sigma, plan.stream(_POLAR, clients)
    gaussian, exact = _Attack(), _Attack()
    for updates, others in plan.suspicions(clients, rng):
        share, _ = _gaussian_shares(
            updates, _grid_noise(clients, plan.dimension, sigma, rng), sigma
        )
        gaussian.add(leakage.polar(share, sigma=sigma), updates, others)
        residues = _exact_share(updates, rng)[0] / P
        exact.add(leakage.polar(residues, sigma=_EVEN_DEVIATION), updates, others)
    # How often two unit normals that far apart are told apart: Phi(signal / sqrt(2)).
    expected = (1 + math.erf(math.sqrt((clients + 1) / 2) / 2)) / 2
    return {
        "clients": clients,
        "sigma": sigma,
        "gaussian": gaussian.auc,
        "exact": exact.auc,
        "expected": expected,
    }


if __name__ == "__main__":
    asked = Plan.from_json(sys.argv[1])
    sys.exit(report(partial(measure, asked)))

"""What was fitted, far beyond what was measured; and what must be split for it."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ostraka.config import MAX_SKETCH_VALUES, MAX_TILE_VALUES, default_tile
from ostraka.core.exact import MAX_DIMENSION
from ostraka.core.sketch import MIN_SIZE
from ostraka_lab.bench.process import Figures
from ostraka_lab.bench.scale.fit import Size, predict, terms

TARGET = (10_000, 1_000_000_000)
_DRAWS = 200
_BAND = (5, 95)  # per cent
_HOUR_S = 3600
_ENTRY_BYTES = 8  # of a matrix of distances

Sample = tuple[Size, Sequence[float]]
"""A size, and what each of its runs cost."""


def extrapolate(samples: Sequence[Sample], names: Sequence[str], size: Size) -> Figures:
    """The middle, the band that nine in ten draws fall in, and how far the fit misses sizes.

    A draw takes one run of each size at random with replacement, as often as there are runs, and
    is fitted anew. So the band holds the noise of the runs, and not what no size showed.
    """
    rng = np.random.default_rng(0)
    medians = [float(np.median(runs)) for _, runs in samples]
    sizes = [each for each, _ in samples]
    middle = terms(sizes, medians, names)
    drawn = [
        predict(terms(sizes, [_again(runs, rng) for _, runs in samples], names), size)
        for _ in range(_DRAWS)
    ]
    low, high = np.percentile(drawn, _BAND)
    return {
        "value": predict(middle, size),
        "low": float(low),
        "high": float(high),
        "terms": middle,
        "misfit": _misfit(middle, sizes, medians),
    }


def _misfit(
    coefficients: Mapping[str, float], sizes: Sequence[Size], costs: Sequence[float]
) -> float:
    """The root mean square of the relative errors, at the sizes that were measured."""
    ratios = [predict(coefficients, size) / cost for size, cost in zip(sizes, costs, strict=True)]
    return float(np.sqrt(np.mean((np.array(ratios) - 1) ** 2)))


def splits(clients: int, dim: int, costs: Mapping[str, float]) -> list[Figures]:
    """What cannot be in one piece, why, and into how many pieces it must go."""
    tile, checks = default_tile(clients, dim), _checks(clients, dim, costs)
    found = [
        {"what": what, "why": why, "pieces": math.ceil(need / limit)}
        for what, why, need, limit in checks
        if need > limit
    ]
    if tile < 1024:
        found.append(
            {
                "what": "tiles",
                "why": f"{MAX_TILE_VALUES:,} values for all clients leave {tile} a client: "
                "every one is a message, and its 16 bytes of tag begin to count",
                "pieces": math.ceil(1024 / tile),
            }
        )
    return found


def _checks(
    clients: int, dim: int, costs: Mapping[str, float]
) -> list[tuple[str, str, float, float]]:
    """What, why, what is needed, and what one piece can have."""
    checks: list[tuple[str, str, float, float]] = [
        (
            "dimensions, by the field",
            f"one inner product must not wrap around: at most {MAX_DIMENSION:,} values",
            dim,
            MAX_DIMENSION,
        ),
        (
            "clients, by the sketch",
            f"{MAX_SKETCH_VALUES:,} values for all sketches, of at least {MIN_SIZE:,} each",
            clients * MIN_SIZE,
            MAX_SKETCH_VALUES,
        ),
        (
            "clients, by the matrix",
            f"{clients**2 * _ENTRY_BYTES / 2**30:.2g} GiB of distances in the enclave; "
            "a gibibyte is taken as the limit",
            clients**2 * _ENTRY_BYTES,
            2**30,
        ),
    ]
    for name, seconds in costs.items():
        checks.append(
            (
                f"dimensions, by time ({name})",
                f"{seconds / _HOUR_S:.3g} hours on one core; Gram matrices and norms of parts of "
                "the columns add up, so parts can go to enclaves side by side",
                seconds,
                _HOUR_S,
            )
        )
    return checks


def _again(runs: Sequence[float], rng: np.random.Generator) -> float:
    return float(np.median(rng.choice(np.array(runs), len(runs))))

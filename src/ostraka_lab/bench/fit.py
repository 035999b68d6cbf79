"""How cost grows with clients and with values: fits, forecasts, and what must be split.

    exponents     cost = c N^a d^b: a line through logarithms, by least squares
    terms         cost = sum of c_k term_k(N, d, m), no c_k negative, relative errors least
    extrapolate   that sum far beyond what was measured
    splits        what is too large for one enclave or one core there

A sum of terms follows what the code does: a cost per client, per value, per pair of clients. An
exponent only describes how the sum looks over some range.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType

import numpy as np

from ostraka.arrays import Float64
from ostraka.config import MAX_PIECE_VALUES
from ostraka.core.exact import MAX_DIMENSION
from ostraka.errors import ConfigError
from ostraka_lab.bench.parties import SKETCH_VALUES
from ostraka_lab.bench.process import Figures

TARGET = (10_000, 1_000_000_000)

_DRAWS = 200
_BAND = (5, 95)  # per cent
_HOUR_S = 3600
_ENTRY_BYTES = 8  # of a matrix of distances
_LEAST_PIECE = 1024


@dataclass(frozen=True)
class Size:
    """N clients of d values, measured on m columns: d, or the size of a sketch; n shards."""

    clients: int
    dimension: int
    columns: int
    shards: int = 1


Sample = tuple[Size, Sequence[float]]
"""A size, and what each of its runs cost."""

TERMS: Mapping[str, Callable[[Size], float]] = MappingProxyType(
    {
        "1": lambda size: 1.0,
        "N": lambda size: float(size.clients),
        "d": lambda size: float(size.dimension),
        "N d": lambda size: float(size.clients) * size.dimension,
        "N m": lambda size: float(size.clients) * size.columns,
        "N²": lambda size: float(size.clients) ** 2,
        "N² m": lambda size: float(size.clients) ** 2 * size.columns,
        "d/n": lambda size: size.dimension / size.shards,
        "N d/n": lambda size: float(size.clients) * size.dimension / size.shards,
        "N m n": lambda size: float(size.clients) * size.columns * size.shards,
        "N² n": lambda size: float(size.clients) ** 2 * size.shards,
    }
)


@dataclass(frozen=True)
class Exponent:
    """An exponent of a fit. error: one standard error."""

    value: float
    error: float


def exponents(sizes: Sequence[Size], costs: Sequence[float]) -> dict[str, Exponent]:
    """Fit the exponents of N and of d. Raises ConfigError if the sizes do not determine them."""
    rows = np.array([[1.0, math.log(size.clients), math.log(size.dimension)] for size in sizes])
    if len(rows) < 4 or np.linalg.matrix_rank(rows) < rows.shape[1]:
        raise ConfigError("exponents need at least four sizes, of different N and of different d")
    solution, *_ = np.linalg.lstsq(rows, np.log(np.array(costs)), rcond=None)
    residues = np.log(np.array(costs)) - rows @ solution
    variance = float(residues @ residues) / (len(rows) - rows.shape[1])
    errors = np.sqrt(variance * np.diagonal(np.linalg.inv(rows.T @ rows)))
    return {
        name: Exponent(float(solution[place]), float(errors[place]))
        for place, name in ((1, "N"), (2, "d"))
    }


def terms(sizes: Sequence[Size], costs: Sequence[float], names: Sequence[str]) -> dict[str, float]:
    """Fit the coefficients, by term. Terms that explain nothing are zero."""
    features = np.array([[TERMS[name](size) for name in names] for size in sizes])
    wanted = np.array(costs)
    # Divided by what was measured, so that a small size counts as much as a large one.
    found = nonnegative(features / wanted[:, None], np.ones_like(wanted))
    return dict(zip(names, found.tolist(), strict=True))


def predict(coefficients: Mapping[str, float], size: Size) -> float:
    return sum(factor * TERMS[name](size) for name, factor in coefficients.items())


def nonnegative(features: Float64, wanted: Float64) -> Float64:
    """Find x >= 0 (k,) for which features (n, k) x is nearest to wanted (n,).

    The best x is the plain least-squares solution on the columns where it is not zero. There are
    few columns, so every set of them is tried.
    """
    count = features.shape[1]
    scales = np.linalg.norm(features, axis=0)
    best, least = np.zeros(count), float(wanted @ wanted)
    for size in range(1, count + 1):
        for columns in map(list, combinations(range(count), size)):
            part = features[:, columns] / scales[columns]
            solution, *_ = np.linalg.lstsq(part, wanted, rcond=None)
            error = float(np.sum((part @ solution - wanted) ** 2))
            if (solution >= 0).all() and error < least:
                best, least = np.zeros(count), error
                best[columns] = solution / scales[columns]
    return best


def extrapolate(samples: Sequence[Sample], names: Sequence[str], size: Size) -> Figures:
    """Forecast a cost: a value, the band of nine in ten draws, and the misfit at measured sizes.

    A draw takes one run of each size at random with replacement, as often as there are runs, and
    is fitted anew. So the band holds the noise of the runs, and no effect that no size showed.
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


def splits(
    clients: int, dimension: int, costs: Mapping[str, float], *, sketch: int
) -> list[Figures]:
    """List what cannot be in one piece, why, and the number of pieces that it takes.

    sketch: the columns of the shortest sketch that the rule takes.
    """
    piece, checks = MAX_PIECE_VALUES // clients, _checks(clients, dimension, costs, sketch)
    found = [
        {"what": what, "why": why, "pieces": math.ceil(need / limit)}
        for what, why, need, limit in checks
        if need > limit
    ]
    if piece < _LEAST_PIECE:
        found.append(
            {
                "what": "pieces of tiles",
                "why": f"{MAX_PIECE_VALUES:,} values for all clients leave {piece} per client: "
                "every piece is a message, and its 16 bytes of tag begin to count",
                "pieces": math.ceil(_LEAST_PIECE / piece),
            }
        )
    return found


def _checks(
    clients: int, dimension: int, costs: Mapping[str, float], sketch: int
) -> list[tuple[str, str, float, float]]:
    """What to check: a name, a reason, what is needed, and what one piece can have."""
    checks: list[tuple[str, str, float, float]] = [
        (
            "dimensions, by the field",
            f"one inner product must not wrap around: at most {MAX_DIMENSION:,} values",
            dimension,
            MAX_DIMENSION,
        ),
        (
            "clients, by the sketch",
            f"{SKETCH_VALUES:,} values for all sketches, of at least {sketch:,} each",
            clients * sketch,
            SKETCH_VALUES,
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

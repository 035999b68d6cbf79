"""Exponents and sums of terms, fitted to what was measured.

    exponents   cost = c N^a d^b: a line through logarithms, by least squares
    terms       cost = sum of c_k term_k(N, d, m), no c_k negative, relative errors least

A sum of terms is what the code does: so much a client, a value, a pair of clients. An exponent only
says what it looks like over some range.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType

import numpy as np

from ostraka.arrays import Float64
from ostraka.errors import ConfigError


@dataclass(frozen=True)
class Size:
    """N clients of d values, measured on m columns: d, or the size of a sketch."""

    clients: int
    dim: int
    columns: int


TERMS: Mapping[str, Callable[[Size], float]] = MappingProxyType(
    {
        "1": lambda size: 1.0,
        "N": lambda size: float(size.clients),
        "d": lambda size: float(size.dim),
        "N d": lambda size: float(size.clients) * size.dim,
        "N m": lambda size: float(size.clients) * size.columns,
        "N²": lambda size: float(size.clients) ** 2,
        "N² m": lambda size: float(size.clients) ** 2 * size.columns,
    }
)


@dataclass(frozen=True)
class Exponent:
    """error: one standard error of the fit."""

    value: float
    error: float


def exponents(sizes: Sequence[Size], costs: Sequence[float]) -> dict[str, Exponent]:
    """Of N and of d. Raises ConfigError if the sizes do not tell them apart."""
    rows = np.array([[1.0, math.log(size.clients), math.log(size.dim)] for size in sizes])
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
    """The coefficients, by term; those that nothing is left for are zero."""
    features = np.array([[TERMS[name](size) for name in names] for size in sizes])
    wanted = np.array(costs)
    # Divided by what was measured, so that a small size counts as much as a large one.
    found = nonnegative(features / wanted[:, None], np.ones_like(wanted))
    return dict(zip(names, found.tolist(), strict=True))


def predict(coefficients: Mapping[str, float], size: Size) -> float:
    return sum(factor * TERMS[name](size) for name, factor in coefficients.items())


def nonnegative(features: Float64, wanted: Float64) -> Float64:
    """x >= 0 (k,) for which features (n, k) x is nearest to wanted (n,).

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

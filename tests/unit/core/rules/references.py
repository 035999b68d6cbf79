"""Every rule and pre-aggregation written again, on rows in float64 and without inner products.

Each follows its paper word by word, slowly. `Tie` is raised where a selection hangs on a difference
that rounding decides: neither answer is wrong then.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.cluster import HDBSCAN

from ostraka.arrays import Float64, Int64
from ostraka.core.rules import Gram, Options

KINDS = ("iid", "common", "clustered", "colluders", "near equal", "zeros", "twins", "backwards")
CLOSE = 1e-9  # scores that differ by a smaller part of the largest may come in either order

_WEISZFELD_STEPS = 100
_CLIPPING_STEPS = 3


class Tie(Exception):
    """Two answers are right."""


def federation(rng: np.random.Generator, kind: str, n: int, f: int) -> Float64:
    """Rows (n, d), of which the first f are the attackers'."""
    d = int(rng.integers(1, 40))
    rows = rng.standard_normal((n, d))
    honest = rows[f:]
    if kind == "common":
        rows += 3 * rng.standard_normal(d)
    if kind == "clustered":
        rows += rng.standard_normal((3, d))[rng.integers(0, 3, n)] * 4
    if kind == "colluders":
        rows += rng.standard_normal(d)
        rows[:f] = honest.mean(axis=0) - rng.uniform(0.5, 30) * honest.std(axis=0)
    if kind == "near equal":
        rows = rng.standard_normal(d) + 1e-3 * rows
    if kind == "zeros":
        rows[rng.random(n) < 0.3] = 0
    if kind == "twins":
        rows = rows[rng.integers(0, n, n)]
    if kind == "backwards":
        rows += rng.standard_normal(d)
        rows[:f] *= -rng.uniform(0.1, 100, (f, 1))
    return rows * 10 ** rng.uniform(-3, 3)


def gram_of(rows: Float64, root: int | None = None, last: Float64 | None = None) -> Gram:
    """The inner products, pair by pair: so equal rows have equal ones, to the bit."""
    unit = 2.0 ** math.ceil(math.log2(max(float(np.linalg.norm(rows, axis=1).max()), 1e-30)))
    scaled = rows / unit
    products = np.array([[one @ other for other in scaled] for one in scaled])
    if last is None:
        return Gram(products, np.zeros(()), unit, root)
    ended = last / unit
    return Gram(products, np.zeros(()), unit, root, scaled @ ended, float(ended @ ended))


def lowest(scores: Float64, count: int, rows: Float64) -> list[int]:
    """The numbers of the lowest scores. Raises Tie if rounding decides between unequal rows."""
    order = sorted(range(len(scores)), key=lambda row: (scores[row], row))
    if count < len(order):
        margin = CLOSE * float(np.abs(scores).max()) + 1e-300
        edge = scores[order[count]]
        close = [row for row in order if abs(scores[row] - edge) <= margin]
        inside = set(order[:count])
        if inside & set(close) and any((rows[row] != rows[close[0]]).any() for row in close):
            raise Tie
    return sorted(order[:count])


def squared_distances(rows: Float64) -> Float64:
    distances: Float64 = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    return distances


# Pre-aggregations: rows -> rows


def nnm(rows: Float64, f: int, options: Options, order: Int64) -> Float64:
    distances = squared_distances(rows)
    kept = [lowest(distances[row], len(rows) - f, rows) for row in range(len(rows))]
    return np.stack([rows[each].mean(axis=0) for each in kept])


def bucketing(rows: Float64, f: int, options: Options, order: Int64) -> Float64:
    shuffled, size = rows[order], options.bucket
    starts = range(0, len(rows), size)
    return np.stack([shuffled[start : start + size].mean(axis=0) for start in starts])


def arc(rows: Float64, f: int, options: Options, order: Int64) -> Float64:
    n = len(rows)
    lengths = sorted(float(np.linalg.norm(row)) for row in rows)
    return shorten(rows, lengths[n - (2 * f * (n - f)) // n - 1])


def clip(rows: Float64, f: int, options: Options, order: Int64) -> Float64:
    median = float(np.median(np.linalg.norm(rows, axis=1)))
    return shorten(rows, options.radius or median)


def shorten(rows: Float64, longest: float) -> Float64:
    lengths = [float(np.linalg.norm(row)) for row in rows]
    return np.stack(
        [
            row * (longest / length) if length > longest else row
            for row, length in zip(rows, lengths, strict=True)
        ]
    )


# Rules: rows -> aggregate


def mean(rows: Float64, f: int, options: Options, **_: Any) -> Float64:
    return rows.sum(axis=0) / len(rows)


def cge(rows: Float64, f: int, options: Options, **_: Any) -> Float64:
    kept = lowest(np.linalg.norm(rows, axis=1), len(rows) - f, rows)
    return rows[kept].mean(axis=0)


def krum_scores(rows: Float64, f: int, options: Options) -> Float64:
    n, distances = len(rows), squared_distances(rows)
    nearest = n - f - 2 if options.neighbours is None else min(options.neighbours, n - 1)
    return np.array([sum(sorted(np.delete(distances[i], i))[:nearest]) for i in range(n)])


def multi_krum(rows: Float64, f: int, options: Options, **_: Any) -> Float64:
    k = min(options.k or len(rows) - f, len(rows) - f)
    return rows[lowest(krum_scores(rows, f, options), k, rows)].mean(axis=0)


def krum(rows: Float64, f: int, options: Options, **_: Any) -> Float64:
    return rows[lowest(krum_scores(rows, f, options), 1, rows)[0]]


def geometric_median(rows: Float64, f: int, options: Options, **_: Any) -> Float64:
    centre = np.zeros(rows.shape[1])
    smoothing = options.smoothing or 1e-5 * float(np.linalg.norm(rows, axis=1).max()) or 1.0
    for _step in range(options.iterations or _WEISZFELD_STEPS):
        weights = 1 / np.maximum(np.linalg.norm(rows - centre, axis=1), smoothing)
        centre = weights @ rows / weights.sum()
    return centre


def centred_clipping(
    rows: Float64, f: int, options: Options, last: Float64 | None = None, **_: Any
) -> Float64:
    if options.centre == "medoid":
        sums = np.sqrt(squared_distances(rows)).sum(axis=1)
        centre = rows[lowest(sums, 1, rows)[0]]
    else:
        centre = np.zeros(rows.shape[1]) if last is None else last
    for _step in range(options.iterations or _CLIPPING_STEPS):
        away = rows - centre
        lengths = np.linalg.norm(away, axis=1)
        radius = options.radius or float(np.median(lengths))
        centre = centre + shorten(away, radius).mean(axis=0)
    return centre


def mda(rows: Float64, f: int, options: Options, **_: Any) -> Float64:
    distances = squared_distances(rows)
    subsets = [list(each) for each in itertools.combinations(range(len(rows)), len(rows) - f)]
    diameters = [float(distances[np.ix_(each, each)].max()) for each in subsets]
    least = min(diameters)
    pairs = np.argwhere(np.triu(np.abs(distances - least) <= CLOSE * least, 1))
    if len({rows[np.sort(pair)].tobytes() for pair in pairs}) > 1:
        raise Tie
    return rows[subsets[diameters.index(least)]].mean(axis=0)


def caf(rows: Float64, f: int, options: Options, **_: Any) -> Float64:
    n = len(rows)
    counts, least, best = np.ones(n), math.inf, rows.mean(axis=0)
    scale = float((rows**2).sum(axis=1).max())
    while counts.sum() > n - 2 * f and np.count_nonzero(counts) >= f + 2:
        centre = counts @ rows / counts.sum()
        away = rows - centre
        spread = away * np.sqrt(counts / counts.sum())[:, None]
        values, directions = np.linalg.svd(spread, full_matrices=False)[1:]
        variance = float(values[0] ** 2)
        if variance <= 1e-12 * scale:
            return best if least < variance else centre
        if len(values) > 1 and values[1] > (1 - 1e-6) * values[0]:
            raise Tie
        if least * (1 - CLOSE) <= variance <= least * (1 + CLOSE):
            raise Tie
        if variance < least:
            least, best = variance, centre
        tau = (away @ directions[0]) ** 2
        tau /= tau[counts > 0].max()
        counts = np.where(counts > 0, counts * (1 - tau), 0)
        counts[counts <= 1e-9 * n] = 0
        if abs(counts.sum() - (n - 2 * f)) <= CLOSE * n:
            raise Tie  # Rounding decides whether there is another step.
    return best


def dnc(rows: Float64, f: int, options: Options, **_: Any) -> Float64:
    away = rows - rows.mean(axis=0)
    values, directions = np.linalg.svd(away, full_matrices=False)[1:]
    if len(values) > 1 and values[1] > (1 - 1e-6) * values[0]:
        raise Tie
    kept = lowest((away @ directions[0]) ** 2, len(rows) - f, rows)
    return rows[kept].mean(axis=0)


def flame(rows: Float64, f: int, options: Options, **_: Any) -> Float64:
    n = len(rows)
    if rows.shape[1] == 1:
        raise Tie  # All cosines are 1 or -1, and the order of equal links decides.
    lengths = np.linalg.norm(rows, axis=1)
    directions = rows / np.where(lengths > 0, lengths, 1)[:, None]
    apart = 1 - directions @ directions.T
    # Twins are at rounding errors from each other, which would decide in which order they link.
    apart[np.abs(apart) < 1e-14] = 0
    np.fill_diagonal(apart, 0)
    found = HDBSCAN(
        min_cluster_size=n // 2 + 1,
        min_samples=1,
        metric="precomputed",
        allow_single_cluster=True,
        copy=True,
    ).fit_predict((apart + apart.T) / 2)
    return shorten(rows, float(np.median(lengths)))[found == 0].mean(axis=0)


def fltrust(rows: Float64, f: int, options: Options, root: int, **_: Any) -> Float64:
    trusted = rows[root]
    length = float(np.linalg.norm(trusted))
    total, aggregate = 0.0, np.zeros(rows.shape[1])
    for row in np.delete(rows, root, axis=0):
        own = float(np.linalg.norm(row))
        score = max(0.0, float(row @ trusted) / (own * length)) if own and length else 0.0
        if score:
            total, aggregate = total + score, aggregate + score * (length / own) * row
    if not total:
        raise Tie  # Nobody is trusted, and there is no aggregate.
    return aggregate / total


def monna(rows: Float64, f: int, options: Options, root: int, **_: Any) -> Float64:
    kept = lowest(squared_distances(rows)[root], len(rows) - f, rows)
    return rows[kept].mean(axis=0)


PRE: dict[str, Callable[[Float64, int, Options, Int64], Float64]] = {
    "nnm": nnm,
    "bucketing": bucketing,
    "arc": arc,
    "clip": clip,
}
RULES: dict[str, Callable[..., Float64]] = {
    "mean": mean,
    "multi-krum": multi_krum,
    "krum": krum,
    "geometric-median": geometric_median,
    "centred-clipping": centred_clipping,
    "mda": mda,
    "caf": caf,
    "dnc": dnc,
    "cge": cge,
    "flame": flame,
    "fltrust": fltrust,
    "monna": monna,
}


def aggregate(
    name: str, pre: tuple[str, ...], rows: Float64, f: int, options: Options, **given: Any
) -> Float64:
    """What a composition makes of rows. given: order (n,), root (a row) and last (d,), if any."""
    order = given.pop("order", np.arange(len(rows)))
    for step in pre:
        rows = PRE[step](rows, f, options, order)
    return RULES[name](rows, f, options, **given)

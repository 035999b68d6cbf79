"""What is claimed of rules: their (f, kappa) bounds, and that no client has a large share.

A rule R is (f, kappa)-robust if for every n rows, and every S of n - f of them with the mean m,
|R - m|^2 <= kappa / |S| x the sum over S of |x_i - m|^2 (Allouah et al., AISTATS 2023).
"""

from collections.abc import Callable

import numpy as np
import pytest

from ostraka.arrays import Float64
from ostraka.core import rules
from ostraka.core.rules import Columnwise, Gram, Plan, Weights

ROOT = "(root=hospital-a)"


def ratio(n: int, f: int) -> float:
    return f / (n - 2 * f)


def after_nnm(kappa: Callable[[int, int], float]) -> Callable[[int, int], float]:
    """Nearest neighbour mixing before a rule."""
    return lambda n, f: 8 * f / (n - f) * (kappa(n, f) + 1)


def after_arc(kappa: Callable[[int, int], float]) -> Callable[[int, int], float]:
    """Adaptive clipping before a rule."""
    return lambda n, f: kappa(n, f) + 2 * ratio(n, f)


def of_krum(n: int, f: int) -> float:
    return 6 * (1 + ratio(n, f))


def of_medians(n: int, f: int) -> float:
    return 4 * (1 + ratio(n, f)) ** 2


def of_trimmed_mean(n: int, f: int) -> float:
    return 6 * ratio(n, f) * (1 + ratio(n, f))


def of_subsets(n: int, f: int) -> float:
    return 8 * f**2 / (n - f)


KAPPA: dict[str, Callable[[int, int], float]] = {
    "geometric-median": of_medians,
    "multi-krum": of_krum,
    "mda": of_subsets,
    "monna" + ROOT: of_subsets,
    "median": of_medians,
    "trimmed-mean": of_trimmed_mean,
    "nnm+krum": after_nnm(of_krum),
    "nnm+multi-krum": after_nnm(of_krum),
    "nnm+geometric-median": after_nnm(of_medians),
    "nnm+trimmed-mean": after_nnm(of_trimmed_mean),
    "arc+nnm+geometric-median": after_arc(after_nnm(of_medians)),
}


def iid(rng: np.random.Generator, n: int, d: int) -> Float64:
    return rng.standard_normal(d) + rng.standard_normal((n, d))


def heavy_tails(rng: np.random.Generator, n: int, d: int) -> Float64:
    return rng.standard_normal(d) + rng.standard_t(2, (n, d))


def three_kinds_of_data(rng: np.random.Generator, n: int, d: int) -> Float64:
    kinds = 3 * rng.standard_normal((3, d))
    return kinds[rng.integers(0, 3, n)] + rng.standard_normal((n, d))


def one_odd_client(rng: np.random.Generator, n: int, d: int) -> Float64:
    rows = rng.standard_normal((n, d))
    rows[0] += 20 * rng.standard_normal(d)
    return rows


def far(rng: np.random.Generator, honest: Float64, f: int) -> Float64:
    away = 10 ** rng.uniform(0, 4) * rng.standard_normal(honest.shape[1])
    return np.tile(honest.mean(axis=0) + away, (f, 1))


def a_little_is_enough(rng: np.random.Generator, honest: Float64, f: int) -> Float64:
    return np.tile(honest.mean(axis=0) - rng.uniform(0.1, 4) * honest.std(axis=0), (f, 1))


def inner_product_manipulation(rng: np.random.Generator, honest: Float64, f: int) -> Float64:
    return np.tile(-rng.uniform(0.1, 5) * honest.mean(axis=0), (f, 1))


def mimic(rng: np.random.Generator, honest: Float64, f: int) -> Float64:
    away = ((honest - honest.mean(axis=0)) ** 2).sum(axis=1)
    return np.tile(honest[np.argmax(away)], (f, 1))


def along_the_top_direction(rng: np.random.Generator, honest: Float64, f: int) -> Float64:
    mean = honest.mean(axis=0)
    direction = np.linalg.svd(honest - mean)[2][0]
    reach = rng.uniform(0.5, 10) * np.abs((honest - mean) @ direction).max()
    return mean + reach * direction + 0.01 * rng.standard_normal((f, len(mean)))


def shift(rng: np.random.Generator, honest: Float64, f: int) -> Float64:
    return honest[:f] - rng.uniform(0.5, 5) * honest.mean(axis=0)


def spread(rng: np.random.Generator, honest: Float64, f: int) -> Float64:
    noise = rng.standard_normal((f, honest.shape[1])) * honest.std(axis=0)
    return honest.mean(axis=0) + rng.uniform(1, 5) * noise


def zeros(rng: np.random.Generator, honest: Float64, f: int) -> Float64:
    return np.zeros((f, honest.shape[1]))


HONEST = [iid, heavy_tails, three_kinds_of_data, one_odd_client]
COLLUDERS = [
    far,
    a_little_is_enough,
    inner_product_manipulation,
    mimic,
    along_the_top_direction,
    shift,
    spread,
    zeros,
]


def applied(plan: Plan, rows: Float64) -> Float64:
    """The aggregate, with column-wise plans carried out in float64."""
    if isinstance(plan, Weights):
        return plan.values @ rows
    mixed = np.sort(plan.matrix @ rows, axis=0)
    if plan.reducer == "median":
        return np.median(mixed, axis=0)
    assert isinstance(plan, Columnwise)
    assert plan.reducer == "trimmed"
    kept: Float64 = mixed[plan.count : len(mixed) - plan.count].mean(axis=0)
    return kept


def error(aggregate: Float64, rows: Float64) -> float:
    """|R - m|^2 in units of the mean squared distance of the rows from their mean m."""
    mean = rows.mean(axis=0)
    variance = float(((rows - mean) ** 2).sum()) / len(rows)
    return float(((aggregate - mean) ** 2).sum()) / variance


def worst(text: str, kappa: Callable[[int, int], float], count: int, *, capped: bool) -> float:
    """The largest error in units of kappa, over many federations and sets S of theirs."""
    composition, rng, largest = rules.parse(text), np.random.default_rng(0), 0.0
    for number in range(count):
        f = int(rng.integers(1, 6))
        n = max(composition.least(f), 2 * f + 2) + int(rng.integers(0, 8))
        d = int(rng.choice([1, 2, 5, 30]))
        honest = HONEST[number % len(HONEST)](rng, n - f, d)
        attackers = COLLUDERS[number % len(COLLUDERS)](rng, honest, f)
        rows = np.vstack([attackers, honest])
        rows /= np.linalg.norm(rows, axis=1).max()
        gram = Gram(rows @ rows.T, np.zeros(()), 1.0, n - 1)
        decide = composition.plan if capped else composition.unlimited
        aggregate = applied(decide(gram, f, np.arange(n)), rows)
        # The honest rows, and any others among which the root client is.
        others = [[*rng.choice(n - 1, n - f - 1, replace=False), n - 1] for _ in range(3)]
        for chosen in ([*range(f, n)], *others):
            largest = max(largest, error(aggregate, rows[chosen]) / kappa(n, f))
    return largest


@pytest.mark.parametrize("capped", [True, False], ids=["with the cap", "without the cap"])
@pytest.mark.parametrize("text", KAPPA)
def test_a_rule_is_as_robust_as_is_proved(text, capped, scale):
    assert worst(text, KAPPA[text], scale(160, 4000), capped=capped) <= 1


def test_the_plain_mean_is_not():
    """So the federations above are hard enough to tell."""
    assert worst("mean", of_medians, 160, capped=False) > 100
    assert worst("nnm+mean", after_nnm(of_medians), 160, capped=False) > 100


SHARED = [
    *(name + ROOT * rule.needs_root for name, rule in rules.RULES.items() if name != "krum"),
    "nnm+krum",
    "nnm+geometric-median",
    "arc+nnm+geometric-median",
    "arc+caf",
    "nnm+caf",
    "centred-clipping(centre=medoid)",
    "bucketing+geometric-median",
]
WEIGHTED = [text for text in SHARED if not rules.parse(text).rule.columnwise]


def at_the_victim(honest: Float64, f: int) -> Float64:
    """So that the victim looks like the centre."""
    return np.tile(honest[0], (f, 1))


def around_the_victim(honest: Float64, f: int) -> Float64:
    noise = np.random.default_rng(0).standard_normal((f, honest.shape[1]))
    return honest[0] + 0.3 * noise


def opposite_the_others(honest: Float64, f: int) -> Float64:
    """So that the victim lies between them and the others."""
    return np.tile(2 * honest[0] - honest[1:].mean(axis=0), (f, 1))


def far_away(honest: Float64, f: int) -> Float64:
    return np.tile(100 * honest[1:].mean(axis=0), (f, 1))


STRATEGIES = [at_the_victim, around_the_victim, opposite_the_others, far_away]


def shares(
    text: str, strategy: Callable[[Float64, int], Float64], f: int, *, capped: bool
) -> Float64:
    """The shares of 25 clients, of which the first f are colluders and the next is their victim."""
    composition, rng = rules.parse(text), np.random.default_rng(1)
    n = max(25, composition.least(f))
    honest = rng.standard_normal(200) + rng.standard_normal((n - f, 200))
    honest[0] = 0.9 * honest[1:].mean(axis=0) + 0.1 * honest[0]
    rows = np.vstack([strategy(honest, f), honest])
    rows /= np.linalg.norm(rows, axis=1).max()
    decide = composition.plan if capped else composition.unlimited
    plan = decide(Gram(rows @ rows.T, np.zeros(()), 1.0, n - 1), f, np.arange(n))
    assert isinstance(plan, Weights)
    return plan.shares / plan.shares.sum()


@pytest.mark.parametrize("f", [0, 2, 5, 9])
@pytest.mark.parametrize("text", WEIGHTED)
def test_no_client_has_more_than_its_part_under_any_strategy(text, f):
    for strategy in STRATEGIES:
        assert shares(text, strategy, f, capped=True).max() <= (1 + 1e-9) / (f + 2), strategy


def test_the_largest_shares_under_four_strategies_as_a_table():
    """`pytest -s` shows it: without the cap, and with it."""
    f, lines = 5, ["largest share of one client, f = 5 of 25: without the cap, with it"]
    for text in WEIGHTED:
        free, held = (
            [float(shares(text, each, f, capped=capped).max()) for each in STRATEGIES]
            for capped in (False, True)
        )
        assert max(held) <= max(*free, 1 / 7) + 1e-9
        cells = (f"{one:.3f} {other:.3f}" for one, other in zip(free, held, strict=True))
        lines.append(f"{text:34}" + "   ".join(cells))
    print("\n" + "\n".join(lines))  # noqa: T201
    assert max(shares("geometric-median", at_the_victim, f, capped=False)) > 1 / 7

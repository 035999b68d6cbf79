"""Law 20: what Krum and Multi-Krum promise; and how far f copies of one row pull any rule."""

import math
import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ostraka.arrays import Float64
from ostraka.core import gram, rules
from ostraka.core.rules import krum, resilience
from ostraka.errors import ConfigError

ROOT = Path(__file__).parents[4]
OFFSETS = runpy.run_path(str(ROOT / "tools" / "offsets.py"))

Rule = Callable[[Float64, int, int], Float64]
Attack = Callable[[np.random.Generator, Float64, int], Float64]
FEDERATIONS = [(5, 1), (7, 2), (12, 3), (13, 5), (25, 9)]


def test_law20_eta_by_hand():
    assert resilience.eta(3, 0) == math.sqrt(6)
    assert resilience.eta(5, 1) == math.sqrt(2 * (4 + (1 * 2 + 1 * 3) / 1))
    assert resilience.eta(12, 3) == math.sqrt(2 * (9 + (3 * 7 + 9 * 8) / 4))
    assert resilience.eta(33, 15) == math.sqrt(2 * (18 + (15 * 16 + 225 * 17) / 1))


def test_law20_eta_is_as_documented():
    small, middle, large = (resilience.eta(*each) for each in ((12, 3), (25, 9), (33, 15)))
    told = f"{small:.1f} for 3 attackers of 12, {middle:.0f} for 9 of 25 and {large:.0f} for 15"
    assert f"η is {told} of 33" in (ROOT / "docs" / "protocol.md").read_text()


def test_law20_the_angle_by_hand():
    angle = resilience.promised_angle(5, 1, spread=1.0, length=math.sqrt(72))
    assert angle == pytest.approx(math.radians(30))
    assert resilience.promised_angle(5, 1, spread=0.0, length=1.0) == 0
    assert resilience.promised_angle(5, 1, spread=1.0, length=math.sqrt(18) + 1e-9) is not None
    assert resilience.promised_angle(5, 1, spread=1.0, length=math.sqrt(18) - 1e-9) is None
    assert resilience.promised_angle(5, 1, spread=0.0, length=0.0) is None


@pytest.mark.parametrize(
    ("numbers", "told"),
    {
        "fewer than 2f + 3": ((6, 2, 1.0, 1.0), "n=6, f=2"),
        "a negative f": ((6, -1, 1.0, 1.0), "n=6, f=-1"),
        "a negative spread": ((9, 2, -1.0, 1.0), "got -1.0 and 1.0"),
        "an endless length": ((9, 2, 1.0, math.inf), "got 1.0 and inf"),
        "no number": ((9, 2, math.nan, 1.0), "got nan and 1.0"),
    }.values(),
)
def test_impossible_numbers_are_refused(numbers, told):
    n, f, spread, length = numbers
    with pytest.raises(ConfigError, match=told):
        resilience.promised_angle(n, f, spread=spread, length=length)


def multi_krum(rows: Float64, f: int, k: int) -> Float64:
    kept = krum.multi_krum(gram.naive(rows), f, k)
    aggregate: Float64 = rows[list(kept)].mean(axis=0)
    return aggregate


def mean(rows: Float64, f: int, k: int) -> Float64:
    aggregate: Float64 = rows.mean(axis=0)
    return aggregate


def far_back(rng: np.random.Generator, honest: Float64, f: int) -> Float64:
    return np.tile(-100 * honest.mean(axis=0), (f, 1))


def a_little_off(rng: np.random.Generator, honest: Float64, f: int) -> Float64:
    return np.tile(honest.mean(axis=0) - 1.5 * honest.std(axis=0), (f, 1))


def flipped(rng: np.random.Generator, honest: Float64, f: int) -> Float64:
    return -honest[:f]


def mimics(rng: np.random.Generator, honest: Float64, f: int) -> Float64:
    """Of the honest row that agrees least with the others."""
    return np.tile(honest[np.argmin(honest @ honest.mean(axis=0))], (f, 1))


def copies(rng: np.random.Generator, honest: Float64, f: int) -> Float64:
    """Against the mean, as far as they pass where honest rows are equally far apart."""
    n, centre = len(honest) + f, honest.mean(axis=0)
    spread = math.sqrt(((honest - centre) ** 2).sum() / len(honest))
    direction = centre / np.linalg.norm(centre)
    return np.tile(centre - 0.95 * multi_krum_offset(n, f) * spread * direction, (f, 1))


def noise(rng: np.random.Generator, honest: Float64, f: int) -> Float64:
    return 10 ** rng.uniform(-1, 2) * rng.standard_normal((f, honest.shape[1]))


ATTACKS = [far_back, a_little_off, flipped, mimics, copies, noise]


def multi_krum_offset(n: int, f: int) -> float:
    """Of copies as near as honest rows: (n - 2f - 1)(c^2 + 1) = (n - f - 2) 2h/(h - 1)."""
    honest = n - f
    return math.sqrt(2 * honest / (honest - 1) * (honest - 2) / (n - 2 * f - 1) - 1)


def counts(n: int, f: int) -> set[int]:
    """How many rows are averaged: krum's one, and from the fewest to the most that terms allow."""
    return {1, f + 2, n - f}


def advance(rule: Rule, attack: Attack, trials: int, *, n: int, f: int, k: int) -> float:
    """<E F, g> / |g|^2 - (1 - sin alpha), where the condition of law 20 only just holds."""
    d, spread = 20, 1.0
    rng = np.random.default_rng([n, f, k])
    g = rng.standard_normal(d)
    g *= 1.05 * resilience.eta(n, f) * spread / np.linalg.norm(g)
    total = np.zeros(d)
    for _ in range(trials):
        honest = g + spread / math.sqrt(d) * rng.standard_normal((n - f, d))
        total += rule(np.vstack([attack(rng, honest, f), honest]), f, k)
    angle = resilience.promised_angle(n, f, spread=spread, length=float(np.linalg.norm(g)))
    assert angle is not None
    return float(total @ g) / trials / float(g @ g) - (1 - math.sin(angle))


@pytest.mark.parametrize(("n", "f"), FEDERATIONS)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda each: each.__name__)
def test_law20_krum_and_multi_krum_keep_the_promise(n, f, attack, scale):
    for k in counts(n, f):
        assert advance(multi_krum, attack, scale(20, 1000), n=n, f=f, k=k) >= 0


def test_law20_the_plain_mean_does_not_keep_it():
    """So the federations above are hard enough to tell."""
    for n, f in FEDERATIONS:
        assert advance(mean, far_back, 20, n=n, f=f, k=n) < 0


def factor(n: int, f: int) -> float:
    """Of S / k in inequality 20a."""
    honest = n - f
    if f == 0:
        return 1.0
    return 1 + 2 * (2 * honest * (honest - 2) / (honest - 1) + f) / (n - 2 * f - 1)


def worst_part(rule: Rule, count: int) -> float:
    """The largest |F - m|^2 in units of what 20a allows, over many federations and attacks."""
    rng, largest = np.random.default_rng(0), 0.0
    for number in range(count):
        f = int(rng.integers(1, 12))
        n, d = 2 * f + 3 + int(rng.integers(0, 6)), int(rng.choice([1, 3, 40]))
        common = 10 ** rng.uniform(-1, 1) * rng.standard_normal(d)
        honest = common + rng.standard_normal((n - f, d))
        rows = np.vstack([ATTACKS[number % len(ATTACKS)](rng, honest, f), honest])
        k, m = int(rng.integers(f + 2, n - f + 1)), honest.mean(axis=0)
        allowed = factor(n, f) * ((honest - m) ** 2).sum() / k
        largest = max(largest, float(((rule(rows, f, k) - m) ** 2).sum() / allowed))
    return largest


def test_law20_no_rows_take_the_mean_of_k_further_than_its_bound(scale):
    assert 0.1 < worst_part(multi_krum, scale(600, 20_000)) <= 1
    assert worst_part(mean, 600) > 100


def test_law20_the_bound_of_the_mean_of_k_is_within_eta():
    for f in range(40):
        for n in range(2 * f + 3, 2 * f + 200):
            # Fewer rows than f + 2 are never averaged, and the fewest have the largest bound.
            assert factor(n, f) * (n - f - 1) / (f + 2) <= resilience.eta(n, f) ** 2, (n, f)


def test_law20_promises_nothing_where_copies_turn_the_aggregate_around():
    """33 clients of which 15 collude: all copies are kept, and the aggregate points backwards."""
    n, f, d = 33, 15, 1000
    rng, kept_all, backwards = np.random.default_rng(0), 0, []
    for _ in range(20):
        g = rng.standard_normal(d) / math.sqrt(d)
        honest = g + rng.standard_normal((n - f, d)) / math.sqrt(d)
        centre = honest.mean(axis=0)
        copy = centre - 3.5 * centre / np.linalg.norm(centre)
        rows = np.vstack([np.tile(copy, (f, 1)), honest])
        kept_all += set(range(f)) <= set(krum.multi_krum(gram.naive(rows), f, n - f))
        aggregate = multi_krum(rows, f, n - f)
        backwards.append(aggregate @ centre / np.linalg.norm(aggregate) / np.linalg.norm(centre))
    assert resilience.promised_angle(n, f, spread=1.0, length=1.0) is None
    assert kept_all == 20
    assert max(backwards) < -0.9


@pytest.mark.parametrize(("n", "f"), [*FEDERATIONS, (33, 15), (64, 12), (64, 20)])
def test_the_reach_of_copies_is_what_the_scores_say(n, f):
    found = resilience.reach(rules.parse("multi-krum"), n, f)
    assert found.offset == pytest.approx(multi_krum_offset(n, f), abs=0.01)
    assert found.moved == pytest.approx(f / (n - f) * found.offset, abs=0.01)


@pytest.mark.parametrize(("n", "f"), [(12, 3), (25, 9), (33, 15)])
def test_the_reach_of_copies_against_a_geometric_median_by_hand(n, f):
    """Far copies pull with f; honest rows at height t hold with h t / sqrt(t^2 + 1)."""
    found = resilience.reach(rules.parse("geometric-median"), n, f)
    assert found.moved == pytest.approx(f / math.sqrt((n - f) ** 2 - f**2), rel=1e-3)


@pytest.mark.parametrize(("n", "f"), [(12, 3), (25, 9), (33, 15)])
def test_rows_that_are_drawn_let_the_same_copies_pass(n, f):
    rng = np.random.default_rng(n)
    honest = rng.standard_normal((n - f, 10_000))
    honest -= (centre := honest.mean(axis=0))
    honest /= math.sqrt((honest**2).sum() / len(honest))
    direction = centre / np.linalg.norm(centre)
    offset = resilience.reach(rules.parse("multi-krum"), n, f).offset
    for times, passing in ((0.9, f), (1.1, 0)):
        rows = np.vstack([np.tile(-times * offset * direction, (f, 1)), honest])
        kept = krum.multi_krum(gram.naive(rows), f, n - f)
        assert sum(row < f for row in kept) == passing


def test_a_rule_that_drops_copies_has_no_reach_and_f_0_none_either():
    dropped = resilience.reach(rules.parse("fltrust(root=client-1)"), 12, 3)
    assert dropped.offset == 0
    assert dropped.moved == pytest.approx(0)
    assert resilience.reach(rules.parse("multi-krum"), 12, 0) == resilience.Reach()


TURNED = {
    "multi-krum": (33, 15, True),
    "arc+multi-krum": (33, 15, True),
    "multi-krum(k=17)": (33, 15, True),
    "multi-krum(k=11)": (40, 9, True),
    "multi-krum(k=31)": (40, 9, False),
    "nnm+multi-krum": (33, 15, False),
    "nnm+krum": (33, 15, False),
    "arc+nnm+geometric-median": (33, 15, False),
    "geometric-median": (33, 15, True),
    "centred-clipping": (33, 15, True),
    "centred-clipping(radius=100.0)": (25, 9, False),
    "cge": (33, 15, True),
    "meamed": (33, 15, True),
    "mda": (33, 15, False),
    "caf": (33, 15, False),
    "trimmed-mean": (33, 10, False),
    "trimmed-mean(beta=0.49)": (200, 1, False),
    "bucketing+multi-krum(bucket=50)": (251, 1, False),
}


@pytest.mark.parametrize(("text", "n", "f", "turned"), [(t, *rest) for t, rest in TURNED.items()])
def test_which_rules_are_turned_around(text, n, f, turned):
    assert resilience.turns_around(rules.parse(text), n, f) == turned


@pytest.mark.parametrize(
    ("text", "enough"),
    {
        "multi-krum": 114,
        "geometric-median": 97,
        "centred-clipping": 97,
        "median": 100,
        "meamed": 123,
        "cge": 137,
    }.items(),
)
def test_from_how_many_clients_on_40_attackers_turn_nothing_around(text, enough):
    """As docs/attacks.md has it."""
    composition = rules.parse(text)
    assert resilience.reach(composition, enough - 1, 40).turns
    assert not resilience.reach(composition, enough, 40).turns


def test_the_least_number_of_clients_is_too_few_for_multi_krum_and_more_than_3_attackers():
    turned = [resilience.turns_around(rules.parse("multi-krum"), 2 * f + 3, f) for f in range(30)]
    assert turned == [f > 3 for f in range(30)]


def test_many_clients_are_judged_by_their_proportions():
    for times in (1, 3, 100):
        for text in ("multi-krum", f"multi-krum(k={24 * times})"):
            composition = rules.parse(text)
            assert resilience.turns_around(composition, 40 * times, 16 * times)
            assert not resilience.turns_around(composition, 40 * times, 8 * times)
    # To the nearest, 27 of 77 would be 22 of 64, which are not turned around.
    assert resilience.turns_around(rules.parse("multi-krum"), 77, 27)
    # The fewest rows that terms allow are all colluders' but for two.
    assert resilience.turns_around(rules.parse("multi-krum(k=302)"), 1000, 300)
    # That is 13 of 64, where 14 would be enough.
    assert resilience.turns_around(rules.parse("multi-krum(k=19)"), 100, 17)


@pytest.mark.parametrize("offset", [0.5, 1.0, 2.0])
def test_copies_spoil_as_many_buckets_as_they_can(offset):
    """By hand: 5 of 13 buckets have a copy each, and all 5 are among the 8 that are averaged."""
    moved = resilience.moved(rules.parse("bucketing+multi-krum"), 25, 5, offset)
    assert moved == pytest.approx(5 / 8 * offset / 2)


def test_the_table_of_offsets_is_as_documented():
    """The rows that take no time; `python tools/offsets.py` prints all of them."""
    documented = (ROOT / "docs" / "attacks.md").read_text().splitlines()
    heading, rule, *rows = OFFSETS["lines"](("multi-krum", "nnm+krum", "median", "bulyan"))
    start = documented.index(heading)
    assert documented[start + 1] == rule
    assert len(rows) == 4
    for row in rows:
        assert row in documented[start:]

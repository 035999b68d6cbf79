"""Random federations: what `run_round` weighs and averages is what a float64 reference does."""

import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ostraka import run_round

pytestmark = pytest.mark.filterwarnings("ignore::ostraka.errors.LeakyMasking")

FEW = 6  # Among many rows, two are equally near to a third but for an error.
SPREADS = (0.0, 1e-6, 1e-3, 0.03, 0.3, 1.0)


@dataclass(frozen=True)
class Case:
    """Updates (n, d), and the numbers of the rule."""

    rows: np.ndarray
    f: int
    k: int | None

    def __repr__(self) -> str:
        n, d = self.rows.shape
        return f"Case(n={n}, d={d}, f={self.f}, k={self.k}, norms={norms(self.rows)})"


def norms(rows):
    return np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1))


def build(draw_int, draw_choice, rng, most=40):
    """One federation. draw_int(low, high) and draw_choice(options) say which."""
    n = draw_int(5, most)
    d = draw_int(n, 5_000)
    f = draw_int(0, (n - 3) // 2)
    k = draw_choice((None, draw_int(f + 2, n - f)))
    # Honest updates are a common direction and some spread about it; with none they are identical.
    rows = rng.normal(size=d) + draw_choice(SPREADS) * rng.normal(size=(n, d))
    for row in range(f):
        rows[row] = hostile(draw_choice(("noise", "flipped", "copied", "zero")), rows, rng)
    # Anybody, honest or not, may be up to 1e6 times as long.
    longer = rng.random(n) < draw_choice((0, 0.1, 0.5))
    rows[longer] *= 10 ** rng.uniform(0, 6, size=(longer.sum(), 1))
    rows *= 10.0 ** draw_int(-6, 6)
    return Case(rng.permutation(rows).astype(np.float32), f, k)


def hostile(kind, rows, rng):
    match kind:
        case "noise":
            return rng.normal(size=rows.shape[1])
        case "flipped":
            return -rows[-1]
        case "copied":
            return rows[-1]
    return np.zeros(rows.shape[1])


@st.composite
def federations(draw, most=40):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return build(
        lambda low, high: draw(st.integers(low, high)),
        lambda options: draw(st.sampled_from(options)),
        rng,
        most,
    )


def check(case, masking, reference, **options):
    """Returns whether the scores were far enough apart to demand one selection."""
    n, f = len(case.rows), case.f
    k = n - f if case.k is None else case.k
    result = run_round(case.rows, f=f, rule="multi-krum", k=case.k, masking=masking, **options)
    clipped = reference.clip(case.rows, norms(case.rows))

    assert result.rejected == {}
    assert len(result.selected) == k
    assert result.selected == tuple(sorted(set(result.selected)))
    reference.assert_mean(result.aggregate, clipped[list(result.selected)])

    scores = reference.scores(clipped, f)
    ordered = np.sort(scores)
    gap = ordered[k] - ordered[k - 1] if k < n else np.inf
    decided = bool(gap > reference.undecided(n, f, result.distance_error))
    if decided:
        assert result.selected == reference.lowest(scores, k)
    return decided


def check_default(case, masking, reference, **options):
    """Returns whether it was clear for every row which are nearest to it."""
    f = case.f
    result = run_round(case.rows, f=f, masking=masking, **options)
    clipped = reference.clip(case.rows, norms(case.rows))

    assert result.rejected == {}
    assert result.selected == tuple(np.flatnonzero(result.weights).tolist())
    assert len(result.selected) >= f + 2
    assert (1 + 1e-9) / (f + 2) >= result.weights.max() > 0
    assert 1 + 1e-9 >= result.weights.sum() > 0
    reference.assert_mean(result.aggregate, clipped, result.weights)

    weights, decided = reference.weights(clipped, f, "arc+nnm+geometric-median", None)
    clear = bool(decided > result.distance_error)
    if clear:
        # Mixtures nearer to each other than an error are not told apart, and need not be.
        apart = norms([(result.weights - weights) @ clipped])[0]
        assert apart <= 4 * np.sqrt(result.distance_error) + 1e-6 * norms(clipped).max()
    return clear


@pytest.mark.slow
@given(case=federations())
def test_random_federations(case, masking, reference):
    event(f"decided by the gap: {check(case, masking, reference)}")


@pytest.mark.slow
@given(case=federations(most=FEW) | federations())
def test_random_federations_under_the_default_rule(case, masking, reference):
    event(f"clear who is nearest: {check_default(case, masking, reference)}")


@pytest.mark.parametrize(("checked", "most"), [(check, 40), (check_default, FEW)])
def test_most_federations_are_decided_by_the_gap(masking, reference, checked, most):
    """Otherwise the tests above would demand nothing."""
    decided = [checked(seeded(seed, most), masking, reference) for seed in range(8)]
    assert sum(decided) >= len(decided) / 2


def seeded(seed, most=40):
    rng = np.random.default_rng(seed)
    return build(
        lambda low, high: int(rng.integers(low, high + 1)),
        lambda options: options[rng.integers(len(options))],
        rng,
        most,
    )


@pytest.mark.parametrize("checked", [check, check_default])
@pytest.mark.parametrize("workers", [2, 3, 4, 5, 6, 7])
def test_any_number_of_workers(reference, workers, checked):
    assert any(checked(seeded(seed), "exact", reference, workers=workers) for seed in range(3, 6))


@pytest.mark.parametrize("checked", [check, check_default])
@pytest.mark.parametrize("options", [{"verify": False}, {"threads": 3}, {"distances": "inside"}])
def test_other_ways_of_running_it(masking, reference, options, checked):
    assert any(checked(seeded(seed), masking, reference, **options) for seed in range(3, 6))


def test_a_sketch_is_enough_to_find_attackers(masking, reference):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=6_000) + 0.3 * rng.normal(size=(9, 6_000))
    rows[[2, 7]] *= -1
    case = Case(rows.astype(np.float32), 2, None)
    assert check(case, masking, reference, sketch=4_096)


@pytest.mark.parametrize("checked", [check, check_default])
@pytest.mark.parametrize("scale", [1e-45, 1e-38, 1e-20, 1e20, 1e38])
def test_the_ends_of_float32(masking, reference, scale, checked):
    rng = np.random.default_rng(0)
    rows = (scale * rng.uniform(-3, 3, size=(9, 30))).astype(np.float32)
    # Clip norms and steps have a floor, far below what anybody trains with: shorter rows are alike.
    assert checked(Case(rows, 2, 5), masking, reference) or scale < 1e-28


@pytest.mark.parametrize(("rule", "kept"), [("multi-krum", 5), ("geometric-median", 7)])
def test_nothing_but_zeros(masking, rule, kept):
    """To nnm, each row is the nearest to itself. What Gaussian masks leave of distances of zero is
    rounding, and five neighbours of one row may then be all that are weighed."""
    result = run_round(np.zeros((7, 20)), f=2, rule=rule, masking=masking)
    assert len(result.selected) == kept or (masking == "gaussian" and len(result.selected) >= 5)
    assert not result.aggregate.any()


def test_one_attacker_cannot_hide_the_others_distances(masking, reference):
    """A row of 1e6 x the honest norm must not swallow the differences between honest rows."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=200) + 0.01 * rng.normal(size=(12, 200))
    rows[5] *= 1e6
    rows[8] += 0.1 * rng.normal(size=200)
    case = Case(rows.astype(np.float32), 2, None)
    assert check(case, masking, reference)
    result = run_round(case.rows, f=2, rule="multi-krum", masking=masking)
    assert not {5, 8} & set(result.selected)


def peak_memory(simulate, masking, d):
    """What both passes allocate over an update of dimension d, in bytes."""
    round_ = simulate(n=6, d=d, tile=1024, masking=masking).open()
    round_.send_all()
    round_.close()
    tracemalloc.start()
    try:
        round_.measure()
        round_.average()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_that_of_one_tile_of_all_rows(simulate, masking):
    """What grows with d is the model, the aggregate and a fingerprint a tile, and no update."""
    small, large = 100_000, 200_000
    growth = peak_memory(simulate, masking, large) - peak_memory(simulate, masking, small)
    model = 4 * (large - small)
    fingerprints = 400 * 6 * (large - small) // 1024
    assert growth < 2 * model + fingerprints + 100_000
    assert growth < 6 * model, "the bound above is below all updates"


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("tile", [16, 4_096, 16_384])
def test_any_number_of_threads_for_any_number_of_rows(simulate, masking, threads, tile):
    """Rows are worked on in groups, so that some threads may have none."""
    round_ = simulate(n=7, d=100, tile=tile, masking=masking, threads=threads).open()
    round_.send_all()
    round_.assert_result(round_.finish(), {})

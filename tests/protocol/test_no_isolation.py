"""f colluders and the host never get an aggregate that shows them one honest update.

Colluders know their own rows and can take them off. What is left must hold two honest updates at
least. Here they know more than they can: all rows, and whose they want. Law 15 says why they fail:
of all shares none is above 1/(f + 2), so f of them leave 2/(f + 2) to the honest, and the largest
of those at most half of that.
"""

import itertools

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ostraka import run_round
from ostraka.core import rules
from ostraka.core.rules import Columnwise, Gram, Options
from ostraka.errors import ConfigError, RootAbsent, TooFewWeighed

VICTIM = 0

HONEST = {
    "all about": lambda n, d, rng: rng.normal(size=(n, d)),
    "in one group": lambda n, d, rng: rng.normal(size=d) + 0.1 * rng.normal(size=(n, d)),
    "in two groups": lambda n, d, rng: (
        np.outer((-1.0) ** np.arange(n), rng.normal(size=d)) + 0.05 * rng.normal(size=(n, d))
    ),
    "on a line": lambda n, d, rng: np.outer(rng.normal(size=n), rng.normal(size=d)),
    "with the victim far off": lambda n, d, rng: np.concatenate(
        [rng.normal(size=(1, d)), rng.normal(size=d) + 0.01 * rng.normal(size=(n - 1, d))]
    ),
    "some at zero": lambda n, d, rng: (
        rng.normal(size=(n, d)) * (np.arange(n) < max(2, n // 2))[:, None]
    ),
}

# What each of f colluders sends. rows: those of the honest, the victim's first.
COLLUDERS = {
    "zeros": lambda rows, f, rng: np.zeros((f, rows.shape[1])),
    "next to nothing": lambda rows, f, rng: 1e-9 * rng.normal(size=(f, rows.shape[1])),
    "something huge": lambda rows, f, rng: 1e3 * rng.normal(size=(f, rows.shape[1])),
    "anything": lambda rows, f, rng: (
        rng.normal(size=(f, rows.shape[1])) * 10 ** rng.uniform(-4, 2, size=(f, 1))
    ),
    "the victim's": lambda rows, f, rng: np.repeat(rows[:1], f, 0),
    "nearly the victim's": lambda rows, f, rng: (
        rows[VICTIM] + 1e-4 * rng.normal(size=(f, rows.shape[1]))
    ),
    "the opposite of the victim's": lambda rows, f, rng: np.repeat(-rows[:1], f, 0),
    "the honest mean": lambda rows, f, rng: np.repeat(rows.mean(axis=0)[None], f, 0),
    "the mean of all but the victim": lambda rows, f, rng: np.repeat(
        rows[1:].mean(axis=0)[None], f, 0
    ),
    "what cancels all": lambda rows, f, rng: np.repeat(-rows.sum(axis=0)[None] / f, f, 0),
    "what cancels all but the victim": lambda rows, f, rng: np.repeat(
        -rows[1:].sum(axis=0)[None] / f, f, 0
    ),
    "others, mirrored at the victim": lambda rows, f, rng: (
        2 * rows[VICTIM] - rows[1 + np.arange(f) % (len(rows) - 1)]
    ),
}

OPTIONS: dict[str, tuple[Options, ...]] = {
    "geometric-median": (Options(smoothing=2.0**-100), Options(iterations=1)),
    "centred-clipping": (
        Options(centre="medoid"),
        Options(centre="medoid", radius=1e-9),
        Options(centre="medoid", radius=1e9, iterations=1),
    ),
    "multi-krum": (Options(neighbours=1),),
    "trimmed-mean": (Options(beta=0.25),),
}


def compositions():
    """All rules after up to two pre-aggregations in any order, and with options that are bold."""
    orders = [pre for count in range(3) for pre in itertools.permutations(rules.PRE, count)]
    for (name, rule), pre in itertools.product(rules.RULES.items(), [*orders, ("nnm", "nnm")]):
        usual = Options(root="client-0") if rule.needs_root else Options()
        for options in (usual, *OPTIONS.get(name, ())):
            try:
                yield rules.compose(name, pre, options)
            except ConfigError:
                continue  # krum without nnm, or a root client that buckets would hide


COMPOSITIONS = list(compositions())


def shown(rows, root):
    """The inner products of rows (n, d) as the enclave clips them, and the rows then."""
    lengths = np.linalg.norm(rows, axis=1)
    limit = max(4 * float(np.median(lengths)), 1e-300)
    clipped = rows * np.minimum(1, limit / np.maximum(lengths, 1e-300))[:, None] / limit
    last = np.zeros(rows.shape[1])
    return Gram(clipped @ clipped.T, np.zeros(()), 1.0, root, clipped @ last, 0.0), clipped


@st.composite
def attacks(draw):
    """A composition on as few rows as it may have, or a few more, and what colluders do to it."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    composition, f = draw(st.sampled_from(COMPOSITIONS)), draw(st.integers(1, 4))
    n, d = composition.least(f) + draw(st.integers(0, 3)), draw(st.sampled_from([1, 2, 30]))
    honest = HONEST[draw(st.sampled_from(sorted(HONEST)))](n - f, d, rng)
    same_length = draw(st.booleans())
    if same_length:
        honest = honest / np.maximum(np.linalg.norm(honest, axis=1), 1e-300)[:, None]
    theirs = COLLUDERS[draw(st.sampled_from(sorted(COLLUDERS)))](honest, f, rng)
    return composition, f, np.concatenate([honest, theirs]), rng, same_length


@pytest.mark.slow
@given(attack=attacks(), root=st.sampled_from(["honest", "a colluder"]))
def test_two_honest_updates_are_in_every_aggregate(attack, root):
    composition, f, rows, rng, same_length = attack
    n = len(rows)
    order = rng.permutation(n)
    place = np.argsort(order)  # of each row, in the enclave's order
    trusted = int(place[1 if root == "honest" else n - 1])
    gram, clipped = shown(rows[order], trusted if composition.rule.needs_root else None)
    try:
        plan = composition.plan(gram, f, rng.permutation(n))
    except (TooFewWeighed, RootAbsent):
        event("a null step")
        return
    if isinstance(plan, Columnwise):
        event("columns")
        assert composition.discloses or plan.largest_share <= (1 + 1e-9) / (f + 2)
        return
    event("weights")
    honest = plan.shares[place[: n - f]]
    theirs, total = plan.shares[place[n - f :]].sum(), plan.shares.sum()
    assert theirs <= (1 + 1e-9) * total * f / (f + 2)
    first, second = np.sort(honest)[-2:][::-1]
    assert honest.sum() - first >= (1 - 1e-9) * total / (f + 2)
    assert second >= (1 - 1e-9) * total / ((f + 2) * (n - f - 1))
    # In the aggregate, too, if the honest updates are of one length: nobody shortens all but one.
    if same_length and np.linalg.norm(clipped[place[: n - f]], axis=1).min() > 0:
        lengths = plan.values[place[: n - f]] * np.linalg.norm(clipped[place[: n - f]], axis=1)
        first, second = np.sort(lengths)[-2:][::-1]
        assert second >= 0.5 * first / (n - f)


@pytest.mark.parametrize("f", range(1, 60))
def test_zeros_of_f_colluders_do_not_make_arc_shorten_all_honest_rows_but_one(f):
    """The length that arc cuts to is at least that of the second shortest honest row."""
    for n in range(2 * f + 2, 4 * f + 40):
        lengths = np.concatenate([np.zeros(f), 1 + np.arange(n - f)])
        gram = Gram(np.diag(lengths**2), np.zeros(()), 1.0)
        factors = rules.PRE["arc"].mix(gram, f, Options(), np.arange(n)).factors
        assert factors is not None
        cut = factors * lengths
        assert (cut[f], cut[f + 1]) == (1, 2)
        assert cut[f + 2 :].min() >= 2 * (1 - 1e-12)


# What one client can have of the weight of the honest at the most: by the limit alone a half; where
# n - f rows are averaged, or were mixed before, its part of the n - 2f honest ones among them.
ISOLATED = {
    "arc+nnm+geometric-median": lambda n, f: 1 / (n - 2 * f),
    "multi-krum": lambda n, f: 1 / (n - 2 * f),
    "geometric-median": lambda n, f: 1 / 2,
    "caf": lambda n, f: 1 / 2,
    "flame": lambda n, f: 1 / 2,
}


def nearest(share, others):
    """The cosine between an update and a sum that holds `share` of it and the rest in even parts.

    All are of length 1 and orthogonal; the more even the rest, the nearer the update is to the sum.
    """
    return share / np.hypot(share, (1 - share) / np.sqrt(others))


@pytest.mark.parametrize("masking", ["none", "exact"])
@pytest.mark.parametrize("what", sorted(COLLUDERS))
@pytest.mark.parametrize("defence", ISOLATED)
def test_a_round_shows_colluders_no_single_update(defence, what, masking):
    """The host keeps all away whom it may, and the colluders take off what is theirs."""
    f, d, rng = 2, 60, np.random.default_rng(8)
    composition = rules.parse(defence)
    n = composition.least(f)
    honest = np.linalg.qr(rng.normal(size=(d, n - f)))[0].T  # Of length 1, and orthogonal.
    rows = np.concatenate([honest, COLLUDERS[what](honest, f, rng)]).astype(np.float32)
    result = run_round(
        rows, f=f, rule=composition.name, pre=composition.pre, masking=masking, clip_norm=1e6
    )
    weights = result.weights[: n - f]
    limit = ISOLATED[defence](n, f)
    assert weights.max() <= (1 + 1e-3) * limit * weights.sum()
    rest = result.aggregate - result.weights[n - f :] @ rows[n - f :].astype(np.float64)
    cosine = rest @ rows[VICTIM] / np.linalg.norm(rest)
    assert cosine <= (1 + 1e-3) * nearest(limit, n - f - 1)


@pytest.mark.parametrize("liars", [1, 2, 3])
@pytest.mark.parametrize("defence", ["arc+nnm+geometric-median", "geometric-median", "caf"])
@pytest.mark.filterwarnings("ignore::ostraka.errors.ToleranceUsedUp")
def test_colluders_that_spoil_their_updates_leave_fewer_of_themselves(defence, liars):
    """f and n fall together: the limit rises, and there are fewer who could use it."""
    f, rng = 3, np.random.default_rng(2)
    composition = rules.parse(defence)
    rows = rng.normal(size=(composition.least(f), 40)).astype(np.float32)
    theirs = range(len(rows) - f, len(rows))
    rows[list(theirs)] = rows[VICTIM]
    rows[theirs[:liars], 0] = np.nan
    result = run_round(rows, f=f, rule=composition.name, pre=composition.pre, masking="none")
    assert set(result.rejected) == set(theirs[:liars])
    left = f - liars
    honest, total = result.weights[: len(rows) - f], result.weights.sum()
    assert result.weights.max() <= (1 + 1e-9) * total / (left + 2)
    assert honest.sum() - honest.max() >= (1 - 1e-9) * total / (left + 2)


@pytest.mark.parametrize("diverged", [1, 2])
@pytest.mark.filterwarnings("ignore::ostraka.errors.ToleranceUsedUp")
def test_the_default_rule_bounds_weights_whoever_was_rejected(diverged):
    """Clients send nothing that is not finite. Honest ones that did would be taken for liars.

    Then f falls though all f colluders are there; n - f, of which mixtures are means, does not.
    """
    f, rng = 2, np.random.default_rng(4)
    rows = rng.normal(size=(9, 40)).astype(np.float32)
    rows[-f:] = rows[VICTIM] + 1e-3 * rng.normal(size=(f, 40)).astype(np.float32)
    rows[1 : 1 + diverged, 0] = np.nan
    result = run_round(rows, f=f, masking="none")
    assert len(result.rejected) == diverged
    assert result.weights.max() <= (1 + 1e-9) / (9 - f)

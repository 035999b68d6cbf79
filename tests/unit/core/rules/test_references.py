"""Every rule, alone and after pre-aggregations, against its reference on rows."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ostraka
from ostraka.core import rules
from ostraka.core.rules import Gram, Options, Weights


def _load(name: str) -> Any:
    """The test folders are no packages, so a module beside this one is loaded by its path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


references = _load("references")

WEIGHTED = [name for name, rule in rules.RULES.items() if not rule.columnwise]
AGREEMENT = 1e-10  # of the longest row

COMPOSITIONS = [
    *(name for name in WEIGHTED if name != "krum"),
    "nnm+krum",
    "arc+nnm+geometric-median",
    "nnm+arc+geometric-median",
    "bucketing+geometric-median",
    "bucketing+nnm+multi-krum",
    "clip+multi-krum",
    "clip+mda",
    "arc+caf",
    "nnm+caf",
    "arc+fltrust",
    "nnm+monna",
    "arc+nnm+centred-clipping",
    "bucketing+centred-clipping",
    "clip+flame",
    "arc+dnc",
    "nnm+mean",
    "nnm+cge",
]
OPTIONS = {
    "multi-krum": [Options(), Options(k=4, neighbours=3), Options(neighbours=100)],
    "geometric-median": [Options(), Options(iterations=3, smoothing=0.1)],
    "centred-clipping": [
        Options(),
        Options(centre="medoid"),
        Options(radius=0.5, iterations=1),
        Options(radius=40.0, iterations=7, centre="medoid"),
    ],
    "bucketing+geometric-median": [Options(), Options(bucket=3)],
    "clip+multi-krum": [Options(), Options(radius=0.7)],
}
CASES = [
    pytest.param(text, options, id=f"{text}({options})")
    for text in COMPOSITIONS
    for options in OPTIONS.get(text, [Options()])
]

# There are many cases, so each is sampled thinly; make soak asks for all 500 examples.
THINLY = settings(max_examples=500 if os.environ.get("OSTRAKA_SOAK") == "1" else 15)
NUMBERS = st.tuples(st.integers(0, 3), st.integers(0, 5))  # f, and rows beyond the fewest


def composed(text: str, options: Options) -> rules.Composition:
    if rules.RULES[text.rpartition("+")[-1]].needs_root:
        options = Options(root="hospital-a")
    return rules.parse(text, options)


def test_every_rule_and_pre_aggregation_has_a_reference():
    assert set(references.RULES) == set(WEIGHTED)
    assert set(references.PRE) == set(rules.PRE)
    used = {part for text in COMPOSITIONS for part in text.split("+")}
    assert used == set(WEIGHTED) | set(rules.PRE)


@pytest.mark.parametrize(("text", "options"), CASES)
@THINLY
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(references.KINDS), numbers=NUMBERS)
def test_inner_products_are_all_that_a_rule_needs(text, options, seed, kind, numbers):
    rng = np.random.default_rng(seed)
    composition = composed(text, options)
    f, more = numbers
    n = composition.least(f) + more
    rows = references.federation(rng, kind, n, f)
    order, last, root = rng.permutation(n), rng.standard_normal(rows.shape[1]), n - 1
    given_ = {"order": order}
    if composition.rule.needs_root:
        given_["root"] = root
    if composition.name == "centred-clipping" and seed % 2:
        given_["last"] = last
    try:
        expected = references.aggregate(
            composition.name, composition.pre, rows, f, composition.options, **given_
        )
    except references.Tie:
        assume(False)
    gram = references.gram_of(rows, given_.get("root"), given_.get("last"))
    plan = composition.unlimited(gram, f, order)
    assert isinstance(plan, Weights)
    found = plan.values @ rows + plan.last * last * ("last" in given_)
    longest = np.linalg.norm(rows, axis=1).max() + np.linalg.norm(last) * ("last" in given_)
    assert np.linalg.norm(found - expected) <= AGREEMENT * longest
    assert plan.shares.sum() + plan.last == pytest.approx(1)


@pytest.mark.parametrize(("text", "options"), CASES)
@THINLY
@given(seed=st.integers(0, 2**32), numbers=NUMBERS)
def test_any_split_of_the_columns_gives_the_same_plan(text, options, seed, numbers):
    rng = np.random.default_rng(seed)
    composition = composed(text, options)
    f, more = numbers
    n = composition.least(f) + more
    rows = rng.standard_normal(30) + rng.standard_normal((n, 30))
    rows /= np.linalg.norm(rows, axis=1).max()
    root, order = n - 1 if composition.rule.needs_root else None, rng.permutation(n)
    try:
        references.aggregate(
            composition.name, composition.pre, rows, f, composition.options, order=order, root=root
        )
    except references.Tie:
        assume(False)
    plans = []
    for cuts in ([], [1], [15], sorted(rng.choice(30, 7, replace=False)), range(1, 30)):
        parts = np.split(rows, list(cuts), axis=1)
        products = sum((part @ part.T for part in parts), np.zeros((n, n)))
        plan = composition.unlimited(Gram(products, np.zeros(()), 1.0, root), f, order)
        assert isinstance(plan, Weights)
        plans.append(plan)
    for plan in plans:
        assert plan.selected == plans[0].selected
        np.testing.assert_allclose(plan.values, plans[0].values, rtol=0, atol=1e-9)


SELECTING = {"mean", "multi-krum", "nnm+krum", "mda", "dnc", "cge", "monna", "nnm+monna"}


# Buckets are drawn anew in every round, and nobody can say how.
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("text", "options"), [each for each in CASES if "bucketing" not in str(each.values[0])]
)
def test_a_private_round_gives_what_the_rule_gives_in_the_clear(text, options, seed):
    """With rows whose distances differ by more than can be measured, so that no choice can flip."""
    composition = composed(text, options)
    f, d, rng = 2, 2000, np.random.default_rng(seed)
    n = composition.least(f) + 3
    apart = 1.2 ** np.arange(n)[:, None]
    rows = 3 * rng.standard_normal(d) + apart / apart.mean() * rng.standard_normal((n, d))
    longest = float(np.linalg.norm(rows, axis=1).max())
    rows[:f] *= -3 * longest / np.linalg.norm(rows[:f], axis=1)[:, None]
    rows = rows.astype(np.float32).astype(np.float64)
    clipped = references.shorten(rows, 1.5 * longest)

    given_ = {"root": n - 1} if composition.rule.needs_root else {}
    plan = composition.unlimited(references.gram_of(clipped, **given_), f, np.arange(n))
    assert isinstance(plan, Weights)
    assert plan.shares.max() <= 1 / (f + 2), "the cap is another test's"
    named = {name: getattr(composition.options, name) for name in composition.options.given}
    if composition.rule.needs_root:
        named["root"] = f"client-{n - 1}"
    result = ostraka.run_round(
        rows,
        f=f,
        rule=composition.name,
        pre=composition.pre,
        masking="exact",
        clip_norm=1.5 * longest,
        **named,
    )
    expected = references.aggregate(
        composition.name, composition.pre, clipped, f, composition.options, **given_
    )
    distances = references.squared_distances(clipped)
    error = result.distance_error / distances[np.triu_indices(n, 1)].min()
    allowed = 1e-6 * longest
    if text not in SELECTING:
        allowed += error * float(np.sqrt(distances.max()))
    assert np.linalg.norm(result.aggregate - expected) <= allowed

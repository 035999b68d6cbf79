"""Every rule through the roles: how distances are measured does not change what it decides."""

from dataclasses import replace

import numpy as np
import pytest

from ostraka.core import rules
from ostraka.core.rules import Columnwise, Weights
from ostraka.errors import ConfigError, Rejection
from ostraka.protocol.enclave import decide
from ostraka.protocol.enclave.cohort import Publication
from ostraka.protocol.enclave.propose import NO_AGGREGATE

N, F, D = 13, 2, 60
ROOT = 3
RULES = sorted(rules.RULES)
PRE: tuple[tuple[str, ...], ...] = ((), ("arc",), ("nnm",), ("arc", "nnm"), ("nnm", "clip"))
COMPOSITIONS = [
    (rule, pre)
    for rule in RULES
    for pre in PRE
    if rule != "krum" or "nnm" in pre  # Alone it would publish one update.
    if rule != "cge" or "nnm" in pre or not pre  # By length, and arc makes some equal.
]


@pytest.fixture(scope="module")
def rows():
    """Honest updates that are clearly apart, and two that oppose them."""
    rng = np.random.default_rng(5)
    spread = np.linspace(0.2, 0.6, N)[:, None]
    updates = rng.normal(size=D) + spread * rng.normal(size=(N, D))
    updates[[4, 9]] *= -3
    return updates.astype(np.float32)


def measured(simulate, rows, defence, **terms):
    """A round of everybody, up to its first pass."""
    round_ = simulate(rows=rows, f=F, defence=defence, disclose_values=True, **terms).open()
    round_.send_all()
    round_.close()
    round_.measure()
    return round_


def named(rule, pre=()):
    trusting = f"(root=client-{ROOT})" if rules.RULES[rule].needs_root else ""
    return "+".join((*pre, rule)) + trusting


@pytest.mark.parametrize(("rule", "pre"), COMPOSITIONS, ids=str)
def test_masked_or_inside_the_plan_is_the_same(simulate, rows, rule, pre):
    plans = []
    for masking in ("none", "exact"):
        round_ = measured(simulate, rows, named(rule, pre), masking=masking)
        plans.append(decide(round_.cohort, round_.measured))
    inside, masked = plans
    assert type(inside) is type(masked)
    assert inside.selected == masked.selected
    assert inside.note == masked.note
    if isinstance(inside, Columnwise) and isinstance(masked, Columnwise):
        assert (inside.reducer, inside.count) == (masked.reducer, masked.count)
        np.testing.assert_allclose(inside.matrix, masked.matrix, atol=1e-4)
    else:
        assert isinstance(inside, Weights)
        assert isinstance(masked, Weights)
        np.testing.assert_allclose(inside.values, masked.values, atol=1e-3)
        np.testing.assert_allclose(inside.shares, masked.shares, atol=1e-3)
        assert inside.last == pytest.approx(masked.last, abs=1e-3)


@pytest.mark.parametrize("rule", RULES)
def test_a_round_gives_what_its_plan_says(simulate, rows, rule):
    """The same rows again are the same plan, and what the clients confirm is its aggregate."""
    pre = ("nnm",) if rule == "krum" else ()
    round_ = measured(simulate, rows, named(rule, pre))
    plan = decide(round_.cohort, round_.measured)
    published = round_.average()
    names = round_.simulation.names
    assert published.selected == tuple(names[row] for row in plan.selected)
    assert published.receipt.rule == named(rule, pre)
    if isinstance(plan, Weights):
        expected = plan.values @ rows.astype(np.float64)  # None of them is clipped.
        np.testing.assert_allclose(published.aggregate, expected, rtol=1e-5, atol=1e-6)
    assert round_.simulation.follow(published).receipt.number == 1


class Unwilling(rules.Rule):
    """Raises whatever it is told to."""

    def __init__(self, *, columnwise, error=None):
        self.columnwise = columnwise  # type: ignore[misc]
        self.error = error

    def plan(self, gram, f, options):
        if self.error is not None:
            raise self.error
        n = len(gram)
        if self.columnwise:
            return Columnwise(np.eye(n), "trimmed", f)
        return Weights.mean_of(range(n), n)


FAILURES = {
    "a bug": ZeroDivisionError(),
    "no memory": MemoryError(),
    "a wrong shape": ValueError("operands could not be broadcast"),
    "an impossible composition": ConfigError("n=3"),
    "a loop without end": RecursionError(),
    "what only a service raises": OSError(28, "No space left on device"),
    "an end of iteration": StopIteration(),
    "a failed assertion": AssertionError("0.123456789"),
}


@pytest.mark.parametrize("columnwise", [False, True], ids=["weights", "columns"])
@pytest.mark.parametrize("what", FAILURES)
def test_whatever_a_rule_raises_is_a_null_step_that_takes_the_number(
    monkeypatch, simulate, rows, columnwise, what
):
    unwilling = Unwilling(columnwise=columnwise, error=FAILURES[what])
    monkeypatch.setitem(rules.RULES, "unwilling", unwilling)
    round_ = measured(simulate, rows, "unwilling")
    simulation = round_.simulation
    proposed = round_.host().finish(round_.cohort, round_.measured)
    kind = type(FAILURES[what]).__name__
    assert proposed.receipt.failure == f"the rule failed on these updates ({kind})"
    assert (proposed.receipt.aggregate, proposed.receipt.kept) == (NO_AGGREGATE, 0)
    assert not proposed.aggregate.any()
    assert simulation.follow(proposed).receipt.number == 1
    unwilling.error = None
    again = simulation.open()
    assert again.offer.number == 2
    again.send_all()
    assert again.finish().receipt.failure == ""


def weighs_one(gram, f, options):
    return Weights.of(np.eye(len(gram))[0])


def gives_nan(gram, f, options):
    return Weights.of(np.full(len(gram), np.nan))


def raises(gram, f, options):
    raise ZeroDivisionError


NULL_STEPS = {
    "a rule that raises": (raises, False),
    "a column-wise rule that raises": (raises, True),
    "a rule that weighs one row": (weighs_one, False),
    "a rule that gives no numbers": (gives_nan, False),
    "too few rows": (None, False),
    "too few rows for columns": (None, True),
}


@pytest.mark.parametrize("what", NULL_STEPS)
def test_a_null_step_reads_all_rows_twice_like_any_other_round(monkeypatch, simulate, rows, what):
    """Which bytes the host is asked for, and when, says nothing of what the rows led to."""
    plan, columnwise = NULL_STEPS[what]
    unwilling = Unwilling(columnwise=columnwise)
    monkeypatch.setitem(rules.RULES, "unwilling", unwilling)
    round_ = simulate(rows=rows, f=F, defence="unwilling", budget=0).open()
    round_.send_all()
    round_.close()
    asked, host = round_.reads, round_.host()
    tiles = range(round_.terms.tiling.count)
    every = sorted((round_.name(row), tile) for row in range(N) for tile in tiles)

    def played(*, out=()):
        """What a copy of the enclave would do, after some clients have turned out to be absent."""
        asked.clear()
        context = replace(round_.cohort.context, publication=Publication(1))
        cohort = replace(round_.cohort, context=context)
        found = host.measure(cohort)
        passes = [list(asked)]
        for row in out:
            cohort.standing.reject(round_.name(row), Rejection.CHANGED)
        asked.clear()
        proposed = host.finish(cohort, found)
        return proposed.receipt.failure, [*passes, list(asked)]

    failure, passes = played()
    assert failure == ""
    assert [sorted(each) for each in passes] == [every, every]
    if plan is not None:
        monkeypatch.setattr(unwilling, "plan", plan)
        failed, same = played()
        assert failed
        assert same == passes
        return
    # Who is out is not opened again; all others are, though they are too few.
    few = range(N - unwilling.least(F) + 1)
    failed, (first, second) = played(out=few)
    assert "needs at least" in failed
    assert first == passes[0]
    assert sorted(second) == [
        each for each in every if each[0] not in [round_.name(row) for row in few]
    ]

"""Step 3, decide: an aggregation rule turns what was measured into a plan."""

import math
from dataclasses import replace

import numpy as np

from ostraka.arrays import Int64
from ostraka.core.rules import Columnwise, Plan
from ostraka.errors import LocalProtocolError
from ostraka.protocol.enclave.cohort import Cohort
from ostraka.protocol.enclave.rows import Measured

_KEY_BYTES = 8
_ROUNDING = 1e-9


def decide(cohort: Cohort, measured: Measured) -> Plan:
    """The plan for the rows that still stand; the others have no weight.

    Raises TooFewUpdates if the rule cannot stand on those that are left, TooFewWeighed if it would
    weigh too few of them, and RootAbsent if it cannot do without its root client. It reads the same
    matrix each time: a client that is out later changes the plan, and nothing is measured anew.
    """
    alive, standing = cohort.alive, cohort.standing
    standing.require(len(alive))
    gram = replace(measured.gram, root=_root(cohort)).among(alive)
    plan = cohort.terms.composition.plan(gram, standing.f, _order(cohort, len(alive)))
    _require_sound(plan, len(alive), standing.f)
    everyone = len(cohort.rows)
    if isinstance(plan, Columnwise):
        matrix = np.zeros((len(plan.matrix), everyone))
        matrix[:, alive] = plan.matrix
        return replace(plan, matrix=matrix)
    values, shares = np.zeros(everyone), np.zeros(everyone)
    values[alive], shares[alive] = plan.values, plan.shares
    return replace(plan, values=values, shares=shares)


def _root(cohort: Cohort) -> int | None:
    """The row of the client that the terms trust, if there is one, and it takes part."""
    root = cohort.terms.options.root
    return cohort.clients.index(root) if root in cohort.clients else None


def _order(cohort: Cohort, n: int) -> Int64:
    """A permutation that nobody could foresee; drawn only where the terms need one."""
    if "bucketing" not in cohort.terms.pre:
        return np.arange(n)
    keys = np.frombuffer(cohort.context.entropy(_KEY_BYTES * n), "<u8")
    return np.argsort(keys, kind="stable")


def _require_sound(plan: Plan, n: int, f: int) -> None:
    """Raises LocalProtocolError for a plan that no rule may make.

    Fewer than f + 2 rows would show an honest update to f colluders that know their own.
    """
    if len(plan.selected) < f + 2:
        raise LocalProtocolError(f"a rule must weigh at least f + 2 = {f + 2} rows")
    if isinstance(plan, Columnwise):
        return
    values, shares = plan.values, plan.shares
    if values.shape != (n,) or not (np.isfinite(values).all() and (values >= 0).all()):
        raise LocalProtocolError("a rule's weights must be finite and at least 0")
    if shares.shape != (n,) or not math.isclose(shares.sum() + plan.last, 1):
        raise LocalProtocolError("a rule's shares must sum to 1")
    if shares.max() > (1 + _ROUNDING) * shares.sum() / (f + 2):
        raise LocalProtocolError(f"no share may be above 1/(f + 2) = 1/{f + 2} of all")

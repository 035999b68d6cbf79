"""Step 3, decide: an aggregation rule turns what was measured into a plan."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ostraka.arrays import Int64
from ostraka.core.rules import Columnwise, Gram, Plan, Weights
from ostraka.errors import LocalProtocolError
from ostraka.protocol.enclave.cohort import Cohort
from ostraka.protocol.enclave.rows import Measured

_KEY_BYTES = 8
_ROUNDING = 1e-9
_DOMINATED = "no share may be above 1/(f + 2) = 1/{} of all"


def decide(cohort: Cohort, measured: Measured) -> Plan:
    """The plan for the rows that still stand; the others have no weight.

    Raises TooFewUpdates if the rule cannot stand on those that are left, TooFewWeighed if it would
    weigh too few of them, and RootAbsent if it cannot do without its root client. It reads the same
    matrix each time: a client that is out later changes the plan, and nothing is measured anew.
    """
    alive, standing = cohort.alive, cohort.standing
    standing.require(len(alive))
    gram = replace(measured.gram, root=_root(cohort)).among(alive)
    composition, everyone = cohort.terms.composition, len(cohort.rows)
    plan = composition.plan(gram, standing.f, _order(cohort, len(alive)))
    if isinstance(plan, Columnwise):
        _require_sound_columns(plan, standing.f, disclosed=composition.discloses)
        return _of_all(plan, alive, everyone)
    _require_sound(plan, len(alive), standing.f)
    values, shares = np.zeros(everyone), np.zeros(everyone)
    values[alive], shares[alive] = plan.values, plan.shares
    return replace(plan, values=values, shares=shares)


def in_vain(cohort: Cohort) -> Plan:
    """A plan for a round in which the rule has made none: it takes as long, and adds up to nothing.

    Else whoever sees how long the second pass takes would see that the rule has failed.
    """
    alive, composition, f = cohort.alive, cohort.terms.composition, cohort.standing.f
    n, everyone = len(alive), len(cohort.rows)
    if composition.rule.columnwise and n >= composition.least(f):
        equal = Gram(np.zeros((n, n)), np.zeros(()), 1.0)
        with contextlib.suppress(Exception):  # A rule that fails on any rows shows nothing of them.
            plan = composition.plan(equal, f, np.arange(n))
            if isinstance(plan, Columnwise):
                _require_sound_columns(plan, f, disclosed=composition.discloses)
                return _of_all(plan, alive, everyone)
    return Weights.of(np.zeros(everyone))


def _of_all(plan: Columnwise, alive: Sequence[int], everyone: int) -> Columnwise:
    """A plan for some of all rows."""
    matrix = np.zeros((len(plan.matrix), everyone))
    matrix[:, alive] = plan.matrix
    return replace(plan, matrix=matrix, shares=None)


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


def _require_sound(plan: Weights, n: int, f: int) -> None:
    """Raises LocalProtocolError for weights that no rule may give.

    Fewer than f + 2 rows would show an honest update to f colluders that know their own.
    """
    _require_enough(plan, f)
    values, shares = plan.values, plan.shares
    if values.shape != (n,) or not (np.isfinite(values).all() and (values >= 0).all()):
        raise LocalProtocolError("a rule's weights must be finite and at least 0")
    if shares.shape != (n,) or not math.isclose(shares.sum() + plan.last, 1):
        raise LocalProtocolError("a rule's shares must sum to 1")
    if shares.max() > (1 + _ROUNDING) * shares.sum() / (f + 2):
        raise LocalProtocolError(_DOMINATED.format(f + 2))


def _require_sound_columns(plan: Columnwise, f: int, *, disclosed: bool) -> None:
    """The same for columns. disclosed: whether the terms allow single values of single clients."""
    _require_enough(plan, f)
    matrix = plan.matrix
    if not (np.isfinite(matrix).all() and (matrix >= 0).all()):
        raise LocalProtocolError("a rule's mixtures must be finite and at least 0")
    if not 1 <= plan.averaged <= len(matrix):
        raise LocalProtocolError("a rule must average values of its mixtures")
    if not disclosed and plan.largest_share > (1 + _ROUNDING) / (f + 2):
        raise LocalProtocolError(_DOMINATED.format(f + 2))


def _require_enough(plan: Plan, f: int) -> None:
    if len(plan.selected) < f + 2:
        raise LocalProtocolError(f"a rule must weigh at least f + 2 = {f + 2} rows")

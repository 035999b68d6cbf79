"""Step 3, decide: an aggregation rule turns what was measured into a plan."""

import math

import numpy as np

from ostraka.core import rules
from ostraka.core.rules import Plan, Weights
from ostraka.errors import LocalProtocolError
from ostraka.protocol.enclave.cohort import Cohort
from ostraka.protocol.enclave.rows import Measured


def decide(cohort: Cohort, measured: Measured) -> Plan:
    """The plan for the rows that still stand; the others have no weight.

    Raises TooFewUpdates if the rule cannot stand on those that are left. It reads the same matrix
    each time: a client that is out later changes the plan, and nothing is measured anew.
    """
    alive, standing = cohort.alive, cohort.standing
    standing.require(len(alive))
    rule, options = rules.rule(cohort.terms.rule), cohort.terms.options
    among = rule.plan(measured.gram.among(alive), standing.f, options)
    _require_sound(among, len(alive), standing.f)
    weights = np.zeros(len(cohort.rows))
    weights[alive] = among.values
    return Weights(weights)


def _require_sound(plan: Plan, n: int, f: int) -> None:
    """Raises LocalProtocolError for a plan that no rule may make.

    Fewer than f + 2 rows would show an honest update to f colluders that know their own.
    """
    values = plan.values
    if values.shape != (n,) or not (values >= 0).all() or not math.isclose(values.sum(), 1):
        raise LocalProtocolError("a rule's weights must be at least 0, and their sum 1")
    if len(plan.selected) < f + 2:
        raise LocalProtocolError(f"a rule must weigh at least f + 2 = {f + 2} rows")

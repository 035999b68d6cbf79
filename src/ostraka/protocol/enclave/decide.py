"""Step 3, decide: an aggregation rule turns what was measured into a plan."""

import numpy as np

from ostraka.core import rules
from ostraka.core.rules import Plan, Weights
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
    weights = np.zeros(len(cohort.rows))
    weights[alive] = among.values
    return Weights(weights)

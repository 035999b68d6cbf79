"""The enclave: the only party that sees updates, inner products and weights.

A round is five steps with a value between each. No step starts the next one: `Host` does.

    1. intake    Enclave.open_round(memory) -> Intake, which opens every tile as it comes, checks it
                 and keeps it; Intake.close() -> Cohort
    2. measure   Inside(cohort).measure() -> Measured, in the enclave itself; or with workers:
                 Offload(cohort, ...).connect(...) -> Masking; Masking.decode(...) -> Measured,
                 or a Dispute: a worker lied
    3. decide    decide(cohort, measured) -> Plan, by the rule that the terms name
    4. combine   combine(cohort, measured, plan) -> the aggregate
    5. propose   propose(cohort, measured, plan, aggregate) -> Proposed, with the signed receipt

Nothing of that leaves before clients or witnesses have confirmed it: Enclave.ballot(pending) ->
Ballot counts them, and Enclave.follow(certified, state) goes on with the next number.
"""

from ostraka.protocol.enclave.arrival import Arrival
from ostraka.protocol.enclave.cohort import Cohort
from ostraka.protocol.enclave.combine import combine
from ostraka.protocol.enclave.decide import decide, in_vain
from ostraka.protocol.enclave.enclave import Enclave
from ostraka.protocol.enclave.intake import Intake
from ostraka.protocol.enclave.keeping import Memory, Spool
from ostraka.protocol.enclave.masking import Dispute, Masking, Offload
from ostraka.protocol.enclave.measure import Inside
from ostraka.protocol.enclave.propose import (
    NOT_ROBUST,
    Pending,
    Proposed,
    propose,
    propose_null_step,
)
from ostraka.protocol.enclave.rows import Measured
from ostraka.protocol.enclave.threads import Threads

__all__ = [
    "NOT_ROBUST",
    "Arrival",
    "Cohort",
    "Dispute",
    "Enclave",
    "Inside",
    "Intake",
    "Masking",
    "Measured",
    "Memory",
    "Offload",
    "Pending",
    "Proposed",
    "Spool",
    "Threads",
    "combine",
    "decide",
    "in_vain",
    "propose",
    "propose_null_step",
]

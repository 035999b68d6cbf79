"""The enclave: the only party that sees updates, inner products and weights.

A round is five steps with a value between each. No step starts the next one: `Host` does.

    1. intake    Enclave.open_round(memory) -> Intake, which opens every tile as it comes, checks it
                 and keeps it; Intake.close() -> Cohort
    2. measure   Inside(cohort).measure() -> Partial, in the enclave itself; or with workers:
                 Offload(cohort, ...).connect(...) -> Masking; Masking.decode(...) -> Partial,
                 or a Dispute: a worker lied; gather(cohort, partials) -> Measured
    3. decide    decide(cohort, measured) -> Plan, by the rule that the terms name
    4. combine   combine(cohort, scales, plan) -> the aggregate; advance(...) -> a Slice
    5. propose   propose(cohort, measured, plan, leaves) -> Proposed, with the signed receipt

With shards, each of them does intake, measure and combine on its own values, and one lead does the
rest. Without, one enclave is the lead and has all values.

Nothing of that leaves before clients or witnesses have confirmed it: Enclave.ballot(pending) ->
Ballot counts them, and Enclave.follow(certified, state) goes on with the next number.
"""

from ostraka.protocol.enclave.arrival import Arrival, Arrivals, Arrived, Begun
from ostraka.protocol.enclave.cohort import Cohort
from ostraka.protocol.enclave.combine import combine
from ostraka.protocol.enclave.decide import decide, in_vain
from ostraka.protocol.enclave.enclave import Enclave
from ostraka.protocol.enclave.intake import Intake, Part
from ostraka.protocol.enclave.keeping import Memory, Spool
from ostraka.protocol.enclave.masking import Dispute, Masking, Offload
from ostraka.protocol.enclave.measure import Inside
from ostraka.protocol.enclave.propose import (
    NOT_ROBUST,
    Leaves,
    Pending,
    Proposed,
    Slice,
    advance,
    advance_by_nothing,
    propose,
    propose_null_step,
)
from ostraka.protocol.enclave.rows import Counted, Measured, Partial, Summed, gather
from ostraka.protocol.enclave.shard import Shard, ShardRound
from ostraka.protocol.enclave.threads import Threads

__all__ = [
    "NOT_ROBUST",
    "Arrival",
    "Arrivals",
    "Arrived",
    "Begun",
    "Cohort",
    "Counted",
    "Dispute",
    "Enclave",
    "Inside",
    "Intake",
    "Leaves",
    "Masking",
    "Measured",
    "Memory",
    "Offload",
    "Part",
    "Partial",
    "Pending",
    "Proposed",
    "Shard",
    "ShardRound",
    "Slice",
    "Spool",
    "Summed",
    "Threads",
    "advance",
    "advance_by_nothing",
    "combine",
    "decide",
    "gather",
    "in_vain",
    "propose",
    "propose_null_step",
]

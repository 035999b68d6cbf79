"""Step 5, publish: signs what was done, once for each round. The outcome is `Published`."""

import hashlib
from dataclasses import dataclass, field

from ostraka.arrays import Float32
from ostraka.core import optimiser
from ostraka.core.optimiser import ServerState
from ostraka.core.rules import Plan
from ostraka.encoding import UNSIGNED, pack
from ostraka.errors import Rejection
from ostraka.messages import SIMULATION, Receipt, RejectedClient, vector_digest
from ostraka.protocol.enclave.cohort import Cohort
from ostraka.protocol.enclave.rows import Measured

_SALT_BYTES = 32
_COMMITMENT = b"ostraka/selection/v1"
_LEAKY = "gaussian masking: a single worker can recognise updates by the polar attack"
_UNCHECKED = "the workers' answers were not checked"
_SIMULATED = "simulated: no TEE protects this enclave, and its host can read every update"


@dataclass(frozen=True)
class Published:
    """The outcome of a round. `selected` and `weights` stay inside unless the terms disclose them.

    selected: the clients of weight above 0. weights: by client, of those.
    """

    aggregate: Float32
    state: ServerState
    receipt: Receipt
    selected: tuple[str, ...] = field(repr=False)
    weights: tuple[float, ...] = field(repr=False)
    rejected: dict[str, Rejection]
    distance_error: float = field(repr=False)  # tells something of the distances; stays inside


def publish(cohort: Cohort, measured: Measured, plan: Plan, aggregate: Float32) -> Published:
    """Advance the model by the aggregate, and sign the receipt. Raises for a second time."""
    context = cohort.context
    context.publication.claim()
    state = optimiser.advance(context.state, aggregate, context.terms.optimiser)
    selected = tuple(cohort.rows[row].client for row in plan.selected)
    rejected = _rejected(cohort)
    receipt = Receipt(
        number=context.number,
        round_id=context.round_id,
        previous=context.previous,
        federation=context.federation.digest(),
        revision=context.federation.revision,
        evidence=context.evidence,
        aggregate=vector_digest(aggregate),
        model=vector_digest(state.model),
        participants=len(cohort.alive),
        kept=len(selected),
        rejected=tuple(RejectedClient(client, reason) for client, reason in rejected.items()),
        commitment=_commitment(context.entropy(_SALT_BYTES), selected),
        disclosed=context.terms.disclose_selection,
        selected=selected if context.terms.disclose_selection else (),
        rule=context.terms.rule,
        masking=context.terms.masking,
        distances=measured.by,
        cautions=_cautions(cohort, measured),
        signature=UNSIGNED,
    )
    return Published(
        aggregate=aggregate,
        state=state,
        receipt=context.identity.sign(receipt),
        selected=selected,
        weights=tuple(plan.values[list(plan.selected)].tolist()),
        rejected=rejected,
        distance_error=float(measured.gram.deviation.max()) * measured.gram.unit**2,
    )


def _commitment(salt: bytes, selected: tuple[str, ...]) -> bytes:
    names = pack(*(client.encode() for client in selected))
    return hashlib.sha256(pack(_COMMITMENT, salt, names)).digest()


def _rejected(cohort: Cohort) -> dict[str, Rejection]:
    """In the roster's order, so that the same round has the same receipt."""
    rejected, roster = cohort.standing.rejected, cohort.context.federation.clients
    return {each.name: rejected[each.name] for each in roster if each.name in rejected}


def _cautions(cohort: Cohort, measured: Measured) -> tuple[str, ...]:
    terms, context = cohort.terms, cohort.context
    leaky = (_LEAKY,) if terms.masking == "gaussian" and not terms.inside else ()
    unchecked = (_UNCHECKED,) if measured.by == "workers" and not terms.verify else ()
    simulated = (_SIMULATED,) if context.evidence == SIMULATION else ()
    return leaky + unchecked + simulated + context.cautions

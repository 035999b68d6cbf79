"""Step 5, propose: signs what was done, once for each number, and shows none of it yet.

What follows is not for the enclave alone: `Ballot` counts who confirms the proposal, and only then
may anything of the outcome leave.
"""

import hashlib
import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ostraka import merkle
from ostraka.arrays import Float32
from ostraka.core import optimiser
from ostraka.core.metrics import Reported
from ostraka.core.optimiser import ServerState
from ostraka.core.rules import Columnwise, Plan
from ostraka.encoding import UNSIGNED, Digest, Id, pack
from ostraka.errors import Rejection
from ostraka.messages import SIMULATION, Proposal, Receipt, RejectedClient, vector_digest
from ostraka.protocol.confirm import outcome_digest
from ostraka.protocol.enclave.cohort import Cohort
from ostraka.protocol.enclave.rows import Measured
from ostraka.protocol.enclave.threads import Threads

NO_AGGREGATE = bytes(32)  # of a null step

_SALT_BYTES = 32
_COMMITMENT = b"ostraka/selection/v1"
_LEAKY = "gaussian masking: a single worker can recognise updates by the polar attack"
_UNCHECKED = "the workers' answers were not checked"
_SIMULATED = "simulated: no TEE protects this enclave, and its host can read every update"
NOT_ROBUST = "the rule is not robust: any client can move the aggregate, within the clipping norm"
_UNCONFIRMED = "nobody confirms outcomes: a host that copies the enclave's state can read an update"


@dataclass(frozen=True)
class Pending:
    """An outcome that waits to be confirmed: all that is needed to release it, and nothing else.

    leaves: of the cohort's tree, in its order.
    """

    LABEL: ClassVar[bytes] = b"ostraka/pending/v1"

    proposal: Proposal
    receipt: Receipt = field(repr=False)
    salt: Id = field(repr=False)
    leaves: tuple[Digest, ...] = field(repr=False)


@dataclass(frozen=True)
class Proposed:
    """The outcome of a round, as the enclave alone knows it.

    state: the model after it. selected: the clients of weight above 0. weights: by client, of
    those. aggregate: (d,), zeros if the round is a null step.
    """

    pending: Pending
    state: ServerState = field(repr=False)
    aggregate: Float32 = field(repr=False)
    selected: tuple[str, ...] = field(default=(), repr=False)
    weights: tuple[float, ...] = field(default=(), repr=False)
    rejected: dict[str, Rejection] = field(default_factory=dict, repr=False)
    distance_error: float = field(default=0.0, repr=False)

    @property
    def receipt(self) -> Receipt:
        return self.pending.receipt


def propose(
    cohort: Cohort,
    measured: Measured,
    plan: Plan,
    aggregate: Float32,
    threads: Threads | None = None,
) -> Proposed:
    """Advance the model by the aggregate, and sign the outcome. Raises for a second time."""
    context, threads = cohort.context, threads or Threads()
    context.publication.claim()
    model = context.vectors.take(len(aggregate))
    state = optimiser.advance(context.state, aggregate, context.terms.optimiser, model=model)
    selected = tuple(cohort.rows[row].client for row in plan.selected)
    receipt = _receipt(
        cohort,
        model=vector_digest(state.model, threads.map),
        aggregate=vector_digest(aggregate, threads.map),
        selected=selected,
        note=plan.note,
        by=measured.by,
    )
    return Proposed(
        pending=_pending(cohort, receipt),
        state=state,
        aggregate=aggregate,
        selected=selected,
        weights=_weights(plan),
        rejected=_rejected(cohort),
        distance_error=float(measured.gram.deviation.max()) * measured.gram.unit**2,
    )


def propose_null_step(
    cohort: Cohort, measured: Measured, failure: str, threads: Threads | None = None
) -> Proposed:
    """Sign that the rule could not stand: an outcome like any other, that changes no model.

    If the number were free again instead, a host could ask it as often as it likes, each time with
    other rows, whether the rule stands on them. So it takes as long as any other, too: the same
    work is done for nothing.
    """
    context, threads = cohort.context, threads or Threads()
    context.publication.claim()
    nothing = np.zeros(context.terms.dimension, np.float32)
    model = context.vectors.take(len(nothing))
    after = optimiser.advance(context.state, nothing, context.terms.optimiser, model=model)
    for vector in (nothing, after.model):  # The model that is kept was hashed for the offer.
        vector_digest(vector, threads.map)
    receipt = _receipt(
        cohort,
        model=vector_digest(context.state.model),
        aggregate=NO_AGGREGATE,
        failure=failure,
        by=measured.by,
    )
    return Proposed(_pending(cohort, receipt), context.state, nothing, rejected=_rejected(cohort))


def _receipt(
    cohort: Cohort,
    *,
    model: bytes,
    aggregate: bytes,
    by: str,
    failure: str = "",
    note: str = "",
    selected: tuple[str, ...] = (),
) -> Receipt:
    context, terms = cohort.context, cohort.terms
    rejected = _rejected(cohort)
    return context.identity.sign(
        Receipt(
            number=context.number,
            round_id=context.round_id,
            previous=context.previous,
            federation=context.federation.digest(),
            revision=context.federation.revision,
            evidence=context.evidence,
            failure=failure,
            aggregate=aggregate,
            model=model,
            cohort=merkle.root([row.header for row in cohort.rows]),
            participants=len(cohort.alive),
            kept=len(selected),
            rejected=tuple(RejectedClient(client, reason) for client, reason in rejected.items()),
            commitment=_commitment(context.entropy(_SALT_BYTES), selected),
            disclosed=terms.disclose_selection,
            selected=selected if terms.disclose_selection else (),
            rule=str(terms.composition),
            note=note,
            masking=terms.masking,
            distances=by,
            cautions=_cautions(cohort, by),
            metrics=_metrics(cohort),
            signature=UNSIGNED,
        )
    )


def _metrics(cohort: Cohort) -> Reported | None:
    """The means of what clients reported (law 21), whether the rule weighs them or not.

    Over the selected alone, they would tell who those are.
    """
    reports = (cohort.rows[row].report for row in cohort.alive)
    return cohort.terms.asked.mean(reports, cohort.terms.least_reports)


def _weights(plan: Plan) -> tuple[float, ...]:
    """Of the rows that are selected. Where columns are reduced, no row has one weight."""
    if isinstance(plan, Columnwise):
        return (math.nan,) * len(plan.selected)
    return tuple(plan.values[list(plan.selected)].tolist())


def _pending(cohort: Cohort, receipt: Receipt) -> Pending:
    context = cohort.context
    salt = context.entropy(_SALT_BYTES)
    proposal = Proposal(
        federation=context.federation.id,
        number=receipt.number,
        previous=receipt.previous,
        outcome=outcome_digest(salt, receipt),
        cohort=receipt.cohort,
        signature=UNSIGNED,
    )
    leaves = tuple(row.header for row in cohort.rows)
    return Pending(context.identity.sign(proposal), receipt, salt, leaves)


def _commitment(salt: bytes, selected: tuple[str, ...]) -> bytes:
    names = pack(*(client.encode() for client in selected))
    return hashlib.sha256(pack(_COMMITMENT, salt, names)).digest()


def _rejected(cohort: Cohort) -> dict[str, Rejection]:
    """In the roster's order, so that the same round has the same receipt."""
    rejected, roster = cohort.standing.rejected, cohort.context.federation.clients
    return {each.name: rejected[each.name] for each in roster if each.name in rejected}


def _cautions(cohort: Cohort, by: str) -> tuple[str, ...]:
    terms, context = cohort.terms, cohort.context
    leaky = (_LEAKY,) if terms.masking == "gaussian" and not terms.inside else ()
    unchecked = (_UNCHECKED,) if by == "workers" and not terms.verify else ()
    # The head names who confirms this outcome; these terms, who confirms the next.
    unconfirmed = () if context.confirmed and terms.confirm != "none" else (_UNCONFIRMED,)
    fragile = (NOT_ROBUST,) if terms.f and not terms.composition.robust else ()
    simulated = (_SIMULATED,) if context.evidence == SIMULATION else ()
    return leaky + unchecked + fragile + unconfirmed + simulated + context.cautions

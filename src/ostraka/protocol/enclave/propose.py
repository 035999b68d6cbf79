"""Step 5, propose: signs what was done, once for each number, and shows none of it yet.

What follows is not for the enclave alone: `Ballot` counts who confirms the proposal, and only then
may anything of the outcome leave.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from ostraka import merkle
from ostraka.arrays import Float32
from ostraka.config import LEAF_VALUES
from ostraka.core import optimiser
from ostraka.core.metrics import Reported
from ostraka.core.optimiser import ServerState
from ostraka.core.rules import Columnwise, Plan
from ostraka.encoding import UNSIGNED, Digest, Id, pack
from ostraka.errors import LocalProtocolError, Rejection
from ostraka.messages import (
    SIMULATION,
    Proposal,
    Receipt,
    RejectedClient,
    joined_digest,
    vector_leaves,
)
from ostraka.protocol.confirm import outcome_digest
from ostraka.protocol.enclave.cohort import Cohort, RoundContext
from ostraka.protocol.enclave.rows import Measured
from ostraka.protocol.enclave.threads import Threads

NO_AGGREGATE = bytes(32)  # of a null step, and where no round starts from it

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
class Leaves:
    """What names the outcome of a round on some values: the leaves of the model after it, and of
    its aggregate where the next round starts from that, too. After a null step they name nothing,
    and are as many all the same."""

    LABEL: ClassVar[bytes] = b"ostraka/shard/leaves/v1"

    model: tuple[Digest, ...]
    aggregate: tuple[Digest, ...]


@dataclass(frozen=True)
class Slice:
    """The outcome of a round, as far as its values are here.

    state: the model after it. aggregate: zeros if the round is a null step.
    """

    state: ServerState = field(repr=False)
    aggregate: Float32 = field(repr=False)
    leaves: Leaves = field(repr=False)


@dataclass(frozen=True)
class Proposed:
    """The outcome of a round, as the enclave alone knows it.

    selected: the clients of weight above 0. weights: by client, of those. slices: what is here of
    the model and the aggregate; nothing if shards elsewhere have them.
    """

    pending: Pending
    selected: tuple[str, ...] = field(default=(), repr=False)
    weights: tuple[float, ...] = field(default=(), repr=False)
    rejected: dict[str, Rejection] = field(default_factory=dict, repr=False)
    distance_error: float = field(default=0.0, repr=False)
    slices: tuple[Slice, ...] = field(default=(), repr=False)

    @property
    def receipt(self) -> Receipt:
        return self.pending.receipt

    @cached_property
    def state(self) -> ServerState:
        """The model after the round. Only where all of it is here."""
        states = [each.state for each in self.slices]
        return states[0] if len(states) == 1 else optimiser.joined(states)

    @cached_property
    def aggregate(self) -> Float32:
        """(d,), zeros if the round is a null step. Only where all of it is here."""
        vectors = [each.aggregate for each in self.slices]
        return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)


def advance(context: RoundContext, aggregate: Float32, threads: Threads | None = None) -> Slice:
    """Move what is here of the model by what is here of the aggregate."""
    threads = threads or Threads()
    model = context.vectors.take(len(aggregate))
    state = optimiser.advance(context.state, aggregate, context.terms.optimiser, model=model)
    kept = vector_leaves(aggregate, threads.map) if context.terms.composition.needs_last else ()
    return Slice(state, aggregate, Leaves(vector_leaves(state.model, threads.map), kept))


def advance_by_nothing(context: RoundContext, threads: Threads | None = None) -> Slice:
    """The same for a null step, which leaves the model as it was.

    It takes as long as any other, and tells the lead as much: the same work is done for nothing.
    """
    nothing = np.zeros(context.span.length, np.float32)
    in_vain = advance(context, nothing, threads)
    return replace(in_vain, state=context.state)


def propose(cohort: Cohort, measured: Measured, plan: Plan, outcome: Sequence[Leaves]) -> Proposed:
    """Sign the outcome. outcome: of each shard, in order. Raises for a second time."""
    model = _named(cohort, [leaf for each in outcome for leaf in each.model])
    aggregate = NO_AGGREGATE
    if cohort.terms.composition.needs_last:
        aggregate = _named(cohort, [leaf for each in outcome for leaf in each.aggregate])
    cohort.context.publication.claim()
    selected = tuple(cohort.rows[row].client for row in plan.selected)
    receipt = _receipt(
        cohort,
        model=model,
        aggregate=aggregate,
        selected=selected,
        note=plan.note,
        by=measured.by,
    )
    return Proposed(
        pending=_pending(cohort, receipt),
        selected=selected,
        weights=_weights(plan),
        rejected=_rejected(cohort),
        distance_error=float(measured.gram.deviation.max()) * measured.gram.unit**2,
    )


def propose_null_step(cohort: Cohort, measured: Measured, failure: str) -> Proposed:
    """Sign that the rule could not stand: an outcome like any other, that changes no model.

    If the number were free again instead, a host could ask it as often as it likes, each time with
    other rows, whether the rule stands on them.
    """
    context = cohort.context
    context.publication.claim()
    receipt = _receipt(
        cohort,
        model=context.model,
        aggregate=NO_AGGREGATE,
        failure=failure,
        by=measured.by,
    )
    return Proposed(_pending(cohort, receipt), rejected=_rejected(cohort))


def _named(cohort: Cohort, leaves: Sequence[bytes]) -> bytes:
    """The digest of a whole vector. Raises LocalProtocolError if some of it is missing."""
    d = cohort.terms.dimension
    if len(leaves) != -(-d // LEAF_VALUES):
        raise LocalProtocolError(f"{len(leaves)} leaves are not those of {d} values")
    return joined_digest(d, leaves)


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

"""`ostraka bench confirm`: what confirming an outcome takes, step by step, by the real roles.

python -m ostraka_lab.bench.confirmations CLIENTS RECEIPTS REPEAT    measures one size

All clients confirm, one after the other. Messages are encoded and decoded as on the wire, but no
network carries them: tests/integration/test_scale.py measures the service itself.
"""

import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from ostraka.core import optimiser
from ostraka.crypto import identity
from ostraka.crypto.identity import Identity
from ostraka.crypto.sealing import CODE_ID_BYTES, Sealer
from ostraka.crypto.updates import SealedUpdate
from ostraka.enclave.storage.state import EnclaveState
from ostraka.encoding import UNSIGNED, decode, digest, encode
from ostraka.errors import ConfigError
from ostraka.merkle import is_under, path_to
from ostraka.messages import (
    IN_PROCESS,
    Certificate,
    Certified,
    Confirmation,
    Proposal,
    Receipt,
    Vote,
    genesis,
)
from ostraka.protocol.client import Client, Submitted
from ostraka.protocol.confirm import (
    confirm,
    electorates,
    outcome_digest,
    require_certified,
)
from ostraka.protocol.round import Parties, enrol
from ostraka_lab.bench import machine
from ostraka_lab.bench.machine import measured
from ostraka_lab.bench.parties import EXACT, terms_of
from ostraka_lab.bench.process import Begin, Figures, report
from ostraka_lab.bench.whole_round import repeated

STEPS = {
    "hold": "the enclave seals the outcome and its model, durably",
    "propose": "the enclave makes the proposal, and a path in the tree for every client",
    "vote": "one client checks the proposal, finds its upload in it, and signs",
    "count": "the enclave checks the votes of all clients",
    "certify": "the enclave makes the certificate, checks it and publishes, durably",
    "verify": "one client checks the receipt and its certificate",
    "newcomer": "one newcomer does so for all receipts of a chain",
}

_DIMENSION = 4096

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """What to measure. receipts: those that a newcomer follows. repeat: rounds."""

    clients: int = 1000
    receipts: int = 100
    repeat: int = 3

    def __post_init__(self) -> None:
        if min(self.receipts, self.repeat) < 1:
            raise ConfigError("receipts and repeat must be at least 1")

    @property
    def words(self) -> list[str]:
        return [str(each) for each in (self.clients, self.receipts, self.repeat)]


@dataclass
class Meter:
    """What each step took: CPU and wall seconds, and how many bytes it sent."""

    runs: dict[str, list[Figures]] = field(default_factory=lambda: {step: [] for step in STEPS})

    def time(
        self,
        step: str,
        work: Callable[[], T],
        sent: Callable[[T], int] | None = None,
        *,
        fresh: bool = True,
    ) -> T:
        """Measure a step. fresh: as in a process that has verified nothing before."""
        if fresh:
            identity.forget()
            require_certified.cache_clear()
        result, cost = measured(work)
        size = sent(result) if sent else 0
        self.runs[step].append({"cpu_s": cost.cpu_s, "wall_s": cost.wall_s, "bytes": size})
        return result

    def medians(self) -> dict[str, Figures]:
        return {
            step: {name: statistics.median(run[name] for run in runs) for name in runs[0]}
            for step, runs in self.runs.items()
        }


def measure(plan: Plan, begin: Begin) -> Figures:
    """Measure one size. Figures are medians."""
    clients, receipts, repeat = plan.clients, plan.receipts, plan.repeat
    meter = Meter()
    terms = replace(terms_of(EXACT, clients, _DIMENSION), distances="inside")
    parties = enrol(terms, clients=clients)
    (electorate,) = electorates(parties.federation.federation)
    with tempfile.TemporaryDirectory(prefix="ostraka-bench-") as folder:
        sealer = Sealer(os.urandom(32), bytes(CODE_ID_BYTES))
        with EnclaveState.open(Path(folder) / "state", sealer) as state:
            _found(parties, state)
            for turn in range(repeat):
                begin(f"{clients} clients confirm", turn, repeat + 1)
                _confirm(parties, _submit(parties), state, meter)
    begin(f"a newcomer follows {receipts} receipts", repeat, repeat + 1)
    _follow(parties, receipts, meter)
    return {
        "clients": clients,
        "quorum": electorate.quorum,
        "receipts": receipts,
        "repeat": repeat,
        "steps": meter.medians(),
        "machine": machine.describe(threads=1),
    }


def _found(parties: Parties, state: EnclaveState) -> None:
    """Give the federation an enclave with a state on disk."""
    local = parties.federation
    zeros = np.zeros(_DIMENSION, np.float32)
    state.found(local.charters[0], optimiser.start(zeros, local.terms.optimiser))
    local.enclave = state.start(evidence=IN_PROCESS)


def _submit(parties: Parties) -> list[Submitted[SealedUpdate]]:
    """A round up to its outcome, which is not measured here."""
    federation = parties.federation
    offer = federation.open()
    rows = repeated(len(parties.clients), _DIMENSION)
    submitted = [
        parties.join(client, offer, row) for client, row in zip(parties.clients, rows, strict=True)
    ]
    for each in submitted:
        federation.take(each.sealed)
    federation.finish()
    return submitted


def _confirm(
    parties: Parties, submitted: list[Submitted[SealedUpdate]], state: EnclaveState, meter: Meter
) -> None:
    federation, proposed = parties.federation, parties.federation.proposed
    pending = proposed.pending
    meter.time("hold", partial(state.hold, pending, proposed.state))
    leaves = [each.leaf for each in submitted]
    shown = meter.time(
        "propose",
        lambda: [(encode(pending.proposal), path_to(pending.leaves, leaf)) for leaf in leaves],
        lambda shown: sum(len(proposal) + len(b"".join(path or ())) for proposal, path in shown),
    )
    votes = [
        meter.time("vote", partial(_vote, each, *seen), len)
        for each, seen in zip(submitted, shown, strict=True)
    ]

    def count() -> None:
        for vote in votes:
            federation.confirm(decode(Confirmation, vote))

    def certify() -> bytes:
        certified = federation.release()[1]
        state.publish(certified)
        return encode(certified)

    meter.time("count", count)
    certified = meter.time("certify", certify, len, fresh=False)
    client = submitted[0].joined.client
    meter.time("verify", lambda: client.follow(decode(Certified, certified)))
    outcome = decode(Certified, certified)
    parties.clients[:] = [each.finish(outcome, proposed.state.model) for each in submitted]


def _vote(
    submitted: Submitted[SealedUpdate], shown: bytes, path: tuple[bytes, ...] | None
) -> bytes:
    proposal = decode(Proposal, shown)
    if path is None or not is_under(proposal.cohort, submitted.leaf, path):
        raise ConfigError("an upload of the benchmark is not in its round")
    return encode(submitted.vote(proposal).joined.client.confirmation())


def _follow(parties: Parties, receipts: int, meter: Meter) -> None:
    """Follow a chain of so many receipts, each confirmed by the least number of voters."""
    enclave = Identity.generate()
    links = _chain(parties, receipts, enclave)
    newcomer = Client("newcomer", enclave, parties.federation.federation, enclave.public)

    def follow() -> int:
        client = newcomer
        for link in links:
            client = client.follow(decode(Certified, link))
        return sum(map(len, links))

    meter.time("newcomer", follow, lambda size: size)


def _chain(parties: Parties, receipts: int, enclave: Identity) -> list[bytes]:
    federation = parties.federation.federation
    (electorate,) = electorates(federation)
    voters = parties.clients[: electorate.quorum]
    last = parties.federation.published[-1].receipt
    links, previous = [], genesis(federation)
    for number in range(1, receipts + 1):
        link = _link(replace(last, number=number, previous=previous), voters, enclave)
        links.append(encode(link))
        previous = digest(link.receipt)
    return links


def _link(unsigned: Receipt, voters: list[Client], enclave: Identity) -> Certified:
    receipt, salt = enclave.sign(unsigned), os.urandom(32)
    federation, number = voters[0].federation.id, receipt.number
    proposal = enclave.sign(
        Proposal(
            federation=federation,
            number=number,
            previous=receipt.previous,
            outcome=outcome_digest(salt, receipt),
            cohort=receipt.cohort,
            signature=UNSIGNED,
        )
    )
    votes = (
        confirm(proposal, federation, number, voter=each.name, identity=each.identity)
        for each in voters
    )
    return Certified(
        receipt, Certificate(proposal, salt, tuple(Vote(v.voter, v.signature) for v in votes))
    )


if __name__ == "__main__":
    sys.exit(report(partial(measure, Plan(*map(int, sys.argv[1:])))))

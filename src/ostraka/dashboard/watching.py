"""Watches a federation as an observer: verifies what can be verified, and asks for the rest.

A connection that is lost, or an enclave that restarts, is told of and tried again, for as long as
the page is served. A restarted enclave has to prove itself again.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import grpc

from ostraka.attestation.claims import Claims
from ostraka.client import attesting, following
from ostraka.client.attesting import Verifier
from ostraka.client.connection import Connection, Patience, Status
from ostraka.client.memory import Memory
from ostraka.config import Federation
from ostraka.dashboard.told import Metrics, Told, Work
from ostraka.encoding import decode, digest
from ostraka.errors import (
    AttestationRefused,
    LocalProtocolError,
    OpenError,
    OstrakaError,
    ReceiptRefused,
    ServiceError,
)
from ostraka.messages import Certified, Receipt
from ostraka.protocol.client import Client
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.dial import Backoff

# All that an observer ever asks. None of these changes anything.
QUESTIONS = frozenset({"Greet", "GetCharter", "Prove", "GetChain", "GetStatus"})

CONNECTING = "connecting"  # in the place of why there is no connection yet

_POLL_S = 1.0
_ANSWER_S = 10.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 5.0
_KEPT = 200  # rounds whose times and figures are kept
_REFUSALS = 5  # that are shown
_JITTER_S = 1.5  # by which two answers about one deadline may differ


@dataclass(frozen=True)
class Verified:
    """A receipt of the chain whose signature, place and certificate were verified.

    votes: the confirmations in its certificate.
    """

    receipt: Receipt
    votes: int


@dataclass(frozen=True)
class View:
    """What there is to see.

    federation: its terms and roster, as signed. claims: of the enclave's evidence, verified at
    `proved_at`. told: by the service, not proved. until: when the open round ends. work: of all the
    times that the service was started. lost: why there is no connection, empty if there is one.
    refusals: what could not be verified, ever. All times are in seconds since 1970.
    """

    address: str
    federation: Federation | None = None
    claims: Claims | None = None
    proved_at: float = 0.0
    chain: tuple[Verified, ...] = ()
    told: Told | None = None
    until: float | None = None
    work: dict[str, Work] = field(default_factory=dict)
    times: dict[int, dict[str, float]] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)
    restarts: int = 0
    lost: str = CONNECTING
    refusals: tuple[str, ...] = ()


class _ReadOnly:
    """The calls of a stub that an observer makes. There is no way to any other."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    def __getattr__(self, method: str) -> Any:
        if method not in QUESTIONS:
            raise LocalProtocolError(f"an observer never calls {method}")
        return getattr(self._stub, method)


class ReadOnlyConnection(Connection):
    """A connection by which nothing can be changed."""

    def __init__(self, address: str, *, tls_ca: Path | None, who: Verifier) -> None:
        super().__init__(
            address,
            tls_ca=tls_ca,
            patience=Patience(_ANSWER_S),
            tell=lambda _: None,
            greeting=who.greeting,
        )
        self._plain = _ReadOnly(self._plain)


@dataclass
class Observer:
    """Watches one service until it is stopped, and shows every change. Run it in a thread."""

    address: str
    who: Verifier
    show: Callable[[View], None]
    tls_ca: Path | None = None
    view: View = field(init=False)
    _stopped: Event = field(default_factory=Event)
    _memory: Memory | None = None
    _past: dict[str, Work] = field(default_factory=dict)  # before the last restart

    def __post_init__(self) -> None:
        self.view = View(self.address)

    def stop(self) -> None:
        """End soon, from any thread."""
        self._stopped.set()

    def run(self) -> None:
        backoff = Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S)
        while not self._stopped.is_set():
            try:
                with ReadOnlyConnection(self.address, tls_ca=self.tls_ca, who=self.who) as service:
                    self._prove(service)
                    while not self._stopped.wait(_POLL_S if self.view.told else 0):
                        self._ask(service)
                        backoff.reset()
            except grpc.RpcError as error:
                self._lose(str(Status.of(error)))
            except (AttestationRefused, ReceiptRefused, OpenError) as refused:
                self._refuse(str(refused))
            except OstrakaError as failed:
                self._lose(_advised(failed))
            self._stopped.wait(backoff.next())

    def _prove(self, service: Connection) -> None:
        """Have the enclave prove itself, and verify its chain so far."""
        proved = attesting.prove(service, self.who)
        held = self._memory
        if held is None:
            self._begin(service, proved)
        elif held.receipt_key != proved.receipt_key:
            raise ReceiptRefused(
                "this enclave signs with another key than the one that was watched before: it is "
                "another one, or its state was lost. If its authority has abandoned a round, start "
                "this page's server again"
            )
        self._change(
            federation=proved.charter.federation, claims=proved.claims, proved_at=time.time()
        )

    def _begin(self, service: Connection, proved: attesting.Proved) -> None:
        """Verify the whole chain. Raises ReceiptRefused or OpenError."""
        federation = proved.charter.federation
        blank = Client(self.who.name, self.who.identity, federation, proved.receipt_key)
        chain: list[Verified] = []
        with service.stream("GetChain", wire.ChainRequest()) as links:
            noted = _noting(links, chain)
            client = following.begin_with(noted, blank, policy=self.who.policy)
        _require_linked(chain)
        self._memory = Memory.of(client, proved.charter)
        self._change(chain=tuple(chain))

    def _follow(self, service: Connection) -> None:
        """Verify what was published since. Raises ReceiptRefused, Fork or OpenError."""
        held = self._memory
        if held is None:
            raise LocalProtocolError("the enclave proves itself before its chain is followed")
        after = held.last.number - 1 if held.last is not None else 0
        chain: list[Verified] = []
        with service.stream("GetChain", wire.ChainRequest(after=after)) as links:
            followed = following.follow(
                _noting(links, chain),
                held,
                identity=self.who.identity,
                policy=self.who.policy,
                set_back="An observer can do nothing about it",
            )
        self._memory = followed.memory
        known = {each.receipt.number for each in self.view.chain}
        new = [each for each in chain if each.receipt.number not in known]
        self._change(chain=(*self.view.chain, *new))

    def _ask(self, service: Connection) -> None:
        """Take in the newest status, and verify what it says is published."""
        reply = service.once("GetStatus", wire.StatusRequest(), seconds=_ANSWER_S)
        told, before = Told.read(reply.json), self.view.told
        if self.view.federation is None or told.revision != self.view.federation.revision:
            self._prove(service)
        if told.published != (self._memory.progress[0] if self._memory else 0):
            self._follow(service)
        restarted = before is not None and told.started_at != before.started_at
        if before is not None and restarted:
            self._past = _sum(self._past, before.work)
        self._change(
            told=told,
            until=self._until(told),
            work=_sum(self._past, told.work),
            times=_newest(self.view.times | told.times),
            metrics=_newest(self.view.metrics | told.metrics),
            restarts=self.view.restarts + restarted,
            lost="",
        )

    def _until(self, told: Told) -> float | None:
        """When the round ends. It stays as it is if two answers differ by their ways only."""
        if told.deadline_in_s is None:
            return None
        before, until = self.view.until, time.time() + told.deadline_in_s
        return before if before is not None and abs(before - until) < _JITTER_S else until

    def _lose(self, why: str) -> None:
        self._change(lost=why or "no answer", until=None)

    def _refuse(self, why: str) -> None:
        refusals = dict.fromkeys((*self.view.refusals, why))
        self._change(lost=why, until=None, refusals=tuple(refusals)[-_REFUSALS:])

    def _change(self, **changes: Any) -> None:
        self.view = replace(self.view, **changes)
        self.show(self.view)


def _noting(links: Iterable[wire.ChainLink], chain: list[Verified]) -> Iterator[wire.ChainLink]:
    """Pass links on to who verifies them, and keep what to show once all are verified."""
    for link in links:
        yield link
        if link.WhichOneof("link") == "certified":
            certified = decode(Certified, link.certified)
            votes = len(certified.certificate.votes) if certified.certificate else 0
            chain.append(Verified(certified.receipt, votes))


def _require_linked(chain: list[Verified]) -> None:
    """A newcomer's proof may leave receipts out. This one has to be whole."""
    for before, after in pairwise(chain):
        if after.receipt.previous != digest(before.receipt):
            raise ReceiptRefused(
                f"round {after.receipt.number} does not follow on round {before.receipt.number}"
            )


def _sum(one: dict[str, Work], other: dict[str, Work]) -> dict[str, Work]:
    return {name: one.get(name, Work()) + other.get(name, Work()) for name in one | other}


def _newest(by_round: dict[int, Any]) -> dict[int, Any]:
    return dict(sorted(by_round.items())[-_KEPT:])


def _advised(failed: OstrakaError) -> str:
    if isinstance(failed, ServiceError) and failed.status == "PERMISSION_DENIED":
        return (
            "the service does not know this observer: its operator has to add an [[observer]] with "
            "this name and key to federation.toml (ostraka observer enrol prints one); it is known "
            "from the next round on"
        )
    return str(failed)

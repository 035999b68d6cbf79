"""The chain of charters and receipts: what was published since the last receipt that is held."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ostraka.attestation.policy import FederationPolicy, Policy
from ostraka.attestation.verify import require_confirmed, verify_charter
from ostraka.client.connection import Connection
from ostraka.client.memory import Memory
from ostraka.config import MASKINGS, Federation
from ostraka.core.metrics import NAMES
from ostraka.crypto.identity import Identity, check_signature
from ostraka.encoding import decode, digest
from ostraka.errors import Fork, MalformedMessage, ReceiptRefused, RolledBack
from ostraka.messages import Abandon, Certified, Charter, Proposal, Receipt, genesis
from ostraka.protocol.client import Client
from ostraka.protocol.confirm import require_certified
from ostraka.transport import ostraka_pb2 as wire


@dataclass(frozen=True)
class Followed:
    """Where the chain has led, and the receipts on the way there, by number."""

    memory: Memory
    receipts: dict[int, Receipt]
    copied: Proposal | None = None  # what this client confirmed, where others confirmed another


def catch_up(
    connection: Connection,
    memory: Memory,
    *,
    identity: Identity,
    policy: Policy,
    set_back: str = "",
) -> Followed:
    """Follow the chain to its end.

    Raises OpenError, ReceiptRefused, Fork, RolledBack or AttestationRefused. Who holds a receipt
    asks for that one again, so that a host with another one has to show it or to hide it.
    set_back: what to do if the enclave does not know it.
    """
    after = memory.last.number - 1 if memory.last is not None else 0

    def ask() -> Followed:
        with connection.stream("GetChain", wire.ChainRequest(after=after)) as links:
            return follow(links, memory, identity=identity, policy=policy, set_back=set_back)

    return connection.attempt(ask)


def follow(
    links: Iterable[wire.ChainLink],
    memory: Memory,
    *,
    identity: Identity,
    policy: Policy,
    set_back: str = "",
) -> Followed:
    """Follow links that another party has brought. Raises as `catch_up` does."""
    chain = _Chain(memory, identity, policy, set_back)
    for link in links:
        chain.add(link)
    return chain.end()


class _Chain:
    """Takes one link after the other."""

    def __init__(self, memory: Memory, identity: Identity, policy: Policy, set_back: str) -> None:
        self._policy = policy
        self._set_back = set_back
        self._memory = memory
        self._held_was_shown = memory.last is None
        self._client = memory.role(identity)
        self._charter = memory.charter
        self._receipts: dict[int, Receipt] = {}
        self._copied: Proposal | None = None

    def add(self, link: wire.ChainLink) -> None:
        match link.WhichOneof("link"):
            case "charter":
                self._adopt(decode(Charter, link.charter))
            case "certified":
                self._follow(decode(Certified, link.certified))
            case "abandon":
                self._abandon(decode(Abandon, link.abandon))
            case _:
                raise MalformedMessage("a link of the chain is empty")

    def end(self) -> Followed:
        if not (self._held_was_shown or self._receipts):
            raise self._forgotten()
        return Followed(
            Memory.of(self._client, self._charter, self._memory.sent), self._receipts, self._copied
        )

    def _forgotten(self) -> ReceiptRefused:
        """The enclave does not know the last receipt. If this client confirmed it, it can prove."""
        proof, last = self._memory.proposal, self._memory.last
        if proof is not None and last is not None and proof.number >= last.number:
            return RolledBack(proof.number, proof)
        return ReceiptRefused(
            "the enclave does not know the last receipt that this client holds: "
            f"it was set back to an older state. {self._set_back}"
        )

    def _adopt(self, charter: Charter) -> None:
        federation = _signed(charter, self._policy)
        if federation.revision < self._client.federation.revision:
            return  # Of the past, like the receipts before the one that is held.
        self._client = self._client.adopt(federation)
        self._charter = charter

    def _follow(self, certified: Certified) -> None:
        receipt, last = certified.receipt, self._client.last
        if receipt == self._memory.last:
            self._held_was_shown = True
            return
        if self._client.receipt_key is None:
            return  # Behind an Abandon comes a new enclave, which has to prove itself first.
        if last is not None and receipt.number == last.number:
            require_same(last, receipt, self._client.receipt_key or b"")
        self._client = self._client.follow(certified)
        self._receipts[receipt.number] = receipt
        mine, theirs = self._memory.proposal, certified.certificate
        if mine is not None and theirs is not None and mine.number == receipt.number:
            self._copied = mine if mine != theirs.proposal else None

    def _abandon(self, abandon: Abandon) -> None:
        if abandon == self._memory.last:
            self._held_was_shown = True
        elif abandon.number >= self._client.next_number:
            self._client = self._client.abandon(abandon)
            self._held_was_shown = True


def begin(connection: Connection, client: Client, *, policy: Policy) -> Client:
    """Where the chain is, as it is proved to a newcomer by the policy alone.

    client: knows the proved enclave's key and its newest federation. Raises ReceiptRefused,
    OpenError or AttestationRefused.
    """

    def ask() -> Client:
        with connection.stream("GetChain", wire.ChainRequest(newest=True)) as links:
            return begin_with(links, client, policy=policy)

    return connection.attempt(ask)


def begin_with(links: Iterable[wire.ChainLink], client: Client, *, policy: Policy) -> Client:
    """The same with links that another party has brought."""
    newcomer = _Newcomer(client, policy)
    for link in links:
        newcomer.add(link)
    return newcomer.end()


class _Newcomer:
    """Checks every receipt that is shown against the charter that the one before it names.

    Charters only go forward. So the receipt before one is known to name the same charter, if an
    earlier one that is proved does.
    """

    def __init__(self, client: Client, policy: Policy) -> None:
        self._client = client
        self._policy = policy
        self._federations: dict[bytes, Federation] = {}
        self._ends: list[Receipt | Abandon] = []

    def add(self, link: wire.ChainLink) -> None:
        match link.WhichOneof("link"):
            case "charter":
                federation = _signed(decode(Charter, link.charter), self._policy)
                self._federations[federation.digest()] = federation
            case "certified":
                self._check(decode(Certified, link.certified))
            case "abandon":
                self._begin_behind(decode(Abandon, link.abandon))
            case _:
                raise MalformedMessage("a link of the chain is empty")

    def end(self) -> Client:
        founding = next(iter(self._federations.values()), self._client.federation)
        if not self._ends:
            return replace(self._client, electors=founding)
        last = self._ends[-1]
        return replace(self._client, last=last, electors=self._named(last))

    def _check(self, certified: Certified) -> None:
        receipt, key = certified.receipt, self._client.receipt_key or b""
        check_signature(receipt, key)
        require_certified(certified, self._electors(receipt), key)
        self._end(receipt)

    def _begin_behind(self, abandon: Abandon) -> None:
        """The authority says where the chain goes on, and whose voters confirm what follows."""
        check_signature(abandon, self._client.federation.authority)
        if abandon.electors.id != self._client.federation.id:
            raise ReceiptRefused("the abandoned round is of another federation")
        require_confirmed(abandon.electors, _past(abandon.electors, self._policy))
        self._federations[abandon.federation] = abandon.electors
        self._end(abandon)

    def _end(self, end: Receipt | Abandon) -> None:
        self._named(end)
        if self._ends:
            before = self._ends[-1]
            if end.number <= before.number or end.revision < before.revision:
                raise ReceiptRefused("the chain does not go forward")
        self._ends.append(end)

    def _electors(self, receipt: Receipt) -> Federation:
        if receipt.number == 1:
            founding = next(iter(self._federations.values()), None)
            if founding is not None and receipt.previous == genesis(founding):
                return founding
        elif self._ends:
            before = self._ends[-1]
            if digest(before) == receipt.previous or before.federation == receipt.federation:
                return self._named(before)
        raise ReceiptRefused(
            f"nothing that is shown proves who had to confirm round {receipt.number}"
        )

    def _named(self, end: Receipt | Abandon) -> Federation:
        if end.federation not in self._federations:
            raise ReceiptRefused(f"the charter that round {end.number} names is not shown")
        return self._federations[end.federation]


def require_same(held: object, other: Receipt, enclave: bytes) -> None:
    """Raises Fork if the enclave signed another receipt for the same round."""
    if other != held:
        check_signature(other, enclave)
        raise Fork(held, other)


def _signed(charter: Charter, policy: Policy) -> Federation:
    """Checked as a piece of history: its workers, masking and rule get no update of this client."""
    past = _past(charter.federation, policy)
    return verify_charter(charter, replace(policy, federation=past))


def _past(federation: Federation, policy: Policy) -> FederationPolicy:
    """What the policy says, as it holds for a federation of the past."""
    pinned = policy.federation
    return replace(
        pinned,
        workers=tuple(worker.key for worker in federation.workers),
        maskings=MASKINGS,
        rules=None,
        disclose_values=True,
        report_metrics=NAMES,
        witnesses=pinned.witnesses if federation.witnesses else (),
    )

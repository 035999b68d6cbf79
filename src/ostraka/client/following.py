"""The chain of charters and receipts: what was published since the last receipt that is held."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ostraka.attestation.policy import Policy
from ostraka.attestation.verify import verify_charter
from ostraka.client.connection import Connection
from ostraka.client.memory import Memory
from ostraka.config import MASKINGS, Federation
from ostraka.crypto.identity import Identity, check_signature
from ostraka.encoding import decode
from ostraka.errors import Fork, MalformedMessage, ReceiptRefused
from ostraka.messages import Charter, Receipt, RoundOffer
from ostraka.transport import ostraka_pb2 as wire


@dataclass(frozen=True)
class Followed:
    """Where the chain has led, and the receipts on the way there, by number."""

    memory: Memory
    receipts: dict[int, Receipt]


def catch_up(
    connection: Connection,
    memory: Memory,
    *,
    identity: Identity,
    policy: Policy,
    joined: RoundOffer | None = None,
    begun_anew: str = "",
) -> Followed:
    """Follow the chain to its end. Raises OpenError, ReceiptRefused, Fork or AttestationRefused.

    joined: a client without a receipt begins with that of the round that it joined. Who holds a
    receipt asks for that one again, so that a host with another one has to show it or to hide it.
    begun_anew: what to do if the enclave has forgotten it for a good reason.
    """
    first = memory.last or joined
    if first is None:
        return Followed(memory, {})

    def ask() -> Followed:
        request = wire.ChainRequest(after=first.number - 1)
        with connection.stream("GetChain", request) as links:
            return follow(
                links,
                memory,
                identity=identity,
                policy=policy,
                joined=joined,
                begun_anew=begun_anew,
            )

    return connection.attempt(ask)


def follow(
    links: Iterable[wire.ChainLink],
    memory: Memory,
    *,
    identity: Identity,
    policy: Policy,
    joined: RoundOffer | None = None,
    begun_anew: str = "",
) -> Followed:
    """Follow links that another party has brought. Raises as `catch_up` does."""
    chain = _Chain(memory, identity, policy, joined, begun_anew)
    for link in links:
        chain.add(link)
    return chain.end()


class _Chain:
    """Takes one link after the other."""

    def __init__(
        self,
        memory: Memory,
        identity: Identity,
        policy: Policy,
        joined: RoundOffer | None,
        begun_anew: str,
    ) -> None:
        self._policy = policy
        self._begun_anew = begun_anew
        self._joined = joined
        self._held = memory.last
        self._held_was_shown = memory.last is None
        self._client = memory.role(identity)
        self._charter = memory.charter
        self._receipts: dict[int, Receipt] = {}

    def add(self, link: wire.ChainLink) -> None:
        match link.WhichOneof("link"):
            case "charter":
                self._adopt(decode(Charter, link.charter))
            case "receipt":
                self._follow(decode(Receipt, link.receipt))
            case _:
                raise MalformedMessage("a link of the chain is empty")

    def end(self) -> Followed:
        if not (self._held_was_shown or self._receipts):
            raise ReceiptRefused(
                "the enclave does not know the last receipt that this client holds: "
                f"it was set back to an older state. {self._begun_anew}"
            )
        return Followed(Memory.of(self._client, self._charter), self._receipts)

    def _adopt(self, charter: Charter) -> None:
        federation = _signed(charter, self._policy)
        if federation.revision < self._client.federation.revision:
            return  # Of the past, like the receipts before the one that is held.
        self._client = self._client.adopt(federation)
        self._charter = charter

    def _follow(self, receipt: Receipt) -> None:
        if self._held is not None and receipt == self._held:
            self._held_was_shown = True
            return
        last = self._client.last
        if last is not None and receipt.number == last.number:
            require_same(last, receipt, self._client.receipt_key or b"")
        if last is None:
            self._require_joined(receipt)
        self._client = self._client.follow(receipt)
        self._receipts[receipt.number] = receipt

    def _require_joined(self, receipt: Receipt) -> None:
        """A chain begins where this client has seen it, and nowhere else."""
        joined = self._joined
        if joined is None or (receipt.number, receipt.previous) != (joined.number, joined.previous):
            raise ReceiptRefused("the chain does not go on from the round that this client joined")


def require_same(held: Receipt, other: Receipt, enclave: bytes) -> None:
    """Raises Fork if the enclave signed another receipt for the same round."""
    if other != held:
        check_signature(other, enclave)
        raise Fork(held, other)


def _signed(charter: Charter, policy: Policy) -> Federation:
    """Checked as a piece of history: its workers and its masking get no update of this client."""
    past = replace(
        policy.federation,
        workers=tuple(worker.key for worker in charter.federation.workers),
        maskings=MASKINGS,
    )
    return verify_charter(charter, replace(policy, federation=past))

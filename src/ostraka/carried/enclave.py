"""What a strategy needs of an enclave: to carry bytes between it and the nodes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ostraka.arrays import Float32
from ostraka.config import Manifest
from ostraka.crypto.updates import SealedUpdate
from ostraka.errors import OstrakaError
from ostraka.flower.messages import Hello, Proof
from ostraka.messages import Receipt, RoundOffer


class Finished(OstrakaError):
    """All rounds of the federation are over."""


@dataclass(frozen=True)
class Head:
    """Where the federation is. number: of the last published round, 0 before the first."""

    number: int
    manifest: Manifest
    model: Float32 = field(repr=False)
    f: int
    k: int | None


@dataclass(frozen=True)
class Outcome:
    """What a round has yielded, as its receipt says."""

    receipt: Receipt
    model: Float32 = field(repr=False)


class Enclave(Protocol):
    """One that can be reached. Whatever is refused raises an OstrakaError.

    seconds: how long to wait for an answer; None for as long as it takes to know that there is no
    enclave. ServiceError without a status says that none came.
    """

    def start(self, manifest: Manifest, model: Float32) -> Head:
        """Where the federation is now. The app's first model is used where there is none yet."""

    def open(self, hellos: Sequence[Hello]) -> None:
        """A round for these nodes. Raises ConfigError if it cannot stand with them."""

    def introduce(self, hello: Hello, *, seconds: float | None = None) -> Proof:
        """The answer to a node's challenge. Raises Finished."""

    def deliver(self, sealed: SealedUpdate, *, seconds: float | None = None) -> None:
        """Hand over an update, unread."""

    def finish(self, offer: RoundOffer, *, seconds: float) -> Outcome | None:
        """The round's outcome, checked; None if nothing was published."""

    def links(self, after: int) -> tuple[bytes, ...]:
        """The chain of charters and receipts behind this receipt."""

    def close(self) -> None:
        """Nothing more is asked of it."""

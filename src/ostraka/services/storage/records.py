"""What an enclave writes down about itself: the records of its ledger, in the order of a life.

Founded | TakenOver, then any of Adopted, Published, Skipped, and HandedOver at the end.
"""

from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from ostraka import encoding
from ostraka.encoding import Digest, Key
from ostraka.errors import MalformedMessage
from ostraka.messages import Charter, Receipt


@dataclass(frozen=True)
class Founded:
    """A new enclave. identity: its public key. state: digest of the state before all rounds."""

    LABEL: ClassVar[bytes] = b"ostraka/ledger/founded/v1"

    identity: Key
    charter: Charter
    state: Digest


@dataclass(frozen=True)
class TakenOver:
    """The life of another enclave goes on here.

    origin: its identity. history: its records, each encoded, from its first to its HandedOver.
    """

    LABEL: ClassVar[bytes] = b"ostraka/ledger/taken-over/v1"

    origin: Digest
    history: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True)
class Adopted:
    """A new revision of the federation holds, from the next round on."""

    LABEL: ClassVar[bytes] = b"ostraka/ledger/adopted/v1"

    charter: Charter


@dataclass(frozen=True)
class Published:
    """A round is over. state: digest of the model and the optimiser's moments after it."""

    LABEL: ClassVar[bytes] = b"ostraka/ledger/published/v1"

    receipt: Receipt
    state: Digest


@dataclass(frozen=True)
class Skipped:
    """A round was given up. The next one has its number."""

    LABEL: ClassVar[bytes] = b"ostraka/ledger/skipped/v1"

    number: int
    reason: str


@dataclass(frozen=True)
class HandedOver:
    """The end: everything went to the enclave of this identity, under the hybrid key named here.

    Without the key, two machines that run the same code could both become the successor.
    """

    LABEL: ClassVar[bytes] = b"ostraka/ledger/handed-over/v1"

    to: Digest
    key: Digest


Record: TypeAlias = Founded | TakenOver | Adopted | Published | Skipped | HandedOver

_KINDS: dict[bytes, type[Record]] = {
    kind.LABEL: kind for kind in (Founded, TakenOver, Adopted, Published, Skipped, HandedOver)
}


def decode(data: bytes) -> Record:
    """The record of whichever kind these bytes encode. Raises MalformedMessage."""
    label, *_ = encoding.unpack(data) or [b""]
    if label not in _KINDS:
        raise MalformedMessage("not a record of any known kind")
    return encoding.decode(_KINDS[label], data)

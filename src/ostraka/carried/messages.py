"""The messages of a carried federation. The framework carries them and need not be trusted.

host's side                              node
  ------ ASK ------------------------------>    draws a nonce
  <----- Hello: a signed challenge ---------
  ------ Proof, beside the model ---------->    verifies both, and lets the app train
  <----- SealedReply: update and Hello -----    the next round needs no ASK
  ------ Poll: a Proposal ----------------->    writes down its one vote of this number
  <----- Confirmation ----------------------
  ------ Links, beside a model ------------>    verifies the model, and lets the app evaluate

All nodes on the roster are polled, whether they have sent an update or not. A node that has voted
answers a Proof of the same number, and a Poll with another Proposal, with the Proposal of its vote.
"""

from dataclasses import dataclass
from typing import ClassVar

from google.protobuf.message import DecodeError

from ostraka.config import Terms
from ostraka.crypto.aead import TAG_BYTES
from ostraka.crypto.updates import SealedUpdate
from ostraka.encoding import Key, decode, encode, pack, unpack
from ostraka.errors import MalformedMessage
from ostraka.messages import (
    Challenge,
    Charter,
    Evidence,
    Introduction,
    Proposal,
    UpdateHeader,
    UpdateTile,
)
from ostraka.transport import ostraka_pb2 as wire

ASK = pack(b"ostraka/carried-ask/v1")
"""Asks a node for its Hello."""

_LONGEST_NAME = 256  # characters
_LARGEST_HEADER = 8192  # bytes; the sealed key in it takes about 1,200


@dataclass(frozen=True)
class Hello:
    """A node asks the enclave to prove itself.

    key: the node's public key, for an enclave that enrols every node. after: the number of the last
    receipt that the node need not be shown; None if it has no place in the chain yet.
    """

    LABEL: ClassVar[bytes] = b"ostraka/carried-hello/v1"

    challenge: Challenge
    key: Key
    after: int | None


@dataclass(frozen=True)
class Proof:
    """Everything that a node checks before it trains, except the model.

    links: the chain since the receipt that the node holds, as the enclave's service sends it; for a
    newcomer, what proves the newest receipt. collateral: of a simulated platform only; for any
    other, a node has its own.
    """

    LABEL: ClassVar[bytes] = b"ostraka/carried-proof/v1"

    charter: Charter
    introduction: Introduction
    links: tuple[bytes, ...]
    collateral: bytes = b""


@dataclass(frozen=True)
class KeyProof:
    """Proves to a node without an open round which key signs proposals (`claims.KeyBinding`)."""

    LABEL: ClassVar[bytes] = b"ostraka/carried-key-proof/v1"

    charter: Charter
    receipt_key: Key
    evidence: Evidence
    collateral: bytes = b""


@dataclass(frozen=True)
class Poll:
    """Asks a node to confirm an outcome.

    links: as in a Proof. included, path: whether an update of this node takes part, and what leads
    from it to the cohort's root. enclave: for a node that may not know its key.
    """

    LABEL: ClassVar[bytes] = b"ostraka/carried-poll/v1"

    proposal: Proposal
    links: tuple[bytes, ...]
    included: bool = False
    path: tuple[bytes, ...] = ()
    enclave: KeyProof | None = None


@dataclass(frozen=True)
class Links:
    """The chain alone, which proves what model the last round published."""

    LABEL: ClassVar[bytes] = b"ostraka/carried-links/v1"

    links: tuple[bytes, ...]


@dataclass(frozen=True)
class SealedReply:
    """A node's update, and its challenge for the next round."""

    LABEL: ClassVar[bytes] = b"ostraka/carried-reply/v1"

    sealed: SealedUpdate
    hello: Hello

    def to_bytes(self) -> bytes:
        """Encode the reply tile by tile: a nested message would copy every tile once more."""
        tiles = (encode(tile) for tile in self.sealed.tiles)
        return pack(self.LABEL, encode(self.hello), encode(self.sealed.header), *tiles)

    @classmethod
    def from_bytes(cls, data: bytes) -> "SealedReply":
        """Raises MalformedMessage."""
        match unpack(data):
            case [cls.LABEL, hello, header, *tiles] if tiles and len(header) <= _LARGEST_HEADER:
                decoded = tuple(decode(UpdateTile, tile) for tile in tiles)
                return cls(SealedUpdate(decode(UpdateHeader, header), decoded), read_hello(hello))
            case [cls.LABEL, *_]:
                raise MalformedMessage("a sealed update has a small header, and tiles")
        raise MalformedMessage("the reply is not a sealed update")

    def require_shape(self, terms: Terms) -> None:
        """Raises MalformedMessage unless header and tiles are as long as the terms say."""
        tiling, sealed = terms.tiling, self.sealed
        if not len(sealed.tiles) == sealed.header.tiles == tiling.count:
            raise MalformedMessage(f"a sealed update has {tiling.count} tiles")
        for index, tile in enumerate(sealed.tiles):
            if len(tile.ciphertext) != terms.tile_bytes(index) + TAG_BYTES:
                raise MalformedMessage(f"tile {index} of a sealed update is too long or too short")


def read_hello(data: bytes) -> Hello:
    """Raises MalformedMessage."""
    hello = decode(Hello, data)
    if len(hello.challenge.client) > _LONGEST_NAME:
        raise MalformedMessage(f"a client's name has at most {_LONGEST_NAME} characters")
    return hello


def is_poll(data: bytes) -> bool:
    """Tell whether this claims to be a Poll."""
    return data.startswith(pack(Poll.LABEL))


def is_reminder(data: bytes) -> bool:
    """Tell whether this claims to be a Proposal, of a vote that was cast before."""
    return data.startswith(pack(Proposal.LABEL))


def read_links(links: tuple[bytes, ...]) -> list[wire.ChainLink]:
    """Raises MalformedMessage."""
    try:
        return [wire.ChainLink.FromString(link) for link in links]
    except DecodeError:
        raise MalformedMessage("a link of the chain cannot be read") from None

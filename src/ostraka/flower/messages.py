"""What the strategy and the mod say to each other. Flower carries it, and need not be trusted.

 strategy                                 mod, at a node
   ------ ask ------------------------------>    draws a nonce
   <----- Hello: a signed challenge ---------
   ------ Proof, and the model ------------->    verifies both, and lets the app train
   <----- a sealed update, and a new Hello --    the next round need not ask

Each is a record in a Flower message. A sealed update is an Array of a kind that no other strategy
can read, and so cannot average.
"""

from dataclasses import dataclass
from typing import ClassVar

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from google.protobuf.message import DecodeError

from ostraka.config import Terms
from ostraka.crypto.aead import TAG_BYTES
from ostraka.crypto.updates import SealedUpdate
from ostraka.encoding import AnyMessage, Key, Message, decode, encode, pack, unpack
from ostraka.errors import MalformedMessage
from ostraka.messages import Challenge, Charter, Introduction, UpdateHeader, UpdateTile
from ostraka.transport import ostraka_pb2 as wire

RECORD = "ostraka"
SEALED = "ostraka.sealed"  # the record with a sealed update, and how its bytes were made

_ASK, _HELLO, _PROOF = "ask", "hello", "proof"
_LONGEST_NAME = 256  # characters
_LARGEST_HEADER = 8192  # bytes; the sealed key in it has about 1,200
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Hello:
    """A node asks the enclave to prove itself.

    key: its public one, for an enclave that enrols whoever comes. after: the last receipt that it
    need not be shown; None if it has never met the enclave.
    """

    LABEL: ClassVar[bytes] = b"ostraka/flower-hello/v1"

    challenge: Challenge
    key: Key
    after: int | None


@dataclass(frozen=True)
class Proof:
    """All that a node checks before it trains, but the model.

    links: of the chain since the receipt that it holds, as the enclave's service sends them.
    collateral: of a simulated platform only; a node has its own for any other.
    """

    LABEL: ClassVar[bytes] = b"ostraka/flower-proof/v1"

    charter: Charter
    introduction: Introduction
    links: tuple[bytes, ...]
    collateral: bytes = b""


@dataclass(frozen=True)
class Links:
    """The chain alone: what proves which model the last round has made."""

    LABEL: ClassVar[bytes] = b"ostraka/flower-links/v1"

    links: tuple[bytes, ...]


def ask() -> RecordDict:
    return RecordDict({RECORD: ConfigRecord({_ASK: True})})


def is_ask(content: RecordDict) -> bool:
    record = content.get(RECORD)
    return isinstance(record, ConfigRecord) and _ASK in record


def hello_record(hello: Hello) -> ConfigRecord:
    return ConfigRecord({_HELLO: encode(hello)})


def read_hello(content: RecordDict) -> Hello:
    """Raises MalformedMessage."""
    hello = _read(Hello, content, _HELLO)
    if len(hello.challenge.client) > _LONGEST_NAME:
        raise MalformedMessage(f"a client's name has {_LONGEST_NAME} characters at the most")
    return hello


def proof_record(proof: Message) -> ConfigRecord:
    return ConfigRecord({_PROOF: encode(proof)})


def read_proof(kind: type[AnyMessage], content: RecordDict) -> AnyMessage:
    """Raises MalformedMessage."""
    return _read(kind, content, _PROOF)


def read_links(links: tuple[bytes, ...]) -> list[wire.ChainLink]:
    """Raises MalformedMessage."""
    try:
        return [wire.ChainLink.FromString(link) for link in links]
    except DecodeError:
        raise MalformedMessage("a link of the chain cannot be read") from None


def sealed_record(sealed: SealedUpdate) -> ArrayRecord:
    data = pack(encode(sealed.header), *(encode(tile) for tile in sealed.tiles))
    return ArrayRecord({SEALED: Array("uint8", (len(data),), SEALED, data)})


def read_sealed(content: RecordDict) -> SealedUpdate:
    """Raises MalformedMessage."""
    record = content.get(SEALED)
    array = record.get(SEALED) if isinstance(record, ArrayRecord) else None
    if array is None or array.stype != SEALED:
        raise MalformedMessage("the reply is not sealed: is sealing_mod the first of its mods?")
    match unpack(array.data):
        case [header, *tiles] if tiles and len(header) <= _LARGEST_HEADER:
            decoded = tuple(decode(UpdateTile, tile) for tile in tiles)
            return SealedUpdate(decode(UpdateHeader, header), decoded)
    raise MalformedMessage("a sealed update has a small header, and tiles")


def require_shape(sealed: SealedUpdate, terms: Terms) -> None:
    """Raises MalformedMessage unless the header and each tile are as long as the rules say."""
    tiling = terms.tiling
    if not len(sealed.tiles) == sealed.header.tiles == tiling.count:
        raise MalformedMessage(f"a sealed update has {tiling.count} tiles")
    for index, tile in enumerate(sealed.tiles):
        if len(tile.ciphertext) != _FLOAT_BYTES * tiling.size(index) + TAG_BYTES:
            raise MalformedMessage(f"tile {index} of a sealed update is too long or too short")


def _read(kind: type[AnyMessage], content: RecordDict, name: str) -> AnyMessage:
    record = content.get(RECORD)
    raw = record.get(name) if isinstance(record, ConfigRecord) else None
    if not isinstance(raw, bytes):
        raise MalformedMessage(f"the message carries no {kind.__name__}")
    return decode(kind, raw)

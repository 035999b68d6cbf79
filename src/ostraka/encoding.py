"""Turns fields into bytes in one way, and back.

Every field is preceded by its length, so no two different lists of fields have the same bytes. A
message is a frozen dataclass with a `LABEL`; its bytes are the label and then its fields, in order.
The encoding is canonical: `decode(kind, data)` succeeds only if `encode` would give `data` back.
"""

import dataclasses
import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from operator import index
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Protocol, TypeAlias, TypeVar, get_args, get_origin
from typing import get_type_hints as type_hints

from ostraka.errors import LocalProtocolError, MalformedMessage

_PREFIX = 8
_WRITTEN = "_written"
_length = struct.Struct(">Q").pack
_PLAIN: dict[Any, Callable[[Any], bytes]] = {
    bytes: bytes,
    str: lambda value: str(value).encode(),
    bool: lambda value: b"\1" if value else b"\0",
    int: lambda value: index(value).to_bytes(8, "big"),
    float: struct.Struct(">d").pack,
}


@dataclass(frozen=True)
class Length:
    """Marks a bytes field whose length is fixed."""

    bytes: int


@dataclass(frozen=True)
class AnyLength:
    """Marks a bytes field that a sender may fill with a view, to save a copy."""


Digest: TypeAlias = Annotated[bytes, Length(32)]
Key: TypeAlias = Annotated[bytes, Length(32)]
Id: TypeAlias = Annotated[bytes, Length(32)]
Signature: TypeAlias = Annotated[bytes, Length(64)]
Payload: TypeAlias = Annotated[bytes | memoryview, AnyLength()]

UNSIGNED = bytes(64)


class Message(Protocol):
    """A frozen dataclass whose `LABEL` names the kind and the version of its encoding.

    A dataclass that is large, or encoded again and again, may say `WRITTEN_ONCE = True`: its bytes
    stay with it from the first time that it is written, or from when it was read.
    """

    LABEL: ClassVar[bytes]
    __dataclass_fields__: ClassVar[dict[str, Any]]


class SignedMessage(Message, Protocol):
    """A message whose last field signs all the others."""

    @property
    def signature(self) -> bytes: ...


AnyMessage = TypeVar("AnyMessage", bound=Message)


def pack(*fields: bytes) -> bytes:
    """Joins fields, each behind its length."""
    return b"".join([part for field in fields for part in (_length(len(field)), field)])


def unpack(data: bytes) -> list[bytes]:
    """Returns the fields of `pack`. Raises MalformedMessage unless the lengths add up exactly."""
    fields, past = unpack_whole(data)
    if past:
        raise MalformedMessage(f"a field ends {past} bytes past the message")
    return fields


def unpack_whole(data: bytes) -> tuple[list[bytes], int]:
    """Returns the fields of `pack` that are all there, and how many bytes the next one lacks."""
    fields, at, end = list[bytes](), 0, len(data)
    while at < end:
        start = at + _PREFIX
        at = start + int.from_bytes(data[at:start], "big")
        if at > end:
            return fields, at - end
        fields.append(data[start:at])
    return fields, 0


def encode(message: Message, **instead: Any) -> bytes:
    """Returns the canonical bytes of a message. instead: other values for some of its fields."""
    kind = type(message)
    if not instead:
        return pack(message.LABEL, _writer(kind)(message))
    if not instead.keys() <= message.__dataclass_fields__.keys():
        raise LocalProtocolError(f"{kind.__name__} has not all of the fields {sorted(instead)}")
    values = [
        write(instead[name] if name in instead else getattr(message, name))
        for name, write in _fields(kind)
    ]
    return pack(message.LABEL, pack(*values))


def decode(kind: type[AnyMessage], data: bytes) -> AnyMessage:
    """Returns the message that these bytes encode. Raises MalformedMessage and nothing else."""
    match unpack(bytes(data)):
        case [label, body] if label == kind.LABEL:
            message: AnyMessage = _reader(kind)(body)
            return message
    raise MalformedMessage(f"not a {kind.__name__}")


def digest(message: Message) -> bytes:
    """Returns the SHA-256 of the canonical bytes."""
    return hashlib.sha256(encode(message)).digest()


@cache
def _writer(kind: Any) -> Callable[[Any], bytes]:
    """Returns the writer for a declared type, so that 1 and 1.0 are the same ratio.

    It is made once for each type: a round of a thousand clients encodes thousands of headers.
    """
    if dataclasses.is_dataclass(kind):
        return _dataclass_writer(kind)
    origin = get_origin(kind)
    if origin is tuple:
        write_each = _writer(get_args(kind)[0])
        return lambda values: pack(*map(write_each, values))
    if isinstance(kind, UnionType):
        write = _writer(next(option for option in get_args(kind) if option is not NoneType))
        return lambda value: b"" if value is None else write(value)
    return bytes if origin is Annotated else _PLAIN[kind]


def _dataclass_writer(kind: Any) -> Callable[[Any], bytes]:
    fields = _fields(kind)

    def write_fields(value: Any) -> bytes:
        return pack(*[write(getattr(value, name)) for name, write in fields])

    return _once(write_fields) if getattr(kind, "WRITTEN_ONCE", False) else write_fields


def _once(write: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Keeps the bytes with the value, which is frozen."""

    def write_once(value: Any) -> bytes:
        kept: bytes | None = value.__dict__.get(_WRITTEN)
        if kept is None:
            kept = value.__dict__[_WRITTEN] = write(value)
        return kept

    return write_once


@cache
def _fields(kind: Any) -> tuple[tuple[str, Callable[[Any], bytes]], ...]:
    """The fields of a message, each with what writes it."""
    names = [field.name for field in dataclasses.fields(kind)]
    types = _field_types(kind)
    return tuple((name, _writer(hint)) for name, hint in zip(names, types, strict=True))


@cache
def _reader(kind: Any) -> Callable[[bytes], Any]:
    """Returns what reads a declared type, and is made once for it, as its writer is."""
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind)
    origin = get_origin(kind)
    if origin is tuple:
        read_each = _reader(get_args(kind)[0])
        return lambda raw: tuple(map(read_each, unpack(raw)))
    if origin is Annotated:
        mark = get_args(kind)[1]
        return _exactly(mark.bytes) if isinstance(mark, Length) else bytes
    if isinstance(kind, UnionType):  # optional: no bytes at all stand for None
        read = _reader(next(option for option in get_args(kind) if option is not NoneType))
        return lambda raw: read(raw) if raw else None
    return _READERS[kind]


def _dataclass_reader(kind: Any) -> Callable[[bytes], Any]:
    readers = [_reader(hint) for hint in _field_types(kind)]
    once = getattr(kind, "WRITTEN_ONCE", False)

    def read_fields(raw: bytes) -> Any:
        values = unpack(raw)
        if len(values) != len(readers):
            raise MalformedMessage(f"{kind.__name__} has {len(readers)} fields; got {len(values)}")
        fields = [read(value) for read, value in zip(readers, values, strict=True)]
        try:
            value = kind(*fields)
        except ValueError as invalid:
            raise MalformedMessage(f"{kind.__name__}: {invalid}") from None
        if once:
            value.__dict__[_WRITTEN] = raw  # There is one way to write it.
        return value

    return read_fields


@cache
def _field_types(kind: type[Any]) -> tuple[Any, ...]:
    hints = type_hints(kind, include_extras=True)
    return tuple(hints[field.name] for field in dataclasses.fields(kind))


def _exactly(length: int) -> Callable[[bytes], bytes]:
    def read(raw: bytes) -> bytes:
        if len(raw) != length:
            raise MalformedMessage(f"a field of {length} bytes has {len(raw)}")
        return raw

    return read


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise MalformedMessage("a text field is not UTF-8") from None


def _truth(raw: bytes) -> bool:
    if _one(raw) not in (b"\0", b"\1"):
        raise MalformedMessage("a truth value is neither 0 nor 1")
    return raw == b"\1"


_one, _eight = _exactly(1), _exactly(8)
_READERS: dict[Any, Callable[[bytes], Any]] = {
    bytes: bytes,
    str: _text,
    bool: _truth,
    int: lambda raw: int.from_bytes(_eight(raw), "big"),
    float: lambda raw: struct.unpack(">d", _eight(raw))[0],
}

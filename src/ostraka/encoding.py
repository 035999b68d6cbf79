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

from ostraka.errors import MalformedMessage

_PREFIX = 8
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
    """A frozen dataclass whose `LABEL` names the kind and the version of its encoding."""

    LABEL: ClassVar[bytes]
    __dataclass_fields__: ClassVar[dict[str, Any]]


class SignedMessage(Message, Protocol):
    """A message whose last field signs all the others."""

    @property
    def signature(self) -> bytes: ...


AnyMessage = TypeVar("AnyMessage", bound=Message)


def pack(*fields: bytes) -> bytes:
    """Joins fields, each behind its length."""
    return b"".join([part for field in fields for part in (_length(field), field)])


def unpack(data: bytes) -> list[bytes]:
    """Returns the fields of `pack`. Raises MalformedMessage unless the lengths add up exactly."""
    fields, at = [], 0
    while at < len(data):
        start = at + _PREFIX
        at = start + int.from_bytes(data[at:start], "big")
        if at > len(data):
            raise MalformedMessage(f"a field ends {at - len(data)} bytes past the message")
        fields.append(data[start:at])
    return fields


def encode(message: Message) -> bytes:
    """Returns the canonical bytes of a message."""
    return pack(message.LABEL, _writer(type(message))(message))


def decode(kind: type[AnyMessage], data: bytes) -> AnyMessage:
    """Returns the message that these bytes encode. Raises MalformedMessage and nothing else."""
    match unpack(bytes(data)):
        case [label, body] if label == kind.LABEL:
            message: AnyMessage = _from_bytes(kind, body)
            return message
    raise MalformedMessage(f"not a {kind.__name__}")


def digest(message: Message) -> bytes:
    """Returns the SHA-256 of the canonical bytes."""
    return hashlib.sha256(encode(message)).digest()


def _length(field: bytes) -> bytes:
    return len(field).to_bytes(_PREFIX, "big")


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
    names = [field.name for field in dataclasses.fields(kind)]
    fields = [(name, _writer(hint)) for name, hint in zip(names, _field_types(kind), strict=True)]
    return lambda value: pack(*[write(getattr(value, name)) for name, write in fields])


def _from_bytes(kind: Any, raw: bytes) -> Any:
    if dataclasses.is_dataclass(kind):
        return _dataclass_from_bytes(kind, raw)
    origin = get_origin(kind)
    if origin is tuple:
        return tuple(_from_bytes(get_args(kind)[0], field) for field in unpack(raw))
    if origin is Annotated:
        mark = get_args(kind)[1]
        _expect_length(raw, mark.bytes if isinstance(mark, Length) else len(raw))
        return raw
    if isinstance(kind, UnionType):  # optional: no bytes at all stand for None
        inner = next(option for option in get_args(kind) if option is not NoneType)
        return _from_bytes(inner, raw) if raw else None
    if kind is bytes:
        return raw
    if kind is str:
        return _text(raw)
    _expect_length(raw, 1 if kind is bool else 8)
    if kind is bool:
        return _truth(raw)
    return int.from_bytes(raw, "big") if kind is int else struct.unpack(">d", raw)[0]


def _dataclass_from_bytes(kind: Any, raw: bytes) -> Any:
    hints = _field_types(kind)
    values = unpack(raw)
    if len(values) != len(hints):
        raise MalformedMessage(f"{kind.__name__} has {len(hints)} fields; got {len(values)}")
    fields = (_from_bytes(hint, value) for hint, value in zip(hints, values, strict=True))
    try:
        return kind(*fields)
    except ValueError as invalid:
        raise MalformedMessage(f"{kind.__name__}: {invalid}") from None


@cache
def _field_types(kind: type[Any]) -> tuple[Any, ...]:
    hints = type_hints(kind, include_extras=True)
    return tuple(hints[field.name] for field in dataclasses.fields(kind))


def _expect_length(raw: bytes, length: int) -> None:
    if len(raw) != length:
        raise MalformedMessage(f"a field of {length} bytes has {len(raw)}")


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise MalformedMessage("a text field is not UTF-8") from None


def _truth(raw: bytes) -> bool:
    if raw not in (b"\0", b"\1"):
        raise MalformedMessage("a truth value is neither 0 nor 1")
    return raw == b"\1"

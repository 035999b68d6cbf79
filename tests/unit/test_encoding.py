import hashlib
import math
import struct
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.config import Federation, Manifest, Terms
from ostraka.encoding import Digest, Payload, decode, digest, encode, pack, unpack
from ostraka.errors import LocalProtocolError, MalformedMessage
from ostraka.messages import Proposal, Receipt, UpdateHeader, UpdateTile


@dataclass(frozen=True)
class Part:
    name: str
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Whole:
    """A field of every type that a message may have."""

    LABEL: ClassVar[bytes] = b"test/whole/v1"

    count: int
    ratio: float
    flag: bool
    text: str
    raw: bytes
    fixed: Digest
    view: Payload
    names: tuple[str, ...]
    parts: tuple[Part, ...]
    maybe: int | None


@dataclass(frozen=True)
class Other:
    """The same fields as Part, and a label of its own."""

    LABEL: ClassVar[bytes] = b"test/other/v1"

    name: str
    sizes: tuple[int, ...]


uint64 = st.integers(0, 2**64 - 1)
wholes = st.builds(
    Whole,
    count=uint64,
    ratio=st.floats(allow_nan=False),
    flag=st.booleans(),
    text=st.text(st.characters(codec="utf-8")),
    raw=st.binary(),
    fixed=st.binary(min_size=32, max_size=32),
    view=st.binary(),
    names=st.tuples(st.text(st.characters(codec="utf-8"))),
    parts=st.lists(st.builds(Part, st.just("p"), st.tuples(uint64, uint64))).map(tuple),
    maybe=st.none() | uint64,
)

WHOLE = Whole(7, 0.5, True, "λ", b"raw", bytes(32), b"view", ("a", ""), (Part("p", (1, 2)),), None)


@given(wholes, wholes)
def test_other_values_of_some_fields_give_the_bytes_of_a_message_that_has_them(one, two):
    assert encode(one, raw=two.raw, count=two.count) == encode(
        replace(one, raw=two.raw, count=two.count)
    )


def test_a_field_that_a_message_has_not_is_refused():
    with pytest.raises(LocalProtocolError, match="size"):
        encode(Other("a", (1,)), size=3)


@given(fields=st.lists(st.binary()))
def test_pack_can_be_undone(fields):
    assert unpack(pack(*fields)) == fields


def test_no_two_lists_of_fields_look_alike():
    lists: tuple[list[bytes], ...] = (
        [],
        [b""],
        [b"", b""],
        [b"ab"],
        [b"a", b"b"],
        [b"", b"ab"],
        [b"ab", b""],
        [pack(b"ab")],
    )
    assert len({pack(*fields) for fields in lists}) == len(lists)


def test_pack_is_length_and_field():
    assert pack(b"abc", b"") == bytes(7) + b"\x03abc" + bytes(8)


@given(fields=st.lists(st.binary(), min_size=1), data=st.data())
def test_a_truncated_list_is_malformed_or_shorter(fields, data):
    packed = pack(*fields)
    cut = packed[: data.draw(st.integers(0, len(packed) - 1))]
    try:
        assert unpack(cut) == fields[: len(unpack(cut))]
        assert pack(*unpack(cut)) == cut
    except MalformedMessage:
        pass


@given(message=wholes)
def test_decoding_undoes_encoding(message):
    assert decode(Whole, encode(message)) == message
    assert decode(Whole, memoryview(encode(message))) == message  # type: ignore[arg-type]


@pytest.mark.parametrize("ratio", [math.nan, math.inf, -math.inf, -0.0, 5e-324])
def test_floats_keep_every_bit(ratio):
    message = Whole(**{**vars(WHOLE), "ratio": ratio})
    decoded = decode(Whole, encode(message)).ratio
    assert struct.pack(">d", decoded) == struct.pack(">d", ratio)


def test_a_view_has_the_bytes_that_it_shows():
    whole = bytearray(b"0123456789")
    tile = UpdateTile(bytes(32), 3, memoryview(whole)[2:5])
    assert encode(tile) == encode(UpdateTile(bytes(32), 3, b"234"))


def test_the_label_is_part_of_the_bytes():
    assert encode(WHOLE).startswith(pack(b"test/whole/v1"))
    assert unpack(encode(WHOLE))[0] == Whole.LABEL


def test_digest_is_of_the_canonical_bytes():
    assert digest(WHOLE) == hashlib.sha256(encode(WHOLE)).digest()


def fields_of(message):
    return unpack(unpack(encode(message))[1])


def with_field(index, raw):
    """The message's bytes with one field replaced."""
    fields = fields_of(WHOLE)
    fields[index] = raw
    return pack(Whole.LABEL, pack(*fields))


MALFORMED = {
    "nothing": b"",
    "a label alone": pack(Whole.LABEL),
    "another label": pack(b"test/whole/v2", pack(*fields_of(WHOLE))),
    "another message": encode(Other("p", (1,))),
    "bytes after the end": encode(WHOLE) + b"\0",
    "a third part": encode(WHOLE) + pack(b""),
    "no fields": pack(Whole.LABEL, b""),
    "a field too few": pack(Whole.LABEL, pack(*fields_of(WHOLE)[:-1])),
    "a field too many": pack(Whole.LABEL, pack(*fields_of(WHOLE), b"")),
    "a field that ends past the message": pack(Whole.LABEL, bytes(7) + b"\x09" + bytes(8)),
    "a field of enormous length": pack(Whole.LABEL, b"\xff" * 8),
    "half a length": pack(Whole.LABEL, bytes(4)),
    "an integer of seven bytes": with_field(0, bytes(7)),
    "an integer of nine bytes": with_field(0, bytes(9)),
    "no integer": with_field(0, b""),
    "a float of four bytes": with_field(1, bytes(4)),
    "the truth value 2": with_field(2, b"\2"),
    "a truth value of two bytes": with_field(2, bytes(2)),
    "no truth value": with_field(2, b""),
    "a text that is not UTF-8": with_field(3, b"\xff"),
    "a text with a surrogate": with_field(3, b"\xed\xa0\x80"),
    "a text in overlong form": with_field(3, b"\xc0\x80"),
    "a digest of 31 bytes": with_field(5, bytes(31)),
    "a digest of 33 bytes": with_field(5, bytes(33)),
    "a tuple cut short": with_field(7, pack(b"a")[:-1]),
    "a nested field too few": with_field(8, pack(pack(b"p"))),
    "a nested integer of one byte": with_field(8, pack(pack(b"p", pack(b"1")))),
    "an optional integer of one byte": with_field(9, b"1"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed(what):
    with pytest.raises(MalformedMessage):
        decode(Whole, MALFORMED[what])


def nested(fields):
    return st.lists(fields, max_size=16).map(lambda parts: pack(*parts))


KINDS = [Whole, Other, Manifest, Terms, Federation, Receipt, Proposal, UpdateHeader]


@given(
    body=st.recursive(
        st.sampled_from([b"", b"\0", b"\1", bytes(8), bytes(32), bytes(64), b"name"]) | st.binary(),
        nested,
        max_leaves=30,
    )
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_decodes_is_canonical(kind, body):
    """A decoder returns a message or raises MalformedMessage, and one message has one encoding."""
    data = pack(kind.LABEL, body)
    try:
        message = decode(kind, data)
    except MalformedMessage:
        return
    assert encode(replace(message)) == data  # a copy, which has not kept the bytes


@dataclass(frozen=True)
class Lasting:
    WRITTEN_ONCE: ClassVar[bool] = True

    part: Part


@dataclass(frozen=True)
class Bearer:
    LABEL: ClassVar[bytes] = b"test/bearer/v1"

    lasting: Lasting
    count: int


def test_what_is_written_once_stays_with_its_own_value():
    first = Lasting(Part("first", (1, 2)))
    written = [encode(Bearer(first, count)) for count in (1, 2)]
    assert [decode(Bearer, raw) for raw in written] == [Bearer(first, 1), Bearer(first, 2)]
    other = replace(first, part=Part("other", ()))
    assert decode(Bearer, encode(Bearer(other, 1))) == Bearer(other, 1)
    assert encode(Bearer(first, 1)) == written[0] == encode(decode(Bearer, written[0]))
    read = decode(Bearer, written[0]).lasting
    assert encode(Bearer(replace(read, part=other.part), 1)) == encode(Bearer(other, 1))

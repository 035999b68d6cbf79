"""Any bytes are a message of the expected kind, or malformed."""

import os
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.carried.messages import (
    ASK,
    Hello,
    Links,
    Poll,
    Proof,
    SealedReply,
    is_poll,
    read_hello,
    read_links,
)
from ostraka.config import Manifest
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED, decode, encode, pack
from ostraka.errors import MalformedMessage
from ostraka.messages import Challenge

READERS = {
    "Hello": read_hello,
    "Proof": lambda data: decode(Proof, data),
    "Poll": lambda data: decode(Poll, data),
    "Links": lambda data: decode(Links, data),
    "SealedReply": SealedReply.from_bytes,
    "ChainLink": lambda data: read_links((data,)),
}


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_malformed(data):
    for read in READERS.values():
        with suppress(MalformedMessage):
            read(data)


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_any_fields_under_the_right_label_are_read_or_malformed(fields):
    with suppress(MalformedMessage):
        SealedReply.from_bytes(pack(SealedReply.LABEL, *fields))


@pytest.mark.parametrize("what", ["Hello", "Proof", "Poll", "Links", "SealedReply"])
def test_the_question_is_no(what):
    with pytest.raises(MalformedMessage):
        READERS[what](ASK)


def test_what_claims_to_be_a_poll_may_still_be_none():
    assert is_poll(pack(Poll.LABEL, b"rubbish"))
    assert not is_poll(ASK)
    with pytest.raises(MalformedMessage):
        decode(Poll, pack(Poll.LABEL, b"rubbish"))


def test_a_name_that_is_too_long_is_malformed():
    challenge = Challenge(os.urandom(32), "x" * 257, UNSIGNED)
    hello = Hello(challenge, Identity.generate().public, None)
    with pytest.raises(MalformedMessage, match="256 characters"):
        read_hello(encode(hello))


def test_a_reply_comes_back_and_has_the_shape_of_the_terms(carried):
    federation = carried()
    replies = federation.train(federation.open())
    reply = SealedReply.from_bytes(replies[0])
    assert reply.to_bytes() == replies[0]
    terms = federation.enclave._founded.terms
    reply.require_shape(terms)
    with pytest.raises(MalformedMessage):
        reply.require_shape(replace(terms, tile=terms.tile * 2, manifest=Manifest.flat(65)))


def test_a_reply_with_a_long_header_is_malformed(carried):
    federation = carried()
    reply = SealedReply.from_bytes(federation.train(federation.open())[0])
    header = replace(reply.sealed.header, sealed_key=bytes(9_000))
    long = replace(reply, sealed=replace(reply.sealed, header=header))
    with pytest.raises(MalformedMessage, match="small header"):
        SealedReply.from_bytes(long.to_bytes())

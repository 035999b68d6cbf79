import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.enclave.storage import ledger
from ostraka.enclave.storage.ledger import (
    Adopted,
    Founded,
    HandedOver,
    Published,
    Skipped,
    TakenOver,
)
from ostraka.encoding import encode, pack
from ostraka.errors import MalformedMessage
from ostraka.messages import Certified


@pytest.fixture
def every_kind(life):
    state = life.founded()
    pending = life.pending(state, life.receipt(state, life.state_of(1)))
    abandon = life.abandon(life.charter())
    return [
        Founded(state.receipt_key, life.charter(), bytes(32)),
        Founded(state.receipt_key, life.charter(), bytes(32), abandon),
        TakenOver(bytes(32), (b"one", b"two", b"")),
        Adopted(life.charter(2)),
        Published(life.certified(pending, state.electors), bytes(32)),
        Published(Certified(pending.receipt, None), bytes(32)),
        Skipped(7, "the quorum was missed"),
        HandedOver(b"t" * 32, b"k" * 32),
    ]


def test_decoding_undoes_encoding(every_kind):
    for record in every_kind:
        assert ledger.decode(encode(record)) == record


@given(st.binary(max_size=60))
def test_any_other_bytes_are_malformed(data):
    with pytest.raises(MalformedMessage):
        ledger.decode(data)


def test_an_unknown_kind_is_malformed():
    with pytest.raises(MalformedMessage, match="known kind"):
        ledger.decode(pack(b"ostraka/ledger/forgotten/v1", b""))


def test_what_was_taken_over_does_not_print():
    assert "history" not in repr(TakenOver(bytes(32), (b"one",)))

"""Confirming between rounds: in a thread of a client, and with a record that people can read."""

import os
import re
import time

import numpy as np
import pytest

from ostraka.client.voting import Record
from ostraka.encoding import digest
from ostraka.errors import StateError
from ostraka.messages import Proposal

D = 17
PATIENCE_S = 60.0


def proposal(number, mark=b"o"):
    return Proposal(b"i" * 32, number, b"p" * 32, mark * 32, b"c" * 32, bytes(64))


@pytest.fixture
def record(tmp_path):
    return Record(tmp_path / "votes.txt")


def lines(record):
    return record.path.read_text().splitlines()


def test_a_record_has_one_line_for_each_number(record):
    for number in (1, 2, 2, 5):
        record.note(proposal(number))
    assert [line.split()[:2] for line in lines(record)] == [
        [str(number), digest(proposal(number)).hex()] for number in (1, 2, 5)
    ]


@pytest.mark.parametrize("other", [proposal(3, b"x"), proposal(2), proposal(1, b"x")])
def test_a_vote_that_contradicts_the_record_is_not_given(record, other):
    record.note(proposal(3))
    before = lines(record)
    with pytest.raises(StateError, match=r"vote for round 3 already.*make a new key"):
        record.note(other)
    assert lines(record) == before


def test_a_vote_is_on_the_disk_when_it_is_noted(record, monkeypatch):
    durable = []
    monkeypatch.setattr(os, "fsync", lambda _: durable.append(record.path.read_text()))
    record.note(proposal(1))
    assert durable == [record.path.read_text()]


def test_a_line_that_was_never_finished_was_never_shown(record):
    """The process was killed while it wrote."""
    record.note(proposal(1))
    whole = record.path.read_bytes()
    for cut in (1, 5, 40):
        record.path.write_bytes(whole + whole.replace(b"1 ", b"2 ", 1)[:cut])
        record.note(proposal(2, b"x"))
        assert lines(record)[-1].split()[1] == digest(proposal(2, b"x")).hex()


@pytest.mark.parametrize("noise", ["noise\n", "one two three\n", "1 2\n", "\xff\n"])
def test_a_damaged_record_is_never_taken_for_an_empty_one(record, noise):
    record.path.write_text(noise, encoding="latin-1")
    with pytest.raises(StateError, match=r"damaged|cannot be read"):
        record.note(proposal(1))
    assert record.path.read_text(encoding="latin-1") == noise


def until(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def waits(service):
    with service.moved:  # Until the round before has given way to this one.
        service.fill()
        return service.propose("bob", "carol")


@pytest.mark.slow
def test_a_client_that_trains_confirms_the_rounds_that_it_is_not_in(alice, service, kept):
    alice.fetch()
    with alice.confirming():
        for number in (1, 2, 3):
            waits(service)
            until(lambda number=number: len(service.receipts) >= number)
    assert kept.load().voted.number == 3
    assert [each.number for each in service.confirmations] == [1, 2, 3]
    proposals = {each.certificate.proposal.number for each in service.certified}
    assert proposals == {1, 2, 3}


@pytest.mark.slow
def test_calls_go_on_while_a_thread_confirms(alice, service):
    with alice.confirming():
        for number in (1, 2):
            assert alice.fetch().round == number
            assert alice.submit(np.ones(D)).accepted
        waits(service)
        until(lambda: len(service.receipts) == 3)
        assert alice.fetch().round == 4
    voted = [each.number for each in service.confirmations]
    assert sorted(set(voted)) == [1, 2, 3]
    assert len(set(service.confirmations)) == 3  # one vote each, however often it was shown


@pytest.mark.slow
def test_a_service_that_is_away_is_asked_again(alice, service, host, told):
    with alice.confirming():
        host.down()
        until(lambda: any(re.search("attempt", str(each)) for each in told))
        host.up()
        waits(service)
        until(lambda: service.receipts)


@pytest.mark.slow
def test_the_thread_ends_with_its_block(alice, service):
    alice.fetch()
    with alice.confirming():
        until(lambda: "AwaitOutcome" in service.calls)
    waits(service)
    calls = len(service.calls)
    time.sleep(0.3)
    assert len(service.calls) == calls
    assert service.confirmations == []

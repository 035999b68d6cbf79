"""Random and mutated bytes: a decoder or a role raises what it documents, and the round goes on.

Nobody who is not enrolled, and no bit that flips on the way, can make a role raise anything but
MalformedMessage or OpenError.
"""

import dataclasses
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka import messages
from ostraka.attestation.claims import in_process
from ostraka.config import Federation, Manifest, Terms
from ostraka.encoding import decode, encode
from ostraka.errors import (
    ConfigError,
    MalformedMessage,
    OpenError,
    ReceiptRefused,
    Rejection,
    UpdateRejected,
    WorkerError,
)
from ostraka.messages import (
    Abandon,
    Answer,
    Certificate,
    Certified,
    Challenge,
    ChannelAccept,
    ChannelOffer,
    Charter,
    ClientHello,
    Confirmation,
    Deputy,
    Evidence,
    Introduction,
    MaskSeed,
    Proposal,
    Receipt,
    RoundOffer,
    ShardAdmitted,
    ShardHello,
    ShardWelcome,
    ShareTile,
    UpdateHeader,
    UpdateTile,
    WorkerHello,
)

KINDS = (
    Charter,
    Challenge,
    RoundOffer,
    Evidence,
    Introduction,
    UpdateHeader,
    UpdateTile,
    ClientHello,
    WorkerHello,
    ChannelOffer,
    ChannelAccept,
    ShareTile,
    MaskSeed,
    Answer,
    Receipt,
    Proposal,
    Confirmation,
    Certificate,
    Certified,
    Abandon,
    Deputy,
    ShardWelcome,
    ShardHello,
    ShardAdmitted,
)


def test_every_message_is_in_the_table():
    labelled = {
        each
        for each in vars(messages).values()
        if hasattr(each, "LABEL") and each.__module__ == messages.__name__
    }
    assert labelled == set(KINDS)


@given(data=st.binary(max_size=200))
@pytest.mark.parametrize("kind", [*KINDS, Manifest, Terms, Federation])
def test_random_bytes_are_no_message(kind, data):
    with pytest.raises(MalformedMessage):
        decode(kind, data)


# Mutations of bytes. Each takes a generator and a message's bytes.


def flip_bits(rng, data):
    raw = np.frombuffer(data, np.uint8).copy()
    for bit in rng.integers(8 * len(raw), size=rng.integers(1, 4)):
        raw[bit // 8] ^= 1 << bit % 8
    return raw.tobytes()


def truncate(rng, data):
    return data[: rng.integers(len(data))]


def extend(rng, data):
    return data + rng.bytes(rng.integers(1, 40))


def cut_out(rng, data):
    start, stop = np.sort(rng.integers(len(data) + 1, size=2))
    return data[:start] + data[stop:]


def double(rng, data):
    start, stop = np.sort(rng.integers(len(data) + 1, size=2))
    return data[:stop] + data[start:]


def overwrite(rng, data):
    start = rng.integers(len(data))
    return (data[:start] + rng.bytes(rng.integers(1, 70)))[: len(data)] + data[start + 70 :]


def lie_about_a_length(rng, data):
    """Length prefixes are eight bytes, most of them zero."""
    start = data.find(bytes(6), rng.integers(len(data)))
    return data[: max(start, 0)] + rng.bytes(8) + data[max(start, 0) + 8 :]


def noise(rng, data):
    return rng.bytes(rng.integers(300))


BYTES = (flip_bits, truncate, extend, cut_out, double, overwrite, lie_about_a_length, noise)


def pick(rng, options):
    return options[rng.integers(len(options))]


def change_a_field(rng, message):
    """Still a message of its kind: one of its fields holds something else of the right type."""
    field = pick(rng, dataclasses.fields(message)).name
    value = getattr(message, field)
    match value:
        case bool():
            other: Any = not value
        case bytes() if value and rng.random() < 0.5:
            other = flip_bits(rng, value)
        case bytes():
            other = rng.bytes(len(value))
        case int():
            other = pick(rng, (0, 1, value + 1, 2**31, 2**63, 2**64 - 1))
        case float():
            other = pick(rng, (0.0, 1.0, value + 1))
        case str():
            other = pick(rng, ("", "client-0", "client-99", value + "\0"))
        case tuple():
            other = value[1:] if value else ()
        case None:
            other = None
        case _:
            other = change_a_field(rng, value)
    return replace(message, **{field: other})


def mutate(rng, message):
    """Bytes that differ from the message's own."""
    original = encode(message)
    changed = original
    while changed == original:
        if rng.random() < 0.4:
            with suppress(ConfigError):  # Some numbers cannot be in any message.
                changed = encode(change_a_field(rng, message))
        else:
            changed = pick(rng, BYTES)(rng, original)
    return changed


@dataclass
class Target:
    """An authentic message, who takes it, and what may be raised instead."""

    message: Any
    take: Any
    allowed: tuple[type[Exception], ...] = (MalformedMessage, OpenError)


def attack(target, rng, count):
    """Feed the target with mutants. Returns those that were taken for good."""
    taken = []
    for _ in range(count):
        data = mutate(rng, target.message)
        try:
            target.take(decode(type(target.message), data))
        except target.allowed:
            continue
        taken.append(data)
    return taken


@pytest.fixture
def count(scale):
    """Per kind of message. All of them together make 100,000 in make soak."""
    return scale(400, 12_500)


@pytest.fixture
def rng():
    return np.random.default_rng(2021)


def test_mutated_headers(simulate, rng, count):
    round_ = simulate().open()
    sealed = round_.seal(2)
    assert attack(Target(sealed.header, round_.accept), rng, count) == []
    round_.send(sealed)
    assert attack(Target(sealed.header, round_.accept), rng, count // 4) == []
    round_.send_all(but=[2])
    round_.assert_result(round_.finish(), {})


def test_headers_that_their_client_signed(simulate, rng, count):
    """What is authentic may also be rejected by name. None of it is taken, but for a new upload."""
    round_ = simulate().open()
    sealed = round_.seal(2)
    for _ in range(count):
        header = round_.simulation.identities[2].sign(change_a_field(rng, sealed.header))
        if header == sealed.header:
            continue
        with pytest.raises((OpenError, UpdateRejected)) as caught:
            round_.accept(header)
        if isinstance(caught.value, UpdateRejected):
            assert caught.value.client == "client-2"
    round_.send(sealed)
    round_.send_all(but=[2])
    round_.assert_result(round_.finish(), {})


def test_sealed_keys_of_any_bytes(simulate, rng, count):
    round_ = simulate().open()
    genuine = round_.seal(2).header.sealed_key
    for _ in range(count // 4):
        mutant = pick(rng, BYTES)(rng, genuine)
        if mutant == genuine:
            continue
        with pytest.raises(UpdateRejected) as caught:
            round_.accept(round_.forge(2, sealed_key=mutant).header)
        assert caught.value.reason == Rejection.UNOPENABLE_KEY
    round_.send_all()
    round_.assert_result(round_.finish(), {})


def test_mutated_tiles(simulate, masking, rng, count):
    """None is taken: a tile's content is authenticated as it arrives."""
    round_ = simulate(masking=masking).open()
    victim = round_.seal(2)
    round_.send_all(but=[2])
    round_.accept(victim.header)
    allowed = (MalformedMessage, OpenError, UpdateRejected)
    for sealed in (victim, round_.seal(3)):
        for tile in sealed.tiles[:2]:
            assert attack(Target(tile, round_.accept_tile, allowed), rng, count // 4) == []
    for tile in victim.tiles:
        round_.accept_tile(tile)
    round_.assert_result(round_.finish(), {})


def test_mutated_round_offers(simulate, rng, count):
    round_ = simulate().open()
    client = round_.simulation.clients[0]

    attested = in_process(round_.offer, round_.simulation.enclave.receipt_key)

    def take(offer):
        client.join(offer, attested)

    assert attack(Target(round_.offer, take), rng, count) == []


def proposed(simulation):
    """A round of everybody, up to its outcome, and one client that waits for that."""
    round_ = simulation.open()
    submitted = simulation.join(simulation.clients[0], round_.offer).seal(simulation.rows[0])
    round_.send_all()
    return submitted, round_.finish()


def test_mutated_receipts(simulate, rng, count):
    """As they are served: just a quorum, so that no vote can be spared."""
    simulation = simulate(disclose_selection=True)
    submitted, outcome = proposed(simulation)
    served, model = simulation.confirm(outcome, but=["client-2", "client-5"]), outcome.state.model
    allowed = (MalformedMessage, OpenError, ReceiptRefused)

    def take(certified):
        submitted.finish(certified, model)

    def take_receipt(receipt):
        take(replace(served, receipt=receipt))

    assert attack(Target(served.receipt, take_receipt), rng, count) == []
    assert attack(Target(served, take, allowed), rng, count) == []
    assert submitted.finish(served, model).last == served.receipt


def test_mutated_proposals_and_confirmations(simulate, rng, count):
    simulation = simulate()
    _, outcome = proposed(simulation)
    client, ballot = simulation.clients[3], simulation.enclave.ballot(outcome.pending)
    assert attack(Target(ballot.proposal, client.vote), rng, count) == []
    client = client.vote(ballot.proposal)
    assert attack(Target(ballot.proposal, client.vote), rng, count // 4) == []
    vote = client.confirmation()
    assert attack(Target(vote, ballot.add), rng, count) == []
    assert ballot.votes == {}
    assert ballot.add(vote)
    assert attack(Target(vote, ballot.add), rng, count // 4) == []


def test_mutated_abandons(simulate, rng, count):
    simulation = simulate()
    client = simulation.clients[0]
    abandon = simulation.abandon(simulation.votes(range(7)))

    def take(each):
        client.abandon(each, by_owners_word=True)

    assert attack(Target(abandon, take), rng, count) == []
    assert client.abandon(abandon).last == abandon


def test_mutated_messages_between_enclave_and_workers(simulate, offloaded, rng, count):
    round_ = simulate(masking=offloaded).open()
    round_.send_all()
    round_.close()
    attempt = round_.offload()

    offer = Target(attempt.offers[0], round_.simulation.workers[0].accept)
    assert attack(offer, rng, count) == []

    mine, *others = attempt.accepts()
    accept = Target(
        mine,
        lambda message: attempt.connect([message, *others]),
        (MalformedMessage, WorkerError),
    )
    assert attack(accept, rng, count) == []
    attempt.connect([mine, *others])

    for shares in attempt.shares():
        share = Target(shares[0], attempt.computing[0].add)
        assert attack(share, rng, count // 4) == []
        for computing, each in zip(attempt.computing, shares, strict=True):
            computing.add(each)

    mine, *others = attempt.answers()
    answer = Target(
        mine,
        lambda message: attempt.decode([message, *others]),
        (MalformedMessage, WorkerError),
    )
    assert attack(answer, rng, count) == []
    round_.measured = attempt.decode([mine, *others])
    round_.assert_result(round_.average(), {})


def test_mutated_seeds(simulate, rng, count):
    """The last of three workers gets a seed instead of shares."""
    round_ = simulate(masking="exact", workers=3).open()
    round_.send_all()
    round_.close()
    attempt = round_.offload()
    attempt.connect(attempt.accepts())
    assert attack(Target(attempt.seed, attempt.computing[-1].add_seed), rng, count) == []
    attempt.encode()
    round_.measured = attempt.decode(attempt.answers())
    round_.assert_result(round_.average(), {})

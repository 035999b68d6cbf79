"""Receipts: what the enclave vouches for, chained, and what a client refuses to follow."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from ostraka import run_round
from ostraka.encoding import decode, digest, encode, pack
from ostraka.errors import (
    Fork,
    LeakyMasking,
    LocalProtocolError,
    OpenError,
    ReceiptRefused,
    Rejection,
)
from ostraka.messages import Receipt


def sign(simulation, message):
    """By the enclave itself, which then is as false as the message."""
    return simulation.enclave._identity.sign(message)


def play(simulation, *, follow=True):
    """One round of everybody. Returns its receipt."""
    round_ = simulation.open()
    round_.send_all()
    published = round_.finish()
    if follow:
        simulation.follow(published)
    return published.receipt


def test_three_rounds_make_a_chain(simulate, masking):
    simulation = simulate(masking=masking)
    newcomer = simulation.client(0)
    first, second, third = (play(simulation) for _ in range(3))
    assert [each.number for each in (first, second, third)] == [1, 2, 3]
    assert first.previous == bytes(32)
    assert second.previous == digest(first)
    assert third.previous == digest(second)
    assert len({each.round_id for each in (first, second, third)}) == 3
    assert newcomer.follow(first).follow(second).follow(third).last == third
    assert all(client.last == third for client in simulation.clients)


def test_a_receipt_says_what_happened(simulate, masking):
    simulation = simulate(masking=masking, k=4)
    round_ = simulation.open()
    round_.send(round_.forge(3, norm=1e9))
    round_.send_all(but=[3, 5])
    published = round_.finish()
    receipt = decode(Receipt, encode(published.receipt))
    assert receipt == published.receipt
    assert receipt.round_id == round_.offer.round_id
    assert receipt.federation == simulation.federation.digest()
    assert receipt.aggregate == hashlib.sha256(published.state.model.tobytes()).digest()
    assert (receipt.participants, receipt.kept) == (5, 4)
    assert [(each.client, each.reason) for each in receipt.rejected] == [
        ("client-3", Rejection.FALSE_NORM)
    ]
    assert receipt.masking == masking
    assert receipt.distances == ("inside" if masking == "none" else "workers")


def test_an_undisclosed_selection_is_not_in_the_receipt(simulate, masking):
    round_ = simulate(masking=masking).open()
    round_.send_all()
    published = round_.finish()
    raw = encode(published.receipt)
    assert (published.receipt.disclosed, published.receipt.selected) == (False, ())
    assert not any(name.encode() in raw for name in round_.simulation.names)


def test_a_disclosed_selection_is_in_the_receipt(simulate, masking):
    round_ = simulate(masking=masking, disclose_selection=True).open()
    round_.send_all()
    published = round_.finish()
    assert published.receipt.disclosed
    assert published.receipt.selected == published.selected
    raw = encode(published.receipt)
    for name in round_.simulation.names:
        assert (name.encode() in raw) == (name in published.selected)


def test_the_commitment_is_to_the_selection_and_salted(simulate):
    """The same selection twice has two commitments, and none that can be guessed without a salt."""
    commitments = set()
    for seed in range(2):
        simulation = simulate(
            seed=seed, rows=np.random.default_rng(7).normal(size=(7, 50)).astype("f4")
        )
        round_ = simulation.open()
        round_.send_all()
        published = round_.finish()
        salt = simulation.drawn[-1]
        names = pack(*(name.encode() for name in published.selected))
        opened = hashlib.sha256(pack(b"ostraka/selection/v1", salt, names)).digest()
        assert published.receipt.commitment == opened
        commitments.add(opened)
    assert len(commitments) == 2


def test_a_receipt_of_gaussian_masking_is_marked(simulate, masking):
    receipt = play(simulate(masking=masking))
    assert any("polar attack" in caution for caution in receipt.cautions) == (masking == "gaussian")


@pytest.mark.parametrize("verify", [True, False])
def test_a_receipt_says_if_the_workers_were_not_checked(simulate, masking, verify):
    """Inside the enclave there is nobody to check."""
    cautions = play(simulate(masking=masking, verify=verify)).cautions
    unchecked = any("not checked" in caution for caution in cautions)
    assert unchecked == (masking != "none" and not verify)


def test_gaussian_masking_warns_and_nothing_else_does(masking, recwarn):
    rows = np.random.default_rng(0).normal(size=(5, 20))
    if masking == "gaussian":
        with pytest.warns(LeakyMasking, match="polar attack") as caught:
            run_round(rows, f=1, masking=masking)
        assert [warning.filename for warning in caught] == [__file__]
    else:
        run_round(rows, f=1, masking=masking)
    assert not recwarn.list


# What a client that holds the receipt of round 2 refuses.


def restarted(simulation, *receipts):
    """The enclave as it was when it had signed these, and no more: a host restored old state."""
    simulation.restart(*receipts)
    return simulation.open().offer


STALE = {
    "the first round again": lambda s, one, two, three: one,
    "the round that it holds": lambda s, one, two, three: two,
    "a round after a gap": lambda s, one, two, three: sign(s, replace(three, number=4)),
    "a round after another chain": lambda s, one, two, three: sign(
        s, replace(three, previous=digest(one))
    ),
    "a round after none": lambda s, one, two, three: sign(s, replace(three, previous=bytes(32))),
    "another federation": lambda s, one, two, three: sign(s, replace(three, federation=bytes(32))),
    "round zero": lambda s, one, two, three: sign(s, replace(three, number=0)),
}


@pytest.fixture
def chain(simulate):
    """A simulation, the receipts of three rounds, and a client that has followed two of them."""
    simulation = simulate()
    client = simulation.client(0)
    receipts = [play(simulation) for _ in range(3)]
    return simulation, receipts, client.follow(receipts[0]).follow(receipts[1])


@pytest.mark.parametrize("what", STALE)
def test_a_client_refuses_to_follow(chain, what):
    simulation, receipts, client = chain
    with pytest.raises(ReceiptRefused):
        client.follow(STALE[what](simulation, *receipts))
    assert client.follow(receipts[2]).last == receipts[2]


OFFERS = {
    "the first round again": lambda s, one, two: restarted(s),
    "the round that it holds": lambda s, one, two: restarted(s, one),
    "a round after a gap": lambda s, one, two: sign(s, replace(restarted(s, one, two), number=4)),
    "a round after another chain": lambda s, one, two: sign(
        s, replace(restarted(s, one, two), previous=digest(one))
    ),
    "another federation": lambda s, one, two: sign(
        s, replace(restarted(s, one, two), federation=bytes(32))
    ),
    "another model": lambda s, one, two: sign(s, replace(restarted(s, one, two), model=one.model)),
}


@pytest.mark.parametrize("what", OFFERS)
def test_a_client_refuses_to_join(chain, what):
    simulation, (one, two, _), client = chain
    with pytest.raises(ReceiptRefused):
        simulation.join(client, OFFERS[what](simulation, one, two))
    assert simulation.join(client, restarted(simulation, one, two)).offer.number == 3


def test_two_receipts_for_one_round_are_proof_of_a_fork(chain):
    simulation, (one, two, _), client = chain
    restarted(simulation, one)
    simulation.clients = [simulation.client(row) for row in range(7)]
    other = play(simulation, follow=False)
    assert other.number == two.number
    with pytest.raises(Fork) as caught:
        client.follow(other)
    assert (caught.value.held, caught.value.other) == (two, other)


def test_altered_receipts_do_not_open(chain):
    simulation, (*_, three), client = chain
    for change in (
        {"number": 9},
        {"aggregate": bytes(32)},
        {"model": bytes(32)},
        {"revision": 2},
        {"evidence": "sgx"},
        {"kept": 1},
        {"masking": "exact"},
        {"cautions": ("none",)},
        {"disclosed": True},
        {"signature": bytes(64)},
    ):
        with pytest.raises(OpenError):
            client.follow(replace(three, **change))
    with pytest.raises(OpenError):
        client.follow(simulation.stranger.sign(three))
    with pytest.raises(OpenError):
        client.follow(simulation.identities[0].sign(three))


# What a client that takes part in a round refuses as its outcome.


@pytest.fixture
def submitted(simulate):
    simulation = simulate()
    round_ = simulation.open()
    waiting = simulation.join(simulation.clients[0], round_.offer).seal(simulation.rows[0])
    round_.send_all()
    return simulation, waiting, round_.finish()


def test_a_client_accepts_the_outcome(submitted):
    _, waiting, published = submitted
    after = waiting.finish(published.receipt, published.state.model)
    assert after.last == published.receipt
    assert after.name == "client-0"


def test_a_client_refuses_another_model(submitted):
    _, waiting, published = submitted
    wrong = published.state.model.copy()
    wrong[7] = np.nextafter(wrong[7], np.float32(9))
    for model in (wrong, wrong[:-1], wrong.astype(np.float64), -published.state.model):
        with pytest.raises(ReceiptRefused, match="model"):
            waiting.finish(published.receipt, model)
    assert waiting.finish(published.receipt, published.state.model).last == published.receipt


def test_a_client_refuses_the_receipt_of_another_round(submitted):
    simulation, waiting, published = submitted
    restarted(simulation)
    other = play(simulation, follow=False)
    with pytest.raises(ReceiptRefused, match="another round"):
        waiting.finish(other, published.state.model)


def test_a_client_refuses_a_receipt_that_contradicts_the_offer(submitted):
    """The receipt has the offer's id, and another place in the chain."""
    simulation, waiting, published = submitted
    for change in ({"number": 7}, {"previous": bytes([1]) * 32}):
        with pytest.raises(ReceiptRefused):
            waiting.finish(
                sign(simulation, replace(published.receipt, **change)), published.state.model
            )


def test_the_enclave_goes_on_after_its_own_last_receipt_only(simulate):
    simulation = simulate()
    first = play(simulation)
    round_ = simulation.open()
    round_.send_all()
    second = round_.finish()
    with pytest.raises(LocalProtocolError):
        simulation.enclave.follow(first, simulation.states[1])
    simulation.follow(second)
    assert simulation.open().offer.number == 3

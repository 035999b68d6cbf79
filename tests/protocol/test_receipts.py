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
from ostraka.messages import Receipt, genesis, vector_digest
from ostraka.protocol.enclave.propose import NO_AGGREGATE


def play(simulation):
    """One round of everybody. Returns its receipt and certificate."""
    round_ = simulation.open()
    round_.send_all()
    return simulation.follow(round_.finish())


def test_three_rounds_make_a_chain(simulate, masking, defence):
    simulation = simulate(masking=masking, defence=defence)
    newcomer = simulation.client(0)
    chain = [play(simulation) for _ in range(3)]
    first, second, third = (each.receipt for each in chain)
    assert [each.number for each in (first, second, third)] == [1, 2, 3]
    assert first.previous == genesis(simulation.federation)
    assert second.previous == digest(first)
    assert third.previous == digest(second)
    assert len({each.round_id for each in (first, second, third)}) == 3
    for each in chain:
        newcomer = newcomer.follow(each)
    assert newcomer.last == third
    assert all(client.last == third for client in simulation.clients)


def test_a_receipt_says_what_happened(simulate, masking):
    simulation = simulate(masking=masking, defence="multi-krum", k=4)
    round_ = simulation.open()
    round_.send(round_.forge(3, norm=1e9))
    round_.send_all(but=[3, 5])
    published = round_.finish()
    receipt = decode(Receipt, encode(published.receipt))
    assert receipt == published.receipt
    assert receipt.round_id == round_.offer.round_id
    assert receipt.federation == simulation.federation.digest()
    assert receipt.model == vector_digest(published.state.model)
    assert receipt.aggregate == NO_AGGREGATE
    assert (receipt.participants, receipt.kept) == (5, 4)
    assert [(each.client, each.reason) for each in receipt.rejected] == [
        ("client-3", Rejection.FALSE_NORM)
    ]
    assert (receipt.rule, receipt.note) == ("multi-krum(k=4)", "")
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
    round_ = simulate(masking=masking, disclose_selection=True, defence="multi-krum").open()
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
        salt = simulation.drawn[-2]  # The last one is of the proposal.
        names = pack(*(name.encode() for name in published.selected))
        opened = hashlib.sha256(pack(b"ostraka/selection/v1", salt, names)).digest()
        assert published.receipt.commitment == opened
        commitments.add(opened)
    assert len(commitments) == 2


def test_a_receipt_of_gaussian_masking_is_marked(simulate, masking):
    receipt = play(simulate(masking=masking)).receipt
    assert any("polar attack" in caution for caution in receipt.cautions) == (masking == "gaussian")


@pytest.mark.parametrize("verify", [True, False])
def test_a_receipt_says_if_the_workers_were_not_checked(simulate, masking, verify):
    """Inside the enclave there is nobody to check."""
    cautions = play(simulate(masking=masking, verify=verify)).receipt.cautions
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
    "the first round again": (lambda one, two, three: one, "not newer"),
    "the round that it holds": (lambda one, two, three: two, "not newer"),
    "a round after a gap": (lambda one, two, three: replace(three, number=4), "missing"),
    "a round after another chain": (
        lambda one, two, three: replace(three, previous=digest(one)),
        "does not continue",
    ),
    "a round after none": (
        lambda one, two, three: replace(three, previous=bytes(32)),
        "does not continue",
    ),
    "another federation": (
        lambda one, two, three: replace(three, federation=bytes(32)),
        "another federation",
    ),
    "round zero": (lambda one, two, three: replace(three, number=0), "not newer"),
}


@pytest.fixture
def chain(simulate):
    """A simulation, three rounds as they were served, and a client that has followed two."""
    simulation = simulate()
    client = simulation.client(0)
    served = [play(simulation) for _ in range(3)]
    return simulation, served, client.follow(served[0]).follow(served[1])


@pytest.mark.parametrize("what", STALE)
def test_a_client_refuses_to_follow(chain, what):
    """Even if the enclave signed it and everybody confirmed it."""
    simulation, served, client = chain
    change, why = STALE[what]
    with pytest.raises(ReceiptRefused, match=why):
        client.follow(simulation.certify(change(*(each.receipt for each in served))))
    assert client.follow(served[2]).last == served[2].receipt


OFFERS = {
    "the first round again": lambda s, one, two: restarted(s),
    "the round that it holds": lambda s, one, two: restarted(s, one),
    "a round after a gap": lambda s, one, two: s.sign(replace(restarted(s, one, two), number=4)),
    "a round after another chain": lambda s, one, two: s.sign(
        replace(restarted(s, one, two), previous=digest(one))
    ),
    "another federation": lambda s, one, two: s.sign(
        replace(restarted(s, one, two), federation=bytes(32))
    ),
    "another model": lambda s, one, two: s.sign(replace(restarted(s, one, two), model=one.model)),
}


@pytest.mark.parametrize("what", OFFERS)
def test_a_client_refuses_to_join(chain, what):
    simulation, (one, two, _), client = chain
    one, two = one.receipt, two.receipt
    with pytest.raises(ReceiptRefused):
        simulation.join(client, OFFERS[what](simulation, one, two))
    assert simulation.join(client, restarted(simulation, one, two)).offer.number == 3


def test_two_receipts_for_one_round_are_proof_of_a_fork(chain):
    """Clients that have lost their memory let a second outcome be released."""
    simulation, (one, two, _), client = chain
    simulation.restart(one.receipt)
    simulation.clients = [simulation.client(row).follow(one) for row in range(7)]
    other = play(simulation).receipt
    assert other.number == two.receipt.number
    with pytest.raises(Fork) as caught:
        client.follow(simulation.certify(other))
    assert (caught.value.held, caught.value.other) == (two.receipt, other)


def test_altered_receipts_do_not_open(chain):
    simulation, (*_, three), client = chain
    for change in (
        {"number": 9},
        {"aggregate": b"a" * 32},
        {"model": bytes(32)},
        {"revision": 2},
        {"evidence": "sgx"},
        {"failure": "the rule failed"},
        {"cohort": bytes(32)},
        {"kept": 1},
        {"masking": "exact"},
        {"cautions": ("none",)},
        {"disclosed": True},
        {"signature": bytes(64)},
    ):
        with pytest.raises(OpenError):
            client.follow(replace(three, receipt=replace(three.receipt, **change)))
    for signer in (simulation.stranger, simulation.identities[0]):
        with pytest.raises(OpenError):
            client.follow(replace(three, receipt=signer.sign(three.receipt)))


# What a client that takes part in a round refuses as its outcome.


@pytest.fixture
def submitted(simulate):
    """A client that waits, and the outcome as it was served, with its model."""
    simulation = simulate()
    round_ = simulation.open()
    waiting = simulation.join(simulation.clients[0], round_.offer).seal(simulation.rows[0])
    round_.send_all()
    proposed = round_.finish()
    return simulation, waiting, simulation.confirm(proposed), proposed.state.model


def test_a_client_accepts_the_outcome(submitted):
    _, waiting, served, model = submitted
    after = waiting.finish(served, model)
    assert after.last == served.receipt
    assert after.name == "client-0"


def test_a_client_refuses_another_model(submitted):
    _, waiting, served, model = submitted
    wrong = model.copy()
    wrong[7] = np.nextafter(wrong[7], np.float32(9))
    for other in (wrong, wrong[:-1], wrong.astype(np.float64), -model):
        with pytest.raises(ReceiptRefused, match="model"):
            waiting.finish(served, other)
    assert waiting.finish(served, model).last == served.receipt


def test_a_client_refuses_the_receipt_of_another_round(submitted):
    simulation, waiting, _, model = submitted
    simulation.restart()
    simulation.clients = [simulation.client(row) for row in range(7)]
    other = play(simulation)
    with pytest.raises(ReceiptRefused, match="another round"):
        waiting.finish(other, model)


def test_a_client_refuses_a_receipt_that_contradicts_the_offer(submitted):
    """The receipt has another id, or another place in the chain, before or after the offer's."""
    simulation, waiting, served, model = submitted
    changes = ({"number": 7}, {"previous": bytes([1]) * 32})
    for change in (*changes, {"round_id": bytes(32)}, {"round_id": b"\xff" * 32}):
        with pytest.raises(ReceiptRefused):
            waiting.finish(simulation.certify(replace(served.receipt, **change)), model)
    same = simulation.certify(served.receipt)
    assert waiting.finish(same, model).last == served.receipt


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


def test_a_rule_that_is_not_robust_is_cautioned_of():
    rows = np.random.default_rng(0).standard_normal((8, 20))
    for rule, f, cautioned in (("mean", 2, True), ("mean", 0, False), ("multi-krum", 2, False)):
        cautions = run_round(rows, f=f, rule=rule).receipt.cautions
        assert any("not robust" in each for each in cautions) == cautioned

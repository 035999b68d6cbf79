"""The seam of aggregation rules: a new one is a class and a line in the table."""

from dataclasses import replace

import numpy as np
import pytest

import ostraka
from ostraka.config import Manifest, Terms
from ostraka.core import rules
from ostraka.core.rules import Gram, Options, Weights
from ostraka.errors import (
    ConfigError,
    LocalProtocolError,
    ReceiptRefused,
    RoundFailed,
    TooFewUpdates,
)
from ostraka.protocol import round as specification
from ostraka.protocol.enclave import decide

ROWS = (1 + 0.1 * np.random.default_rng(0).normal(size=(6, 40))).astype(np.float32)


class Shortest:
    """Averages the f + 2 rows of smallest norm, with weights that fall from row to row."""

    def least(self, f: int) -> int:
        return f + 2

    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        shortest = np.argsort(np.diagonal(gram.products), kind="stable")[: f + 2]
        weights = np.zeros(len(gram.products))
        weights[np.sort(shortest)] = np.arange(f + 2, 0, -1)
        return Weights(weights / weights.sum())


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(rules.RULES, "shortest", Shortest())


@pytest.mark.parametrize("masking", ["exact", "none"])
def test_a_registered_rule_decides_what_is_averaged(masking):
    # Lengths that rounding cannot confuse. This rule leaves out the longest three.
    rows = ROWS * np.array([[1], [1.4], [1.1], [3], [1.2], [1.3]], np.float32)
    result = ostraka.run_round(rows, f=1, rule="shortest", masking=masking, clip_norm=1e3)
    order = np.argsort(np.linalg.norm(rows.astype(np.float64), axis=1))
    assert result.selected == tuple(sorted(order[:3].tolist()))
    np.testing.assert_allclose(result.weights[list(result.selected)], [3 / 6, 2 / 6, 1 / 6])
    assert result.weights.sum() == pytest.approx(1)
    expected = result.weights @ rows.astype(np.float64)
    np.testing.assert_allclose(result.aggregate, expected, rtol=1e-6)
    assert (result.receipt.rule, result.receipt.kept) == ("shortest", 3)


def test_gaussian_masks_give_the_rule_inner_products_too():
    with pytest.warns(ostraka.errors.LeakyMasking):
        result = ostraka.run_round(ROWS, f=1, rule="shortest", masking="gaussian", clip_norm=1e3)
    order = np.argsort(np.linalg.norm(ROWS.astype(np.float64), axis=1))
    assert result.selected == tuple(sorted(order[:3].tolist()))


def test_a_sketch_keeps_inner_products_and_not_only_distances():
    rows = (1 + np.random.default_rng(1).normal(size=(6, 20_000))).astype(np.float32)
    rows *= np.array([1, 2, 3, 4, 5, 6], np.float32)[:, None]
    result = ostraka.run_round(
        rows, f=1, rule="shortest", masking="none", sketch=4096, clip_norm=1e9
    )
    assert result.selected == (0, 1, 2)


def test_the_least_number_of_clients_is_asked_of_the_rule():
    ostraka.run_round(ROWS[:4], f=2, rule="shortest", masking="none")
    with pytest.raises(ConfigError, match="shortest needs at least 5 clients; got n=4, f=3"):
        ostraka.run_round(ROWS[:4], f=3, rule="shortest", masking="none")
    with pytest.raises(ConfigError, match="multi-krum needs at least 5 clients; got n=4, f=1"):
        ostraka.run_round(ROWS[:4], f=1, masking="none")


def test_a_round_that_loses_too_many_names_its_rule():
    rows = ROWS.copy()
    rows[:5, 0] = np.nan
    with pytest.raises(TooFewUpdates, match="shortest needs at least 2 updates"):
        ostraka.run_round(rows, f=3, rule="shortest", masking="none")


def test_a_rule_that_is_not_in_the_table_is_refused():
    with pytest.raises(ConfigError, match="rule is one of multi-krum, shortest; got 'median'"):
        ostraka.run_round(ROWS, f=1, rule="median")


def test_every_client_checks_the_receipt_before_it_goes_on(monkeypatch):
    """The specification ends as the protocol ends: a receipt that lies stops the round."""
    parties = specification.enrol(Terms(Manifest.flat(40), f=1, masking="none"), clients=6)
    first = specification.play(parties, ROWS)
    assert {client.last for client in parties.clients} == {first.receipt}
    second = specification.play(parties, ROWS)
    assert second.receipt.number == 2
    assert {client.last for client in parties.clients} == {second.receipt}

    release = parties.federation.release

    def altered():
        proposed, certified = release()
        state = replace(proposed.state, model=proposed.state.model + 1)
        return replace(proposed, state=state), certified

    monkeypatch.setattr(parties.federation, "release", altered)
    with pytest.raises(ReceiptRefused, match="model"):
        specification.play(parties, ROWS)


class OneRow(Shortest):
    """Publishes a single client's update."""

    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        return Weights(np.eye(len(gram.products))[0])


class Doubled(Shortest):
    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        return Weights(2 * super().plan(gram, f, options).values)


class Negative(Shortest):
    def plan(self, gram: Gram, f: int, options: Options) -> Weights:
        return Weights(np.array([-1.0, 1.0, 1.0, *np.zeros(len(gram.products) - 3)]))


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (OneRow(), "at least f \\+ 2 = 3 rows"),
        (Doubled(), "their sum 1"),
        (Negative(), "at least 0"),
    ],
)
def test_a_plan_that_would_show_or_steer_too_much_is_not_carried_out(
    monkeypatch, simulate, rule, why
):
    """The round is a null step: what a rule does on some rows may depend on any of them."""
    monkeypatch.setitem(rules.RULES, "shortest", rule)
    round_ = simulate(rows=ROWS, rule="shortest").open()
    round_.send_all()
    round_.close()
    round_.measure()
    with pytest.raises(LocalProtocolError, match=why):
        decide(round_.cohort, round_.measured)
    with pytest.raises(RoundFailed, match=r"rule failed on these updates \(LocalProtocolError\)"):
        ostraka.run_round(ROWS, f=1, rule="shortest", masking="none")


def test_a_client_refuses_a_receipt_of_another_rule():
    parties = specification.enrol(Terms(Manifest.flat(40), f=1, masking="none"), clients=6)
    first = specification.play(parties, ROWS)
    (served,) = parties.federation.published
    client = replace(parties.clients[0], last=None)
    assert client.follow(served).last == first.receipt
    identity = parties.federation.enclave._identity
    others = replace(first.receipt, rule="shortest"), replace(first.receipt, masking="exact")
    for other in others:
        with pytest.raises(ReceiptRefused, match="another rule or masking"):
            client.follow(replace(served, receipt=identity.sign(other)))
